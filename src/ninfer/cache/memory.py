"""The token memory of a whole engine, from which sequences take theirs."""

from __future__ import annotations

from ninfer.cache.pages import PageAllocator
from ninfer.cache.prefix_index import PrefixIndex
from ninfer.cache.sequence import SequenceState
from ninfer.cache.state_slots import StateSlots


class TokenMemory:
    """KV pages, the slots of models with recurrent state (`slots` is None for others), and what is kept for reuse
    (`index` is None where nothing is)."""

    def __init__(self, num_pages: int, slots: StateSlots | None = None, *, reuses_prefixes: bool = False) -> None:
        self.pages = PageAllocator(num_pages)
        self.slots = slots
        self.index = PrefixIndex(self.pages, slots) if reuses_prefixes else None

    @property
    def has_slots(self) -> bool:
        """Whether one more sequence can have the recurrent state that it may ever need."""
        return self.slots is None or self.slots.has_room

    def free_pages(self, count: int) -> bool:
        """See to it that `count` pages are free. False, and nothing has changed, if running sequences hold too many."""
        if self.index is not None:
            return self.index.free_pages(count)
        return count <= self.pages.num_free

    def new_sequence(self, max_tokens: int) -> SequenceState:
        """Token memory of one sequence; slots are claimed. InvariantError without: look at `has_slots` first."""
        return SequenceState(self.pages, max_tokens, self.slots)
