"""Stamps of one request, and the phases derived from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ninfer.errors import InvariantError

_SECONDS_PER_NS = 1e-9


def now_ns() -> int:
    """Nanoseconds of the clock all stamps use: monotonic, so only differences mean anything."""
    return time.perf_counter_ns()


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of one request went: unrounded seconds, 0.0 for a phase it never entered.

    The five phases follow one another without gaps: a request that ends early ends the phase it is in.

    load: waiting for the model to be loaded; 0.0 when it was ready before the request arrived.
    prepare: from arrival (or the end of loading) to submission: template, tokenizer, checks.
    queue: from submission to admission, when memory is reserved and the first step may include the request.
    prefill: from admission to the first token, so work on other requests in the same steps is part of it.
    decode: from the first token to the last one.
    total: from arrival to the end; what it exceeds the five phases by is the time to publish the ending.
    ttft: from arrival to the first token published, None without one.
    """

    load: float
    prepare: float
    queue: float
    prefill: float
    decode: float
    total: float
    ttft: float | None

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(slots=True)
class RequestTimeline:
    """Monotonic nanosecond stamps of one request, written once each by whoever reaches the point.

    Arrival is required; load is the pair of stamps of a model load that this request had to wait for.
    """

    arrival_ns: int
    load_start_ns: int | None = None
    load_end_ns: int | None = None
    submitted_ns: int | None = None
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    ended_ns: int | None = None

    def phases(self) -> Phases:
        """The phases of a request that has ended. InvariantError if it has not, or if stamps are out of order."""
        if self.ended_ns is None:
            raise InvariantError("phases of a request that has not ended")
        order = (
            self.arrival_ns,
            self.load_start_ns,
            self.load_end_ns,
            self.submitted_ns,
            self.admitted_ns,
            self.first_token_ns,
            self.last_token_ns,
            self.ended_ns,
        )
        seen = [stamp for stamp in order if stamp is not None]
        if seen != sorted(seen) or (self.load_start_ns is None) != (self.load_end_ns is None):
            raise InvariantError(f"stamps out of order: {self}")

        load_ns = 0 if self.load_start_ns is None or self.load_end_ns is None else self.load_end_ns - self.load_start_ns
        ttft_ns = None if self.first_token_ns is None else self.first_token_ns - self.arrival_ns
        return Phases(
            load=load_ns * _SECONDS_PER_NS,
            prepare=(self._until(self.submitted_ns, self.arrival_ns) - load_ns) * _SECONDS_PER_NS,
            queue=self._until(self.admitted_ns, self.submitted_ns) * _SECONDS_PER_NS,
            prefill=self._until(self.first_token_ns, self.admitted_ns) * _SECONDS_PER_NS,
            decode=self._between(self.first_token_ns, self.last_token_ns) * _SECONDS_PER_NS,
            total=(self.ended_ns - self.arrival_ns) * _SECONDS_PER_NS,
            ttft=None if ttft_ns is None else ttft_ns * _SECONDS_PER_NS,
        )

    def _until(self, end: int | None, start: int | None) -> int:
        """Nanoseconds from `start` to `end`, or to the end of the request if it never got to `end`."""
        if start is None:
            return 0
        stop = end if end is not None else self.ended_ns
        return 0 if stop is None else stop - start

    @staticmethod
    def _between(start: int | None, end: int | None) -> int:
        return 0 if start is None or end is None else end - start


def joined_timeline(timelines: Sequence[RequestTimeline]) -> RequestTimeline:
    """The timeline of several sequences that one caller asked for together.

    Each phase begins when the first of them enters it; decode ends with the last token of all, the request with the
    last ending. Of one timeline it is that timeline.
    """

    def earliest(name: str) -> int | None:
        return min((stamp for t in timelines if (stamp := getattr(t, name)) is not None), default=None)

    def latest(name: str) -> int | None:
        return max((stamp for t in timelines if (stamp := getattr(t, name)) is not None), default=None)

    return RequestTimeline(
        arrival_ns=min(t.arrival_ns for t in timelines),
        load_start_ns=earliest("load_start_ns"),
        load_end_ns=earliest("load_end_ns"),
        submitted_ns=earliest("submitted_ns"),
        admitted_ns=earliest("admitted_ns"),
        first_token_ns=earliest("first_token_ns"),
        last_token_ns=latest("last_token_ns"),
        ended_ns=latest("ended_ns"),
    )
