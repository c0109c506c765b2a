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
    allocator.claim(5)
    assert [allocator.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    for page in (3, 0, 4):
        allocator.give_back(page)
    assert [allocator.take() for _ in range(3)] == [0, 3, 4]


def test_double_free_is_our_bug() -> None:
    allocator = PageAllocator(2)
    allocator.claim(2)
    page = allocator.take()
    allocator.give_back(page)
    with pytest.raises(InvariantError, match="page 0 was given back but is not owned"):
        allocator.give_back(page)


@pytest.mark.parametrize("page", [-1, 2, 99])
def test_a_page_that_does_not_exist_cannot_be_given_back(page: int) -> None:
    with pytest.raises(InvariantError, match="not owned"):
        PageAllocator(2).give_back(page)


def test_no_page_without_a_claim() -> None:
    allocator = PageAllocator(3)
    with pytest.raises(InvariantError, match="without a claim"):
        allocator.take()
    allocator.claim(1)
    allocator.take()
    with pytest.raises(InvariantError, match="without a claim"):
        allocator.take()


def test_claims_never_exceed_what_exists() -> None:
    allocator = PageAllocator(3)
    allocator.claim(2)
    with pytest.raises(InvariantError, match="cannot claim 2 pages, 1 of 3"):
        allocator.claim(2)
    with pytest.raises(InvariantError, match="cannot claim -1"):
        allocator.claim(-1)


def test_a_taken_page_keeps_its_claim() -> None:
    allocator = PageAllocator(3)
    allocator.claim(2)
    allocator.take()
    with pytest.raises(InvariantError, match="cannot unclaim 2"):
        allocator.unclaim(2)
    allocator.unclaim(1)
    assert allocator.num_claimable == 2


@pytest.mark.parametrize("num_pages", [0, -1])
def test_an_allocator_has_pages(num_pages: int) -> None:
    with pytest.raises(InvariantError, match="at least one"):
        PageAllocator(num_pages)


class AllocatorMachine(RuleBasedStateMachine):
    """Against a model: a set of free ids and a number of promises."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 7
        self.allocator = PageAllocator(self.size)
        self.free = set(range(self.size))
        self.claimed = 0

    @rule(count=st.integers(0, 7))
    def claim(self, count: int) -> None:
        if count <= self.size - self.claimed:
            self.allocator.claim(count)
            self.claimed += count
        else:
            with pytest.raises(InvariantError):
                self.allocator.claim(count)

    @rule(count=st.integers(0, 7))
    def unclaim(self, count: int) -> None:
        if count <= self.claimed - (self.size - len(self.free)):
            self.allocator.unclaim(count)
            self.claimed -= count
        else:
            with pytest.raises(InvariantError):
                self.allocator.unclaim(count)

    @precondition(lambda self: self.size - len(self.free) < self.claimed)
    @rule()
    def take(self) -> None:
        page = self.allocator.take()
        assert page == min(self.free)
        self.free.remove(page)

    @rule(page=st.integers(0, 6))
    def give_back(self, page: int) -> None:
        if page in self.free:
            with pytest.raises(InvariantError):
                self.allocator.give_back(page)
        else:
            self.allocator.give_back(page)
            self.free.add(page)

    @invariant()
    def counts_agree(self) -> None:
        assert self.allocator.num_free == len(self.free)
        assert self.allocator.num_claimed == self.claimed
        assert self.allocator.num_claimable == self.size - self.claimed


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase
