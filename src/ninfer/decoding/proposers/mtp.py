"""Drafts of an MTP module (`models.mtp`): columns of the text so far, then one column per drafted token.

Column p joins the target's row p with token p + 1 and gives the token after that. Most columns of a prompt are computed
as soon as their rows are final. In decoding, rows are kept until the next draft is asked for, and their columns run in
one pass with it: the last of them gives the first token, and each further token is one more column on the module's own
row. Those columns are provisional: their slots lie behind all final ones, which overwrite them.

A column runs once. A sequence without a new row since its last draft, because a step failed or its state was settled,
gets no draft until it has one: to run its last column again could write to a page that others read by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask
from ninfer.decoding.proposers.choice import choose
from ninfer.decoding.proposers.columns import (
    MAX_PENDING,
    Columns,
    FeatureSource,
    Rows,
    forward_batch,
    in_batches,
    stacked,
)
from ninfer.decoding.sampler import Candidates
from ninfer.errors import InvariantError
from ninfer.models.draft_model import DraftModel

MAX_WINDOW = 8


class MTPProposer:
    """Drafts by a module; `target` must give the feature `final`."""

    num_grades = 1

    def __init__(self, target: FeatureSource, draft: DraftModel, max_window: int = MAX_WINDOW) -> None:
        """Takes over `draft`; `close` closes it."""
        if not 1 <= max_window <= MAX_WINDOW:
            raise InvariantError(f"an MTP window of {max_window}; 1 to {MAX_WINDOW} are possible")
        self.max_window = max_window
        self._target = target
        self._draft = draft
        self._module = draft.passes[0]
        self._pending: dict[int, Columns] = {}

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        known = [index for index, task in enumerate(tasks) if self._has_rows(task)]
        ids: list[list[int]] = [[] for _ in tasks]
        drawn: list[list[Candidates]] = [[] for _ in tasks]
        columns = [self._take(tasks[index].sequence) for index in known]
        while known:
            following: list[Columns] = []
            for index, one, logits, row in zip(known, columns, *self._run_for_tokens(columns), strict=True):
                task = tasks[index]
                token, distribution = choose(logits, task, len(task.tokens) + len(ids[index]), self._draft.ids)
                ids[index].append(token)
                if distribution is not None:
                    drawn[index].append(distribution)
                following.append(Columns(task.pages, one.end, np.array([token], np.int32), row[None]))
            going_on = [i for i, index in enumerate(known) if len(ids[index]) < tasks[index].window]
            known, columns = [known[i] for i in going_on], [following[i] for i in going_on]
        return [
            Draft(tuple(found), tuple(from_) if from_ else None) if found else NO_DRAFT
            for found, from_ in zip(ids, drawn, strict=True)
        ]

    def observe(self, committed: Sequence[Committed]) -> None:
        features = self._target.feature("final")
        due: list[Columns] = []
        for rows in committed:
            behind = rows.position + rows.count
            ids = rows.tokens[rows.position + 1 : behind + 1].astype(np.int32)
            columns = Columns(rows.pages.copy(), rows.position, ids, features[rows.row : rows.row + rows.count])
            kept = self._pending.get(rows.sequence)
            # A sequence whose memory was taken is told from its start again.
            if kept is not None and kept.end == rows.position:
                columns = kept.followed_by(columns)
            if len(columns.ids) > MAX_PENDING:
                early, columns = columns.split(len(columns.ids) - 1)
                due.append(early)
            # The target's rows are a view that its next step overwrites.
            self._pending[rows.sequence] = Columns(columns.pages, columns.position, columns.ids, columns.rows.copy())
        self._run(due)

    def settle(self, sequence: int) -> None:
        if sequence in self._pending:
            self._run([self._take(sequence)])

    def forget(self, sequence: int) -> None:
        self._pending.pop(sequence, None)

    def close(self) -> None:
        self._pending.clear()
        self._draft.close()

    def _has_rows(self, task: DraftTask) -> bool:
        """Whether there is a column whose token was not drafted yet."""
        kept = self._pending.get(task.sequence)
        if kept is not None and kept.end != len(task.tokens) - 1:
            raise InvariantError(f"columns up to {kept.end} of a sequence that has {len(task.tokens)} tokens")
        return kept is not None and len(kept.ids) > 0

    def _take(self, sequence: int) -> Columns:
        """The columns of a sequence, which are about to run."""
        columns = self._pending[sequence]
        _, self._pending[sequence] = columns.split(len(columns.ids))
        return columns

    def _run(self, parts: Iterable[Columns]) -> None:
        """Compute columns for their keys and values alone."""
        for batch in in_batches((part for part in parts if len(part.ids)), self._module.max_rows):
            self._module.run(forward_batch(batch, wanted=()), (stacked([part.rows for part in batch]),))

    def _run_for_tokens(self, parts: Sequence[Columns]) -> tuple[list[Rows], list[Rows]]:
        """Compute columns; of the last of each part the logits, valid until the next pass, and the row that a next
        column takes."""
        if sum(len(part.ids) for part in parts) > self._module.max_rows:
            last = [part.split(len(part.ids) - 1) for part in parts]
            self._run(first for first, _ in last)
            parts = [one for _, one in last]
        ends = [end - 1 for end in accumulate(len(part.ids) for part in parts)]
        logits = self._module.run(forward_batch(parts, wanted=ends), (stacked([part.rows for part in parts]),))
        return list(logits), list(self._module.executable.feature("final").copy())
