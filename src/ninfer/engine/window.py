"""How many tokens to draft: the window that gives most tokens per second, as past rounds tell it.

    speed(k) = (1 + P_1 + ... + P_k) / T(k)

P_i is the share of drafts whose first i tokens all hold, T(k) the time of a round with k drafted tokens: one batch of
the target model with k more rows, and the draft. P comes from the sequence's own rounds (`Acceptance`), T from all
rounds of the engine (`RoundCosts`). Nothing looks at the draft that is about to be verified, so that any rule of
verification stays exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

FORGETTING = 1 - 1 / 32
"""What an observation of acceptance keeps of its weight with the next one: about the last 32 count."""

FIRST_GUESS = 0.5
"""Acceptance of a draft's first token before anything is known."""

GUESS_WEIGHT = 3.0
"""Observations that a guess weighs as much as."""

HYSTERESIS = 1.02
"""A window changes for a gain of at least 2 %: estimates are no better than that, and less is not worth the change."""

EXPLORE_EVERY = 50
"""Rounds after which a grade of drafts leaves its best window once, by turns for one token more and for none at all:
what is not tried is not learned."""

RECONSIDER_EVERY = 64
"""Rounds without a draft after which a window is computed again: costs may have changed."""

STEADY_GAINS = (1 / 4, 1 / 128)
CHANGED_GAINS = (1 / 16, 1 / 8)
"""Shares of a surprise, on a logarithmic scale, that go to the speed of the machine and to the cost of that many rows.
A step with as many rows as the one before tells how fast the machine is, one with more or fewer how rows compare."""

SURPRISE_LIMIT = 2.0
"""A round that took more than so many times its prediction was interrupted, and counts as this."""

CONTEXT_BOUNDS = (512, 2048, 8192, 32768, 131072)
"""Contexts from which on costs are told apart: attention reads more with every row."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A decoding sequence as a policy sees it. length: its tokens. room: the longest window that may be of use."""

    sequence: int
    length: int
    room: int


@dataclass(frozen=True, slots=True)
class DraftResult:
    """What became of one sequence's draft in a round: `accepted` of `drafted` tokens, none of none without a draft."""

    sequence: int
    grade: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step in which sequences only decoded: rows, mean tokens of its sequences, seconds without and of the draft."""

    rows: int
    context: int
    seconds: float
    draft_seconds: float


class WindowPolicy(Protocol):
    """Decides windows before each step and learns from it afterwards."""

    def windows(self, lanes: Sequence[Lane], other_rows: int) -> list[tuple[int, ...]]:
        """For each lane the most tokens to draft, by grade, within its room. `other_rows` run in the same step."""
        ...

    def record(self, results: Sequence[DraftResult], cost: StepCost | None) -> None:
        """What the step gave; `cost` is None where others shared it or nothing is known of it."""
        ...

    def forget(self, sequence: int) -> None: ...


class FixedWindow:
    """Always the same window."""

    def __init__(self, window: int, num_grades: int) -> None:
        self._window = window
        self._num_grades = num_grades

    def windows(self, lanes: Sequence[Lane], other_rows: int) -> list[tuple[int, ...]]:
        return [(min(self._window, lane.room),) * self._num_grades for lane in lanes]

    def record(self, results: Sequence[DraftResult], cost: StepCost | None) -> None:
        """Nothing to learn."""

    def forget(self, sequence: int) -> None:
        """Nothing was learned."""


class Acceptance:
    """How often a draft's token holds if those before it do, by position: averages that forget.

    Conditional shares do not depend on the windows that were tried, so that they stay right while windows change.
    Where a position was seldom tried, the guess is what the position before it has, and what `shared` has, an average
    over more than this sequence.
    """

    def __init__(self, max_window: int, shared: Acceptance | None = None) -> None:
        self._hits = [0.0] * max_window
        self._tries = [0.0] * max_window
        self._shared = shared

    def record(self, drafted: int, accepted: int) -> None:
        """A draft was tested as far as its first token that did not hold."""
        if self._shared is not None:
            self._shared.record(drafted, accepted)
        for i in range(min(drafted, accepted + 1)):
            self._hits[i] = FORGETTING * self._hits[i] + (i < accepted)
            self._tries[i] = FORGETTING * self._tries[i] + 1

    def conditional(self) -> list[float]:
        """By position the share of drafts that hold there, of those that hold before it."""
        shared = None if self._shared is None else self._shared.conditional()
        rates: list[float] = []
        for i, (hits, tries) in enumerate(zip(self._hits, self._tries, strict=True)):
            guess = rates[-1] if rates else FIRST_GUESS
            if shared is not None:
                guess = (guess + shared[i]) / 2 if rates else shared[i]
            rates.append((hits + GUESS_WEIGHT * guess) / (tries + GUESS_WEIGHT))
        return rates

    def expected_tokens(self) -> list[float]:
        """Tokens of a round by window, `0 .. max_window`: its own and the drafts that hold."""
        tokens, product = [1.0], 1.0
        for rate in self.conditional():
            product *= rate
            tokens.append(tokens[-1] + product)
        return tokens


class RoundCosts:
    """Seconds of a step by rows and context, from measurements that every step refines.

    Between measured row counts costs are interpolated, behind the last they grow as before it. Each context range has
    a shape (how row counts compare) and a scale (how fast the machine is): what a decision depends on is the shape.
    """

    def __init__(self, seconds: Mapping[int, Mapping[int, float]]) -> None:
        """seconds: by context in tokens and rows; at least one context with at least one row count."""
        self._shapes: dict[int, dict[int, float]] = {}
        for context, by_rows in seconds.items():
            self._shapes[_context_range(context)] = dict(by_rows)
        self._scales = dict.fromkeys(self._shapes, 1.0)
        self._rows = {found: sorted(shape) for found, shape in self._shapes.items()}
        self._last_rows: int | None = None

    def seconds(self, rows: int, context: int) -> float:
        """The expected time of a step of `rows` rows."""
        found = self._nearest(context)
        return self._scales[found] * self._shape(found, rows)

    def record(self, rows: int, context: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`."""
        found = _context_range(context)
        if found not in self._shapes:
            nearest = self._nearest(context)
            self._shapes[found] = dict(self._shapes[nearest])
            self._scales[found] = self._scales[nearest]
            self._rows[found] = list(self._rows[nearest])
        shape, expected = self._shapes[found], self._shape(found, rows)
        surprise = seconds / (self._scales[found] * expected)
        surprise = min(SURPRISE_LIMIT, max(1 / SURPRISE_LIMIT, surprise))
        scale_gain, shape_gain = STEADY_GAINS if self._last_rows in (None, rows) else CHANGED_GAINS
        self._last_rows = rows
        self._scales[found] *= surprise**scale_gain
        if rows not in shape:
            self._rows[found].insert(bisect_left(self._rows[found], rows), rows)
        shape[rows] = expected * surprise**shape_gain

    def _nearest(self, context: int) -> int:
        wanted = _context_range(context)
        return min(self._shapes, key=lambda found: (abs(found - wanted), found))

    def _shape(self, found: int, rows: int) -> float:
        shape, known = self._shapes[found], self._rows[found]
        if rows in shape:
            return shape[rows]
        if len(known) == 1:
            return shape[known[0]]
        right = min(max(1, bisect_left(known, rows)), len(known) - 1)
        low, high = known[right - 1], known[right]
        slope = (shape[high] - shape[low]) / (high - low)
        return shape[low] + slope * (rows - low) if rows > low else shape[low]


def _context_range(context: int) -> int:
    return bisect_right(CONTEXT_BOUNDS, context)


def best_window(tokens: Sequence[float], seconds: Sequence[float], current: int | None = None) -> int:
    """The window with most tokens per second, by window `0 .. K` the expected tokens and seconds of a round.

    The shortest among equals; `current`, if it is no more than `HYSTERESIS` behind.
    """
    speeds = [n / s for n, s in zip(tokens, seconds, strict=True)]
    best = max(range(len(speeds)), key=lambda k: (speeds[k], -k))
    if current is not None and current < len(speeds) and speeds[best] < HYSTERESIS * speeds[current]:
        return current
    return best


@dataclass(slots=True)
class _Followed:
    """What is known of one sequence. By grade: the best windows, rounds since one last left its best, and how often
    that was. tokens, rows: of its last round, as expected and as it was. age: rounds since the last decision.
    stale: grades that have learned something since."""

    acceptance: list[Acceptance]
    windows: list[int | None]
    waited: list[int]
    explored: list[int]
    tokens: float = 1.0
    rows: int = 1
    age: int = 0
    stale: set[int] = field(default_factory=set)


class AutoWindow:
    """Windows that set themselves.

    For each sequence and grade of drafts the window with most tokens per second of the whole step is taken, while the
    other sequences do what they did last. A window of 0 switches drafts off until they are tried again.
    """

    def __init__(self, max_window: int, num_grades: int, costs: RoundCosts) -> None:
        self._max_window = max_window
        self._num_grades = num_grades
        self._costs = costs
        self._shared = [Acceptance(max_window) for _ in range(num_grades)]
        self._followed: dict[int, _Followed] = {}
        self._draft_seconds: list[list[float | None]] = [[0.0] + [None] * max_window for _ in range(num_grades)]

    def windows(self, lanes: Sequence[Lane], other_rows: int) -> list[tuple[int, ...]]:
        followed = [self._follow(lane.sequence) for lane in lanes]
        rows = other_rows + sum(one.rows for one in followed)
        tokens = sum(one.tokens for one in followed)
        decided = []
        for lane, one in zip(lanes, followed, strict=True):
            if one.stale or one.age >= RECONSIDER_EVERY:
                self._decide(one, lane.length, rows - one.rows, tokens - one.tokens)
            decided.append(tuple([min(self._window(one, grade), lane.room) for grade in range(self._num_grades)]))
        return decided

    def record(self, results: Sequence[DraftResult], cost: StepCost | None) -> None:
        for result in results:
            one, grade = self._follow(result.sequence), result.grade
            one.age += 1
            self._wait(one, result)
            one.rows = 1 + result.drafted
            one.tokens = 1.0
            if result.drafted:
                one.acceptance[grade].record(result.drafted, result.accepted)
                one.stale.add(grade)
                one.tokens = one.acceptance[grade].expected_tokens()[result.drafted]
        if cost is not None:
            self._costs.record(cost.rows, cost.context, cost.seconds)
            self._record_draft(results, cost.draft_seconds)

    def forget(self, sequence: int) -> None:
        self._followed.pop(sequence, None)

    def _window(self, one: _Followed, grade: int) -> int:
        """The best window of a grade, or what is tried instead of it."""
        best = one.windows[grade] or 0
        if one.waited[grade] < EXPLORE_EVERY:
            return best
        return 0 if self._looks_down(one, grade) else best + 1

    def _looks_down(self, one: _Followed, grade: int) -> bool:
        """Whether the next window that is tried is none, which is not news where that is the best one."""
        best = one.windows[grade] or 0
        return best == self._max_window or (best > 0 and one.explored[grade] % 2 == 1)

    def _wait(self, one: _Followed, result: DraftResult) -> None:
        """Count a round; a window that had to be tried is done with when it was, for one more token when it came."""
        for grade in range(self._num_grades):
            if one.waited[grade] >= EXPLORE_EVERY:
                longer = result.grade == grade and result.drafted > (one.windows[grade] or 0)
                if longer or self._looks_down(one, grade):
                    one.waited[grade] = 0
                    one.explored[grade] += 1
                    continue
            one.waited[grade] += 1

    def _record_draft(self, results: Sequence[DraftResult], seconds: float) -> None:
        """The time of one call that drafted for all: it is that of the longest draft."""
        drafted = [result for result in results if result.drafted]
        if not drafted:
            return
        longest = max(drafted, key=lambda result: result.drafted)
        known = self._draft_seconds[longest.grade]
        before = known[longest.drafted]
        known[longest.drafted] = seconds if before is None else before + (seconds - before) / 16

    def _follow(self, sequence: int) -> _Followed:
        if sequence not in self._followed:
            self._followed[sequence] = _Followed(
                [Acceptance(self._max_window, shared) for shared in self._shared],
                [None] * self._num_grades,
                [0] * self._num_grades,
                [0] * self._num_grades,
                stale=set(range(self._num_grades)),
            )
        return self._followed[sequence]

    def _decide(self, one: _Followed, length: int, other_rows: int, other_tokens: float) -> None:
        """Compute the windows of those grades that have learned something, or of all after some time."""
        grades = range(self._num_grades) if one.age >= RECONSIDER_EVERY else one.stale
        windows = range(self._max_window + 1)
        verify = [self._costs.seconds(other_rows + 1 + k, length) for k in windows]
        for grade in grades:
            tokens = [other_tokens + n for n in one.acceptance[grade].expected_tokens()]
            seconds = [v + d for v, d in zip(verify, self._draft_costs(grade), strict=True)]
            one.windows[grade] = best_window(tokens, seconds, one.windows[grade])
        one.stale.clear()
        one.age = 0

    def _draft_costs(self, grade: int) -> list[float]:
        """Seconds of a draft by window; what was not tried yet costs as much per token as what was."""
        known = [(k, s) for k, s in enumerate(self._draft_seconds[grade]) if k and s is not None]
        costs = [0.0]
        for k in range(1, self._max_window + 1):
            found = self._draft_seconds[grade][k]
            if found is None:
                near = min(known, key=lambda item: abs(item[0] - k), default=(1, 0.0))
                found = near[1] * k / near[0]
            costs.append(found)
        return costs
