"""One step as arrays: what the engine hands to a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The rows of one sequence in a step.

    Rows `start .. start + count` of the step hold its tokens at absolute positions `position .. position + count`;
    `position` tokens are already in its KV pages. `pages` (int32) names enough pages for `position + count` tokens.
    """

    start: int
    count: int
    position: int
    pages: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """`token_ids` int32 `[T]`, the sequences that own the rows (in row order, without gaps), `logit_rows` int32 `[R]`."""

    token_ids: npt.NDArray[np.int32]
    sequences: tuple[SequenceRows, ...]
    logit_rows: npt.NDArray[np.int32]
