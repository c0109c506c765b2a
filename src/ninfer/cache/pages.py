"""KV pages. What is stored in a page is the backend's business."""

from __future__ import annotations

from ninfer.cache.allocator import Allocator
from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class PageAllocator(Allocator):
    """Who owns which KV page."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise InvariantError(f"a page allocator needs at least one page, got {num_pages}")
        super().__init__(num_pages, "page")
        self.num_pages = num_pages
