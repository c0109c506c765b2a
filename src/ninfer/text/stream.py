"""Ids one by one to text that can be shown at once: never half a character."""

from __future__ import annotations

import codecs

from ninfer.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one sequence of ids as they come; the joined pieces equal `Tokenizer.decode` of all ids.

    At most three bytes (an unfinished UTF-8 character) wait between calls, so a call costs its own token only. U+FFFD
    comes out only where the one-shot decoding of the ids has it too: for bytes that nothing can make a character.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_control: bool = True, visible_ids: frozenset[int] = frozenset()
    ) -> None:
        """`visible_ids`: control tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._silent = tokenizer.control_ids - visible_ids if skip_control else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; may be empty. Raises `RequestError` for an id outside the vocabulary."""
        if token_id in self._silent:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished, else nothing."""
        return self._utf8.decode(b"", final=True)
