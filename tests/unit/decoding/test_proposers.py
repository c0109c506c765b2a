"""Copy drafting against a search of the whole text, and the combination of two proposers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.decoding import SamplingParams
from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask
from ninfer.decoding.proposers import CombinedProposer, NgramProposer
from ninfer.decoding.proposers.ngram import GRADE_BOUNDS, KEY_LENGTHS, MAX_MATCH, memory_bytes

CONTEXT = 4096
NO_PAGES = np.empty(0, dtype=np.int32)


def ids_of(tokens: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(tokens, dtype=np.int32)


def task_of(tokens: list[int], window: int, grade_windows: tuple[int, ...] = (), sequence: int = 0) -> DraftTask:
    return DraftTask(sequence, ids_of(tokens), NO_PAGES, window, SamplingParams(), grade_windows)


def observed(proposer: NgramProposer, tokens: list[int], cuts: list[int], sequence: int = 0) -> None:
    """Tell of all tokens but the last, in pieces that end at `cuts`."""
    position = 0
    for end in [*sorted({cut for cut in cuts if 0 < cut < len(tokens) - 1}), len(tokens) - 1]:
        if end > position:
            proposer.observe([Committed(sequence, ids_of(tokens), NO_PAGES, position, end - position, 0)])
            position = end


def searched(tokens: list[int], window: int) -> tuple[int, ...]:
    """The draft by definition: the latest place of the last 8 tokens, else of the last 3, read on from there."""
    for length in KEY_LENGTHS:
        for end in range(len(tokens) - 2, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == tokens[-length:]:
                longer = list(tokens)
                for i in range(window):
                    longer.append(longer[end + 1 + i])
                return tuple(longer[len(tokens) :])
    return ()


@settings(deadline=None)  # a busy machine is no failure
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=120),
    cuts=st.lists(st.integers(1, 120), max_size=5),
    window=st.integers(1, 8),
)
def test_a_draft_is_what_a_search_of_the_whole_text_finds(tokens: list[int], cuts: list[int], window: int) -> None:
    proposer = NgramProposer(8, max_context=CONTEXT)
    observed(proposer, tokens, cuts)
    (draft,) = proposer.propose([task_of(tokens, window)])
    assert draft.ids == searched(tokens, window)


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 15, 16, 40])
def test_the_grade_is_how_long_the_match_is(length: int) -> None:
    copied = list(range(100, 100 + length))
    tokens = [1, *copied, 2, 3, 4, 5, 6, *copied]
    proposer = NgramProposer(8, max_context=CONTEXT)
    observed(proposer, tokens, [])
    (draft,) = proposer.propose([task_of(tokens, 4)])
    assert draft == Draft((2, 3, 4, 5), grade=sum(length >= bound for bound in GRADE_BOUNDS))
    assert max(GRADE_BOUNDS) <= MAX_MATCH


def test_windows_of_grades_are_held() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    proposer = NgramProposer(8, max_context=CONTEXT)
    observed(proposer, tokens, [])
    for windows, ids in (((2, 8, 8, 8), (4, 5)), ((0, 8, 8, 8), ()), ((8, 0, 0, 0), (4, 5, 6, 1, 2, 3, 4, 5))):
        assert proposer.propose([task_of(tokens, 8, windows)])[0].ids == ids


def test_a_full_table_forgets_old_places_and_never_lies() -> None:
    """Beyond its table an n-gram may be lost; what is found is still what stood there."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 30, 3000).tolist()
    proposer = NgramProposer(4, max_context=32)
    drafts = 0
    for end in range(2, 3000):
        proposer.observe([Committed(0, ids_of(tokens[:end]), NO_PAGES, end - 2, 1, 0)])
        (draft,) = proposer.propose([task_of(tokens[:end], 1)])
        for token in draft.ids:
            assert any(tokens[i : i + 3] == tokens[end - 3 : end] and tokens[i + 3] == token for i in range(end))
            drafts += 1
    assert drafts > 0


def test_sequences_are_apart_and_forgotten() -> None:
    proposer = NgramProposer(8, max_context=CONTEXT)
    tokens = [1, 2, 3, 4, 1, 2, 3]
    observed(proposer, tokens, [], sequence=5)
    observed(proposer, [9, 9, 9, 8], [], sequence=6)
    assert proposer.propose([task_of(tokens, 1, sequence=5)])[0].ids == (4,)
    assert proposer.propose([task_of(tokens, 1, sequence=6)])[0] == NO_DRAFT
    proposer.forget(5)
    proposer.forget(7)
    assert proposer.propose([task_of(tokens, 1, sequence=5)])[0] == NO_DRAFT


def test_tokens_of_a_prefix_hit_are_searched_too() -> None:
    """They are never told, but they are among the tokens."""
    proposer = NgramProposer(8, max_context=CONTEXT)
    tokens = [1, 2, 3, 4, 7, 7, 1, 2, 3]
    proposer.observe([Committed(0, ids_of(tokens), NO_PAGES, 6, 2, 0)])
    assert proposer.propose([task_of(tokens, 2)])[0].ids == (4, 7)


@pytest.mark.parametrize(("context", "expected"), [(2, 2 * 4 * 64), (2048, 2 * 4 * 4096), (10**6, 2 * 4 * 2**17)])
def test_memory_of_a_sequence(context: int, expected: int) -> None:
    assert memory_bytes(context) == expected


class Recorder:
    """A proposer that drafts one token, if it may, and keeps what it is asked and told."""

    def __init__(self, token: int | None, max_window: int, num_grades: int) -> None:
        self.max_window = max_window
        self.num_grades = num_grades
        self.token = token
        self.calls: list[Any] = []

    def propose(self, tasks: list[DraftTask]) -> list[Draft]:
        self.calls.append(tasks)
        return [Draft(() if self.token is None else (self.token,), grade=self.num_grades - 1) for _ in tasks]

    def observe(self, committed: object) -> None:
        self.calls.append(committed)

    def settle(self, sequence: int) -> None:
        self.calls.append(("settle", sequence))

    def forget(self, sequence: int) -> None:
        self.calls.append(("forget", sequence))

    def close(self) -> None:
        self.calls.append("close")


def test_the_second_is_asked_where_the_first_has_nothing() -> None:
    first, second = Recorder(None, 8, 2), Recorder(7, 3, 1)
    both = CombinedProposer(first, second)  # type: ignore[arg-type]
    assert (both.max_window, both.num_grades) == (8, 3)
    assert both.propose([task_of([1], 8)]) == [Draft((7,), grade=2)]
    assert second.calls[0][0].window == 3
    first.token = 5
    assert both.propose([task_of([1], 8)]) == [Draft((5,), grade=1)]
    assert len(second.calls) == 1


def test_each_is_asked_within_the_windows_of_its_grades() -> None:
    first, second = Recorder(None, 8, 2), Recorder(7, 3, 1)
    both = CombinedProposer(first, second)  # type: ignore[arg-type]
    tasks = [task_of([1], 8, (8, 0, 2)), task_of([1], 6, (6, 4, 0)), task_of([1], 1, (0, 0, 1))]
    assert [draft.ids for draft in both.propose(tasks)] == [(7,), (), (7,)]
    assert [task.grade_windows for task in first.calls[0]] == [(8, 0), (6, 4)]
    assert [task.grade_windows for task in second.calls[0]] == [(2,), (1,)]


def test_both_are_told_everything() -> None:
    first, second = Recorder(None, 8, 2), Recorder(7, 3, 1)
    both = CombinedProposer(first, second)  # type: ignore[arg-type]
    both.observe([])
    both.settle(3)
    both.forget(4)
    both.close()
    assert first.calls == second.calls == [[], ("settle", 3), ("forget", 4), "close"]
