"""Drafts around a step: how many tokens are asked for, and what a proposer is told of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ninfer.decoding.proposer import Committed, DraftTask, Proposer
from ninfer.engine.scheduler import ScheduledRows, StepPlan
from ninfer.errors import InvariantError


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

    def __init__(self, proposer: Proposer, window: int) -> None:
        """window: most tokens of a draft, at most `proposer.max_window`."""
        self._proposer = proposer
        self._window = window

    def draft(self, plan: StepPlan) -> StepPlan:
        """The plan with drafts in it. Their pages are taken, but no step is reserved yet."""
        tasks: list[DraftTask] = []
        asked: list[int] = []
        for index, scheduled in enumerate(plan.scheduled[: plan.num_decoding]):
            sequence = scheduled.sequence
            window = min(self._window, sequence.limit - sequence.num_output - 1)
            if window > 0:
                sequence.state.make_room(1 + window)
                tokens = sequence.tokens[: sequence.length]
                tasks.append(DraftTask(sequence.id, tokens, sequence.state.pages, window, sequence.request.sampling))
                asked.append(index)
        if not tasks:
            return plan
        rows = list(plan.scheduled)
        drafts = self._proposer.propose(tasks)
        for index, task, draft in zip(asked, tasks, drafts, strict=True):
            if len(draft.ids) > task.window_of(draft.grade):
                raise InvariantError(f"{len(draft.ids)} tokens drafted for {task}")
            if draft.ids:
                rows[index] = replace(rows[index], count=1 + len(draft.ids), draft=draft)
        return StepPlan(tuple(rows), plan.num_decoding)

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

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended."""
        self._proposer.forget(sequence_id)

    def close(self) -> None:
        self._proposer.close()
