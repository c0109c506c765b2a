"""One proposer where it has something to say, and another one elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask, Proposer


class CombinedProposer:
    """Asks `first`, which should be the cheaper one, and `second` for the sequences that `first` had no draft for.

    The grades of `first` come before those of `second`.
    """

    def __init__(self, first: Proposer, second: Proposer) -> None:
        """Takes both over: `close` closes them."""
        self._first = first
        self._second = second
        self.max_window = max(first.max_window, second.max_window)
        self.num_grades = first.num_grades + second.num_grades

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        drafts = _ask(self._first, [self._part(task, 0) for task in tasks])
        open_tasks = [i for i, draft in enumerate(drafts) if not draft.ids]
        second = _ask(self._second, [self._part(tasks[i], self._first.num_grades) for i in open_tasks])
        for i, draft in zip(open_tasks, second, strict=True):
            drafts[i] = replace(draft, grade=self._first.num_grades + draft.grade)
        return drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        self._first.observe(committed)
        self._second.observe(committed)

    def settle(self, sequence: int) -> None:
        self._first.settle(sequence)
        self._second.settle(sequence)

    def forget(self, sequence: int) -> None:
        self._first.forget(sequence)
        self._second.forget(sequence)

    def close(self) -> None:
        self._first.close()
        self._second.close()

    def _part(self, task: DraftTask, first_grade: int) -> DraftTask:
        """The task of the proposer whose grades begin at `first_grade`, within what it can draft."""
        proposer = self._second if first_grade else self._first
        grades = range(first_grade, first_grade + proposer.num_grades)
        windows = tuple(min(proposer.max_window, task.window_of(grade)) for grade in grades)
        return replace(task, window=max(windows), grade_windows=windows)


def _ask(proposer: Proposer, tasks: Sequence[DraftTask]) -> list[Draft]:
    """Drafts of a proposer, none where it may not draft anything."""
    drafts = [NO_DRAFT] * len(tasks)
    wanted = [i for i, task in enumerate(tasks) if task.window > 0]
    if wanted:
        for i, draft in zip(wanted, proposer.propose([tasks[i] for i in wanted]), strict=True):
            drafts[i] = draft
    return drafts
