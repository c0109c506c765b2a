"""Tokens of one request to the text its caller may see."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.errors import BackendError, RequestError
from ninfer.text.channels import Channel, ThinkingSplitter
from ninfer.text.stop import StopMatcher
from ninfer.text.stream import StreamDecoder
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Shown:
    """Text that may be shown now: of the answer, of the thinking before it; and the stop string that was reached."""

    text: str = ""
    thinking: str = ""
    stop: str | None = None


class TextOutput:
    """Decodes tokens to text, tells thinking from answer, and watches the answer for stop strings.

    Text that could be the beginning of a tag or of a stop string, or that ends within a character, is held back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: tuple[str, ...] = (),
        *,
        thinking: ThinkingSplitter | None = None,
        visible_ids: frozenset[int] = frozenset(),
    ) -> None:
        """thinking: None where all text is answer. visible_ids: control tokens whose text is part of the output."""
        self._decoder = StreamDecoder(tokenizer, visible_ids=visible_ids)
        self._thinking = thinking
        self._matcher = StopMatcher(stop_strings) if stop_strings else None

    @property
    def channel(self) -> Channel:
        """Where the text is at now."""
        return Channel.ANSWER if self._thinking is None else self._thinking.channel

    def push(self, token: int) -> Shown:
        """What this token completes.

        BackendError for an id the tokenizer does not have: a model may have padding rows behind its vocabulary.
        """
        try:
            text = self._decoder.push(token)
        except RequestError as error:
            raise BackendError(f"the model chose token {token}, which its tokenizer does not have") from error
        if self._thinking is None:
            return self._watched(text)
        pieces = self._thinking.push(text)
        return self._watched(pieces.answer, pieces.thinking)

    def finish(self) -> Shown:
        """The rest of the text: what was held back, as far as no stop string appears in it. Not after a stop string."""
        text, thinking = self._decoder.finish(), ""
        if self._thinking is not None:
            last, rest = self._thinking.push(text), self._thinking.finish()
            text, thinking = last.answer + rest.answer, last.thinking + rest.thinking
        shown = self._watched(text, thinking)
        if self._matcher is None or shown.stop is not None:
            return shown
        return Shown(shown.text + self._matcher.flush(), thinking)

    def _watched(self, text: str, thinking: str = "") -> Shown:
        if self._matcher is None:
            return Shown(text, thinking)
        shown, stop = self._matcher.push(text)
        return Shown(shown, thinking, stop)
