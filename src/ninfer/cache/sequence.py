"""Token memory of one sequence as a transaction: reserve, then commit or roll back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.cache.pages import PageAllocator, pages_for
from ninfer.cache.recurrent import RecurrentState
from ninfer.cache.state_slots import Snapshot, StateSlots
from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS, StateAccess


class SequenceState:
    """Pages and recurrent state of one sequence, and how many of its tokens are committed.

    A step reserves the tokens it is about to write behind the committed length, runs, and then commits how many of them
    hold, or rolls back. Nothing ever writes below the committed length, so that full pages may be shared. Pages come
    and go with the length; whoever plans a step sees to it that as many are free as `num_missing` says. Recurrent state
    (`slots`, for models that have it) takes part in the same transaction; it is claimed at construction.
    """

    def __init__(self, allocator: PageAllocator, max_tokens: int, slots: StateSlots | None = None) -> None:
        self._allocator = allocator
        self._table: npt.NDArray[np.int32] = np.full(pages_for(max_tokens), -1, dtype=np.int32)
        self._num_pages = 0
        self._committed = 0
        self._reserved = 0
        self._released = False
        self._recurrent = None if slots is None else RecurrentState(slots)
        self.max_tokens = max_tokens

    @property
    def committed(self) -> int:
        """Tokens whose state is final."""
        return self._committed

    @property
    def reserved(self) -> int:
        """Tokens of the step under way; 0 between steps."""
        return self._reserved

    @property
    def pages(self) -> npt.NDArray[np.int32]:
        """int32 page ids in token order, enough for `committed + reserved` tokens; a view until the next call."""
        return self._table[: self._num_pages]

    @property
    def access(self) -> StateAccess | None:
        """How the step under way uses recurrent state; None for models without it, and between steps."""
        return None if self._recurrent is None else self._recurrent.access

    @property
    def num_stored(self) -> int:
        """Committed tokens that the stored recurrent state has: all but those that are to be replayed."""
        return self._committed - (0 if self._recurrent is None else self._recurrent.num_replayed)

    def num_missing(self, count: int) -> int:
        """Pages that have to be taken for `count` tokens behind the committed length."""
        return max(0, pages_for(self._committed + count) - self._num_pages)

    def reuse(self, pages: Sequence[int], snapshot: Snapshot | None) -> None:
        """Go on behind the tokens of full `pages` that others wrote, more than are committed here.

        snapshot: the recurrent state after them, for models that have it. Own pages are given back.
        """
        self._check_between_steps("reuse")
        num_tokens = len(pages) * PAGE_TOKENS
        is_sound = snapshot is None if self._recurrent is None else snapshot and snapshot.num_tokens == num_tokens
        if not is_sound or not self._committed < num_tokens <= self.max_tokens:
            raise InvariantError(f"{len(pages)} pages and {snapshot} reused by a {self._words()} sequence")
        for page in pages:
            self._allocator.hold(page)
        self._shrink(0)
        self._table[: len(pages)] = pages
        self._num_pages = len(pages)
        self._committed = num_tokens
        if self._recurrent is not None and snapshot is not None:
            self._recurrent.restore(snapshot)

    def exchange(self, pages: Sequence[int]) -> None:
        """Go on with `pages` instead of the first own ones, which are full and have the same content."""
        self._check_between_steps("exchange")
        if len(pages) * PAGE_TOKENS > self._committed:
            raise InvariantError(f"{len(pages)} full pages exchanged by a {self._words()} sequence")
        for index, page in enumerate(pages):
            own = int(self._table[index])
            if page != own:
                self._allocator.hold(page)
                self._allocator.drop(own)
                self._table[index] = page

    def reserve(self, count: int, *, partial: bool = False, snapshots: Sequence[int] = ()) -> None:
        """Make room for `count` tokens behind the committed length. InvariantError inside a step, or where that is too
        many.

        partial: how many of them hold is decided after the step. snapshots: as `RecurrentState.reserve` takes them.
        """
        if self._released or self._reserved or count < 1:
            raise InvariantError(f"reserve({count}) on a {self._words()} sequence")
        self._grow(self._committed + count)
        if self._recurrent is not None:
            self._recurrent.reserve(self._committed, count, partial=partial, snapshots=snapshots)
        self._reserved = count

    def make_room(self, count: int) -> None:
        """Take the pages of `count` tokens behind the committed length, for a step that is not reserved yet.

        What drafts for that step writes there; the end of the step gives back what it does not need.
        """
        self._check_between_steps("make_room")
        self._grow(self._committed + count)

    def commit(self, accepted: int) -> tuple[Snapshot, ...]:
        """Keep the first `accepted` reserved tokens and end the step; pages beyond them are given back.

        With recurrent state less than all only of a `partial` step, and never none. Gives the step's snapshots, each
        held once by the caller.
        """
        if self._released or not self._reserved or not 0 <= accepted <= self._reserved:
            raise InvariantError(f"commit({accepted}) on a {self._words()} sequence")
        snapshots = () if self._recurrent is None else self._recurrent.commit(accepted)
        self._committed += accepted
        self._shrink(pages_for(self._committed))
        self._reserved = 0
        return snapshots

    def rollback(self) -> None:
        """End the step as if it had never been. Also right when no step is under way.

        Where the step may have written over the recurrent state, nothing is committed afterwards: `committed` is 0, and
        the tokens have to be computed again, which gives the same state.
        """
        if self._released:
            raise InvariantError("rollback of a released sequence")
        if self._recurrent is not None and not self._recurrent.rollback():
            self._committed = 0
        self._shrink(pages_for(self._committed))
        self._reserved = 0

    def snapshot(self) -> Snapshot | None:
        """The recurrent state that is stored between steps, held once by the caller; nothing is copied.

        It may have a few tokens less than are committed. None at the start, and for models without recurrent state.
        """
        self._check_between_steps("snapshot")
        return None if self._recurrent is None else self._recurrent.snapshot(self._committed)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this sequence: pages behind it are given back."""
        self._check_between_steps("restore")
        if self._recurrent is None or snapshot.num_tokens > self._committed:
            raise InvariantError(f"{snapshot} restored into a {self._words()} sequence")
        self._recurrent.restore(snapshot)
        self._committed = snapshot.num_tokens
        self._shrink(pages_for(self._committed))

    def release(self) -> None:
        """Give back every page and slot. The sequence cannot be used afterwards."""
        if self._released:
            raise InvariantError("sequence released twice")
        self._shrink(0)
        if self._recurrent is not None:
            self._recurrent.release()
        self._committed = self._reserved = 0
        self._released = True

    def _grow(self, num_tokens: int) -> None:
        if num_tokens > self.max_tokens:
            raise InvariantError(f"{num_tokens} tokens reserved in a sequence of at most {self.max_tokens}")
        while self._num_pages * PAGE_TOKENS < num_tokens:
            self._table[self._num_pages] = self._allocator.take()
            self._num_pages += 1

    def _shrink(self, num_pages: int) -> None:
        while self._num_pages > num_pages:
            self._num_pages -= 1
            self._allocator.drop(int(self._table[self._num_pages]))
            self._table[self._num_pages] = -1

    def _check_between_steps(self, verb: str) -> None:
        if self._released or self._reserved:
            raise InvariantError(f"{verb} on a {self._words()} sequence")

    def _words(self) -> str:
        if self._released:
            return "released"
        return f"{'reserved' if self._reserved else 'committed'} ({self._committed} + {self._reserved} tokens)"
