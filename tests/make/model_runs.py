"""Running whole models: prompts as steps of any chunking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.models import ForwardBatch, Model, SequenceRows
from ninfer.models.batch import PAGE_TOKENS, StateAccess


def logits_of(
    model: Model,
    ids: npt.NDArray[np.int32],
    chunks: Sequence[int],
    pages: npt.NDArray[np.int32] | None = None,
    state_slot: int | None = None,
) -> npt.NDArray[np.float32]:
    """Logits `[len(ids), V]` of one sequence run alone in steps of the given sizes, which add up to its length.

    `state_slot`: where a recurrent model keeps the state between steps.
    """
    if pages is None:
        pages = np.arange(-(-len(ids) // PAGE_TOKENS), dtype=np.int32)
    rows, position = [], 0
    for count in chunks:
        sequence = SequenceRows(0, count, position, pages, state_access(state_slot, position, count))
        wanted = np.arange(count, dtype=np.int32)
        rows.append(model.forward(ForwardBatch(ids[position : position + count], (sequence,), wanted)).copy())
        position += count
    if position != len(ids):
        raise ValueError(f"chunks of {position} tokens for {len(ids)} ids")
    return np.concatenate(rows)


def in_chunks(length: int, size: int) -> list[int]:
    """`length` cut into pieces of `size`, the last one shorter."""
    return [min(size, length - start) for start in range(0, length, size)]


def state_access(slot: int | None, position: int, count: int) -> StateAccess | None:
    """The state stays in one slot; None where there is none."""
    return None if slot is None else StateAccess(slot if position else None, saves=((count, slot),))


def greedy_ids(model: Model, prompt: npt.NDArray[np.int32], count: int, state_slot: int | None) -> list[int]:
    """`count` ids after a prompt, each that of the highest logit."""
    pages = np.arange(-(-(len(prompt) + count) // PAGE_TOKENS), dtype=np.int32)
    step, position, ids = prompt, 0, []
    while len(ids) < count:
        access = state_access(state_slot, position, len(step))
        batch = ForwardBatch(
            step, (SequenceRows(0, len(step), position, pages, access),), np.array([len(step) - 1], np.int32)
        )
        ids.append(int(model.forward(batch)[0].argmax()))
        position += len(step)
        step = np.array(ids[-1:], np.int32)
    return ids
