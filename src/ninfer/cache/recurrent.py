"""Recurrent state of one sequence as a transaction: what a step reads and writes, and what stays of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.cache.state_slots import Snapshot, StateSlots
from ninfer.errors import InvariantError
from ninfer.ops.batch import StateAccess


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way.

    after: by row the slot to go on from if that row is the last one kept. is_partial: whether it may be any of them.
    taken: slots that this step took. snapshots: those that it makes.
    """

    access: StateAccess
    after: tuple[int | None, ...]
    is_partial: bool
    taken: tuple[int, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()


class RecurrentState:
    """Where the state of one sequence is, and how the step under way uses it.

    The state after the committed tokens is the content of a slot (the zero state without one), advanced by the first
    rows of a journal if some are to be replayed. The slot is the sequence's own, or a snapshot: then the next step that
    writes takes another one.

    A step saves its last state over the own slot that it read, so that plain decoding needs one slot and reads and
    writes it once. The price: when such a step may have begun and is not committed, the state before it is lost.
    """

    def __init__(self, slots: StateSlots) -> None:
        """Claims what `slots.layout` says."""
        slots.claim()
        self._pool = slots
        self._slot: int | None = None
        self._is_snapshot = False
        self._replay: tuple[int, int] | None = None
        self._journals: list[int] = []
        self._step: _Step | None = None
        self._decode: _Step | None = None  # the step of one row, the same as long as the slot is

    @property
    def access(self) -> StateAccess | None:
        """What the step under way reads and writes; None between steps."""
        return None if self._step is None else self._step.access

    @property
    def num_replayed(self) -> int:
        """The last committed rows that are in a journal only; the next step replays them."""
        return 0 if self._replay is None else self._replay[1]

    def reserve(self, position: int, count: int, *, partial: bool = False, snapshots: Sequence[int] = ()) -> None:
        """Plan a step of `count` rows from `position` on.

        partial: any first rows may be kept (a verify block); otherwise all or none. snapshots: counts of rows, 1 to
        `count - 1`, ascending; the states after them become snapshots. For the state at the end there is `snapshot`.
        """
        if self._step is not None:
            raise InvariantError("a step inside a step")
        if count == 1 and self._decode is not None and not snapshots:
            self._step = self._decode
            return
        layout = self._pool.layout
        if partial and (count > layout.verify_rows or snapshots):
            raise InvariantError(
                f"a block of {count} rows with {len(snapshots)} snapshots; {layout.verify_rows} rows were planned, and "
                "blocks make none"
            )
        if not partial or count == 1:
            self._step = self._whole_step(position, count, snapshots)
        elif layout.rollback == "slots":
            self._step = self._slots_step(count)
        else:
            self._step = self._replay_step(count)

    def commit(self, accepted: int) -> tuple[Snapshot, ...]:
        """Keep the first `accepted` rows and end the step. Gives the snapshots it made, held once by the caller."""
        step = self._step
        if step is None:
            raise InvariantError("commit without a step")
        count = len(step.after)
        if not (1 if step.is_partial else count) <= accepted <= count:
            raise InvariantError(f"{accepted} rows kept of a {'block' if step.is_partial else 'whole step'} of {count}")
        self._step = None
        if step is self._decode:
            return ()
        kept = step.after[accepted - 1]
        for slot in {slot for slot in step.after if slot is not None and slot != kept}:
            self._pool.slots.give_back(slot)
        if kept != self._slot:
            if self._is_snapshot:
                self._drop_slot()
            self._slot = kept
        journal = step.access.journal
        self._replay = None if journal is None else (journal, accepted)
        self._decode = None
        if self._slot is not None and not self._is_snapshot and self._replay is None:
            self._decode = self._whole_step(0, 1, ())
        return step.snapshots

    def rollback(self) -> bool:
        """End the step, if one is under way, as if it had never been. False if it wrote over the state that it read:
        then this is the zero state, and the sequence computes its tokens again."""
        step = self._step
        if step is None:
            return True
        self._undo(step)
        if self._is_snapshot or all(slot != self._slot for _, slot in step.access.saves):
            return True
        self._forget()
        return False

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, which is held until a step has written a state of its own."""
        if self._step is not None:
            raise InvariantError("a snapshot restored inside a step")
        self._pool.hold(snapshot.slot)
        self._forget()
        self._slot, self._is_snapshot = snapshot.slot, True

    def snapshot(self, num_tokens: int) -> Snapshot | None:
        """The state that is stored now as a snapshot, held once by the caller; nothing is copied.

        `num_tokens` are committed; the snapshot has fewer by `num_replayed`. None for the zero state.
        """
        if self._step is not None:
            raise InvariantError("a snapshot of the state inside a step")
        if self._slot is None:
            return None
        if not self._is_snapshot:
            self._pool.seal(self._slot)
            self._is_snapshot = True
            self._decode = None
        self._pool.hold(self._slot)
        return Snapshot(self._slot, num_tokens - self.num_replayed)

    def release(self) -> None:
        """Give back everything. Nothing may be called afterwards."""
        if self._step is not None:
            self._undo(self._step)
        self._forget()
        for journal in self._journals:
            self._pool.journals.give_back(journal)
        self._pool.unclaim()

    def _whole_step(self, position: int, count: int, snapshots: Sequence[int]) -> _Step:
        if list(snapshots) != sorted(set(snapshots) & set(range(1, count))):
            raise InvariantError(f"snapshots after {list(snapshots)} rows of a step of {count}")
        made = tuple(Snapshot(self._pool.take_snapshot(), position + n) for n in snapshots)
        slot, taken = self._slot_to_write()
        saves = [(n, snapshot.slot) for n, snapshot in zip(snapshots, made, strict=True)] + [(count, slot)]
        access = StateAccess(self._slot, self._replay, tuple(saves))
        return _Step(access, (None,) * (count - 1) + (slot,), False, taken, made)

    def _slots_step(self, count: int) -> _Step:
        """A block that saves every state. The last one goes where plain steps save theirs."""
        slot, taken = self._slot_to_write()
        others = tuple(self._pool.slots.take() for _ in range(count - 1))
        after = (*others, slot)
        access = StateAccess(self._slot, saves=tuple(enumerate(after, start=1)))
        return _Step(access, after, True, taken + others)

    def _replay_step(self, count: int) -> _Step:
        """A block that saves no state of its own and keeps its rows in a journal, not in the one that it replays."""
        while len(self._journals) < 2:
            self._journals.append(self._pool.journals.take())
        busy = None if self._replay is None else self._replay[0]
        journal = next(journal for journal in self._journals if journal != busy)
        if self._replay is None:
            return _Step(StateAccess(self._slot, journal=journal), (self._slot,) * count, True)
        slot, taken = self._slot_to_write()
        return _Step(StateAccess(self._slot, self._replay, ((0, slot),), journal), (slot,) * count, True, taken)

    def _slot_to_write(self) -> tuple[int, tuple[int, ...]]:
        """The own slot, and what had to be taken for it."""
        if self._slot is not None and not self._is_snapshot:
            return self._slot, ()
        slot = self._pool.slots.take()
        return slot, (slot,)

    def _undo(self, step: _Step) -> None:
        for slot in step.taken:
            self._pool.slots.give_back(slot)
        for snapshot in step.snapshots:
            self._pool.drop(snapshot.slot)
        self._step = None

    def _forget(self) -> None:
        """The zero state."""
        self._drop_slot()
        self._replay = self._decode = None

    def _drop_slot(self) -> None:
        if self._is_snapshot and self._slot is not None:
            self._pool.drop(self._slot)
        elif self._slot is not None:
            self._pool.slots.give_back(self._slot)
        self._slot, self._is_snapshot = None, False
