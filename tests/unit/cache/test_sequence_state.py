from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.cache import PageAllocator, SequenceState, pages_for
from ninfer.errors import InvariantError


def test_pages_come_with_the_length_and_go_with_a_rollback() -> None:
    allocator = PageAllocator(8)
    state = SequenceState(allocator, 300)
    assert state.num_missing(65) == 2
    state.reserve(65)
    assert (state.committed, state.reserved, state.pages.tolist()) == (0, 65, [0, 1])
    state.commit(65)
    assert (state.committed, state.reserved, state.pages.tolist()) == (65, 0, [0, 1])
    state.reserve(64)
    assert state.pages.tolist() == [0, 1, 2]
    state.rollback()
    assert (state.committed, state.reserved, state.pages.tolist()) == (65, 0, [0, 1])
    assert (state.num_missing(63), state.num_missing(64), state.num_missing(200)) == (0, 1, 3)
    state.release()
    assert allocator.num_free == 8


def test_page_ids_are_int32() -> None:
    state = SequenceState(PageAllocator(1), 1)
    state.reserve(1)
    assert state.pages.dtype == np.int32


def test_a_partly_accepted_step_keeps_only_what_it_needs() -> None:
    allocator = PageAllocator(8)
    state = SequenceState(allocator, 256)
    state.reserve(60)
    state.commit(60)
    state.reserve(10)
    assert state.pages.tolist() == [0, 1]
    state.commit(4)
    assert (state.committed, state.pages.tolist()) == (64, [0])
    assert allocator.num_free == 7


def test_rollback_without_a_step_changes_nothing() -> None:
    state = SequenceState(PageAllocator(2), 100)
    state.reserve(70)
    state.commit(70)
    state.rollback()
    assert (state.committed, state.pages.tolist()) == (70, [0, 1])


def test_pages_of_others_come_in_front_and_own_ones_go_back() -> None:
    """Committed pages may be shared: nobody writes below the committed length."""
    allocator = PageAllocator(8)
    writer, reader = SequenceState(allocator, 300), SequenceState(allocator, 300)
    writer.reserve(200)
    writer.commit(200)
    reader.reserve(70)
    reader.commit(70)
    assert (writer.pages.tolist(), reader.pages.tolist()) == ([0, 1, 2, 3], [4, 5])
    reader.reuse([0, 1, 2], None)
    assert (reader.committed, reader.pages.tolist(), allocator.num_free) == (192, [0, 1, 2], 4)
    reader.reserve(10)
    assert reader.pages.tolist() == [0, 1, 2, 4]
    writer.release()
    assert allocator.num_free == 4, "only the page of the writer alone"
    reader.release()
    assert allocator.num_free == 8


def test_pages_of_equal_content_are_exchanged() -> None:
    allocator = PageAllocator(4)
    first, second = SequenceState(allocator, 128), SequenceState(allocator, 128)
    for state in (first, second):
        state.reserve(100)
        state.commit(100)
    second.exchange([0])
    assert (second.pages.tolist(), second.committed, allocator.num_free) == ([0, 3], 100, 1)
    second.exchange([0])
    with pytest.raises(InvariantError, match="2 full pages exchanged"):
        second.exchange([0, 1])


@pytest.mark.parametrize("pages", [[], [0], [0, 1, 2, 3, 4]])
def test_only_more_than_is_there_and_no_more_than_fits_is_reused(pages: list[int]) -> None:
    allocator = PageAllocator(8)
    state = SequenceState(allocator, 256)
    state.reserve(64)
    state.commit(64)
    with pytest.raises(InvariantError, match="reused by"):
        state.reuse(pages, None)


@pytest.mark.parametrize("count", [0, -1])
def test_a_step_reserves_something(count: int) -> None:
    with pytest.raises(InvariantError, match="reserve"):
        SequenceState(PageAllocator(1), 10).reserve(count)


def test_no_step_inside_a_step() -> None:
    state = SequenceState(PageAllocator(1), 10)
    state.reserve(1)
    with pytest.raises(InvariantError, match=r"reserve\(1\) on a reserved"):
        state.reserve(1)


def test_never_more_tokens_than_planned() -> None:
    state = SequenceState(PageAllocator(4), 10)
    state.reserve(10)
    state.commit(10)
    with pytest.raises(InvariantError, match="11 tokens reserved in a sequence of at most 10"):
        state.reserve(1)


@pytest.mark.parametrize("accepted", [-1, 4])
def test_only_reserved_tokens_can_be_accepted(accepted: int) -> None:
    state = SequenceState(PageAllocator(1), 10)
    state.reserve(3)
    with pytest.raises(InvariantError, match="commit"):
        state.commit(accepted)


def test_commit_needs_a_step() -> None:
    with pytest.raises(InvariantError, match=r"commit\(0\) on a committed"):
        SequenceState(PageAllocator(1), 10).commit(0)


def test_a_released_sequence_is_dead() -> None:
    state = SequenceState(PageAllocator(1), 10)
    state.release()
    for call in (lambda: state.reserve(1), lambda: state.commit(0), state.rollback, state.release):
        with pytest.raises(InvariantError, match="released"):
            call()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 150), st.floats(0, 1)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, limits=st.tuples(*[st.integers(1, 400)] * 3))
def test_any_history_of_steps_leaves_exactly_the_pages_of_the_committed_tokens(
    steps: list[tuple[int, int, float]], limits: tuple[int, int, int]
) -> None:
    """Three sequences share a pool: no page has two owners, no content moves, and every page comes back."""
    allocator = PageAllocator(sum(pages_for(limit) for limit in limits))
    states = [SequenceState(allocator, limit) for limit in limits]
    lengths = [0, 0, 0]
    for index, wanted, share in steps:
        state = states[index]
        count = min(wanted, limits[index] - lengths[index])
        if count == 0:
            continue
        kept = state.pages[: pages_for(lengths[index])].copy()
        state.reserve(count)
        assert len(state.pages) == pages_for(lengths[index] + count)
        accepted = int(share * (count + 1))
        if accepted > count:
            state.rollback()
        else:
            state.commit(accepted)
            lengths[index] += accepted
        assert state.committed == lengths[index]
        assert state.pages[: len(kept)].tolist() == kept.tolist()
        owned = [page for other in states for page in other.pages.tolist()]
        assert len(set(owned)) == len(owned) == allocator.num_pages - allocator.num_free
        assert [len(other.pages) for other in states] == [pages_for(length) for length in lengths]
    for state in states:
        state.release()
    assert allocator.num_free == allocator.num_pages
