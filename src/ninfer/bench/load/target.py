"""What answers prompts, as a campaign sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ninfer.bench.records.schema import RowSeconds, RowSpeculation, RowUsage

_NO_USAGE, _NO_SECONDS = RowUsage(), RowSeconds()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one prompt, well or not.

    usage, seconds, speculation: as far as the target knows them (`bench.records.schema`). finish: a word of
    `ninfer.metrics.FinishReason`, or the target's own word; None after an error. token_seconds: since sending, of every
    token, or of every chunk that brought some; chunk_tokens: how many each chunk brought, if the target says so.
    error: (kind, message); then the rest is what was seen until then.
    """

    usage: RowUsage = _NO_USAGE
    seconds: RowSeconds = _NO_SECONDS
    speculation: RowSpeculation | None = None
    finish: str | None = None
    output_ids: tuple[int, ...] | None = None
    text: str = ""
    reasoning: str = ""
    has_tool_call: bool = False
    token_seconds: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    error: tuple[str, str] | None = None
    extra: dict[str, Any] | None = None


class Target(Protocol):
    """Answers prompts, several at once; lives in one event loop."""

    async def answer(self, body: Any, max_new: int | None) -> Outcome:
        """Send a prompt and wait for its end. What goes wrong with it is an outcome, not an exception."""
        ...

    async def close(self) -> None: ...
