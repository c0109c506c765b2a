"""Token memory of one sequence as a transaction: reserve, then commit or roll back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.cache.pages import PAGE_TOKENS, PageAllocator, pages_for
from ninfer.errors import InvariantError


class SequenceState:
    """Pages of one sequence and how many of its tokens are committed.

    A step reserves the tokens it is about to write behind the committed length, runs, and then commits how many of them
    hold, or rolls back. Nothing ever writes below the committed length. Pages come and go with the length, under a
    claim for `max_tokens` made at construction: once it exists, a sequence can always run to its end.
    """

    def __init__(self, allocator: PageAllocator, max_tokens: int) -> None:
        self._allocator = allocator
        self._claim = pages_for(max_tokens)
        allocator.claim(self._claim)
        self._table: npt.NDArray[np.int32] = np.full(self._claim, -1, dtype=np.int32)
        self._num_pages = 0
        self._committed = 0
        self._reserved = 0
        self._released = False
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

    def reserve(self, count: int) -> None:
        """Make room for `count` tokens behind the committed length. InvariantError inside a step or above the claim."""
        if self._released or self._reserved or count < 1:
            raise InvariantError(f"reserve({count}) on a {self._words()} sequence")
        needed = self._committed + count
        if needed > self.max_tokens:
            raise InvariantError(f"{needed} tokens reserved in a sequence of at most {self.max_tokens}")
        while self._num_pages * PAGE_TOKENS < needed:
            self._table[self._num_pages] = self._allocator.take()
            self._num_pages += 1
        self._reserved = count

    def commit(self, accepted: int) -> None:
        """Keep the first `accepted` reserved tokens and end the step; pages beyond them are given back."""
        if self._released or not self._reserved or not 0 <= accepted <= self._reserved:
            raise InvariantError(f"commit({accepted}) on a {self._words()} sequence")
        self._committed += accepted
        if accepted < self._reserved:
            self._shrink(pages_for(self._committed))
        self._reserved = 0

    def rollback(self) -> None:
        """End the step as if it had never been. Also right when no step is under way."""
        if self._released:
            raise InvariantError("rollback of a released sequence")
        self._shrink(pages_for(self._committed))
        self._reserved = 0

    def release(self) -> None:
        """Give back every page and the claim. The sequence cannot be used afterwards."""
        if self._released:
            raise InvariantError("sequence released twice")
        self._shrink(0)
        self._allocator.unclaim(self._claim)
        self._committed = self._reserved = 0
        self._released = True

    def _shrink(self, num_pages: int) -> None:
        while self._num_pages > num_pages:
            self._num_pages -= 1
            self._allocator.give_back(int(self._table[self._num_pages]))
            self._table[self._num_pages] = -1

    def _words(self) -> str:
        if self._released:
            return "released"
        return f"{'reserved' if self._reserved else 'committed'} ({self._committed} + {self._reserved} tokens)"
