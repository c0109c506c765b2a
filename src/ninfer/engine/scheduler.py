"""Who runs in a step: admission in order of arrival, decode rows first, then prefill while rows are left."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from ninfer.cache import PrefixMatch, TokenMemory, pages_for
from ninfer.decoding.proposer import NO_DRAFT, Draft
from ninfer.engine.pacing import Pace
from ninfer.engine.reuse import PrefixReuse
from ninfer.engine.sequence import Sequence
from ninfer.errors import InvariantError


@dataclass(frozen=True, slots=True)
class ScheduledRows:
    """`count` next tokens of a sequence; `wants_token` when they are all it has, so that a new token follows.

    A `draft` makes the rows a block: its tokens come behind the one that is known, and how many of them hold is decided
    after the step.
    """

    sequence: Sequence
    count: int
    wants_token: bool
    draft: Draft = NO_DRAFT

    @property
    def is_block(self) -> bool:
        return bool(self.draft.ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The decision of one step: sequences in row order, the `num_decoding` that decode first."""

    scheduled: tuple[ScheduledRows, ...]
    num_decoding: int = 0

    @property
    def num_prompt_rows(self) -> int:
        return sum(each.count for each in self.scheduled[self.num_decoding :])


class Scheduler:
    """Waiting and running sequences, both in order of arrival.

    A sequence is admitted when a lane is free and there are pages for all its known tokens and for one more page of
    every running sequence, so that nobody has to give way soon. One that cannot be admitted may be overtaken by
    younger ones that can, `max_concurrency` times at most, and then not again: nothing waits for ever.

    Later pages are taken as the tokens come. When there are no more, the youngest sequence is preempted: it gives back
    its memory, waits in its place in the order, and computes its tokens again, those that it has emitted included.
    Nothing is sampled twice. The oldest never gives way, so it ends, and then the next one is the oldest.

    A step has one row per decoding sequence, and `prefill_chunk` rows for those with more tokens to compute, oldest
    first; as many as `pace` says if there are decoding ones, which wait for them.
    """

    def __init__(
        self,
        memory: TokenMemory,
        reuse: PrefixReuse,
        *,
        max_concurrency: int,
        prefill_chunk: int,
        window: int,
        pace: Pace,
    ) -> None:
        """window: most tokens of a draft."""
        self._memory = memory
        self._reuse = reuse
        self._max_concurrency = max_concurrency
        self._prefill_chunk = prefill_chunk
        self._window = window
        self._pace = pace
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._steady: StepPlan | None = None
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running."""
        self._steady = None
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def admit(self) -> None:
        """Move waiting sequences to running as long as they fit."""
        passed: list[Sequence] = []
        for sequence in self._waiting[: self._max_concurrency + 1]:
            if len(self._running) == self._max_concurrency or not self._memory.has_slots:
                return
            match = self._reuse.find(sequence)
            if self._fits(sequence, match):
                self._start(sequence, match)
                for other in passed:
                    other.num_overtaken += 1
            else:
                passed.append(sequence)
            if any(other.num_overtaken >= self._max_concurrency for other in passed):
                return

    def roll_back(self, plan: StepPlan) -> None:
        """Undo a step that did not come to its commit; its tokens, or more, are scheduled again."""
        for scheduled in plan.scheduled:
            sequence = scheduled.sequence
            committed = sequence.state.committed
            sequence.state.rollback()
            if sequence.state.committed < committed:
                self._reuse.lost(sequence)
        self._steady = None

    def plan(self) -> StepPlan:
        """The next step, for which pages are free; it is empty only when nothing runs.

        While the same sequences decode, every step has the same plan.
        """
        if self._steady is not None:
            most = len(self._steady.scheduled) * pages_for(1 + self._window)
            if most <= self._memory.pages.num_free:
                return self._steady
        while True:
            plan = self._rows()
            if self._memory.free_pages(self._num_missing(plan)):
                return plan
            self._preempt(self._running[-1])

    def _num_missing(self, plan: StepPlan) -> int:
        """Pages that a step takes, if every draft is as long as it may be."""
        missing = 0
        for index, scheduled in enumerate(plan.scheduled):
            sequence = scheduled.sequence
            drafted = sequence.draft_window(self._window) if index < plan.num_decoding else 0
            missing += sequence.state.num_missing(scheduled.count + drafted)
        return missing

    def _rows(self) -> StepPlan:
        """The rows of the next step, if there are pages for them."""
        decoding = [s for s in self._running if s.num_output > 0 and s.num_pending == 1]
        scheduled = [ScheduledRows(sequence, 1, True) for sequence in decoding]
        if len(decoding) == len(self._running):
            self._steady = StepPlan(tuple(scheduled), len(decoding))
            return self._steady
        prompts = [s for s in self._running if not (s.num_output > 0 and s.num_pending == 1)]
        budget = self._pace.rows(len(decoding), prompts[0].id) if decoding else self._prefill_chunk
        for sequence in prompts:
            if not budget:
                break
            self._reuse.bind(sequence, self._reuse.find(sequence))
            pending = sequence.num_pending
            count = min(pending, budget)
            budget -= count
            scheduled.append(ScheduledRows(sequence, count, count == pending))
        self._steady = None
        return StepPlan(tuple(scheduled), len(decoding))

    def _fits(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether a sequence that can reuse `match` may be admitted."""
        pages = self._memory.pages
        promised = sum(max(0, pages_for(s.length) - len(s.state.pages)) for s in self._running)
        needed = pages_for(sequence.length) - len(match.pages)
        available = pages.num_available - sum(not pages.is_held(page) for page in match.pages)
        return promised + needed + _growth([*self._running, sequence]) <= available

    def _start(self, sequence: Sequence, match: PrefixMatch) -> None:
        self._waiting.remove(sequence)
        sequence.admit(self._memory)
        self._reuse.bind(sequence, match)
        insort(self._running, sequence, key=_age)
        self._steady = None

    def _preempt(self, sequence: Sequence) -> None:
        if len(self._running) == 1:
            raise InvariantError(f"request {sequence.id} runs alone and finds no page")
        self._reuse.preempted(sequence)
        sequence.preempt()
        self._running.remove(sequence)
        insort(self._waiting, sequence, key=_age)
        self._steady = None
        self.num_preemptions += 1


def _age(sequence: Sequence) -> int:
    return sequence.id


def _growth(sequences: Iterable[Sequence]) -> int:
    """One page for each that may come to need another than those for its known tokens."""
    return sum(pages_for(s.state_tokens) > pages_for(s.length) for s in sequences)
