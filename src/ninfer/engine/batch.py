"""A step plan as arrays."""

from __future__ import annotations

import numpy as np

from ninfer.engine.scheduler import StepPlan
from ninfer.models.batch import ForwardBatch, SequenceRows


class BatchBuilder:
    """Writes step plans into buffers that are allocated once."""

    def __init__(self, *, max_rows: int, max_logit_rows: int) -> None:
        self._token_ids = np.empty(max_rows, dtype=np.int32)
        self._logit_rows = np.empty(max_logit_rows, dtype=np.int32)

    def build(self, plan: StepPlan) -> ForwardBatch:
        """The batch of a plan whose rows are reserved. Its arrays are views, valid until the next call."""
        rows = 0
        logit_rows = 0
        sequences = []
        for scheduled in plan.scheduled:
            sequence, count = scheduled.sequence, scheduled.count
            state = sequence.state
            position = state.committed
            sequences.append(SequenceRows(rows, count, position, state.pages, state.access))
            drafted = len(scheduled.draft.ids)
            known = count - drafted
            self._token_ids[rows : rows + known] = sequence.tokens[position : position + known]
            rows += known
            if scheduled.wants_token:
                self._logit_rows[logit_rows] = rows - 1
                logit_rows += 1
            if drafted:
                self._token_ids[rows : rows + drafted] = scheduled.draft.ids
                self._logit_rows[logit_rows : logit_rows + drafted] = range(rows, rows + drafted)
                rows += drafted
                logit_rows += drafted
        return ForwardBatch(self._token_ids[:rows], tuple(sequences), self._logit_rows[:logit_rows])
