"""Owns: token memory: KV pages and the state of one sequence.
Does not own: what is stored in a page.
Read first: pages.py.
"""

from ninfer.cache.pages import PageAllocator, pages_for
from ninfer.cache.sequence import SequenceState

__all__ = ["PageAllocator", "SequenceState", "pages_for"]
