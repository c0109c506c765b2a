"""The quantities that runs are compared in, each as a ratio of two sums over requests.

Over one request such a ratio is the number that `ninfer.metrics` defines; over several it weights every request by its
tokens or seconds, so decode seconds of all requests divide all their tokens but the first of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ninfer.bench.records.schema import RequestRow

Part = Callable[[RequestRow], float | None]


@dataclass(frozen=True)
class Quantity:
    """Sum of `numerator` over sum of `denominator`; a request for which one of them is unknown or the denominator is
    not above zero has no part in it. better: which direction is faster; None where neither is."""

    name: str
    unit: str
    better: Literal["higher", "lower"] | None
    numerator: Part
    denominator: Part

    def parts(self, row: RequestRow) -> tuple[float, float] | None:
        """Numerator and denominator of one request, None if it has none."""
        above, below = self.numerator(row), self.denominator(row)
        return None if above is None or below is None or below <= 0 else (above, below)

    def of(self, rows: Iterable[RequestRow]) -> float | None:
        """Its value over `rows`; None where no row has one."""
        parts = [part for row in rows if (part := self.parts(row)) is not None]
        return sum(a for a, _ in parts) / sum(b for _, b in parts) if parts else None


def _decode_tokens(row: RequestRow) -> float | None:
    completion = row.usage.completion_tokens
    return None if completion is None or completion < 2 else completion - 1


def _rounds(row: RequestRow) -> float | None:
    return None if row.speculation is None else row.speculation.rounds


def _yield_of_rounds(row: RequestRow) -> float | None:
    counts = row.speculation
    if counts is None or counts.rounds is None or counts.accepted_tokens is None:
        return None
    return counts.rounds + counts.accepted_tokens


def _drafted(row: RequestRow) -> float | None:
    return None if row.speculation is None else row.speculation.drafted_tokens


def _accepted(row: RequestRow) -> float | None:
    return None if row.speculation is None else row.speculation.accepted_tokens


def _computed(row: RequestRow) -> float | None:
    """Prompt tokens computed; where only the prompt and that nothing was cached is known, the whole prompt.

    None for a request that ended before its first token, of which prefill lasts until.
    """
    usage = row.usage
    if usage.completion_tokens == 0:
        return None
    if usage.computed_tokens is not None:
        return usage.computed_tokens
    return usage.prompt_tokens if usage.cached_tokens == 0 else None


def _one(row: RequestRow) -> float:
    return 1.0


PREFILL_RATE = Quantity("prefill_rate", "tok/s", "higher", _computed, lambda row: row.seconds.prefill)
DECODE_RATE = Quantity("decode_rate", "tok/s", "higher", _decode_tokens, lambda row: row.seconds.decode)
END_TO_END_RATE = Quantity(
    "end_to_end_rate", "tok/s", "higher", lambda row: row.usage.completion_tokens or None, lambda row: row.seconds.total
)
TTFT = Quantity("ttft", "s", "lower", lambda row: row.seconds.ttft, _one)
REQUEST_TIME = Quantity("request_time", "s", "lower", lambda row: row.seconds.total, _one)
TOKENS_PER_ROUND = Quantity("tokens_per_round", "1", None, _yield_of_rounds, _rounds)
ROUND_TIME = Quantity("round_time", "s", None, lambda row: row.seconds.decode, _rounds)
DRAFTS_PER_ROUND = Quantity("drafts_per_round", "1", None, _drafted, _rounds)
ACCEPTANCE = Quantity("acceptance", "1", None, _accepted, _drafted)

COMPARED = (DECODE_RATE, PREFILL_RATE, END_TO_END_RATE, TTFT, REQUEST_TIME)
"""Quantities with a better direction, the most telling one first."""
