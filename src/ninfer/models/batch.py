"""The step a model runs, and the check that a step is one the executable can run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS, ForwardBatch, SequenceRows

__all__ = ["PAGE_TOKENS", "BatchLimits", "ForwardBatch", "SequenceRows", "check_batch"]


@dataclass(frozen=True)
class BatchLimits:
    """What an executable was compiled for."""

    vocab_size: int
    max_rows: int
    max_logit_rows: int
    num_pages: int


def check_batch(batch: ForwardBatch, limits: BatchLimits) -> None:
    """InvariantError that names the field, unless the batch can be run without touching what it must not.

    Besides shapes and ranges: sequences own all rows in order, have pages for all their tokens, and write to pages that
    nobody else in the step reads or writes.
    """
    rows = _check_ids("token_ids", batch.token_ids, limits.vocab_size)
    if not 1 <= rows <= limits.max_rows:
        raise InvariantError(f"batch has {rows} rows; 1 to {limits.max_rows} can be run")
    wanted = _check_ids("logit_rows", batch.logit_rows, rows)
    if wanted > limits.max_logit_rows:
        raise InvariantError(f"batch wants logits of {wanted} rows; at most {limits.max_logit_rows} can be given")
    _check_sequences(batch.sequences, rows)
    _check_pages(batch.sequences, limits.num_pages)


def _check_ids(name: str, ids: npt.NDArray[np.int32], limit: int) -> int:
    """The length of a one-dimensional int32 array whose values are in `0 .. limit`."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
        seen = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InvariantError(f"{name} must be an int32 vector, got {seen}")
    # Seen as unsigned, negative values are large: one pass finds both ends. This runs between any two decode steps.
    if len(ids) and ids.view(np.uint32).max() >= limit:
        raise InvariantError(f"{name} has values from {ids.min()} to {ids.max()}; 0 to {limit - 1} are allowed")
    return len(ids)


def _check_sequences(sequences: tuple[SequenceRows, ...], rows: int) -> None:
    covered = 0
    for index, sequence in enumerate(sequences):
        if sequence.start != covered or sequence.count < 1 or sequence.position < 0:
            raise InvariantError(
                f"sequence {index} has {sequence.count} rows from row {sequence.start}, position {sequence.position}; "
                f"needed: at least one row, from row {covered} on, at a position of 0 or more"
            )
        covered += sequence.count
    if covered != rows:
        raise InvariantError(f"sequences own {covered} of {rows} rows")


def _check_pages(sequences: tuple[SequenceRows, ...], num_pages: int) -> None:
    in_use = []
    for index, sequence in enumerate(sequences):
        needed = -(-(sequence.position + sequence.count) // PAGE_TOKENS)
        given = _check_ids(f"pages of sequence {index}", sequence.pages, num_pages)
        if given < needed:
            raise InvariantError(f"sequence {index} has {given} pages and needs {needed}")
        in_use.append(sequence.pages[:needed])
    # A sequence that decodes alone writes to its last page only; that page being there once is all there is to see.
    alone = len(sequences) == 1 and sequences[0].position // PAGE_TOKENS == len(in_use[0]) - 1
    if alone and np.count_nonzero(in_use[0] == in_use[0][-1]) == 1:
        return
    users = np.bincount(np.concatenate(in_use), minlength=num_pages)
    for index, sequence in enumerate(sequences):
        written = in_use[index][sequence.position // PAGE_TOKENS :]
        shared = written[users[written] > 1]
        if len(shared):
            raise InvariantError(f"sequence {index} writes to page {shared[0]}, which the step uses elsewhere too")
