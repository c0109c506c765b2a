"""A `tokenizer.json` rebuilt exactly from the tokenizer metadata of a GGUF file.

A GGUF names its pre-tokenizer by one word (`tokenizer.ggml.pre`) and leaves the rule to the reader. Each word below is
one we can prove against the definition that the model's own tokenizer has; any other is refused by name, because a
wrong split gives ids that look right and are not. Sources of the rules:

| pre | definition |
|---|---|
| `gpt-2` | transformers `GPT2Tokenizer`: the GPT-2 pattern, no normaliser |
| `smollm` | SmolLM2's tokenizer: every numeric character alone, then the GPT-2 pattern |
| `llama-bpe` | Llama 3 (tiktoken pattern); a piece that is a token is not merged; BOS unless the file says no |
| `qwen2` | transformers `Qwen2Tokenizer`: NFC, its pattern |
| `qwen35` | transformers `Qwen3_5Tokenizer`: NFC, its pattern, in which letters include combining marks |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.errors import ArtifactError, UnsupportedError

_KEY = "tokenizer.ggml."

# Values of tokenizer.ggml.token_type (gguf TokenType).
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_BYTE_MAP = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2_SPLIT_AND_BYTE_MAP = {**_BYTE_MAP, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _BYTE_MAP]}


@dataclass(frozen=True)
class _Rules:
    """What one word of `tokenizer.ggml.pre` stands for, in the terms of `tokenizer.json`."""

    pre_tokenizer: Mapping[str, Any]
    normalizer: Mapping[str, Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False  # when the file does not say


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_RULES: Mapping[str, _Rules] = {
    "gpt-2": _Rules(_GPT2_SPLIT_AND_BYTE_MAP),
    "smollm": _Rules(
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2_SPLIT_AND_BYTE_MAP],
        }
    ),
    "llama-bpe": _Rules(
        _split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES),
        ignore_merges=True,
        add_bos=True,
    ),
    "qwen2": _Rules(
        _split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES),
        normalizer={"type": "NFC"},
    ),
    "qwen35": _Rules(
        _split(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES),
        normalizer={"type": "NFC"},
    ),
}


def tokenizer_json_from_gguf(metadata: Mapping[str, Any]) -> bytes:
    """The `tokenizer.json` that the GGUF metadata describes; equal metadata give equal bytes.

    `metadata`: GGUF key -> value, arrays as sequences. Token types: control tokens become special added tokens,
    user-defined ones plain added tokens, unused ones are left out. Raises `UnsupportedError` for a tokenizer model or
    pre-tokenizer we have no proof for, `ArtifactError` (field = the key) for missing or contradicting metadata.
    """
    model = _text(metadata, "model")
    if model != "gpt2":
        raise UnsupportedError(f"{_KEY}model is {model!r}; only 'gpt2' (byte-level BPE) tokenizers are supported")
    pre = _text(metadata, "pre")
    rules = _RULES.get(pre)
    if rules is None:
        raise UnsupportedError(f"{_KEY}pre is {pre!r}; supported pre-tokenizers: {', '.join(sorted(_RULES))}")
    if _flag(metadata, "add_space_prefix", default=False):
        raise UnsupportedError(f"{_KEY}add_space_prefix is true, which no supported byte-level tokenizer has")

    tokens = _texts(metadata, "tokens")
    types = _types(metadata, len(tokens))
    added = [_added(i, text, kind) for i, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _NORMAL]
    vocab = {text: i for i, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    if len(vocab) != sum(kind != _UNUSED for kind in types):
        twice = next(text for i, text in enumerate(tokens) if types[i] != _UNUSED and vocab[text] != i)
        raise ArtifactError(f"token {twice!r} occurs twice", field=_KEY + "tokens")
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token for token in added if token is not None],
        "normalizer": rules.normalizer,
        "pre_tokenizer": rules.pre_tokenizer,
        "post_processor": _post_processor(metadata, rules, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignore_merges,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def tokenizer_config_from_gguf(metadata: Mapping[str, Any]) -> bytes:
    """The `tokenizer_config.json` that goes with it: texts of the named special tokens, and whether BOS is added."""
    rules = _RULES.get(_text(metadata, "pre"))
    tokens = _texts(metadata, "tokens")
    named = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    config: dict[str, Any] = {
        "add_bos_token": _flag(metadata, "add_bos_token", default=rules is not None and rules.add_bos)
    }
    for name, key in named.items():
        token_id = _find_id(metadata, f"{key}_token_id", len(tokens))
        config[name] = None if token_id is None else tokens[token_id]
    return json.dumps(config, ensure_ascii=False, sort_keys=True).encode("utf-8")


def _added(token_id: int, text: str, kind: int) -> dict[str, Any] | None:
    if kind == _UNUSED:
        return None
    if kind not in (_CONTROL, _USER_DEFINED):
        raise ArtifactError(f"token {token_id} has type {kind}, which no byte-level BPE has", field=_KEY + "token_type")
    if not text:
        raise ArtifactError(f"added token {token_id} is empty", field=_KEY + "tokens")
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind == _CONTROL,
    }


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int]) -> list[str] | list[list[str]]:
    """Merges in rank order, as strings: that form loads a third faster. Only a pair like a comment needs the other."""
    pairs: list[list[str]] = []
    for rank, merge in enumerate(texts := _texts(metadata, "merges")):
        # A token may itself hold no space (it is U+0120 in the alphabet), so one space separates exactly two.
        pair = merge.split(" ")
        if len(pair) != 2 or not all(part in vocab for part in (*pair, "".join(pair))):
            raise ArtifactError(f"merge {rank} is {merge!r}, not two tokens that make a third", field=_KEY + "merges")
        pairs.append(pair)
    return pairs if any(text.startswith("#version") for text in texts) else texts


def _post_processor(metadata: Mapping[str, Any], rules: _Rules, tokens: Sequence[str]) -> dict[str, Any] | None:
    """The rule that puts BOS in front of, or EOS behind, a raw text, if the file asks for it."""
    begin, end = (
        _named_token(metadata, word, tokens) if _flag(metadata, f"add_{word}_token", default=default) else None
        for word, default in (("bos", rules.add_bos), ("eos", False))
    )
    if begin is None and end is None:
        return None

    def template(*slots: tuple[str, int]) -> list[dict[str, Any]]:
        pieces: list[dict[str, Any]] = []
        for name, type_id in slots:
            pieces += [{"SpecialToken": {"id": begin[1], "type_id": type_id}}] if begin else []
            pieces.append({"Sequence": {"id": name, "type_id": type_id}})
            pieces += [{"SpecialToken": {"id": end[1], "type_id": type_id}}] if end else []
        return pieces

    special = {text: {"id": text, "ids": [i], "tokens": [text]} for i, text in filter(None, (begin, end))}
    return {
        "type": "TemplateProcessing",
        "single": template(("A", 0)),
        "pair": template(("A", 0), ("B", 1)),
        "special_tokens": special,
    }


def _named_token(metadata: Mapping[str, Any], word: str, tokens: Sequence[str]) -> tuple[int, str]:
    token_id = _find_id(metadata, f"{word}_token_id", len(tokens))
    if token_id is None:
        raise ArtifactError(f"missing although a {word} token is to be added", field=f"{_KEY}{word}_token_id")
    return token_id, tokens[token_id]


def _find_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value = metadata.get(_KEY + name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ArtifactError(f"{value!r} is not a token id below {count}", field=_KEY + name)
    return value


def _text(metadata: Mapping[str, Any], name: str) -> str:
    value = metadata.get(_KEY + name)
    if not isinstance(value, str):
        raise ArtifactError("missing" if value is None else "is not text", field=_KEY + name)
    return value


def _flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = metadata.get(_KEY + name, default)
    if not isinstance(value, bool):
        raise ArtifactError(f"{value!r} is not true or false", field=_KEY + name)
    return value


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(_KEY + name)
    if value is None:
        raise ArtifactError("missing", field=_KEY + name)
    if isinstance(value, str) or not hasattr(value, "__len__"):
        raise ArtifactError("is not an array", field=_KEY + name)
    tolist = getattr(value, "tolist", None)  # NumPy arrays give Python values this way
    return tolist() if tolist is not None else list(value)


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    values = _array(metadata, name)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise ArtifactError(f"element {index} is not text", field=_KEY + name)
    return values


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    """One token type per token. Without them control tokens could not be told from text, so they are required."""
    types = _array(metadata, "token_type")
    if len(types) != count:
        raise ArtifactError(f"{len(types)} types for {count} tokens", field=_KEY + "token_type")
    return types
