"""One step as arrays: what every op of a graph may read besides its inputs and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 64
"""Tokens of one KV page. Absolute position p of a sequence lives in its page p // 64, slot p % 64."""


@dataclass(frozen=True, slots=True)
class StateAccess:
    """How the rows of a sequence use recurrent state.

    A slot holds the state of one sequence after some token, of all recurrent layers. A journal holds the small inputs
    of some rows, from which the states after them can be computed again without the products that gave these inputs.

    read: the slot with the state before the rows, or before the replayed ones; None is the state before position 0.
    replay: (journal, n): the state of `read` is first advanced by the first n rows kept in that journal.
    saves: (n, slot), ascending in n: the slot receives the state after n of this step's rows; 0 is before the first of
    them and after the replay.
    journal: the journal that keeps this step's rows, replacing what it held.
    """

    read: int | None
    replay: tuple[int, int] | None = None
    saves: tuple[tuple[int, int], ...] = ()
    journal: int | None = None

    @classmethod
    def in_place(cls, slot: int, position: int, count: int) -> StateAccess:
        """Rows from `position` on that advance the state which one slot holds."""
        return cls(None if position == 0 else slot, saves=((count, slot),))


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in a step.

    Rows `start .. start + count` of the step hold its tokens at absolute positions `position .. position + count`;
    `position` tokens are already in its KV pages. `pages` (int32) names enough pages for `position + count` tokens.
    `state` is there exactly when the graph has recurrent layers.
    """

    start: int
    count: int
    position: int
    pages: npt.NDArray[np.int32]
    state: StateAccess | None = None


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """`token_ids` int32 `[T]`; the sequences that own the rows, in row order without gaps; `logit_rows` int32 `[R]`."""

    token_ids: npt.NDArray[np.int32]
    sequences: tuple[SequenceRows, ...]
    logit_rows: npt.NDArray[np.int32]

    def positions(self) -> npt.NDArray[np.int64]:
        """The absolute position of every row, int64 `[T]`."""
        return np.concatenate([np.arange(s.position, s.position + s.count) for s in self.sequences])
