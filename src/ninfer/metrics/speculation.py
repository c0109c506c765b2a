"""What drafts gave and cost: counts of rounds, and where their time went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ninfer.errors import InvariantError

_SECONDS_PER_NS = 1e-9


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Counts of speculative decoding over one request, or over several together.

    A round is a step that gave tokens behind the first one of a request; its window is the number of draft tokens it
    tested, and it gives one token of its own besides those it accepted. The token that ends an answer is its round's
    own, whether it was drafted or not, and drafts from there on are not counted: nothing can be said of them. So
    completion tokens are always `1 + rounds + accepted` for a request that has any.

    rounds: those without a draft included; drafted, accepted: draft tokens; rounds_with_draft[i]: rounds that drafted
    more than `i` tokens; accepted_per_position[i]: rounds in which drafts `0 .. i` were all accepted (so it never
    increases with `i`).
    """

    rounds: int
    drafted: int
    accepted: int
    rounds_with_draft: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        falling = all(
            later <= earlier
            for counts in (self.rounds_with_draft, self.accepted_per_position)
            for earlier, later in pairwise(counts)
        )
        if (
            not falling
            or len(self.rounds_with_draft) != len(self.accepted_per_position)
            or sum(self.rounds_with_draft) != self.drafted
            or sum(self.accepted_per_position) != self.accepted
            or any(a > n for a, n in zip(self.accepted_per_position, self.rounds_with_draft, strict=True))
            or max(self.rounds_with_draft, default=0) > self.rounds
        ):
            raise InvariantError(f"impossible speculation counts: {self}")

    @property
    def windows(self) -> tuple[int, ...]:
        """How many rounds had a window of 0, 1, 2 and so on: sums to `rounds`."""
        at_least = (self.rounds, *self.rounds_with_draft, 0)
        return tuple(more - less for more, less in pairwise(at_least))

    @property
    def fallback_steps(self) -> int:
        """Rounds without a draft: plain decoding."""
        return self.windows[0]


@dataclass(frozen=True, slots=True)
class RoundSeconds:
    """Where the time of rounds went, in seconds. Steps are shared: each request of a step is charged all of it.

    draft: proposals, and telling the proposer what became final; verify: the target's forward; sample: choosing tokens,
    and what follows from them (text, stop rules, grammar); rollback: ending the step's transactions on token memory.
    """

    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    rollback: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.sample + self.rollback


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the rounds of one request, or of several together, were. method: what drafted, `off` for nothing.
    max_window: most tokens of a draft."""

    method: str = "off"
    max_window: int = 0
    counts: SpeculationCounts = SpeculationCounts(0, 0, 0)
    seconds: RoundSeconds = RoundSeconds()


NO_ROUNDS = Rounds()


@dataclass(slots=True)
class RoundTimes:
    """Nanoseconds of one step by the parts of `RoundSeconds`."""

    draft: int = 0
    verify: int = 0
    sample: int = 0
    rollback: int = 0


@dataclass(slots=True)
class RoundTally:
    """Rounds as they come; only rising. `method` and `max_window` as in `Rounds`."""

    method: str = "off"
    max_window: int = 0
    rounds: int = 0
    with_draft: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    times: RoundTimes = field(default_factory=RoundTimes)

    def add(self, window: int, accepted: int) -> None:
        """Count one round that tested `window` drafts, of which the first `accepted` hold."""
        self.rounds += 1
        while len(self.with_draft) < window:
            self.with_draft.append(0)
            self.accepted.append(0)
        for i in range(window):
            self.with_draft[i] += 1
        for i in range(accepted):
            self.accepted[i] += 1

    def charge(self, times: RoundTimes) -> None:
        """Add what a step took."""
        self.times.draft += times.draft
        self.times.verify += times.verify
        self.times.sample += times.sample
        self.times.rollback += times.rollback

    def result(self) -> Rounds:
        """All of it so far."""
        counts = SpeculationCounts(
            self.rounds, sum(self.with_draft), sum(self.accepted), tuple(self.with_draft), tuple(self.accepted)
        )
        times = self.times
        nanoseconds = (times.draft, times.verify, times.sample, times.rollback)
        return Rounds(
            self.method, self.max_window, counts, RoundSeconds(*(_SECONDS_PER_NS * value for value in nanoseconds))
        )


def joined_rounds(parts: Sequence[Rounds]) -> Rounds:
    """All rounds of several requests to one engine, at least one."""
    depth = max(len(part.counts.rounds_with_draft) for part in parts)

    def by_position(counts: Callable[[SpeculationCounts], tuple[int, ...]]) -> tuple[int, ...]:
        padded = [(*counts(part.counts), *(0,) * depth)[:depth] for part in parts]
        return tuple(sum(column) for column in zip(*padded, strict=True))

    counts = SpeculationCounts(
        sum(part.counts.rounds for part in parts),
        sum(part.counts.drafted for part in parts),
        sum(part.counts.accepted for part in parts),
        by_position(lambda counts: counts.rounds_with_draft),
        by_position(lambda counts: counts.accepted_per_position),
    )
    seconds = RoundSeconds(
        sum(part.seconds.draft for part in parts),
        sum(part.seconds.verify for part in parts),
        sum(part.seconds.sample for part in parts),
        sum(part.seconds.rollback for part in parts),
    )
    named = next((part for part in parts if part.method != "off"), parts[0])
    return Rounds(named.method, named.max_window, counts, seconds)
