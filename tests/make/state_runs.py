"""State accesses interpreted on plain lists of rows: what a sequence has seen, whichever slots it went through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ninfer.ops.batch import StateAccess
from ninfer.ops.spec import F32Array, Step

History = list[list[F32Array]]
"""Rows of a sequence from its first on; each is the rows `[width]` of all inputs."""


class Histories:
    """Slots and journals that hold whole histories instead of states."""

    def __init__(self) -> None:
        self.slots: dict[int, History] = {}
        self._journals: dict[int, History] = {}

    def before(self, access: StateAccess) -> History:
        """What a sequence has seen before the rows of a step; KeyError if nothing was saved where it reads."""
        history = [] if access.read is None else list(self.slots[access.read])
        if access.replay is not None:
            journal, count = access.replay
            history += self._journals[journal][:count]
        return history

    def after(self, access: StateAccess, rows: History) -> None:
        """Do what the access says about slots and journals."""
        before = self.before(access)
        for count, slot in access.saves:
            self.slots[slot] = before + rows[:count]
        if access.journal is not None:
            self._journals[access.journal] = rows


def whole_histories(steps: Sequence[Step]) -> Iterator[list[tuple[int, list[F32Array]]]]:
    """By step, for each of its sequences: (rows before the step, all inputs `[rows so far, width]`)."""
    kept = Histories()
    for step in steps:
        seen, start, done = [], 0, []
        for r in step.rows:
            if r.state is None:
                raise ValueError("rows without a state access")
            rows = [[x[start + i] for x in step.inputs] for i in range(r.count)]
            before = kept.before(r.state)
            seen.append((len(before), [np.array(column) for column in zip(*(before + rows), strict=True)]))
            done.append((r.state, rows))
            start += r.count
        for access, rows in done:
            kept.after(access, rows)
        yield seen
