"""Effects on data with a known answer: exact values, error rates, power."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer.bench.effects import MIN_BOOTSTRAP_ROUNDS, Effect, paired_effect, t_cdf, t_quantile


def rounds(seconds: np.ndarray) -> list[tuple[float, float]]:
    """100 tokens in each of `seconds`."""
    return [(100.0, float(value)) for value in seconds]


def effect_of(rng: np.random.Generator, count: int, ratio: float, noise: float, seed: int = 0) -> Effect:
    """Rates of which the right one is `ratio` times as high, with independent noise, and a drift that hits both."""
    drift = np.exp(rng.normal(0, 0.1, count))
    left, right = drift * np.exp(rng.normal(0, noise, count)), drift * np.exp(rng.normal(0, noise, count)) / ratio
    return paired_effect(rounds(left), rounds(right), seed=seed)


def test_the_ratio_is_that_of_sums() -> None:
    effect = paired_effect([(10.0, 1.0), (30.0, 1.0)], [(10.0, 2.0), (30.0, 2.0)])
    assert effect.ratio == 0.5
    assert (effect.num_rounds, effect.method) == (2, "t")


def test_a_single_round_has_no_interval_and_no_verdict() -> None:
    effect = paired_effect([(100.0, 1.0)], [(100.0, 2.0)])
    assert effect == Effect(0.5, None, None, 0.95, 1, "none", None)
    assert effect.is_single
    assert effect.shown == "no difference shown"


@pytest.mark.parametrize(
    ("left", "right"),
    [([], []), ([(1.0, 1.0)], []), ([(0.0, 1.0)], [(1.0, 1.0)]), ([(1.0, math.inf)], [(1.0, 1.0)])],
)
def test_no_effect_of_nothing_or_of_impossible_sums(left: list, right: list) -> None:
    with pytest.raises(ValueError, match=r"cannot be paired|positive sums"):
        paired_effect(left, right)


# From the usual tables: two-sided 5 % and others.
@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 9, 2.2622), (0.975, 30, 2.0423),
     (0.8, 4, 0.9410), (0.995, 7, 3.4995)],
)  # fmt: skip
def test_quantiles_of_students_distribution(probability: float, degrees: int, value: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(value, abs=5e-5)
    assert t_cdf(-value, degrees) == pytest.approx(1 - probability, abs=1e-5)


def test_equal_arguments_give_an_equal_interval() -> None:
    first, again, other = (effect_of(np.random.default_rng(5), 12, 1.0, 0.02, seed) for seed in (3, 3, 4))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.ratio == other.ratio


def test_the_interval_of_known_rounds() -> None:
    # log ratios -0.02, 0, 0.02: mean 0, standard error 0.02 / sqrt(3), t(2) = 4.30265.
    left = [(1.0, 1.0)] * 3
    right = [(1.0, math.exp(x)) for x in (-0.02, 0.0, 0.02)]
    effect = paired_effect(left, right)
    assert effect.low is not None
    assert effect.high is not None
    assert math.log(effect.high / effect.low) / 2 == pytest.approx(4.30265 * 0.02 / math.sqrt(3), rel=1e-4)
    smallest = math.exp((4.30265 + 1.06066) * 0.02 / math.sqrt(3)) - 1
    assert effect.smallest == pytest.approx(smallest, rel=1e-4)


@pytest.mark.parametrize("count", [3, 5, MIN_BOOTSTRAP_ROUNDS, 12])
def test_equal_runs_are_called_different_as_rarely_as_stated(count: int) -> None:
    """95 % intervals: 5 % of equal pairs seem different; 400 experiments see 2.5 to 8 % of that with near certainty."""
    rng = np.random.default_rng(count)
    shown = sum(effect_of(rng, count, 1.0, 0.03, i).shown != "no difference shown" for i in range(400))
    assert 0.02 <= shown / 400 <= 0.085


@pytest.mark.parametrize(("count", "noise"), [(5, 0.01), (10, 0.02)])
def test_a_slowdown_of_five_percent_is_found(count: int, noise: float) -> None:
    rng = np.random.default_rng(count)
    effects = [effect_of(rng, count, 0.95, noise, i) for i in range(200)]
    assert np.mean([effect.shown == "lower" for effect in effects]) > 0.95
    assert not any(effect.shown == "higher" for effect in effects)


def test_the_smallest_detectable_effect_is_found_four_times_of_five() -> None:
    rng = np.random.default_rng(1)
    smallest = np.mean([effect_of(rng, 6, 1.0, 0.02).smallest for _ in range(100)])
    found = np.mean([effect_of(rng, 6, 1 + smallest, 0.02).shown == "higher" for _ in range(400)])
    assert 0.7 < found < 0.9


def test_noise_that_both_sides_share_cancels() -> None:
    """The drift of `effect_of` is ten percent; the interval knows only of the one percent that is not shared."""
    effect = effect_of(np.random.default_rng(2), 8, 1.0, 0.01)
    assert effect.smallest is not None
    assert effect.smallest < 0.04
