"""Thinking and answer, told apart in a model's text as it comes.

A thinking block can only stand at the beginning: the prompt opened it, or the text begins with `<think>` after white
space. It ends at the first `</think>`; later tags are text of the answer. The newlines that templates put inside both
tags and behind the second belong to neither channel. None of this depends on how the text is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from ninfer.text.tokenizer import Tokenizer

OPEN = "<think>"
CLOSE = "</think>"

ThinkingStart = Literal["open", "possible", "closed"]
"""How a prompt leaves thinking: it opened a block, it has none, or it holds one that is closed already."""


class Channel(Enum):
    """Where text goes."""

    UNDECIDED = auto()
    """Nothing or a beginning of `<think>` so far."""
    THINKING = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class Pieces:
    """New text of both channels."""

    thinking: str = ""
    answer: str = ""


class ThinkingSplitter:
    """Splits one stream of text. What may become part of a tag, or of newlines to be dropped, is held back."""

    def __init__(self, *, is_open: bool) -> None:
        self.channel = Channel.THINKING if is_open else Channel.UNDECIDED
        self._held = ""
        self._at_start = True  # of the channel: its first newlines are dropped

    def push(self, text: str) -> Pieces:
        """Take more text; what can be told of both channels now."""
        self._held += text
        if self.channel is Channel.UNDECIDED:
            self._decide()
        thinking = self._thinking() if self.channel is Channel.THINKING else ""
        answer = self._answer() if self.channel is Channel.ANSWER else ""
        return Pieces(thinking, answer)

    def finish(self) -> Pieces:
        """The end of the stream. A closing tag that was cut short is dropped; what was no opening tag is the answer."""
        held, self._held = self._held, ""
        return Pieces() if self.channel is Channel.THINKING else Pieces(answer=held)

    def _decide(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self.channel = Channel.THINKING
            self._held = begun[len(OPEN) :]
        elif not OPEN.startswith(begun):
            self.channel = Channel.ANSWER
            self._at_start = False  # an answer without thinking is given as it is

    def _thinking(self) -> str:
        end = self._held.find(CLOSE)
        if end >= 0:
            shown = self._trimmed(self._held[:end]).rstrip("\n")
            self._held = self._held[end + len(CLOSE) :]
            self.channel = Channel.ANSWER
            self._at_start = True
            return shown
        shown = self._trimmed(self._held)
        kept = shown[: len(shown) - _begun(shown, CLOSE)].rstrip("\n")
        self._held = shown[len(kept) :]
        self._at_start = self._at_start and not kept
        return kept

    def _answer(self) -> str:
        shown, self._held = self._trimmed(self._held), ""
        self._at_start = self._at_start and not shown
        return shown

    def _trimmed(self, text: str) -> str:
        return text.lstrip("\n") if self._at_start else text


def _begun(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, and not all of it."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """The tags in one vocabulary.

    open_id: of `<think>` as one token, None where it is several. close_ids: what ends a block that its model does not
    end, in the form templates write it. behind_ids: the last part of that, which stands in front of an answer.
    control_ids: tags that are control tokens, whose text counts all the same.
    """

    open_id: int | None
    close_ids: tuple[int, ...]
    behind_ids: tuple[int, ...]
    control_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ThinkingTags:
        opening = tokenizer.encode(OPEN, allow_control=True)
        return cls(
            open_id=opening[0] if len(opening) == 1 else None,
            close_ids=tuple(tokenizer.encode(f"\n{CLOSE}\n\n", allow_control=True)),
            behind_ids=tuple(tokenizer.encode("\n\n")),
            control_ids=frozenset(
                tokenizer.control_tokens[tag] for tag in (OPEN, CLOSE) if tag in tokenizer.control_tokens
            ),
        )


def thinking_start(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> ThinkingStart:
    """How a chat prompt leaves thinking, from the text behind its last control token that is no tag itself.

    That text is the template's own: messages stand in front of the control token that begins the answer's turn, so
    nothing a user writes is taken for a tag.
    """
    tags = {tokenizer.control_tokens.get(tag) for tag in (OPEN, CLOSE)}
    begin = len(prompt_ids)
    while begin and (prompt_ids[begin - 1] not in tokenizer.control_ids or prompt_ids[begin - 1] in tags):
        begin -= 1
    text = tokenizer.decode(prompt_ids[begin:], skip_control=False).rstrip()
    return "open" if text.endswith(OPEN) else "closed" if text.endswith(CLOSE) else "possible"
