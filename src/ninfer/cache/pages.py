"""KV pages: who holds which, and which are kept for reuse. What is stored in a page is the backend's business."""

from __future__ import annotations

import heapq

from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class PageAllocator:
    """Pages `0 .. num_pages`: each is held by any number of sequences, and may be kept for those to come.

    Who takes a page is its first holder and the only one to write to it, until it is kept or has a second holder: from
    then on it is read only. A page that is kept and not held is *idle*: its keeper can free it at any time. `take`
    gives the free page with the lowest id, so ids depend only on the history of calls.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise InvariantError(f"a page allocator needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages))  # a heap, as any sorted list is
        self._holders = [0] * num_pages
        self._kept = bytearray(num_pages)
        self._num_idle = 0

    @property
    def num_free(self) -> int:
        """Pages with nothing in them."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Pages that are kept and not held."""
        return self._num_idle

    @property
    def num_available(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free) + self._num_idle

    def is_held(self, page: int) -> bool:
        return self._holders[page] > 0

    def take(self) -> int:
        """The lowest free page, now held once. InvariantError without one: the caller looks at `num_free` first."""
        if not self._free:
            raise InvariantError(f"a page taken of {self.num_pages}, and none is free")
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page that is held or kept."""
        self._check(page)
        if not self._holders[page]:
            self._num_idle -= 1
        self._holders[page] += 1

    def drop(self, page: int) -> None:
        """One holder less; a page without any is free, or idle if it is kept."""
        self._check(page)
        if not self._holders[page]:
            raise InvariantError(f"page {page} was dropped but is not held")
        self._holders[page] -= 1
        if not self._holders[page]:
            if self._kept[page]:
                self._num_idle += 1
            else:
                heapq.heappush(self._free, page)

    def keep(self, page: int) -> None:
        """Keep a page that is held."""
        self._check(page)
        if self._kept[page]:
            raise InvariantError(f"page {page} is kept twice")
        self._kept[page] = 1

    def discard(self, page: int) -> None:
        """Keep a page no longer; it is free once nobody holds it."""
        self._check(page)
        if not self._kept[page]:
            raise InvariantError(f"page {page} was discarded but is not kept")
        self._kept[page] = 0
        if not self._holders[page]:
            self._num_idle -= 1
            heapq.heappush(self._free, page)

    def _check(self, page: int) -> None:
        if not 0 <= page < self.num_pages or not (self._holders[page] or self._kept[page]):
            raise InvariantError(f"page {page} is neither held nor kept")
