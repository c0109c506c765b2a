"""Running whole models: prompts as steps of any chunking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.models import ForwardBatch, Model, SequenceRows
from ninfer.models.batch import PAGE_TOKENS


def logits_of(
    model: Model, ids: npt.NDArray[np.int32], chunks: Sequence[int], pages: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.float32]:
    """Logits `[len(ids), V]` of one sequence run alone in steps of the given sizes, which add up to its length."""
    if pages is None:
        pages = np.arange(-(-len(ids) // PAGE_TOKENS), dtype=np.int32)
    rows, position = [], 0
    for count in chunks:
        sequence = SequenceRows(0, count, position, pages)
        wanted = np.arange(count, dtype=np.int32)
        rows.append(model.forward(ForwardBatch(ids[position : position + count], (sequence,), wanted)).copy())
        position += count
    if position != len(ids):
        raise ValueError(f"chunks of {position} tokens for {len(ids)} ids")
    return np.concatenate(rows)


def in_chunks(length: int, size: int) -> list[int]:
    """`length` cut into pieces of `size`, the last one shorter."""
    return [min(size, length - start) for start in range(0, length, size)]
