"""Latency of a run as percentiles over its requests, from records alone.

| figure | of one request |
|---|---|
| TTFT | sending to the first token of any kind |
| first answer | sending to the first token of the answer, reasoning aside |
| TPOT | decode seconds per token behind the first stamp's |
| token gap | seconds between two stamps, divided by the tokens that came with the second |
| stall | the longest of the times between two stamps |
| latency | sending to the end |
| latency as planned | the time that an open pattern planned for sending, to the end: waiting in the client counts |

Failed requests have no part in any of them. A figure that a target does not give is missing, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import RequestRow, Response
from ninfer.bench.statistics import quantile

LATE_S = 0.01
"""A request of an open pattern sent this much behind its time was late: the client or its limits held it up."""


@dataclass(frozen=True)
class Latencies:
    """The values of a run by figure, in seconds, one per request or per token; `failed` requests have none."""

    name: str
    requests: int
    failed: int
    empty: int
    late: int
    values: dict[str, list[float]]

    def quantile(self, figure: str, q: float) -> float | None:
        """None where no request has the figure."""
        values = self.values[figure]
        return quantile(values, q) if values else None


def latencies(record: RunRecord) -> Latencies:
    """The latencies of a run, warm-ups aside."""
    rows = record.measured
    good = [row for row in rows if row.error is None]
    values: dict[str, list[float]] = {
        "TTFT": _known(row.seconds.ttft for row in good),
        "first answer": _known(row.seconds.first_answer for row in good),
        "TPOT": [],
        "token gap": [],
        "stall": [],
        "latency": _known(row.seconds.total for row in good),
        "latency as planned": _known(planned_latency(row) for row in good),
    }
    for row in good:
        response = record.response(row)
        if response is None:
            continue
        values["TPOT"] += _known([seconds_per_token(row, response)])
        values["token gap"] += token_gaps(response)
        values["stall"] += _known([max(_between(response.token_seconds or ()), default=None)])
    return Latencies(
        record.name,
        len(rows),
        len(rows) - len(good),
        sum(row.is_empty is True for row in good),
        sum(_is_late(row) for row in rows),
        values,
    )


def seconds_per_token(row: RequestRow, response: Response) -> float | None:
    """Decode seconds per token that came behind the first stamp; None if it is not known how many those are."""
    completion, stamps = row.usage.completion_tokens, response.token_seconds or []
    if completion is None or not stamps:
        return None
    first = 1
    if len(stamps) != completion:  # stamps are of chunks
        if response.chunk_tokens is None:
            return None
        first = response.chunk_tokens[0]
    return (stamps[-1] - stamps[0]) / (completion - first) if completion > first else None


def token_gaps(response: Response) -> list[float]:
    """One gap per token behind the first stamp; tokens that came together share theirs. Nothing where a chunk's tokens
    are not known."""
    stamps = response.token_seconds or []
    if response.chunk_tokens is not None:
        counts: Sequence[int] = response.chunk_tokens
    elif response.output_ids is not None and len(response.output_ids) == len(stamps):
        return _shared(_between(stamps))
    else:
        return []
    return [gap / n for gap, n in zip(_between(stamps), counts[1:], strict=True) for _ in range(n)]


def planned_latency(row: RequestRow) -> float | None:
    """Seconds from the planned time of sending to the end; None for a closed pattern."""
    if row.stamps is None or row.stamps.planned_unix_ns is None:
        return None
    return (row.stamps.ended_unix_ns - row.stamps.planned_unix_ns) * 1e-9


def _shared(gaps: Sequence[float]) -> list[float]:
    """Gaps between tokens of which those of one round were seen at one instant: a gap and the zeros behind it become
    equal parts of it."""
    rounds: list[list[float]] = []
    for gap in gaps:
        if gap == 0.0 and rounds:
            rounds[-1].append(gap)
        else:
            rounds.append([gap])
    return [sum(parts) / len(parts) for parts in rounds for _ in parts]


def _between(stamps: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(stamps)]


def _is_late(row: RequestRow) -> bool:
    stamps = row.stamps
    return (
        stamps is not None
        and stamps.planned_unix_ns is not None
        and stamps.sent_unix_ns - stamps.planned_unix_ns > LATE_S * 1e9
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
