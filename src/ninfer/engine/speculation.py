"""Drafts around a step: how many tokens are asked for, and what a proposer is told of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ninfer.decoding.proposer import Committed, DraftTask, Proposer
from ninfer.engine.config import DraftRule
from ninfer.engine.scheduler import ScheduledRows, StepPlan
from ninfer.engine.sequence import Sequence
from ninfer.engine.window import DraftResult, Lane, StepCost, WindowPolicy
from ninfer.errors import InvariantError
from ninfer.metrics import RoundTimes


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a step that became final: the first `count` from `position` on, which began at `row` of the step."""

    scheduled: ScheduledRows
    position: int
    count: int
    row: int


class Speculation:
    """Asks a proposer for drafts, once per step for all sequences that decode, and tells it what came of the step.

    A window is never longer than what is left of the answer needs: one token less than may follow, because every round
    gives one of its own. That is also within the claim of the sequence's token memory and within the context.
    """

    def __init__(self, proposer: Proposer, policy: WindowPolicy, rule: DraftRule = "replay") -> None:
        """policy: its windows are at most `proposer.max_window`. rule: `EngineConfig.draft_rule`."""
        self._proposer = proposer
        self._policy = policy
        self._rule = rule

    def draft(self, plan: StepPlan) -> StepPlan:
        """The plan with drafts in it. Their pages are taken, but no step is reserved yet."""
        decoding = [scheduled.sequence for scheduled in plan.scheduled[: plan.num_decoding]]
        if not decoding:
            return plan
        lanes = [Lane(s.id, s.length, s.limit - s.num_output - 1) for s in decoding]
        other_rows = sum(scheduled.count for scheduled in plan.scheduled[plan.num_decoding :])
        windows = self._policy.windows(lanes, other_rows)
        asked = [index for index, by_grade in enumerate(windows) if max(by_grade) > 0]
        if not asked:
            return plan
        rows = list(plan.scheduled)
        tasks = [self._task(decoding[index], windows[index]) for index in asked]
        for index, task, draft in zip(asked, tasks, self._proposer.propose(tasks), strict=True):
            if len(draft.ids) > task.window_of(draft.grade):
                raise InvariantError(f"{len(draft.ids)} tokens drafted for {task}")
            if self._rule == "replay" and draft.distributions is not None:
                draft = replace(draft, distributions=None)
            if draft.ids:
                rows[index] = ScheduledRows(rows[index].sequence, 1 + len(draft.ids), True, draft)
        return StepPlan(tuple(rows), plan.num_decoding)

    def _task(self, sequence: Sequence, windows: tuple[int, ...]) -> DraftTask:
        window = max(windows)
        sequence.state.make_room(1 + window)
        return DraftTask(
            sequence=sequence.id,
            tokens=sequence.tokens[: sequence.length],
            pages=sequence.state.pages,
            window=window,
            sampling=sequence.request.sampling,
            grade_windows=windows,
            seed=sequence.seed if self._rule == "rejection" else None,
        )

    def record(self, plan: StepPlan, results: list[DraftResult], times: RoundTimes) -> None:
        """Let the policy learn from a step: what became of drafts, and what it took if only decoding ran."""
        cost = None
        if plan.num_decoding == len(plan.scheduled):
            rows = sum(scheduled.count for scheduled in plan.scheduled)
            context = sum(scheduled.sequence.length for scheduled in plan.scheduled) // plan.num_decoding
            seconds = 1e-9 * (times.verify + times.sample + times.rollback)
            cost = StepCost(rows, context, seconds, 1e-9 * times.draft)
        self._policy.record(results, cost)

    def observe(self, kept: Iterable[KeptRows]) -> None:
        """Tell the proposer what is final; the sequences have not ended yet."""
        self._proposer.observe(
            [
                Committed(
                    sequence=rows.scheduled.sequence.id,
                    tokens=rows.scheduled.sequence.tokens[: rows.scheduled.sequence.length],
                    pages=rows.scheduled.sequence.state.pages,
                    position=rows.position,
                    count=rows.count,
                    row=rows.row,
                )
                for rows in kept
            ]
        )

    def settle(self, sequence_id: int) -> None:
        """The pages of a sequence are about to be shared."""
        self._proposer.settle(sequence_id)

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended, or its token memory is another one."""
        self._proposer.forget(sequence_id)
        self._policy.forget(sequence_id)

    def close(self) -> None:
        self._proposer.close()
