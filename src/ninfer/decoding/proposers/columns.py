"""Columns of a sequence that a draft model computes from rows of its target, several sequences in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ninfer.decoding.proposer import Ids
from ninfer.models.batch import ForwardBatch, SequenceRows
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


def in_batches(parts: Iterable[Columns], max_rows: int) -> Iterator[list[Columns]]:
    """The parts in order, cut so that no batch has more than `max_rows` columns."""
    batch: list[Columns] = []
    room = max_rows
    for part in parts:
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
