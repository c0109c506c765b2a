from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer.cache import PageAllocator, pages_for
from ninfer.errors import InvariantError


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_lowest_free_page_goes_out_first() -> None:
    allocator = PageAllocator(5)
    assert [allocator.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    for page in (3, 0, 4):
        allocator.drop(page)
    assert [allocator.take() for _ in range(3)] == [0, 3, 4]
    with pytest.raises(InvariantError, match="none is free"):
        allocator.take()


def test_a_page_lives_as_long_as_someone_holds_or_keeps_it() -> None:
    allocator = PageAllocator(2)
    page = allocator.take()
    allocator.hold(page)
    allocator.keep(page)
    allocator.drop(page)
    assert (allocator.num_free, allocator.num_idle, allocator.is_held(page)) == (1, 0, True)
    allocator.drop(page)
    assert (allocator.num_free, allocator.num_idle, allocator.num_available) == (1, 1, 2)
    allocator.hold(page)
    allocator.discard(page)
    assert (allocator.num_free, allocator.num_idle) == (1, 0)
    allocator.drop(page)
    assert (allocator.num_free, allocator.num_idle) == (2, 0)


@pytest.mark.parametrize("page", [-1, 0, 2, 99])
@pytest.mark.parametrize("verb", ["hold", "drop", "keep", "discard"])
def test_nothing_can_be_done_with_a_free_page(verb: str, page: int) -> None:
    with pytest.raises(InvariantError, match=f"page {page} is neither held nor kept"):
        getattr(PageAllocator(2), verb)(page)


def test_a_page_is_kept_once_and_dropped_as_often_as_held() -> None:
    allocator = PageAllocator(1)
    page = allocator.take()
    with pytest.raises(InvariantError, match="not kept"):
        allocator.discard(page)
    allocator.keep(page)
    with pytest.raises(InvariantError, match="kept twice"):
        allocator.keep(page)
    allocator.drop(page)
    with pytest.raises(InvariantError, match="not held"):
        allocator.drop(page)


@pytest.mark.parametrize("num_pages", [0, -1])
def test_an_allocator_has_pages(num_pages: int) -> None:
    with pytest.raises(InvariantError, match="at least one"):
        PageAllocator(num_pages)


class AllocatorMachine(RuleBasedStateMachine):
    """Against a model: holders by page, and a set of kept pages."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 5
        self.allocator = PageAllocator(self.size)
        self.holders = [0] * self.size
        self.kept: set[int] = set()

    def free(self) -> set[int]:
        return {page for page in range(self.size) if not self.holders[page] and page not in self.kept}

    @precondition(lambda self: self.free())
    @rule()
    def take(self) -> None:
        page = self.allocator.take()
        assert page == min(self.free())
        self.holders[page] = 1

    @rule(page=st.integers(0, 4))
    def hold(self, page: int) -> None:
        if page not in self.free():
            self.allocator.hold(page)
            self.holders[page] += 1

    @rule(page=st.integers(0, 4))
    def drop(self, page: int) -> None:
        if self.holders[page]:
            self.allocator.drop(page)
            self.holders[page] -= 1
        else:
            with pytest.raises(InvariantError):
                self.allocator.drop(page)

    @rule(page=st.integers(0, 4))
    def keep_or_discard(self, page: int) -> None:
        if page in self.kept:
            self.allocator.discard(page)
            self.kept.remove(page)
        elif self.holders[page]:
            self.allocator.keep(page)
            self.kept.add(page)

    @invariant()
    def counts_agree(self) -> None:
        assert self.allocator.num_free == len(self.free())
        assert self.allocator.num_idle == sum(not self.holders[page] for page in self.kept)
        assert self.allocator.num_available == sum(not count for count in self.holders)
        assert [self.allocator.is_held(page) for page in range(self.size)] == [count > 0 for count in self.holders]


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase
