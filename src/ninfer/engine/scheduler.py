"""Who runs in a step: admission in order of arrival, decode rows first, then prefill while rows are left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ninfer.cache import TokenMemory
from ninfer.decoding.proposer import NO_DRAFT, Draft
from ninfer.engine.sequence import Sequence


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


class Scheduler:
    """Waiting and running sequences.

    A sequence is admitted when a lane is free and its whole need of token memory can be claimed; the queue never
    overtakes, so a large request waits for running ones to end and nothing waits for ever. Running sequences always
    have their memory. A step has one row per decoding sequence, and `prefill_chunk` rows for those with more tokens to
    compute, oldest request first.
    """

    def __init__(self, memory: TokenMemory, *, max_concurrency: int, prefill_chunk: int) -> None:
        self._memory = memory
        self._max_concurrency = max_concurrency
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._steady: StepPlan | None = None

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
        """Move waiting sequences to running while the first of them fits."""
        while self._waiting and len(self._running) < self._max_concurrency:
            if not self._memory.has_room(self._waiting[0].state_tokens):
                return
            sequence = self._waiting.popleft()
            sequence.admit(self._memory)
            self._running.append(sequence)
            self._steady = None

    def roll_back(self, plan: StepPlan) -> None:
        """Undo a step that did not come to its commit; its tokens, or more, are scheduled again."""
        for scheduled in plan.scheduled:
            scheduled.sequence.state.rollback()
        self._steady = None

    def plan(self) -> StepPlan:
        """The next step; it is empty only when nothing runs.

        While the same sequences decode, every step has the same plan.
        """
        if self._steady is not None:
            return self._steady
        decoding = [s.num_output > 0 and s.num_pending == 1 for s in self._running]
        scheduled = [ScheduledRows(s, 1, True) for s, decodes in zip(self._running, decoding, strict=True) if decodes]
        num_decoding = len(scheduled)
        budget = self._prefill_chunk
        for sequence, decodes in zip(self._running, decoding, strict=True):
            if not decodes and budget:
                pending = sequence.num_pending
                count = min(pending, budget)
                budget -= count
                scheduled.append(ScheduledRows(sequence, count, count == pending))
        plan = StepPlan(tuple(scheduled), num_decoding)
        if num_decoding == len(self._running):
            self._steady = plan
        return plan
