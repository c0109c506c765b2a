"""Answers that end by saying the same again and again."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.bench.records.schema import Response

MAX_PERIOD = 64
MIN_TURNS = 4
MIN_TOKENS = 48
"""A table row or a list marker repeats a few times in honest text; four turns over 48 tokens at the very end do not."""
CHARACTERS_PER_TOKEN = 4
"""For responses of which only the text is known."""


def find_loop(response: Response) -> int | None:
    """The period, in tokens (or characters of a response without ids), with which a response repeats itself up to its
    end; None if it does not."""
    if response.output_ids:
        return _period(response.output_ids, MAX_PERIOD, MIN_TOKENS)
    text = (response.reasoning or "") + (response.text or "")
    return _period(text, MAX_PERIOD * CHARACTERS_PER_TOKEN, MIN_TOKENS * CHARACTERS_PER_TOKEN)


def _period(items: Sequence[object], longest: int, least: int) -> int | None:
    """The shortest period of the last items that lasts for `least` of them and for `MIN_TURNS` turns."""
    items = items[:-1]  # an end token closes a loop without being part of it
    for period in range(1, min(longest, len(items) // MIN_TURNS) + 1):
        span = max(least, MIN_TURNS * period)
        tail = items[-span:]
        if len(tail) == span and tail[period:] == tail[:-period]:
            return period
    return None
