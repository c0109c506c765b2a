"""Tokens of one request to the text its caller may see."""

from __future__ import annotations

from ninfer.errors import BackendError, RequestError
from ninfer.text.stop import StopMatcher
from ninfer.text.stream import StreamDecoder
from ninfer.text.tokenizer import Tokenizer


class TextOutput:
    """Decodes tokens to text and watches for stop strings.

    Text that could be the beginning of a stop string, or that ends within a character, is held back.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: tuple[str, ...]) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._matcher = StopMatcher(stop_strings) if stop_strings else None

    def push(self, token: int) -> tuple[str, str | None]:
        """Text that may be shown after this token, and the stop string that was reached, if any.

        BackendError for an id the tokenizer does not have: a model may have padding rows behind its vocabulary.
        """
        try:
            text = self._decoder.push(token)
        except RequestError as error:
            raise BackendError(f"the model chose token {token}, which its tokenizer does not have") from error
        return (text, None) if self._matcher is None else self._matcher.push(text)

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text: what was held back, as far as no stop string appears in it. Not after a stop string."""
        text = self._decoder.finish()
        if self._matcher is None:
            return text, None
        text, matched = self._matcher.push(text)
        return (text, matched) if matched is not None else (text + self._matcher.flush(), None)
