"""Byte-level BPE in plain Python, from its description alone: split, spell bytes, merge the lowest rank, look up."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

import regex

# Each pattern is written from the model's own documentation, apart from the code under test.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")


def byte_alphabet() -> list[str]:
    """The character of each byte: printable ones themselves, the rest from U+0100 up."""
    letters, following = [], 0x100
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters.append(chr(byte))
        else:
            letters.append(chr(following))
            following += 1
    return letters


def isolate_digits(text: str) -> list[str]:
    return [piece for piece in regex.split(r"(\p{N})", text) if piece]


def splitter(pre: str) -> Callable[[str], list[str]]:
    """Pieces of a text, in order and complete, by the rule of one `tokenizer.ggml.pre` word."""
    pattern = {"gpt-2": GPT2, "smollm": GPT2, "llama-bpe": LLAMA3, "qwen2": QWEN2, "qwen35": QWEN35}[pre]
    compiled = regex.compile(pattern)

    def split(text: str) -> list[str]:
        if pre.startswith("qwen"):
            text = unicodedata.normalize("NFC", text)
        parts = isolate_digits(text) if pre == "smollm" else [text]
        pieces = [piece for part in parts for piece in compiled.findall(part)]
        assert "".join(pieces) == text
        return pieces

    return split


class Oracle:
    """Encodes ordinary text; control tokens and added words are not its business."""

    def __init__(self, pre: str, tokens: Sequence[str], merges: Sequence[str]) -> None:
        self._split = splitter(pre)
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._letters = byte_alphabet()
        self._whole_pieces = pre == "llama-bpe"
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        return [token_id for piece in self._split(text) for token_id in self._piece(piece)]

    def _piece(self, piece: str) -> list[int]:
        if piece not in self._known:
            self._known[piece] = [self._ids[symbol] for symbol in self._merged(piece)]
        return self._known[piece]

    def _merged(self, piece: str) -> list[str]:
        symbols = [self._letters[byte] for byte in piece.encode("utf-8")]
        if self._whole_pieces and "".join(symbols) in self._ids:
            return ["".join(symbols)]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
        return symbols
