"""What an answer is made of, in order: thinking, text, tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ninfer.text.tool_calls import CallParser, ToolCall


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the thinking block. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call. index: from 0 within the answer; key: unique for all time, the part of its id behind a prefix."""

    index: int
    key: str
    name: str
    arguments: str


Piece = Thought | Said | Called


class PieceReader:
    """Text of an answer to pieces, as it comes."""

    def __init__(self, calls: CallParser | None) -> None:
        self._calls = calls
        self._num_calls = 0

    def push(self, thinking: str, text: str) -> list[Piece]:
        """The pieces of new text."""
        found: list[Piece] = [Thought(thinking)] if thinking else []
        if self._calls is None:
            return [*found, Said(text)] if text else found
        return found + [self._piece(piece) for piece in self._calls.push(text)] if text else found

    def finish(self) -> list[Piece]:
        """The pieces that were held back."""
        return [] if self._calls is None else [self._piece(piece) for piece in self._calls.finish()]

    def _piece(self, piece: str | ToolCall) -> Piece:
        if isinstance(piece, str):
            return Said(piece)
        self._num_calls += 1
        return Called(self._num_calls - 1, uuid.uuid4().hex[:24], piece.name, piece.arguments)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind put together: what the parts of a stream add up to."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(last, Said) and isinstance(piece, Said):
            found[-1] = Said(last.text + piece.text)
        elif isinstance(last, Thought) and isinstance(piece, Thought):
            found[-1] = Thought(last.text + piece.text)
        else:
            found.append(piece)
    return found


def said(pieces: Sequence[Piece]) -> str:
    """The text of an answer."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Said))


def thought(pieces: Sequence[Piece]) -> str:
    """The thinking before it."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Thought))


def called(pieces: Sequence[Piece]) -> list[Called]:
    """Its tool calls."""
    return [piece for piece in pieces if isinstance(piece, Called)]
