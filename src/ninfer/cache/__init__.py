"""Owns: token memory: KV pages, recurrent-state slots and snapshots, what of them can be reused, and the state of one
sequence.
Does not own: what is stored in a page or a slot.
Read first: sequence.py.
"""

from ninfer.cache.memory import TokenMemory
from ninfer.cache.pages import PageAllocator, pages_for
from ninfer.cache.prefix_index import NO_MATCH, PrefixIndex, PrefixMatch
from ninfer.cache.recurrent import RecurrentState
from ninfer.cache.sequence import SequenceState
from ninfer.cache.state_slots import Rollback, Snapshot, StateLayout, StateSlots

__all__ = [
    "NO_MATCH",
    "PageAllocator",
    "PrefixIndex",
    "PrefixMatch",
    "RecurrentState",
    "Rollback",
    "SequenceState",
    "Snapshot",
    "StateLayout",
    "StateSlots",
    "TokenMemory",
    "pages_for",
]
