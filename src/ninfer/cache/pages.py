"""Who owns which KV page. What is stored in a page is the backend's business."""

from __future__ import annotations

import heapq

from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class PageAllocator:
    """Pages `0 .. num_pages`, each free or owned once.

    Two levels: a *claim* promises a number of pages without naming them, and `take` hands out a page under a claim, the
    free one with the lowest id, so page tables depend only on the history of calls. Claims never exceed what exists, so
    `take` under a claim cannot fail and running sequences can never block each other.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise InvariantError(f"a page allocator needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages))  # a heap, as any sorted list is
        self._owned = bytearray(num_pages)
        self._claimed = 0

    @property
    def num_free(self) -> int:
        """Pages nobody owns; some may be promised."""
        return len(self._free)

    @property
    def num_claimed(self) -> int:
        """Pages promised, taken or not."""
        return self._claimed

    @property
    def num_claimable(self) -> int:
        """Pages nobody was promised."""
        return self.num_pages - self._claimed

    def claim(self, count: int) -> None:
        """Promise `count` pages. InvariantError if fewer are claimable: the caller looks at `num_claimable` first."""
        if not 0 <= count <= self.num_claimable:
            raise InvariantError(f"cannot claim {count} pages, {self.num_claimable} of {self.num_pages} are claimable")
        self._claimed += count

    def unclaim(self, count: int) -> None:
        """Take back a promise of `count` pages that are not taken."""
        if not 0 <= count <= self._claimed - (self.num_pages - self.num_free):
            raise InvariantError(f"cannot unclaim {count} pages: {self._claimed} claimed, {self.num_free} free")
        self._claimed -= count

    def take(self) -> int:
        """The id of the lowest free page, now owned by the caller, who must have claimed it."""
        if self.num_pages - self.num_free >= self._claimed:
            raise InvariantError(f"page taken without a claim: {self._claimed} claimed, all of them taken")
        page = heapq.heappop(self._free)
        self._owned[page] = 1
        return page

    def give_back(self, page: int) -> None:
        """Free a page; the claim it was taken under stays. InvariantError if it is free already or does not exist."""
        if not 0 <= page < self.num_pages or not self._owned[page]:
            raise InvariantError(f"page {page} was given back but is not owned")
        self._owned[page] = 0
        heapq.heappush(self._free, page)
