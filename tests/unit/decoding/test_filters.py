from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.decoding import filters


def test_top_k_keeps_the_highest() -> None:
    assert filters.top_k(np.array([1.0, 5.0, 3.0, 4.0]), 2).tolist() == [1, 3]


def test_top_k_keeps_lower_ids_among_equals() -> None:
    assert filters.top_k(np.array([2.0, 1.0, 2.0, 3.0, 2.0]), 3).tolist() == [0, 2, 3]


@pytest.mark.parametrize("k", [4, 5, 1000])
def test_top_k_of_everything(k: int) -> None:
    assert filters.top_k(np.array([4.0, 3.0, 2.0, 1.0]), k).tolist() == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 70))
def test_top_k_is_the_head_of_a_stable_sort(values: list[int], k: int) -> None:
    weights = np.array(values, dtype=np.float32)
    expected = sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k])
    assert filters.top_k(weights, k).tolist() == expected


@pytest.mark.parametrize(
    ("p", "kept"),
    [
        (0.0, [2]),
        (0.25, [2]),
        (0.5, [2]),  # exactly reached by the first token
        (np.nextafter(0.5, 1), [1, 2]),
        (0.75, [1, 2]),
        (0.8, [0, 1, 2]),
        (0.9, [0, 1, 2, 3]),
        (0.99, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_while_the_mass_before_is_below(p: float, kept: list[int]) -> None:
    """Exact binary fractions, so that the borders are exact too; ids 0 and 3 are equal and 0 goes first."""
    probabilities = np.array([0.125, 0.25, 0.5, 0.125, 0.0])
    assert filters.top_p(probabilities, p).tolist() == kept


@pytest.mark.parametrize("size", [1, 2, 255, 5000, 100_000])
def test_top_p_of_equals_keeps_the_lower_ids(size: int) -> None:
    kept = filters.top_p(np.ones(size), 0.9 * size)
    assert kept.tolist() == list(range(int(np.ceil(0.9 * size))))


@pytest.mark.parametrize("ratio", [0.999, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99, 0.999999])
def test_top_p_finds_its_nucleus_however_deep_it_lies(ratio: float, p: float) -> None:
    """Geometric weights in shuffled order; the cut is far below and far above each of the floors that are tried."""
    order = np.random.default_rng(1).permutation(3000)
    weights = (ratio ** np.arange(3000.0))[order]
    total, before, expected = float(weights.sum()), 0.0, []
    for position in np.argsort(-weights, kind="stable").tolist():
        if expected and before >= p * total:
            break
        expected.append(position)
        before += float(weights[position])
    assert filters.top_p(weights, p * total).tolist() == sorted(expected)


def test_top_p_that_rounding_never_reaches_keeps_all() -> None:
    probabilities = np.full(3, 0.3)
    assert filters.top_p(probabilities, 0.95).tolist() == [0, 1, 2]


def test_min_p_is_relative_to_the_highest_and_inclusive() -> None:
    probabilities = np.array([0.125, 0.5, 0.25, 0.125])
    assert filters.min_p(probabilities, 0.5).tolist() == [1, 2]
    assert filters.min_p(probabilities, 0.51).tolist() == [1]
    assert filters.min_p(probabilities, 1.0).tolist() == [1]
    assert filters.min_p(probabilities, 0.25).tolist() == [0, 1, 2, 3]
