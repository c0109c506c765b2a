"""Who owns which recurrent-state slot and journal, and which slots are snapshots.

A slot holds the state of all recurrent layers after some token; a journal holds the small inputs of a few rows, from
which the states after them can be computed again (`ops.batch.StateAccess`). What is stored in either is the backend's
business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ninfer.cache.allocator import Allocator
from ninfer.errors import InvariantError

Rollback = Literal["slots", "replay"]
"""How a verify block is cut back to its accepted rows. `slots`: one slot per row is written, and one is kept. `replay`:
the state before the block stays, and the next step advances it by the accepted rows of a journal."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """How every sequence keeps its recurrent state. `verify_rows`: most rows of a step of which a part may be kept;
    with 1 all steps are kept as a whole."""

    rollback: Rollback = "slots"
    verify_rows: int = 1

    @property
    def slots_per_sequence(self) -> int:
        """The last row of a block is saved over the state that was read, so as many slots as rows are enough."""
        return self.verify_rows if self.rollback == "slots" else 1

    @property
    def journals_per_sequence(self) -> int:
        """A step may replay one journal while it fills another."""
        return 2 if self.rollback == "replay" else 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the first `num_tokens` tokens of a sequence, in a slot that nobody writes to."""

    slot: int
    num_tokens: int


class StateSlots:
    """Slots and journals of all sequences, and the snapshots.

    Sequences claim what they may need at most (`layout`) before they run. Snapshots have a budget of their own, claimed
    from the start, so neither can take what the other was promised. A snapshot is freed when its last holder drops it.
    """

    def __init__(self, layout: StateLayout, *, num_slots: int, num_journals: int, max_snapshots: int = 0) -> None:
        self.layout = layout
        self.max_snapshots = max_snapshots
        self.slots = Allocator(num_slots, "state slot")
        self.journals = Allocator(num_journals, "journal")
        self.slots.claim(max_snapshots)
        self._holders: dict[int, int] = {}

    @property
    def num_snapshots(self) -> int:
        """Snapshots that someone holds, and slots that a step is about to make one of."""
        return len(self._holders)

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can claim what it needs."""
        return (
            self.layout.slots_per_sequence <= self.slots.num_claimable
            and self.layout.journals_per_sequence <= self.journals.num_claimable
        )

    def claim(self) -> None:
        """Promise one sequence what it needs. InvariantError without room: the caller looks at `has_room` first."""
        if not self.has_room:
            raise InvariantError(f"no room for a sequence with {self.layout}")
        self.slots.claim(self.layout.slots_per_sequence)
        self.journals.claim(self.layout.journals_per_sequence)

    def unclaim(self) -> None:
        """Take back the promise to a sequence that has given back everything."""
        self.slots.unclaim(self.layout.slots_per_sequence)
        self.journals.unclaim(self.layout.journals_per_sequence)

    def take_snapshot(self) -> int:
        """A slot for a new snapshot, held once. InvariantError beyond the budget: look at `num_snapshots` first."""
        self._check_budget()
        slot = self.slots.take()
        self._holders[slot] = 1
        return slot

    def seal(self, slot: int) -> None:
        """Make a snapshot, held once, of a slot that a sequence took under its claim; the sequence may take another."""
        self._check_budget()
        self._holders[slot] = 1

    def is_shared(self, slot: int) -> bool:
        """Whether a snapshot has more than one holder."""
        return self._holders[slot] > 1

    def hold(self, slot: int) -> None:
        """One more holder of a snapshot."""
        if slot not in self._holders:
            raise InvariantError(f"state slot {slot} is no snapshot")
        self._holders[slot] += 1

    def drop(self, slot: int) -> None:
        """One holder less; the last one frees the slot."""
        if slot not in self._holders:
            raise InvariantError(f"state slot {slot} is no snapshot")
        self._holders[slot] -= 1
        if not self._holders[slot]:
            del self._holders[slot]
            self.slots.give_back(slot)

    def _check_budget(self) -> None:
        if len(self._holders) >= self.max_snapshots:
            raise InvariantError(f"a snapshot beyond the budget of {self.max_snapshots}")
