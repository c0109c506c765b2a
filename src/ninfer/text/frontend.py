"""Tokenizer and chat template from the resources that travel inside a model file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ninfer.errors import ArtifactError
from ninfer.text.heap import trim_heap
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

TOKENIZER = "frontend/tokenizer.json"
TOKENIZER_CONFIG = "frontend/tokenizer_config.json"
CHAT_TEMPLATE = "frontend/chat_template.jinja"


def load_frontend(
    find_resource: Callable[[str], bytes | None], *, file: object = None
) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """(tokenizer, chat template) of a model; None for what it does not bring. A template needs a tokenizer.

    `find_resource`: content of a resource by name, None if absent. `file`: named in errors. `tokenizer_config.json`
    gives the template its special texts (`bos_token`, ...); its `add_bos_token`, where present, decides about BOS over
    the tokenizer's own post-processor, as in the reference loader. Raises `ArtifactError` and `UnsupportedError`.
    """
    data = find_resource(TOKENIZER)
    if data is None:
        return None, None
    config = _config(find_resource(TOKENIZER_CONFIG), file)
    texts = {name: text for name, value in config.items() if name.endswith("_token") and (text := _token_text(value))}
    tokenizer = Tokenizer.from_json(data, file=file)
    del data
    trim_heap()
    match config.get("add_bos_token"):
        case True:
            bos = texts.get("bos_token", "")
            if bos not in tokenizer.control_tokens:
                raise ArtifactError(
                    f"BOS is to be added, but bos_token {bos!r} is no control token", file=file, field=TOKENIZER_CONFIG
                )
            tokenizer = tokenizer.beginning_with(tokenizer.control_tokens[bos])
        case False:
            tokenizer = tokenizer.beginning_with()
    source = find_resource(CHAT_TEMPLATE)
    if source is None:
        return tokenizer, None
    try:
        template = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"not UTF-8 text: {error}", file=file, field=CHAT_TEMPLATE) from error
    return tokenizer, ChatTemplate(template, tokenizer, special_texts=texts, file=file)


def _config(data: bytes | None, file: object) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"not JSON: {error}", file=file, field=TOKENIZER_CONFIG) from error
    if not isinstance(config, dict):
        raise ArtifactError("not a JSON object", file=file, field=TOKENIZER_CONFIG)
    return config


def _token_text(value: object) -> str | None:
    """The text of a special token: stored as text, or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
