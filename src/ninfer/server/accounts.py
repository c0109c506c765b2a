"""What became of every request: the one place that feeds the request log, `/metrics` and the server's log."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ninfer.engine import Engine, Failed, Finished
from ninfer.metrics import (
    NO_ROUNDS,
    FinishReason,
    Histogram,
    Phases,
    Rounds,
    Usage,
    joined_rounds,
    now_ns,
    peak,
    request_rates,
    speculation_report,
)
from ninfer.server.answer import Answer, Call, Choice
from ninfer.server.faults import Fault, fault_of
from ninfer.server.request_log import RequestLog

HISTORY_INTERVALS = 600

_logger = logging.getLogger("ninfer.server")


class Outcome(StrEnum):
    """How a request ended, one word for each."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REJECTED = "rejected"


@dataclass(slots=True)
class Entry:
    """One request to a generating endpoint. number: rises by one within a server; id: its name to the client.

    is_started: queued; is_answered: its response has begun; is_closed: its last line is in the log.
    """

    number: int
    id: str
    protocol: str
    arrival_ns: int
    ignored: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    is_started: bool = False
    is_answered: bool = False
    is_closed: bool = False

    def describe(self, call: Call) -> None:
        """What the client asked for, as it was understood; never its text."""
        options = call.options
        sampling = options.sampling
        self.ignored = call.ignored
        self.facts = {
            "stream": call.stream,
            "num_choices": options.num_choices,
            "requested_output_tokens": options.max_new,
            "requested_output_tokens_source": call.max_tokens_source,
            "sampling": {name: getattr(sampling, name) for name in type(sampling).__dataclass_fields__},
            "logprobs": options.logprobs,
            "ignored_fields": list(call.ignored),
            **call.facts,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"request_id": self.number, "id": self.id, "protocol": self.protocol, **self.facts}


@dataclass(slots=True)
class Totals:
    """Sums over the requests that have ended."""

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    completion_tokens: int = 0
    rounds: Rounds = NO_ROUNDS
    decode_seconds: float = 0.0

    def add(self, usage: Usage, rounds: Rounds, decode_seconds: float) -> None:
        self.prompt_tokens += usage.prompt
        self.cached_tokens += usage.cached
        self.computed_tokens += usage.computed
        self.recomputed_tokens += usage.recomputed
        self.completion_tokens += usage.completion
        self.rounds = joined_rounds((self.rounds, rounds))
        self.decode_seconds += decode_seconds


class Accounts:
    """Lives in the event loop's thread. Every started request is ended once, with a line in the log and in the sums."""

    def __init__(self, log: RequestLog, engine: Engine, *, interval_s: float) -> None:
        self.instance = log.instance
        self.counters = engine.counters
        self.totals = Totals()
        self.ttft = Histogram()
        self.duration = Histogram()
        self.queue = Histogram()
        self.last: dict[str, Any] | None = None
        self.peak_prefill: dict[str, Any] | None = None
        self.peak_decode: dict[str, Any] | None = None
        self.history: deque[dict[str, float]] = deque(maxlen=HISTORY_INTERVALS)
        self._engine = engine
        self._log = log
        self._interval_s = interval_s
        self._next_number = 0
        self._named: set[str] = set()
        self._num_running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._interval_start_ns = 0
        self._counted = self._counts()

    @property
    def num_started(self) -> int:
        """Requests that have started and not ended."""
        return self._num_running

    def arrived(self, protocol: str, id_prefix: str) -> Entry:
        self._next_number += 1
        number = self._next_number
        return Entry(number, f"{id_prefix}{self.instance}-{number}", protocol, now_ns())

    def started(self, entry: Entry) -> None:
        """A request was queued."""
        entry.is_started = True
        self._num_running += 1
        self._log.write("request_start", {"request": entry.to_dict()})
        for name in entry.ignored:
            if name not in self._named and len(self._named) < 1000:
                self._named.add(name)
                _logger.warning("field %r is ignored (told once)", name)
        self._begin_interval()

    def ended(self, entry: Entry, answer: Answer) -> None:
        """A started request has ended, by whatever ending."""
        entry.is_closed = True
        self._num_running -= 1
        work, phases = answer.work, answer.phases
        error = answer.error
        if error is not None:
            outcome = Outcome.FAILED
        elif any(c.finished.reason is FinishReason.CANCELLED for c in answer.choices):
            outcome = Outcome.CANCELLED
        else:
            outcome = Outcome.COMPLETED
        self.totals.outcomes[outcome] += 1
        self.totals.add(work, answer.rounds, answer.decode_seconds)
        self.duration.observe(phases.total)
        self.queue.observe(phases.queue)
        if phases.ttft is not None:
            self.ttft.observe(phases.ttft)
        row = {"request": entry.to_dict(), "outcome": outcome, **account(answer, work, phases)}
        if error is None:
            self._log.write("request_done", row)
            self._remember(entry, answer, row)
        else:
            self._log.write("request_error", {**row, "error": _error(fault_of(error))})
        _logger.info("%s", _summary(entry, outcome, work, phases))

    def failed(self, entry: Entry, fault: Fault) -> None:
        """A request was refused before it started; or, by a bug, its answer could not be written."""
        if entry.is_closed:
            return
        entry.is_closed = True
        outcome = Outcome.REJECTED
        if entry.is_started:
            outcome = Outcome.FAILED
            self._num_running -= 1
        self.totals.outcomes[outcome] += 1
        event = "request_error" if entry.is_started else "request_rejected"
        self._log.write(event, {"request": entry.to_dict(), "outcome": outcome, "error": _error(fault)})
        _logger.info("%s %s: %d %s: %s", entry.id, outcome, fault.status, fault.code, fault.message)

    def _remember(self, entry: Entry, answer: Answer, row: dict[str, Any]) -> None:
        """`last`, and the peaks: of single choices, because rates of several at once are no rate of one."""
        self.last = row
        for choice in answer.choices:
            end = choice.end
            rates = request_rates(end.usage, end.timings)
            report = speculation_report(end.rounds, end.timings.decode)
            about = {"id": entry.id, "prompt_tokens": end.usage.prompt, "speculative": report}
            self.peak_prefill = _higher(self.peak_prefill, rates["prefill_tok_per_s"], about)
            self.peak_decode = _higher(self.peak_decode, rates["decode_tok_per_s"], about)

    # Intervals: raw counts with their real length, while something happens.

    def _begin_interval(self) -> None:
        if self._timer is None:
            self._interval_start_ns = now_ns()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._end_interval)

    def _end_interval(self) -> None:
        """Count what has come since the last interval ended: the engine may be ahead of the start of this one."""
        seconds = (now_ns() - self._interval_start_ns) * 1e-9
        before, now = self._counted, self._counts()
        self._counted = now
        self._timer = None
        prefill, decode, cached, steps = (b - a for a, b in zip(before, now, strict=True))
        self.history.append(
            {
                "interval_seconds": seconds,
                "prefill_tokens": prefill,
                "decode_tokens": decode,
                "cache_hit_tokens": cached,
            }
        )
        self._log.write(
            "throughput",
            {
                "interval_seconds": seconds,
                "tokens": {"computed_prefill": prefill, "committed_decode": decode, "cache_hit": cached},
                "engine_steps": steps,
                "requests_open": self._num_running,
                "running": self._engine.num_running,
                "waiting": self._engine.num_waiting,
            },
        )
        if self._num_running:
            self._begin_interval()

    def close(self) -> None:
        """End the interval that is open, and the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_interval()
            if self._timer is not None:
                self._timer.cancel()
        self._log.close()

    def write(self, event: str, members: dict[str, Any]) -> None:
        """Another event of the request log."""
        self._log.write(event, members)

    def _counts(self) -> tuple[int, int, int, int]:
        counters = self.counters
        return counters.prefill, counters.decode, counters.cached, counters.steps


def account(answer: Answer, work: Usage, phases: Phases) -> dict[str, Any]:
    """Result, timings and rates of an answer that has ended, as the log and `/metrics` show them."""
    usage = answer.usage
    return {
        "result": {
            "finish_reason": finish_word(answer.choices[0]),
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "reasoning_tokens": usage.thinking,
            "computed_prefill_tokens": work.computed,
            "recomputed_tokens": work.recomputed,
        },
        "timings_seconds": phases.to_dict(),
        "rates": request_rates(work, phases),
        "speculative": speculation_report(answer.rounds, answer.decode_seconds),
        "choices": [
            {
                "index": choice.index,
                "finish_reason": finish_word(choice),
                "seed": choice.ending.seed if isinstance(choice.ending, Finished) else None,
                **choice.end.usage.to_dict(),
                "reasoning_tokens": choice.end.usage.thinking,
                "has_answer": choice.has_answer,
                "timings_seconds": choice.end.timings.to_dict(),
                "rates": request_rates(choice.end.usage, choice.end.timings),
                "speculative": speculation_report(choice.end.rounds, choice.end.timings.decode),
            }
            for choice in answer.choices
        ],
    }


def finish_word(choice: Choice) -> str:
    """Our word for the end of a choice; `error` for one that failed."""
    return "error" if isinstance(choice.end, Failed) else choice.finished.reason.value


def _error(fault: Fault) -> dict[str, Any]:
    return {
        "status": fault.status,
        "type": fault.type,
        "code": fault.code,
        "param": fault.param,
        "message": fault.message,
    }


def _higher(best: dict[str, Any] | None, rate: float | None, about: dict[str, Any]) -> dict[str, Any] | None:
    value = peak((rate, None if best is None else best["tok_per_s"]))
    if value is None or (best is not None and value == best["tok_per_s"]):
        return best
    return {"tok_per_s": value, **about}


def _summary(entry: Entry, outcome: Outcome, work: Usage, phases: Phases) -> str:
    """One line for a person."""
    ttft = "" if phases.ttft is None else f", ttft {phases.ttft:.3f} s"
    rate = request_rates(work, phases)["decode_tok_per_s"]
    speed = "" if rate is None else f" ({rate:.1f} tok/s)"
    return (
        f"{entry.id} {outcome}: prompt {work.prompt} (cached {work.cached}), {work.completion} tokens{speed}, "
        f"queue {phases.queue:.3f} s{ttft}, total {phases.total:.3f} s"
    )
