"""Losses, divergence and agreement on logits whose probabilities are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer.metrics.quality import BLOCK_ROWS, compare_logits, perplexity

LN2 = math.log(2)


def logits_of(*probabilities: tuple[float, ...]) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def test_known_distributions() -> None:
    reference = logits_of((0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (0.125, 0.75, 0.125))
    model = logits_of((0.25, 0.25, 0.5), (0.5, 0.25, 0.25), (0.25, 0.5, 0.25))
    scores = compare_logits(reference, model, np.array([2, 1, 0]))
    np.testing.assert_allclose(scores.loss, [LN2, 2 * LN2, 2 * LN2], rtol=1e-6)
    np.testing.assert_allclose(scores.reference_loss, [2 * LN2, 2 * LN2, 3 * LN2], rtol=1e-6)
    # 1/2 ln 2 + 1/4 ln 1 + 1/4 ln 1/2; nothing; 2 * 1/8 ln 1/2 + 3/4 ln 3/2
    np.testing.assert_allclose(scores.divergence, [LN2 / 4, 0, 0.75 * math.log(1.5) - LN2 / 4], rtol=1e-6)
    assert scores.divergence[1] == 0.0
    assert scores.agrees.tolist() == [False, True, True]
    np.testing.assert_allclose(scores.shift, [LN2, 0, LN2], atol=1e-6)


def test_an_even_choice_among_v_tokens_has_perplexity_v() -> None:
    even = np.zeros((3, 11), np.float32)
    assert perplexity(compare_logits(even, even, np.array([0, 5, 10])).loss.mean()) == pytest.approx(11)


def test_a_constant_added_to_logits_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    reference, model = (rng.integers(-40, 40, (5, 30)).astype(np.float32) for _ in range(2))
    targets = rng.integers(0, 30, 5)
    plain, moved = (compare_logits(reference, model + shift, targets) for shift in (0, 1024))
    np.testing.assert_array_equal(plain.divergence, moved.divergence)
    np.testing.assert_array_equal(plain.loss, moved.loss)


def test_direction_is_reference_to_model() -> None:
    """What the reference thinks impossible costs nothing; what the model thinks impossible costs much."""
    sure, unsure = np.array([[0.0, -200.0]], np.float32), np.array([[0.0, 0.0]], np.float32)
    target = np.array([0])
    assert compare_logits(sure, unsure, target).divergence[0] == pytest.approx(LN2)
    assert compare_logits(unsure, sure, target).divergence[0] == pytest.approx(100 - LN2)


def test_equal_logits_diverge_by_exactly_nothing() -> None:
    logits = (np.random.default_rng(2).standard_normal((9, 301)) * 30).astype(np.float32)
    scores = compare_logits(logits, logits.copy(), np.zeros(9, np.int32))
    assert not scores.divergence.any()
    assert not scores.shift.any()
    assert scores.agrees.all()


def test_ties_go_to_the_lowest_id() -> None:
    tied, second = np.array([[1.0, 1.0]], np.float32), np.array([[1.0, 2.0]], np.float32)
    assert not compare_logits(tied, second, np.array([0])).agrees[0]
    assert compare_logits(tied, -second, np.array([0])).agrees[0]


def test_rows_do_not_know_each_other() -> None:
    rng = np.random.default_rng(3)
    count = 2 * BLOCK_ROWS + 1
    reference, model = (rng.standard_normal((count, 17)).astype(np.float32) for _ in range(2))
    targets = rng.integers(0, 17, count)
    whole = compare_logits(reference, model, targets)
    for row in range(count):
        part = slice(row, row + 1)
        alone = compare_logits(reference[part], model[part], targets[part])
        assert alone.loss[0] == whole.loss[row]
        assert alone.divergence[0] == pytest.approx(whole.divergence[row], rel=1e-12)


def test_what_cannot_be_compared() -> None:
    logits = np.zeros((2, 5), np.float32)
    targets = np.array([0, 4])
    with pytest.raises(ValueError, match=r"logits \[2, 5\], reference \[2, 6\] and 2 targets differ"):
        compare_logits(np.zeros((2, 6), np.float32), logits, targets)
    with pytest.raises(ValueError, match="1 targets differ"):
        compare_logits(logits, logits, targets[:1])
    with pytest.raises(ValueError, match="targets from 0 to 5 in a vocabulary of 5"):
        compare_logits(logits, logits, targets + np.array([0, 1]))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            compare_logits(logits, np.full((2, 5), bad, np.float32), targets)
