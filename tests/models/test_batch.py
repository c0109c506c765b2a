"""A step that must not run is refused before anything is written, with one error that names the field."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.errors import InvariantError
from ninfer.models.batch import BatchLimits, ForwardBatch, SequenceRows, check_batch

LIMITS = BatchLimits(vocab_size=100, max_rows=80, max_logit_rows=3, num_pages=9)


def ids(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def good(**changes: object) -> ForwardBatch:
    """Two sequences: 5 rows at position 62 (two pages), 3 rows at position 0."""
    fields: dict[str, object] = {
        "token_ids": ids(0, 99, 5, 6, 7, 1, 2, 3),
        "sequences": (SequenceRows(0, 5, 62, ids(4, 0)), SequenceRows(5, 3, 0, ids(8, 7, 6))),
        "logit_rows": ids(7, 4),
    }
    return ForwardBatch(**{**fields, **changes})  # type: ignore[arg-type]


def two(first: SequenceRows, second: SequenceRows) -> ForwardBatch:
    return good(sequences=(first, second))


FIRST, SECOND = good().sequences


@pytest.mark.parametrize("logit_rows", [ids(), ids(0), ids(7, 0, 0)])
def test_good_batches_pass(logit_rows: npt.NDArray[np.int32]) -> None:
    check_batch(good(logit_rows=logit_rows), LIMITS)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (good(token_ids=ids(0, 100, 5, 6, 7, 1, 2, 3)), "token_ids has values from 0 to 100; 0 to 99 are allowed"),
        (good(token_ids=ids(0, 9, -1, 6, 7, 1, 2, 3)), "token_ids has values from -1"),
        (good(token_ids=np.zeros(8, np.int64)), "token_ids must be an int32 vector, got int64"),
        (good(token_ids=np.zeros((4, 2), np.int32)), r"token_ids must be an int32 vector, got int32 \[4, 2\]"),
        (good(token_ids=[0] * 8), "token_ids must be an int32 vector, got list"),
        (good(token_ids=ids()), "batch has 0 rows; 1 to 80"),
        (good(token_ids=np.zeros(81, np.int32)), "batch has 81 rows; 1 to 80"),
        (good(logit_rows=ids(8)), "logit_rows has values from 8 to 8; 0 to 7 are allowed"),
        (good(logit_rows=ids(0, 1, 2, 3)), "logits of 4 rows; at most 3"),
        (good(sequences=()), "sequences own 0 of 8 rows"),
        (good(sequences=(FIRST,)), "sequences own 5 of 8 rows"),
        (two(FIRST, SequenceRows(5, 4, 0, ids(8))), "sequences own 9 of 8 rows"),
        (two(SequenceRows(1, 4, 62, ids(4, 0)), SECOND), "sequence 0 has 4 rows from row 1"),
        (two(FIRST, SequenceRows(4, 4, 0, ids(8))), "sequence 1 has 4 rows from row 4.*from row 5 on"),
        (two(FIRST, SequenceRows(5, 0, 0, ids(8))), "sequence 1 has 0 rows"),
        (two(SequenceRows(0, 5, -1, ids(4, 0)), SECOND), "position -1"),
        (two(SequenceRows(0, 5, 62, ids(4)), SECOND), "sequence 0 has 1 pages and needs 2"),
        (two(FIRST, SequenceRows(5, 3, 128, ids(8, 7))), "sequence 1 has 2 pages and needs 3"),
        (
            two(SequenceRows(0, 5, 62, ids(4, 9)), SECOND),
            "pages of sequence 0 has values from 4 to 9; 0 to 8 are",
        ),
        (two(SequenceRows(0, 5, 62, ids(4, 8)), SECOND), "sequence 0 writes to page 8"),
        (two(FIRST, SequenceRows(5, 3, 64, ids(8, 4))), "sequence 0 writes to page 4"),
        (two(SequenceRows(0, 5, 62, ids(3, 3)), SECOND), "sequence 0 writes to page 3"),
    ],
)
def test_bad_batches_are_refused(batch: ForwardBatch, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        check_batch(batch, LIMITS)


def test_pages_that_are_only_read_may_be_shared() -> None:
    shared = two(SequenceRows(0, 5, 64, ids(4, 0)), SequenceRows(5, 3, 70, ids(4, 2)))
    check_batch(shared, LIMITS)
    with pytest.raises(InvariantError, match="sequence 0 writes to page 0"):
        check_batch(two(shared.sequences[0], SequenceRows(5, 3, 64, ids(4, 0, 8))), LIMITS)


def test_pages_beyond_the_need_do_not_count_as_used() -> None:
    check_batch(two(SequenceRows(0, 5, 62, ids(4, 0, 8)), SECOND), LIMITS)
