"""What sequences take from the prefix index and give to it: when, and what of them.

All of it changes time only. A hit brings the same bits that computing would give, so no rule here can change a token.
"""

from __future__ import annotations

from typing import Protocol

from ninfer.cache import NO_MATCH, PrefixMatch, Snapshot, TokenMemory
from ninfer.engine.sequence import Sequence
from ninfer.errors import BackendError
from ninfer.metrics import TokenCounters
from ninfer.ops.batch import PAGE_TOKENS


class DraftState(Protocol):
    """State of drafts that is kept under page ids, so that it is shared with the pages."""

    def settle(self, sequence_id: int) -> None:
        """Complete it for all committed tokens of a sequence: the pages are about to be shared."""

    def forget(self, sequence_id: int) -> None:
        """The sequence has lost its pages, or goes on with others."""


class PrefixReuse:
    """Between the running sequences and the index of `memory`; does nothing where that has none.

    Full pages of committed tokens go to the index in the step that completes them, so a request that comes later reuses
    what one that still runs has computed. With recurrent state they go there when a snapshot does, which are taken

    - in a prompt every `snapshot_interval` tokens, where the index knows a text further than it has a snapshot for it
      (requests part there), and at its last page border;
    - while decoding at every page border, of which the last one is kept when the sequence ends.
    """

    def __init__(
        self,
        memory: TokenMemory,
        counters: TokenCounters,
        *,
        snapshot_interval: int = 0,
        drafts: DraftState | None = None,
    ) -> None:
        self._memory = memory
        self._counters = counters
        self._index = memory.index
        self._interval = snapshot_interval
        self._drafts = drafts

    def find(self, sequence: Sequence) -> PrefixMatch:
        """What the index has of a sequence's tokens."""
        return NO_MATCH if self._index is None else self._index.find(sequence.known)

    def bind(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Go on from a match, if the sequence has not come as far itself."""
        if match.num_known:
            sequence.branch = match.num_known
        if match.num_tokens > sequence.state.committed:
            self._forget_drafts(sequence)
            sequence.state.reuse(match.pages, match.snapshot)
            sequence.count_reused(self._counters)

    def snapshot_counts(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Of the next `count` rows those, counted from 1 and without the last, after which a snapshot is to be saved.

        There is room for as many; to be called right before the rows are reserved.
        """
        if self._index is None or self._memory.slots is None:
            return ()
        start = sequence.state.committed
        first = (start // PAGE_TOKENS + 1) * PAGE_TOKENS
        counts = [p - start for p in range(first, start + count, PAGE_TOKENS) if self._is_wanted(sequence, p)]
        room = self._index.snapshot_room(len(counts)) if counts else 0
        return tuple(counts[len(counts) - room :])

    def committed(self, sequence: Sequence, snapshots: tuple[Snapshot, ...], *, is_sound: bool) -> None:
        """After a commit, with the snapshots that it gave. Of rows that are not sound nothing is kept."""
        if self._index is None:
            return
        if not is_sound:
            for snapshot in snapshots:
                self._drop(snapshot)
            return
        if self._memory.slots is None:
            num_full = sequence.state.committed // PAGE_TOKENS * PAGE_TOKENS
            if num_full > sequence.num_published:
                self._publish(sequence, num_full, None)
            return
        for snapshot in snapshots:
            self._publish(sequence, snapshot.num_tokens, snapshot)
        stored = sequence.state.num_stored
        if stored % PAGE_TOKENS or stored <= max(
            sequence.num_published, sequence.tail.num_tokens if sequence.tail else 0
        ):
            return
        if self._is_wanted(sequence, stored):
            made = self._snapshot(sequence)
            if made is not None:
                self._publish(sequence, stored, made)
        elif stored > self._last_border(sequence):
            self._drop_tail(sequence)
            sequence.tail = self._snapshot(sequence)

    def ended(self, sequence: Sequence) -> None:
        """Before the memory of a sequence that has ended is released."""
        if sequence.tail is not None:
            tail, sequence.tail = sequence.tail, None
            self._publish(sequence, tail.num_tokens, tail)

    def preempted(self, sequence: Sequence) -> None:
        """As `ended`, of a sequence that goes on later."""
        self.ended(sequence)
        self._forget_drafts(sequence)

    def lost(self, sequence: Sequence) -> None:
        """The memory of a sequence was lost in a step that was undone; it begins again."""
        self._drop_tail(sequence)
        self._forget_drafts(sequence)

    def failed(self, sequence: Sequence, error: Exception) -> None:
        """As `ended`. After a fault of the machine nothing that this sequence computed is kept: it may be wrong."""
        if self._index is None or not sequence.has_state:
            return
        if isinstance(error, BackendError):
            self._drop_tail(sequence)
            self._index.forget(sequence.tokens[: sequence.num_published], sequence.num_bound)
        else:
            self.ended(sequence)

    def _is_wanted(self, sequence: Sequence, position: int) -> bool:
        """Whether the state after `position` tokens, a page border of the known ones, is worth a snapshot."""
        if position > self._last_border(sequence):
            return False
        at_interval = self._interval > 0 and position % self._interval == 0
        return at_interval or position in (sequence.branch, self._last_border(sequence))

    def _last_border(self, sequence: Sequence) -> int:
        """The last page border of a sequence's prompt, or of what it has to compute again, with a token behind it."""
        return (sequence.num_fed - 1) // PAGE_TOKENS * PAGE_TOKENS

    def _snapshot(self, sequence: Sequence) -> Snapshot | None:
        if self._index is None or not self._index.snapshot_room(1):
            return None
        return sequence.state.snapshot()

    def _publish(self, sequence: Sequence, num_tokens: int, snapshot: Snapshot | None) -> None:
        if self._index is None:
            return
        if self._drafts is not None:
            self._drafts.settle(sequence.id)
        pages = self._index.publish(sequence.tokens[:num_tokens], sequence.state.pages, snapshot)
        sequence.state.exchange(pages)
        sequence.num_published = num_tokens

    def _drop_tail(self, sequence: Sequence) -> None:
        if sequence.tail is not None:
            self._drop(sequence.tail)
            sequence.tail = None

    def _drop(self, snapshot: Snapshot) -> None:
        if self._memory.slots is not None:
            self._memory.slots.drop(snapshot.slot)

    def _forget_drafts(self, sequence: Sequence) -> None:
        if self._drafts is not None:
            self._drafts.forget(sequence.id)
