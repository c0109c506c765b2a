"""State slots and journals of one recurrent layer as NumPy arrays, and the walk of a sequence's rows over them.

Slots and journals are float32, as the contracts say; between a read and a save the state is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ninfer.backends.options import RuntimeOptions
from ninfer.errors import InvariantError
from ninfer.ops.batch import SequenceRows

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]

Inputs = Sequence[F64Array]
"""What an op reads of each row: arrays `[rows, width]`."""

Advance = Callable[[Inputs, F64Array], tuple[F64Array, F64Array]]
"""From the inputs of some rows and the state before them to (outputs `[rows, width]`, the state after them)."""


class RecurrentState:
    """The state of one op in one layer: `num_state_slots` arrays of `shape`, and journals of its inputs."""

    def __init__(self, shape: tuple[int, ...], journal_widths: Sequence[int], options: RuntimeOptions) -> None:
        self.slots = np.zeros((options.num_state_slots, *shape), np.float32)
        rows = (options.num_journals, options.journal_rows)
        self._journals = [np.zeros((*rows, width), np.float32) for width in journal_widths]

    def run(self, sequence: SequenceRows, inputs: Inputs, kept: Sequence[int], advance: Advance) -> F64Array:
        """The outputs of one sequence's rows, with reads, replay, saves and journal as its access says.

        `inputs` are the whole step's; `kept` are the indices of those that a journal keeps, in its own order. An op's
        state must not depend on inputs that no journal keeps: they are zero in a replay.
        """
        access = sequence.state
        if access is None:
            raise InvariantError("a step without state accesses of a graph with recurrent layers")
        mine = [x[sequence.start : sequence.start + sequence.count] for x in inputs]
        shape = self.slots.shape[1:]
        state = np.zeros(shape) if access.read is None else self.slots[access.read].astype(np.float64)
        if access.replay is not None:
            journal, count = access.replay
            again = [np.zeros((count, x.shape[1])) for x in inputs]
            for index, rows in zip(kept, self._journals, strict=True):
                again[index] = rows[journal, :count].astype(np.float64)
            _, state = advance(again, state)
        if access.journal is not None:
            for index, rows in zip(kept, self._journals, strict=True):
                rows[access.journal, : sequence.count] = mine[index]
        outputs, done = [], 0
        for until, slot in (*access.saves, (sequence.count, None)):
            if until > done:
                output, state = advance([x[done:until] for x in mine], state)
                outputs.append(output)
                done = until
            if slot is not None:
                self.slots[slot] = state
        return np.concatenate(outputs)
