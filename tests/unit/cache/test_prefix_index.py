"""What can be reused, what gives way first, and that nothing else changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ninfer.cache import NO_MATCH, PageAllocator, PrefixIndex, Snapshot, StateLayout, StateSlots
from ninfer.errors import InvariantError


def text(kinds: str, rest: int = 1) -> npt.NDArray[np.int32]:
    """One page of equal tokens for each letter, and some tokens behind them."""
    ids = [ord(kind) for kind in kinds for _ in range(64)]
    return np.array(ids + [7] * rest, dtype=np.int32)


def take(pages: PageAllocator, count: int) -> npt.NDArray[np.int32]:
    return np.array([pages.take() for _ in range(count)], dtype=np.int32)


def kept(index: PrefixIndex, pages: PageAllocator, kinds: str) -> list[int]:
    """Publish a text as a sequence that has ended since; its pages."""
    ids = take(pages, len(kinds))
    given = index.publish(text(kinds), ids)
    for page in ids:
        pages.drop(int(page))
    return list(given)


@pytest.mark.parametrize(
    ("kinds", "rest", "found"),
    [("", 1, 0), ("a", 0, 0), ("a", 1, 1), ("ab", 0, 1), ("ab", 1, 2), ("abc", 0, 2), ("abx", 9, 2), ("xbc", 1, 0)],
)
def test_the_longest_known_prefix_of_full_pages_but_never_all_tokens(kinds: str, rest: int, found: int) -> None:
    pages = PageAllocator(8)
    index = PrefixIndex(pages)
    ids = kept(index, pages, "abc")
    match = index.find(text(kinds, rest))
    assert list(match.pages) == ids[:found]
    assert (match.num_tokens, match.num_known, match.snapshot) == (64 * found, 64 * found, None)


@pytest.mark.parametrize("position", [0, 63, 64, 127])
def test_one_other_token_is_another_text(position: int) -> None:
    pages = PageAllocator(8)
    index = PrefixIndex(pages)
    kept(index, pages, "ab")
    ids = text("ab")
    ids[position] += 1
    assert index.find(ids).num_tokens == position // 64 * 64


def test_what_two_sequences_have_computed_is_kept_once() -> None:
    pages = PageAllocator(8)
    index = PrefixIndex(pages)
    first, second = take(pages, 2), take(pages, 3)
    assert index.publish(text("ab"), first) == (0, 1)
    assert index.publish(text("abc"), second) == (0, 1, 4)
    assert index.num_pages == 3


def test_the_end_of_the_longest_unused_text_gives_way_first_and_held_pages_stay() -> None:
    pages = PageAllocator(6)
    index = PrefixIndex(pages)
    old, shared, new = kept(index, pages, "ab"), kept(index, pages, "c"), kept(index, pages, "cde")
    held = index.find(text("cd")).pages
    for page in held:
        pages.hold(page)
    index.find(text("ab", 0))  # the first page of the oldest text is used again
    assert (old, shared, new) == ([0, 1], [2], [2, 4, 5])
    assert (pages.num_free, pages.num_available) == (1, 4)
    order = []
    for free in (2, 3, 4):
        before = {page for page in range(6) if page in index_pages(index)}
        assert index.free_pages(free)
        order += sorted(before - index_pages(index))
    assert order == [1, 5, 0]
    assert not index.free_pages(5)
    assert index_pages(index) == {2, 4}


def index_pages(index: PrefixIndex) -> set[int]:
    return {node.page for node in index._nodes}


def test_what_cannot_be_freed_is_not_begun() -> None:
    pages = PageAllocator(3)
    index = PrefixIndex(pages)
    kept(index, pages, "a")
    take(pages, 1)
    assert not index.free_pages(3)
    assert index.num_pages == 1


def test_forgetting_takes_everything_that_follows() -> None:
    pages = PageAllocator(9)
    index = PrefixIndex(pages)
    kept(index, pages, "abc")
    kept(index, pages, "abd")
    kept(index, pages, "ax")
    index.forget(text("abc"), 64)
    assert index.find(text("abc")).num_tokens == 64
    assert index.find(text("ax")).num_tokens == 128
    assert (index.num_pages, pages.num_free) == (2, 7)
    index.clear()
    assert (index.num_pages, pages.num_free) == (0, 9)
    assert index.find(text("a")) == NO_MATCH


def recurrent(max_snapshots: int = 3) -> tuple[PageAllocator, StateSlots, PrefixIndex]:
    pages = PageAllocator(20)
    slots = StateSlots(StateLayout(), num_slots=max_snapshots + 2, num_journals=0, max_snapshots=max_snapshots)
    return pages, slots, PrefixIndex(pages, slots)


def kept_with_state(index: PrefixIndex, pages: PageAllocator, slots: StateSlots, kinds: str) -> Snapshot:
    ids = take(pages, len(kinds))
    snapshot = Snapshot(slots.take_snapshot(), 64 * len(kinds))
    index.publish(text(kinds, 0), ids, snapshot)
    for page in ids:
        pages.drop(int(page))
    return snapshot


def test_recurrent_state_is_reused_at_the_last_snapshot_before_the_texts_part() -> None:
    pages, slots, index = recurrent()
    short = kept_with_state(index, pages, slots, "a")
    kept_with_state(index, pages, slots, "abcd")
    match = index.find(text("abcx"))
    assert (match.num_tokens, match.snapshot, match.num_known) == (64, short, 192)


def test_the_snapshot_used_longest_ago_is_given_up_with_all_that_leads_to_none() -> None:
    pages, slots, index = recurrent()
    kept_with_state(index, pages, slots, "a")
    kept_with_state(index, pages, slots, "abc")
    kept_with_state(index, pages, slots, "x")
    assert index.find(text("ab")).num_tokens == 64
    assert index.snapshot_room(1) == 1
    assert (index.num_snapshots, index.num_pages) == (2, 2), "pages b and c lead to no snapshot"
    assert index.find(text("abc")).num_tokens == 64


def test_a_snapshot_that_a_sequence_goes_on_from_is_not_given_up() -> None:
    pages, slots, index = recurrent(max_snapshots=2)
    old = kept_with_state(index, pages, slots, "a")
    kept_with_state(index, pages, slots, "x")
    slots.hold(old.slot)
    assert index.snapshot_room(2) == 1
    assert index.find(text("a")).snapshot == old


def test_a_second_snapshot_of_one_text_is_dropped() -> None:
    pages, slots, index = recurrent()
    first = kept_with_state(index, pages, slots, "a")
    kept_with_state(index, pages, slots, "a")
    assert (slots.num_snapshots, index.num_snapshots, index.find(text("a")).snapshot) == (1, 1, first)


def test_pages_give_way_with_their_snapshot() -> None:
    pages, slots, index = recurrent()
    kept_with_state(index, pages, slots, "abc")
    assert index.free_pages(18)
    assert (index.num_pages, index.num_snapshots, slots.num_snapshots, pages.num_free) == (0, 0, 0, 20)


@pytest.mark.parametrize(("rest", "with_state"), [(0, False), (1, True)])
def test_recurrent_pages_end_with_their_state(rest: int, with_state: bool) -> None:
    pages, slots, index = recurrent()
    snapshot = Snapshot(slots.take_snapshot(), 64) if with_state else None
    with pytest.raises(InvariantError, match="published"):
        index.publish(text("a", rest), take(pages, 1), snapshot)


@dataclass
class Holder:
    """A sequence: its text, and the pages that it holds for the first letters."""

    kinds: str
    pages: list[int] = field(default_factory=list)


KINDS = st.text("ab", min_size=1, max_size=5)


class IndexMachine(RuleBasedStateMachine):
    """Sequences come, write pages, publish and go, in a pool that is too small. `content` is what was written to a
    page: the text up to its end. What the index gives must have the right content, and nobody else may write to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(9)
        self.index = PrefixIndex(self.pages)
        self.content: dict[int, str] = {}
        self.holders: list[Holder] = []

    @rule(kinds=KINDS)
    def start(self, kinds: str) -> None:
        holder = Holder(kinds)
        match = self.index.find(text(kinds))
        for depth, page in enumerate(match.pages, start=1):
            assert self.content[page] == kinds[:depth]
            self.pages.hold(page)
        holder.pages = list(match.pages)
        self.holders.append(holder)

    @rule(which=st.integers(0, 9), count=st.integers(1, 3))
    def write(self, which: int, count: int) -> None:
        if not self.holders:
            return
        holder = self.holders[which % len(self.holders)]
        count = min(count, len(holder.kinds) - len(holder.pages))
        if not self.index.free_pages(count):
            return
        for _ in range(count):
            page = self.pages.take()
            assert all(page not in other.pages for other in self.holders)
            holder.pages.append(page)
            self.content[page] = holder.kinds[: len(holder.pages)]

    @rule(which=st.integers(0, 9))
    def publish(self, which: int) -> None:
        if not self.holders:
            return
        holder = self.holders[which % len(self.holders)]
        done = holder.kinds[: len(holder.pages)]
        given = self.index.publish(text(done), np.array(holder.pages, dtype=np.int32))
        for own, page in zip(holder.pages, given, strict=True):
            assert self.content[page] == self.content[own]
            if own != page:
                self.pages.hold(page)
                self.pages.drop(own)
        holder.pages = list(given)

    @rule(which=st.integers(0, 9), fails=st.booleans())
    def end(self, which: int, fails: bool) -> None:
        if not self.holders:
            return
        holder = self.holders.pop(which % len(self.holders))
        if fails:
            self.index.forget(text(holder.kinds), 64)
        for page in holder.pages:
            self.pages.drop(page)

    @invariant()
    def every_page_is_held_kept_or_free(self) -> None:
        held = {page for holder in self.holders for page in holder.pages}
        known = index_pages(self.index)
        assert len(known) == self.index.num_pages
        assert self.pages.num_available == 9 - len(held)
        assert self.pages.num_idle == len(known - held)
        assert [self.pages.is_held(page) for page in range(9)] == [page in held for page in range(9)]


IndexMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase
