from __future__ import annotations

import pytest

from ninfer.cache import StateLayout, StateSlots
from ninfer.errors import InvariantError


@pytest.mark.parametrize(
    ("layout", "slots", "journals"),
    [
        (StateLayout(), 1, 0),
        (StateLayout("slots", 4), 4, 0),
        (StateLayout("replay", 4), 1, 2),
    ],
)
def test_what_a_sequence_needs(layout: StateLayout, slots: int, journals: int) -> None:
    assert (layout.slots_per_sequence, layout.journals_per_sequence) == (slots, journals)


def test_sequences_and_snapshots_never_take_from_each_other() -> None:
    pool = StateSlots(StateLayout("slots", 2), num_slots=5, num_journals=0, max_snapshots=1)
    pool.claim()
    pool.claim()
    assert not pool.has_room
    with pytest.raises(InvariantError, match="no room"):
        pool.claim()
    pool.take_snapshot()
    with pytest.raises(InvariantError, match="beyond the budget of 1"):
        pool.take_snapshot()
    assert [pool.slots.take() for _ in range(4)] == [1, 2, 3, 4]


def test_room_is_a_matter_of_journals_too() -> None:
    pool = StateSlots(StateLayout("replay", 2), num_slots=9, num_journals=3)
    pool.claim()
    assert not pool.has_room
    pool.unclaim()
    assert pool.has_room


def test_a_snapshot_is_free_when_its_last_holder_drops_it() -> None:
    pool = StateSlots(StateLayout(), num_slots=2, num_journals=0, max_snapshots=1)
    slot = pool.take_snapshot()
    pool.hold(slot)
    pool.drop(slot)
    assert (pool.num_snapshots, pool.slots.num_free) == (1, 1)
    pool.drop(slot)
    assert (pool.num_snapshots, pool.slots.num_free) == (0, 2)
    for call in (pool.hold, pool.drop):
        with pytest.raises(InvariantError, match="is no snapshot"):
            call(slot)


def test_a_sealed_slot_counts_as_a_snapshot_and_its_claim_is_free_again() -> None:
    pool = StateSlots(StateLayout(), num_slots=2, num_journals=0, max_snapshots=1)
    pool.claim()
    slot = pool.slots.take()
    pool.seal(slot)
    assert pool.slots.take() == 1
    with pytest.raises(InvariantError, match="beyond the budget"):
        pool.seal(1)
    pool.drop(slot)
    assert pool.slots.num_free == 1
