"""A model's frontend resources: what is present is loaded, what is wrong is named."""

from __future__ import annotations

import json

import pytest

from make.tiny_tokenizer import tiny_metadata
from ninfer.errors import ArtifactError
from ninfer.text.frontend import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, load_frontend
from ninfer.text.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_json_from_gguf

TEMPLATE = b"{{ bos_token }}{{ messages[0].content }}"


def resources(config: dict[str, object] | None = None, template: bytes | None = TEMPLATE) -> dict[str, bytes]:
    found = {TOKENIZER: tokenizer_json_from_gguf(tiny_metadata(add_bos_token=True))}
    if config is not None:
        found[TOKENIZER_CONFIG] = json.dumps(config).encode()
    if template is not None:
        found[CHAT_TEMPLATE] = template
    return found


def test_absent_resources_are_none() -> None:
    assert load_frontend({}.get) == (None, None)
    tokenizer, template = load_frontend(resources(template=None).get)
    assert tokenizer is not None
    assert template is None


def test_special_texts_reach_the_template_in_both_stored_forms() -> None:
    for bos in ("<|im_start|>", {"content": "<|im_start|>", "lstrip": False}):
        tokenizer, template = load_frontend(resources({"bos_token": bos, "model_max_length": 3}).get)
        assert tokenizer is not None
        assert template is not None
        assert template.encode([{"role": "user", "content": "hello"}]) == [1, *tokenizer.encode("hello")]


@pytest.mark.parametrize(("flag", "begin"), [(True, (3,)), (False, ()), (None, (1,))])
def test_begin_flag_of_the_config_decides_where_present(flag: bool | None, begin: tuple[int, ...]) -> None:
    tokenizer, _ = load_frontend(resources({"bos_token": "<s>", "add_bos_token": flag}).get)
    assert tokenizer is not None
    assert tokenizer.bos_ids == begin


def test_config_rebuilt_from_gguf_agrees_with_its_tokenizer() -> None:
    for metadata in (tiny_metadata(), tiny_metadata(add_bos_token=True), tiny_metadata(pre="llama-bpe")):
        alone, _ = load_frontend({TOKENIZER: tokenizer_json_from_gguf(metadata)}.get)
        with_config, _ = load_frontend(
            {TOKENIZER: tokenizer_json_from_gguf(metadata), TOKENIZER_CONFIG: tokenizer_config_from_gguf(metadata)}.get
        )
        assert alone is not None
        assert with_config is not None
        assert with_config.bos_ids == alone.bos_ids


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (TOKENIZER, b"{", "tokenizer.json: not a usable tokenizer"),
        (TOKENIZER_CONFIG, b"{", "not JSON"),
        (TOKENIZER_CONFIG, b"[]", "not a JSON object"),
        (TOKENIZER_CONFIG, b'{"add_bos_token": true}', "bos_token '' is no control token"),
        (TOKENIZER_CONFIG, b'{"add_bos_token": true, "bos_token": "hello"}', "bos_token 'hello' is no control token"),
        (CHAT_TEMPLATE, b"\xff", "not UTF-8"),
    ],
)
def test_broken_resource_is_named(name: str, data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        load_frontend((resources({}) | {name: data}).get, file="m.ninfer")
    assert caught.value.file == "m.ninfer"
    assert caught.value.field is not None
    assert caught.value.field.endswith(name.removeprefix("frontend/"))
