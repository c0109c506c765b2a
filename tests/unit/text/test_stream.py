"""Streaming decoder: whole characters only, and in sum the one-shot decoding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from make.tiny_tokenizer import CONTROL
from ninfer.errors import RequestError
from ninfer.text.stream import StreamDecoder
from ninfer.text.tokenizer import Tokenizer

FIRST_BYTE = len(CONTROL)
COPY = "\u9c57 \u9e93 \u0151 \U0001f468\u200d\U0001f33e \U0001d6d1"


def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    return {tokenizer.token_bytes(i)[0]: i for i in range(FIRST_BYTE, FIRST_BYTE + 256)}


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_control: bool = True) -> list[str]:
    decoder = StreamDecoder(tokenizer, skip_control=skip_control)
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


@given(st.lists(st.integers(0, FIRST_BYTE + 267)), st.booleans())
def test_joined_is_the_one_shot_decoding_of_any_ids(tiny: Tokenizer, ids: list[int], skip_control: bool) -> None:
    expected = tiny.decode(ids, skip_control=skip_control)
    assert "".join(streamed(tiny, ids, skip_control=skip_control)) == expected


@given(st.binary(max_size=12))
def test_joined_is_the_one_shot_decoding_of_any_bytes(tiny: Tokenizer, data: bytes) -> None:
    ids = [FIRST_BYTE + byte for byte in data]
    assert "".join(streamed(tiny, ids)) == data.decode("utf-8", errors="replace")


@given(st.text())
def test_no_piece_is_half_a_character(tiny: Tokenizer, text: str) -> None:
    ids = [byte_ids(tiny)[byte] for byte in text.encode()]
    pieces = streamed(tiny, ids)
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)  # one byte per token: each character when it is complete


def test_unfinished_character_appears_as_replacement_only_at_the_end(tiny: Tokenizer) -> None:
    first, second, third = (byte_ids(tiny)[byte] for byte in "\u6b4c".encode())
    assert streamed(tiny, [first, second]) == ["", "", "\ufffd"]
    assert streamed(tiny, [first, second, third]) == ["", "", "\u6b4c", ""]


def test_lone_bad_byte_is_shown_at_once(tiny: Tokenizer) -> None:
    ids = byte_ids(tiny)
    assert streamed(tiny, [ids[0xFF], ids[0x41]]) == ["\ufffd", "A", ""]
    assert streamed(tiny, [ids[0xE6], ids[0x41]]) == ["", "\ufffdA", ""]


def test_bad_id_is_a_request_error(tiny: Tokenizer) -> None:
    with pytest.raises(RequestError, match="9999"):
        StreamDecoder(tiny).push(9999)


@pytest.mark.real_model
def test_real_vocabulary_streams_like_it_decodes(smollm: Tokenizer) -> None:
    ids = smollm.encode(COPY)
    assert len(ids) > len(COPY)  # several tokens per character, or the case is not the one meant
    pieces = streamed(smollm, ids)
    assert "".join(pieces) == COPY
    assert all("\ufffd" not in piece for piece in pieces)
    rng = random.Random(5)
    for _ in range(300):
        ids = rng.choices(range(smollm.vocab_size), k=rng.randint(1, 60))
        assert "".join(streamed(smollm, ids)) == smollm.decode(ids)
