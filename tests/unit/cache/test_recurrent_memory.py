"""What every kind of step reads, writes and leaves; the law itself is in tests/engine/test_state_law.py."""

from __future__ import annotations

import pytest

from ninfer.cache import RecurrentState, Snapshot, StateLayout, StateSlots
from ninfer.errors import InvariantError
from ninfer.ops.batch import StateAccess

PLAIN = StateLayout()


def pool(layout: StateLayout = PLAIN, *, sequences: int = 2, max_snapshots: int = 2) -> StateSlots:
    return StateSlots(
        layout,
        num_slots=sequences * layout.slots_per_sequence + max_snapshots,
        num_journals=sequences * layout.journals_per_sequence,
        max_snapshots=max_snapshots,
    )


def run(state: RecurrentState, position: int, count: int, accepted: int | None = None) -> StateAccess:
    """One step that is committed."""
    state.reserve(position, count, partial=accepted is not None)
    access = state.access
    assert access is not None
    state.commit(count if accepted is None else accepted)
    assert state.access is None
    return access


def test_plain_steps_work_in_place() -> None:
    state = RecurrentState(pool())
    assert run(state, 0, 7) == StateAccess(None, saves=((7, 0),))
    assert run(state, 7, 1) == StateAccess(0, saves=((1, 0),))
    assert run(state, 8, 3) == StateAccess(0, saves=((3, 0),))


def test_a_decode_step_is_the_same_object_every_time() -> None:
    state = RecurrentState(pool())
    run(state, 0, 7)
    assert run(state, 7, 1) is run(state, 8, 1)


def test_a_block_with_a_slot_per_row_keeps_one_of_them() -> None:
    slots = pool(StateLayout("slots", 3), max_snapshots=0)
    state = RecurrentState(slots)
    run(state, 0, 5)
    assert run(state, 5, 3, accepted=2) == StateAccess(0, saves=((1, 1), (2, 2), (3, 0)))
    assert slots.slots.num_free == 5
    assert run(state, 7, 2, accepted=2) == StateAccess(2, saves=((1, 0), (2, 2)))
    assert run(state, 9, 1) == StateAccess(2, saves=((1, 2),))


def test_a_block_with_replay_saves_nothing_and_the_next_step_catches_up() -> None:
    state = RecurrentState(pool(StateLayout("replay", 4)))
    run(state, 0, 5)
    assert run(state, 5, 4, accepted=3) == StateAccess(0, journal=0)
    assert state.num_replayed == 3
    assert run(state, 8, 4, accepted=1) == StateAccess(0, (0, 3), ((0, 0),), journal=1)
    assert run(state, 9, 2, accepted=2) == StateAccess(0, (1, 1), ((0, 0),), journal=0)
    assert run(state, 11, 1) == StateAccess(0, (0, 2), ((1, 0),))
    assert state.num_replayed == 0
    assert run(state, 12, 6) == StateAccess(0, saves=((6, 0),))


def test_a_block_at_the_start() -> None:
    state = RecurrentState(pool(StateLayout("replay", 4)))
    assert run(state, 0, 4, accepted=2) == StateAccess(None, journal=0)
    assert run(state, 2, 4, accepted=2) == StateAccess(None, (0, 2), ((0, 0),), journal=1)
    state = RecurrentState(pool(StateLayout("slots", 2), max_snapshots=0))
    assert run(state, 0, 2, accepted=1) == StateAccess(None, saves=((1, 1), (2, 0)))
    assert run(state, 1, 1) == StateAccess(1, saves=((1, 1),))


def test_snapshots_inside_a_chunk() -> None:
    slots = pool()
    state = RecurrentState(slots)
    state.reserve(0, 130, snapshots=(64, 128))
    assert state.access == StateAccess(None, saves=((64, 0), (128, 1), (130, 2)))
    assert state.commit(130) == (Snapshot(0, 64), Snapshot(1, 128))
    assert slots.num_snapshots == 2
    state.reserve(130, 64)
    assert state.commit(64) == ()


def test_a_snapshot_of_the_present_state_copies_nothing() -> None:
    slots = pool()
    state = RecurrentState(slots)
    assert state.snapshot(0) is None
    run(state, 0, 5)
    assert state.snapshot(5) == Snapshot(0, 5)
    assert state.snapshot(5) == Snapshot(0, 5)
    assert run(state, 5, 1) == StateAccess(0, saves=((1, 1),)), "a snapshot is never written to"
    assert run(state, 6, 1) == StateAccess(1, saves=((1, 1),))
    slots.drop(0)
    assert slots.num_snapshots == 1
    slots.drop(0)
    assert slots.num_snapshots == 0


def test_a_snapshot_lacks_the_rows_that_only_a_journal_has() -> None:
    state = RecurrentState(pool(StateLayout("replay", 4)))
    run(state, 0, 5)
    run(state, 5, 4, accepted=3)
    assert state.snapshot(8) == Snapshot(0, 5)
    assert run(state, 8, 1) == StateAccess(0, (0, 3), ((1, 1),))


def test_many_read_one_snapshot() -> None:
    slots = pool(StateLayout("replay", 2), sequences=3)
    first = RecurrentState(slots)
    run(first, 0, 5)
    snapshot = first.snapshot(5)
    assert snapshot is not None
    first.release()
    second, third = RecurrentState(slots), RecurrentState(slots)
    second.restore(snapshot)
    third.restore(snapshot)
    assert run(second, 5, 2, accepted=1) == StateAccess(0, journal=0)
    assert run(third, 5, 2) == StateAccess(0, saves=((2, 1),))
    slots.drop(snapshot.slot)
    assert slots.num_snapshots == 1, "the second sequence still replays from it"
    assert run(second, 6, 1) == StateAccess(0, (0, 1), ((1, 2),))
    assert slots.num_snapshots == 0


def test_a_rollback_that_changes_nothing_and_one_that_loses_the_state() -> None:
    slots = pool()
    state = RecurrentState(slots)
    assert state.rollback(), "no step"
    state.reserve(0, 5)
    assert state.rollback(), "the zero state cannot be written over"
    assert slots.slots.num_free == 4
    run(state, 0, 5)
    state.reserve(5, 1)
    assert not state.rollback()
    assert slots.slots.num_free == 4
    assert run(state, 0, 6) == StateAccess(None, saves=((6, 0),))
    snapshot = state.snapshot(6)
    state.reserve(6, 4, snapshots=(2,))
    assert state.rollback(), "a snapshot is still there"
    assert run(state, 6, 1) == StateAccess(0, saves=((1, 1),))
    assert snapshot == Snapshot(0, 6)


def test_a_rolled_back_block_with_replay_keeps_the_state_unless_it_caught_up() -> None:
    state = RecurrentState(pool(StateLayout("replay", 4)))
    run(state, 0, 5)
    state.reserve(5, 4, partial=True)
    assert state.rollback()
    run(state, 5, 4, accepted=2)
    state.reserve(7, 3, partial=True)
    assert not state.rollback()
    assert run(state, 0, 9) == StateAccess(None, saves=((9, 0),))


@pytest.mark.parametrize("layout", [StateLayout(), StateLayout("slots", 3), StateLayout("replay", 3)])
def test_release_in_any_phase_gives_everything_back(layout: StateLayout) -> None:
    for phase in range(6):
        slots = pool(layout)
        state = RecurrentState(slots)
        if phase > 0:
            run(state, 0, 5)
        if phase > 1 and layout.verify_rows > 1:
            run(state, 5, 3, accepted=2)
        if phase == 3:
            state.reserve(7, 3, partial=layout.verify_rows > 1)
        if phase == 4:
            state.reserve(7, 9, snapshots=(3,))
        if phase == 5:
            snapshot = state.snapshot(7)
            assert snapshot is not None
            slots.drop(snapshot.slot)
        state.release()
        assert slots.slots.num_free == slots.slots.size
        assert slots.slots.num_claimed == slots.max_snapshots
        assert (slots.journals.num_free, slots.journals.num_claimed) == (slots.journals.size, 0)


def test_what_may_not_be_asked_for() -> None:
    state = RecurrentState(pool(StateLayout("slots", 3)))
    with pytest.raises(InvariantError, match="commit without a step"):
        state.commit(1)
    with pytest.raises(InvariantError, match="a block of 4 rows"):
        state.reserve(0, 4, partial=True)
    with pytest.raises(InvariantError, match="blocks make none"):
        state.reserve(0, 3, partial=True, snapshots=(1,))
    for snapshots in ((0,), (3,), (2, 1), (1, 1)):
        with pytest.raises(InvariantError, match="snapshots after"):
            state.reserve(0, 3, snapshots=snapshots)
    state.reserve(0, 3)
    for accepted in (0, 2, 4):
        with pytest.raises(InvariantError, match="of a whole step of 3"):
            state.commit(accepted)
    with pytest.raises(InvariantError, match="inside a step"):
        state.reserve(0, 1)
    with pytest.raises(InvariantError, match="inside a step"):
        state.restore(Snapshot(0, 1))
    with pytest.raises(InvariantError, match="inside a step"):
        state.snapshot(3)
    state.commit(3)
    state.reserve(3, 2, partial=True)
    for accepted in (0, 3):
        with pytest.raises(InvariantError, match="of a block of 2"):
            state.commit(accepted)
