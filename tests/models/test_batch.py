"""A step that must not run is refused before anything is written, with one error that names the field."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.errors import InvariantError
from ninfer.models.batch import BatchLimits, ForwardBatch, SequenceRows, StateAccess, check_batch

LIMITS = BatchLimits(vocab_size=100, max_rows=80, max_logit_rows=3, num_pages=9)
RECURRENT = BatchLimits(100, 80, 3, num_pages=9, num_state_slots=4, num_journals=2, journal_rows=5)


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


FRESH = StateAccess(None)
FRESH_TO_1 = StateAccess(None, saves=((3, 1),))


def with_states(first: StateAccess | None, second: StateAccess | None = FRESH) -> ForwardBatch:
    """The good batch: 5 rows at position 62, 3 rows at position 0."""
    return two(
        SequenceRows(FIRST.start, FIRST.count, FIRST.position, FIRST.pages, first),
        SequenceRows(SECOND.start, SECOND.count, SECOND.position, SECOND.pages, second),
    )


def alone(position: int, access: StateAccess) -> ForwardBatch:
    """Two rows of one sequence."""
    rows = SequenceRows(0, 2, position, ids(0, 1), access)
    return good(token_ids=ids(1, 2), sequences=(rows,), logit_rows=ids())


@pytest.mark.parametrize(
    "batch",
    [
        with_states(StateAccess(0, saves=((5, 0),)), StateAccess(None, saves=((3, 1),))),
        with_states(StateAccess(3, replay=(1, 5), saves=((0, 3), (2, 0), (5, 1), (5, 2)), journal=0)),
        with_states(StateAccess(0, replay=(1, 1)), StateAccess(None, journal=0)),
        alone(2, StateAccess(None, replay=(1, 2))),  # the replayed rows are the first of the sequence
        alone(2, StateAccess(1, replay=(1, 1))),
    ],
)
def test_good_state_accesses_pass(batch: ForwardBatch) -> None:
    check_batch(batch, RECURRENT)


def test_two_sequences_may_read_one_slot() -> None:
    rows = [SequenceRows(i, 1, 5, ids(i), StateAccess(2, saves=((1, i),))) for i in range(2)]
    check_batch(good(token_ids=ids(1, 2), sequences=tuple(rows), logit_rows=ids()), RECURRENT)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (with_states(None), "state access of sequence 0: there is none"),
        (with_states(StateAccess(None)), "sequence 0: reads no slot at position 62 with 0 replayed rows"),
        (with_states(StateAccess(0), StateAccess(0)), "sequence 1: reads slot 0 at position 0"),
        (alone(2, StateAccess(0, replay=(0, 2))), "reads slot 0 at position 2 with 2 replayed"),
        (with_states(StateAccess(4)), "sequence 0: reads slot 4; 0 to 3 exist"),
        (with_states(StateAccess(-1)), "reads slot -1"),
        (with_states(StateAccess(0, saves=((5, 4),))), "saves to slot 4; 0 to 3 exist"),
        (with_states(StateAccess(0, saves=((4, 1), (5, 1)))), "saves to slot 1; 0 to 3 exist, each is saved to once"),
        (with_states(StateAccess(0, saves=((6, 1),))), "saves after 6 rows, after 0 and of 5"),
        (with_states(StateAccess(0, saves=((3, 1), (2, 2)))), "saves after 2 rows, after 3 and of 5"),
        (with_states(StateAccess(0, saves=((-1, 1),))), "saves after -1 rows"),
        (with_states(StateAccess(0, replay=(2, 1))), "uses journal 2 of 2"),
        (with_states(StateAccess(0, journal=-1)), "uses journal -1 of 2"),
        (with_states(StateAccess(0, replay=(0, 0))), "replays 0 rows; 1 to 5"),
        (with_states(StateAccess(0, replay=(0, 6))), "replays 6 rows; 1 to 5"),
        (with_states(StateAccess(0, replay=(1, 2), journal=1)), "replays journal 1 and overwrites it"),
        (
            with_states(StateAccess(0, saves=((5, 1),)), StateAccess(None, saves=((3, 1),))),
            "sequences 0 and 1 write to slot 1",
        ),
        (
            with_states(StateAccess(1), StateAccess(None, saves=((3, 1),))),
            "sequence 1 writes to slot 1, which sequence 0 reads",
        ),
        (with_states(StateAccess(1, journal=0), StateAccess(None, journal=0)), "sequences 0 and 1 write to journal 0"),
        (with_states(StateAccess(1, replay=(0, 1)), StateAccess(None, journal=0)), "sequence 1 writes to journal 0"),
    ],
)
def test_bad_state_accesses_are_refused(batch: ForwardBatch, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        check_batch(batch, RECURRENT)


def test_more_rows_than_a_journal_keeps_are_refused() -> None:
    rows = SequenceRows(0, 6, 9, ids(0), StateAccess(0, journal=1))
    with pytest.raises(InvariantError, match="keeps 6 rows in a journal of 5"):
        check_batch(good(token_ids=np.zeros(6, np.int32), sequences=(rows,), logit_rows=ids()), RECURRENT)


def test_a_model_without_recurrent_layers_takes_no_state_access() -> None:
    with pytest.raises(InvariantError, match="no recurrent layers"):
        check_batch(with_states(StateAccess(0)), LIMITS)
