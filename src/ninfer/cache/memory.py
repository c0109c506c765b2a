"""The token memory of a whole engine, from which sequences take theirs."""

from __future__ import annotations

from ninfer.cache.pages import PageAllocator, pages_for
from ninfer.cache.sequence import SequenceState
from ninfer.cache.state_slots import StateSlots


class TokenMemory:
    """KV pages, and the slots of models with recurrent state (`slots` is None for others)."""

    def __init__(self, num_pages: int, slots: StateSlots | None = None) -> None:
        self.pages = PageAllocator(num_pages)
        self.slots = slots

    def has_room(self, max_tokens: int) -> bool:
        """Whether a sequence of at most `max_tokens` tokens can get all it may ever need."""
        if pages_for(max_tokens) > self.pages.num_claimable:
            return False
        return self.slots is None or self.slots.has_room

    def new_sequence(self, max_tokens: int) -> SequenceState:
        """Token memory of one sequence, claimed. InvariantError without room: the caller looks at `has_room` first."""
        return SequenceState(self.pages, max_tokens, self.slots)
