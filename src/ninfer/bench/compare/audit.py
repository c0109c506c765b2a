"""What the records show besides speed, each with what it means for what may be concluded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ninfer.bench.compare.loops import find_loop
from ninfer.bench.compare.pairing import Order, Pairing
from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import Circumstances, RequestRow
from ninfer.metrics import FinishReason

Weight = Literal["note", "limits", "invalidates"]
LoadState = Literal["cold", "warm", "partly cached", "unrecorded"]

TRUNCATED = frozenset({FinishReason.OUTPUT_LIMIT.value, FinishReason.CONTEXT_CAPACITY.value})
FAILURE_LIMIT = 0.05
"""Share of failed requests above which what is left is no longer the planned workload."""
MIN_DECODE_TOKENS = 16
"""A decode rate of fewer tokens is a handful of steps, the first of which are the slowest."""
WARM_SHARE, COLD_SHARE = 0.99, 0.01
BUSY_SHARE = 0.25
"""Runnable processes per CPU before the run, from which on the machine counts as busy."""


@dataclass(frozen=True)
class Finding:
    """Something seen. kind: the word by which report/words.py has its sentence and the consequence.

    run: of which run, None for both of a pair. affects: quantities whose verdict becomes invalid. values: the numbers
    of the sentence.
    """

    kind: str
    weight: Weight
    run: str | None = None
    affects: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


def audit_run(record: RunRecord) -> list[Finding]:
    """What one run shows by itself."""
    return list(_of_run(record))


def audit_pair(left: RunRecord, right: RunRecord, pairing: Pairing, order: Order) -> list[Finding]:
    """What two runs show side by side, given that their settings allow a comparison."""
    return list(_of_pair(left, right, pairing, order))


def num_truncated(record: RunRecord) -> int:
    """Measured requests that ended at a limit."""
    return sum(row.finish in TRUNCATED for row in record.measured)


def num_empty(record: RunRecord) -> int | None:
    """Measured answers without text; what the source reports where rows do not say; None where nobody does."""
    told = [row.is_empty for row in record.measured if row.error is None]
    if told and None not in told:
        return sum(map(bool, told))
    reported = record.run.reported.get("empty_answers")
    return int(reported) if isinstance(reported, int | float) else None


def load_state(circumstances: Circumstances | None) -> LoadState:
    """What loading the model began with, from the share of its file in the page cache."""
    if circumstances is None or not circumstances.model_bytes or circumstances.model_resident_bytes is None:
        return "unrecorded"
    share = circumstances.model_resident_bytes / circumstances.model_bytes
    return "warm" if share >= WARM_SHARE else "cold" if share <= COLD_SHARE else "partly cached"


def loads_of(record: RunRecord) -> list[tuple[float, LoadState]]:
    """Seconds of every model load of the run, and what it began with."""
    loads = [(e.seconds, load_state(e.circumstances)) for e in record.events if e.event == "load" and e.seconds]
    reported = record.run.reported.get("load_s")
    if not loads and isinstance(reported, int | float):
        return [(float(reported), load_state(record.run.circumstances))]
    return loads


def _of_run(record: RunRecord) -> Iterator[Finding]:
    rows, name = record.measured, record.name
    good = [row for row in rows if row.error is None]
    if not good:
        yield Finding("no samples", "invalidates", name, ("all",))
        return
    if len(good) < len(rows):
        kinds = Counter((row.error or {}).get("kind", "error") for row in rows if row.error is not None)
        share = 1 - len(good) / len(rows)
        affects: tuple[str, ...] = ("all",) if share > FAILURE_LIMIT else ()
        weight: Weight = "invalidates" if share > FAILURE_LIMIT else "limits"
        values: dict[str, Any] = {"failed": len(rows) - len(good), "all": len(rows), "kinds": ", ".join(sorted(kinds))}
        yield Finding("failures", weight, name, affects, values)
    if num := num_truncated(record):
        yield Finding("truncated", "limits", name, values={"num": num, "all": len(rows)})
    empty = num_empty(record)
    if empty is None:
        yield Finding("emptiness unrecorded", "note", name)
    elif empty:
        yield Finding("empty", "limits", name, values={"num": empty, "all": len(rows)})
    short = [row for row in good if (row.usage.completion_tokens or 0) - 1 < MIN_DECODE_TOKENS]
    if short:
        is_all = len(short) == len(good)
        values = {"num": len(short), "all": len(good), "tokens": MIN_DECODE_TOKENS}
        affects = ("decode_rate",) if is_all else ()
        yield Finding("short", "invalidates" if is_all else "limits", name, affects, values)
    loops = [loop for row in good if (response := record.response(row)) and (loop := find_loop(response))]
    if loops:
        yield Finding("loops", "limits", name, values={"num": len(loops), "all": len(good)})
    if max(Counter((row.prompt, row.client) for row in good).values()) == 1:
        yield Finding("single", "limits", name)
    yield from _of_caching(name, good)
    yield from _of_context(record, good)
    yield from _of_circumstances(record)


def _of_caching(name: str, rows: Sequence[RequestRow]) -> Iterator[Finding]:
    cached = [row.usage.cached_tokens for row in rows]
    if None in cached:
        yield Finding("cached unrecorded", "note", name)
    elif num := sum(bool(count) for count in cached):
        share = sum(count or 0 for count in cached) / max(1, sum(row.usage.prompt_tokens or 0 for row in rows))
        yield Finding("prefix hits", "limits", name, values={"num": num, "all": len(rows), "share": share})


def _of_context(record: RunRecord, rows: Sequence[RequestRow]) -> Iterator[Finding]:
    fact = record.run.facts.get("settings.max_context")
    used = [(row.usage.prompt_tokens or 0) + (row.usage.completion_tokens or 0) for row in rows]
    if fact is not None and isinstance(fact.value, int) and fact.value > 0 and max(used) < 0.9 * fact.value:
        largest = max(row.usage.prompt_tokens or 0 for row in rows)
        values = {"prompt": largest, "share": largest / fact.value, "context": fact.value}
        yield Finding("context fill", "note", record.name, values=values)


def _of_circumstances(record: RunRecord) -> Iterator[Finding]:
    if record.run.resolution_s:
        yield Finding("rounded", "note", record.name, values={"resolution": record.run.resolution_s})
    seen = record.run.circumstances
    cpus = record.run.facts.get("machine.num_cpus")
    if seen.load_average and cpus is not None and isinstance(cpus.value, int):
        busy = seen.load_average[0] / cpus.value
        if busy > BUSY_SHARE:
            yield Finding("busy", "limits", record.name, values={"load": seen.load_average[0], "cpus": cpus.value})
    for seconds, state in loads_of(record):
        yield Finding("load", "note", record.name, values={"seconds": seconds, "state": state})


def _of_pair(left: RunRecord, right: RunRecord, pairing: Pairing, order: Order) -> Iterator[Finding]:
    pairs = pairing.pairs
    if not pairs:
        yield Finding("no pairs", "invalidates", affects=("all",))
        return
    if pairing.num_left_out:
        yield Finding("left out", "limits", values={"num": pairing.num_left_out})
    if order != "interleaved":
        yield Finding("order", "limits", values={"order": order})
    boots = [record.run.circumstances.boot for record in (left, right)]
    if None not in boots and boots[0] != boots[1]:
        yield Finding("boots", "limits")
    lengths = [(p.left.usage.completion_tokens, p.right.usage.completion_tokens) for p in pairs]
    if num := sum(a != b for a, b in lengths):
        yield Finding("lengths", "limits", values={"num": num, "all": len(pairs)})
    ids = [_same_output(pair.left, pair.right) for pair in pairs]
    if ids.count(False):
        yield Finding("other output", "limits", values={"num": ids.count(False), "all": len(pairs)})
    elif None not in ids:
        yield Finding("same output", "note", values={"all": len(pairs)})
    else:
        yield Finding("output unrecorded", "note")
    cached = [(p.left.usage.cached_tokens, p.right.usage.cached_tokens) for p in pairs]
    if any(a != b for a, b in cached):
        affected = ("prefill_rate", "ttft", "request_time", "end_to_end_rate")
        yield Finding("other hits", "invalidates", affects=affected)
    states = {state for record in (left, right) for _, state in loads_of(record)}
    if states and (len(states) > 1 or "unrecorded" in states):
        yield Finding("loads", "limits", values={"states": sorted(states)})


def _same_output(left: RequestRow, right: RequestRow) -> bool | None:
    """Whether two answers are the same; None where it was not recorded. Lengths that differ decide it as well."""
    for name in ("ids_digest", "text_digest"):
        a, b = getattr(left, name), getattr(right, name)
        if a is not None and b is not None:
            return bool(a == b)
    a, b = left.usage.completion_tokens, right.usage.completion_tokens
    return False if a is not None and b is not None and a != b else None
