"""The rebuilt tokenizer against an independent oracle, the reference classes, and hand-made wrong metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
from bpe_oracle import Oracle, byte_alphabet

from make.strings import varied_strings
from make.tiny_tokenizer import tiny_metadata
from ninfer.errors import ArtifactError, UnsupportedError
from ninfer.text.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer

PRES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35")
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@cache
def trained_metadata() -> dict[str, Any]:
    """A vocabulary whose merges cross words, digits and line ends, so that every wrong split shows in the ids."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=2600, initial_alphabet=byte_alphabet(), show_progress=False)
    library.train_from_iterator(varied_strings(1500, seed=2), trainer)
    model = json.loads(library.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in model["merges"]]
    return tiny_metadata(tokens=tokens, token_type=[1] * len(tokens), merges=merges, bos_token_id=0, eos_token_id=0)


def rebuilt(metadata: dict[str, Any], **changes: Any) -> Tokenizer:
    changed = metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return Tokenizer.from_json(tokenizer_json_from_gguf(changed))


def first_difference(texts: Sequence[str], ours: Any, theirs: Any) -> str | None:
    """The first string on which two encoders disagree, for the message of a failing test."""
    return next((text for text in texts if ours(text) != theirs(text)), None)


class TestAgainstOracle:
    @pytest.mark.parametrize("pre", PRES)
    def test_ids_are_those_of_plain_python(self, pre: str) -> None:
        metadata = trained_metadata()
        oracle = Oracle(pre, metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"])
        texts = varied_strings(2500)
        assert len(texts) == len(set(texts)) == 2500
        assert first_difference(texts, rebuilt(metadata, pre=pre).encode, oracle.encode) is None

    def test_the_strings_tell_all_rules_apart(self) -> None:
        texts = varied_strings(2500)
        seen = {}
        for pre in PRES:
            tokenizer = rebuilt(trained_metadata(), pre=pre)
            seen[pre] = tuple(tuple(tokenizer.encode(text)) for text in texts)
        assert len(set(seen.values())) == len(PRES)

    @pytest.mark.parametrize("pre", [pre for pre in PRES if not pre.startswith("qwen")])
    def test_round_trip_is_exact(self, pre: str) -> None:
        tokenizer = rebuilt(trained_metadata(), pre=pre)
        assert (
            first_difference(varied_strings(2500), lambda text: tokenizer.decode(tokenizer.encode(text)), str) is None
        )


class TestAgainstReferenceClasses:
    @pytest.mark.parametrize(
        ("pre", "module", "name"),
        [
            ("gpt-2", "gpt2", "GPT2Tokenizer"),
            ("qwen2", "qwen2", "Qwen2Tokenizer"),
            ("qwen35", "qwen3_5", "Qwen3_5Tokenizer"),
        ],
    )
    def test_same_stages_and_same_ids(self, pre: str, module: str, name: str) -> None:
        transformers = pytest.importorskip("transformers")
        reference_class = getattr(getattr(transformers.models, module), name)
        metadata = trained_metadata()
        vocab = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        reference = reference_class(vocab=vocab, merges=merges)
        theirs = json.loads(reference.backend_tokenizer.to_str())
        ours = json.loads(tokenizer_json_from_gguf(metadata | {"tokenizer.ggml.pre": pre}))
        assert without_offsets(ours["pre_tokenizer"]) == without_offsets(theirs["pre_tokenizer"])
        assert ours["normalizer"] == theirs["normalizer"]
        texts = [text for text in varied_strings(2500, seed=3) if "<|endoftext|>" not in text]
        tokenizer = rebuilt(metadata, pre=pre)
        assert first_difference(texts, tokenizer.encode, partial(reference.encode, add_special_tokens=False)) is None

    def test_llama3_pattern_is_that_of_the_tiktoken_converter(self) -> None:
        converter = pytest.importorskip("transformers.convert_slow_tokenizer").TikTokenConverter
        document = json.loads(tokenizer_json_from_gguf(trained_metadata() | {"tokenizer.ggml.pre": "llama-bpe"}))
        (split, _) = document["pre_tokenizer"]["pretokenizers"]
        assert split["pattern"] == {"Regex": converter().pattern}
        assert document["model"]["ignore_merges"] is True


def without_offsets(stage: dict[str, Any]) -> dict[str, Any]:
    """A pre-tokenizer without the switch that only moves character offsets, which we never ask for."""
    inner = [without_offsets(part) for part in stage.get("pretokenizers", ())]
    kept = {key: value for key, value in stage.items() if key != "trim_offsets"}
    return kept | ({"pretokenizers": inner} if inner else {})


class TestMetadata:
    def test_equal_metadata_give_equal_bytes(self) -> None:
        assert tokenizer_json_from_gguf(tiny_metadata()) == tokenizer_json_from_gguf(
            dict(reversed(list(tiny_metadata().items())))
        )

    def test_token_types(self) -> None:
        document = json.loads(tokenizer_json_from_gguf(tiny_metadata()))
        assert [(t["content"], t["special"]) for t in document["added_tokens"][-2:]] == [
            ("[EOS]", True),
            ("<think>", False),
        ]
        assert "[PAD0]" not in document["model"]["vocab"]

    def test_merge_that_looks_like_a_comment_is_kept(self) -> None:
        base = tiny_metadata()
        tokens = [*base["tokenizer.ggml.tokens"], "#version", "#versionA"]
        types = [*base["tokenizer.ggml.token_type"], 1, 1]
        spelled = ["v e", "ve r", "ver s", "vers i", "versi o", "versio n", "# version"]
        tokens += ["ve", "ver", "vers", "versi", "versio", "version"]
        types += [1] * 6
        tokenizer = rebuilt(base, tokens=tokens, token_type=types, merges=[*spelled, "#version A"], pre="qwen2")
        assert tokenizer.encode("#versionA") == [tokens.index("#versionA")]

    def test_begin_token_default_is_that_of_the_rule(self) -> None:
        assert rebuilt(tiny_metadata(pre="llama-bpe")).bos_ids == (1,)
        assert rebuilt(tiny_metadata(pre="llama-bpe", add_bos_token=False)).bos_ids == ()
        assert rebuilt(tiny_metadata()).bos_ids == ()

    def test_config_names_the_special_tokens(self) -> None:
        config = json.loads(tokenizer_config_from_gguf(tiny_metadata(unknown_token_id=0, add_bos_token=True)))
        assert config == {
            "add_bos_token": True,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": None,
            "unk_token": "<|endoftext|>",
        }

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model": "llama"}, "'llama'"),
            ({"model": "t5"}, "'t5'"),
            ({"pre": "tekken"}, "'tekken'; supported pre-tokenizers: gpt-2, llama-bpe, qwen2, qwen35, smollm"),
            ({"pre": "default"}, "'default'"),
            ({"add_space_prefix": True}, "add_space_prefix"),
        ],
    )
    def test_unknown_kind_is_refused_by_name(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(UnsupportedError, match=message):
            tokenizer_json_from_gguf(tiny_metadata(**changes))

    @pytest.mark.parametrize(
        ("changes", "field", "message"),
        [
            ({"model": None}, "model", "missing"),
            ({"pre": 3}, "pre", "not text"),
            ({"tokens": None}, "tokens", "missing"),
            ({"tokens": "abc"}, "tokens", "not an array"),
            ({"tokens": [1, 2]}, "tokens", "element 0"),
            ({"tokens": ["a", "a"], "token_type": [1, 1]}, "tokens", "'a' occurs twice"),
            ({"tokens": ["a", ""], "token_type": [1, 3]}, "tokens", "added token 1 is empty"),
            ({"token_type": None}, "token_type", "missing"),
            ({"token_type": [1]}, "token_type", "1 types for"),
            ({"tokens": ["a"], "token_type": [6], "merges": []}, "token_type", "type 6"),
            ({"merges": ["h e l"]}, "merges", "merge 0 is 'h e l'"),
            ({"merges": ["h e", "nope e"]}, "merges", "merge 1"),
            ({"merges": None}, "merges", "missing"),
            ({"bos_token_id": 10**6, "add_bos_token": True}, "bos_token_id", "1000000 is not a token id"),
            ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id", "missing although"),
            ({"add_bos_token": "yes"}, "add_bos_token", "'yes' is not true or false"),
        ],
    )
    def test_wrong_metadata_names_the_field(self, changes: dict[str, Any], field: str, message: str) -> None:
        with pytest.raises(ArtifactError, match=message) as caught:
            tokenizer_json_from_gguf(tiny_metadata(**changes))
        assert caught.value.field == f"tokenizer.ggml.{field}"


@pytest.mark.real_model
class TestRealModel:
    def test_golden_chat_prompt(self, smollm: Tokenizer) -> None:
        prompt = (
            f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n"
            "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        )
        # fmt: off
        golden = [
            1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2,
            198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
        ]
        # fmt: on
        assert smollm.encode(prompt, allow_control=True) == golden
        answer = [504, 3575, 282, 4649, 314, 7042, 30, 2]
        assert smollm.decode(answer) == "The capital of France is Paris."

    def test_ids_are_those_of_plain_python(self, smollm: Tokenizer, real_metadata: dict[str, Any]) -> None:
        oracle = Oracle("smollm", real_metadata["tokenizer.ggml.tokens"], real_metadata["tokenizer.ggml.merges"])
        texts = varied_strings(3000, seed=4)
        assert first_difference(texts, smollm.encode, oracle.encode) is None
        assert first_difference(texts, lambda text: smollm.decode(smollm.encode(text)), str) is None

    def test_ids_with_control_are_those_of_transformers(self, smollm: Tokenizer, real_metadata: dict[str, Any]) -> None:
        transformers = pytest.importorskip("transformers")
        from tokenizers import Tokenizer as Library

        library = Library.from_buffer(tokenizer_json_from_gguf(real_metadata))
        reference = transformers.PreTrainedTokenizerFast(tokenizer_object=library)
        texts = varied_strings(3000, seed=5)
        theirs = partial(reference.encode, add_special_tokens=False)
        assert first_difference(texts, partial(smollm.encode, allow_control=True), theirs) is None

    def test_ids_are_those_of_the_transformers_gguf_import(self, smollm: Tokenizer, real_gguf: Any) -> None:
        mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
        architecture, described, _ = mapping.get_gguf_tokenizer(str(real_gguf))
        imported, _ = mapping.convert_gguf_tokenizer(architecture, described)
        # That import knows no `smollm` splitting and joins digits, so it is a witness for text without numerals only.
        texts = [text for text in varied_strings(3000, seed=6) if not any(char.isnumeric() for char in text)]
        assert len(texts) > 2000
        for text in texts:
            assert smollm.encode(text, allow_control=True) == imported.encode(text, add_special_tokens=False).ids, text

    def test_rebuilding_is_deterministic(self, real_metadata: dict[str, Any]) -> None:
        assert tokenizer_json_from_gguf(real_metadata) == tokenizer_json_from_gguf(dict(real_metadata))
