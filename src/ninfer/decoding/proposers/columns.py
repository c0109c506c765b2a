"""Columns of a sequence that a draft model computes from rows of its target, several sequences in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ninfer.decoding.proposer import Committed, DraftTask, Ids
from ninfer.errors import InvariantError
from ninfer.models.batch import PAGE_TOKENS, ForwardBatch, SequenceRows
from ninfer.ops.graph import Feature

Rows = npt.NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_PENDING = 16
"""Rows that a sequence keeps at most until its next draft: a round of the longest draft gives as many, and a pass over
more is no cheaper."""


class FeatureSource(Protocol):
    """The target, as far as drafts read it."""

    def feature(self, feature: Feature) -> Rows:
        """A feature of all rows of the last step, `[T, hidden]`, valid until the next."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one sequence that run in one pass, from `position` on: `ids` int32 `[n]` are the tokens behind the
    rows `[n, hidden]`. `pages` are enough for all of them."""

    pages: Ids
    position: int
    ids: Ids
    rows: Rows

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.position + len(self.ids)

    def split(self, count: int) -> tuple[Columns, Columns]:
        """The first `count` columns, and the others."""
        head = Columns(self.pages, self.position, self.ids[:count], self.rows[:count])
        return head, Columns(self.pages, self.position + count, self.ids[count:], self.rows[count:])

    def followed_by(self, other: Columns) -> Columns:
        """These and the ones that `other` adds behind them."""
        ids, rows = np.concatenate([self.ids, other.ids]), np.concatenate([self.rows, other.rows])
        return Columns(other.pages, self.position, ids, rows)


class Backlog:
    """Columns that have not run yet, by sequence; of each at most `MAX_PENDING`."""

    def __init__(self) -> None:
        self._columns: dict[int, Columns] = {}

    def add(self, committed: Committed, ids: Ids, rows: Rows, *, keep: int) -> Columns:
        """Take up the columns of rows that became final. What it gives should run now, often nothing: where too many
        would be kept, all but the last `keep`."""
        columns = Columns(committed.pages.copy(), committed.position, ids, rows)
        kept = self._columns.get(committed.sequence)
        # A sequence whose memory was taken is told from its start again.
        if kept is not None and kept.end == columns.position:
            columns = kept.followed_by(columns)
        due, columns = columns.split(len(columns.ids) - keep if len(columns.ids) > MAX_PENDING else 0)
        # The target's rows are a view that its next step overwrites.
        self._columns[committed.sequence] = Columns(columns.pages, columns.position, columns.ids, columns.rows.copy())
        return due

    def count(self, sequence: int) -> int:
        """Columns that wait."""
        return len(self._columns[sequence].ids) if sequence in self._columns else 0

    def is_known(self, task: DraftTask) -> bool:
        """Whether the sequence was told of, up to its last token but one."""
        kept = self._columns.get(task.sequence)
        if kept is not None and kept.end != len(task.tokens) - 1:
            raise InvariantError(f"columns up to {kept.end} of a sequence that has {len(task.tokens)} tokens")
        return kept is not None

    def take(self, sequence: int) -> Columns:
        """The columns that wait, which are about to run."""
        columns, self._columns[sequence] = self._columns[sequence].split(self.count(sequence))
        return columns

    def take_full_pages(self, sequence: int) -> list[Columns]:
        """Of the columns that wait those in pages that are full: nobody writes to them once they are shared."""
        columns = self._columns.get(sequence)
        if columns is None:
            return []
        border = columns.end // PAGE_TOKENS * PAGE_TOKENS
        due, self._columns[sequence] = columns.split(max(0, border - columns.position))
        return [due]

    def forget(self, sequence: int) -> None:
        self._columns.pop(sequence, None)


def in_batches(parts: Iterable[Columns], max_rows: int) -> Iterator[list[Columns]]:
    """The parts in order, cut so that no batch has more than `max_rows` columns."""
    batch: list[Columns] = []
    room = max_rows
    for part in parts:
        if not len(part.ids):
            continue
        rest = part
        while len(rest.ids) > room:
            if room:
                first, rest = rest.split(room)
                batch.append(first)
            yield batch
            batch, room = [], max_rows
        batch.append(rest)
        room -= len(rest.ids)
    if batch:
        yield batch


def forward_batch(parts: Sequence[Columns], wanted: Sequence[int]) -> ForwardBatch:
    """The step that computes them, with logits of the wanted rows."""
    sequences, start = [], 0
    for part in parts:
        sequences.append(SequenceRows(start, len(part.ids), part.position, part.pages))
        start += len(part.ids)
    ids = stacked([part.ids for part in parts])
    return ForwardBatch(ids, tuple(sequences), np.array(wanted, np.int32))


def stacked(arrays: Sequence[npt.NDArray[Scalar]]) -> npt.NDArray[Scalar]:
    """Arrays behind each other; one alone, as it mostly is, is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
