"""Drafts of an MTP module (`models.mtp`): columns of the text so far, then one column per drafted token.

Column p joins the target's row p with token p + 1 and gives the token after that. Most columns of a prompt are computed
as soon as their rows are final. In decoding, rows are kept until the next draft is asked for, and their columns run in
one pass with it: the last of them gives the first token, and each further token is one more column on the module's own
row. Those columns are provisional: their slots lie behind all final ones, which overwrite them.

A column runs once. A sequence without a column to run, because a step failed or because its tokens just filled a page
that is shared by now, gets no draft until it has a new row: to run its last column again would write to a page that
others read. The last column of a shared page holds the token behind it, which is the first owner's: with another text
behind the page that column is off by one token, and drafts a little worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask
from ninfer.decoding.proposers.choice import choose
from ninfer.decoding.proposers.columns import Backlog, Columns, FeatureSource, Rows, forward_batch, in_batches, stacked
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
        self._backlog = Backlog()

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        known = [index for index, task in enumerate(tasks) if self._has_column(task)]
        ids: list[list[int]] = [[] for _ in tasks]
        drawn: list[list[Candidates]] = [[] for _ in tasks]
        columns = [self._backlog.take(tasks[index].sequence) for index in known]
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
        for kept in committed:
            ids = kept.tokens[kept.position + 1 : kept.position + kept.count + 1].astype(np.int32)
            rows = features[kept.row : kept.row + kept.count]
            due.append(self._backlog.add(kept, ids, rows, keep=1))
        self._run(due)

    def settle(self, sequence: int) -> None:
        self._run(self._backlog.take_full_pages(sequence))

    def forget(self, sequence: int) -> None:
        self._backlog.forget(sequence)

    def close(self) -> None:
        self._draft.close()

    def _has_column(self, task: DraftTask) -> bool:
        """Whether there is a column whose token was not drafted yet."""
        return self._backlog.is_known(task) and self._backlog.count(task.sequence) > 0

    def _run(self, parts: Iterable[Columns]) -> None:
        """Compute columns for their keys and values alone."""
        for batch in in_batches(parts, self._module.max_rows):
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
