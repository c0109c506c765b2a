"""Order statistics, intervals and ratios on data with a known answer."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ninfer.bench.statistics import Estimate, bootstrap_mean, median_interval, paired_ratio, quantile, summarize


def test_summary_of_known_values() -> None:
    summary = summarize([9.0, 1.0, 5.0, 3.0, 7.0])
    assert (summary.count, summary.minimum, summary.maximum) == (5, 1.0, 9.0)
    assert (summary.low_quartile, summary.median, summary.high_quartile) == (3.0, 5.0, 7.0)
    assert summary.spread == pytest.approx(4 / 5)


def test_quantiles_interpolate_between_neighbours() -> None:
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([10.0, 20.0, 30.0, 40.0], 0.25) == 17.5
    assert quantile([4.0], 0.9) == 4.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_summary_of_nothing_or_of_non_numbers(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no values|not finite"):
        summarize(values)


def test_median_interval_has_the_tabled_ranks() -> None:
    # 95 % ranks of the sign test, as in any table of nonparametric statistics.
    for n, low, high in ((6, 1, 6), (10, 2, 9), (20, 6, 15)):
        interval = median_interval([float(i) for i in range(1, n + 1)])
        assert (interval.low, interval.high) == (low, high)
        assert interval.coverage >= 0.95


def test_median_interval_of_few_values_says_what_it_covers() -> None:
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.low, interval.high, interval.coverage) == (1.0, 3.0, 0.75)


def test_median_interval_covers_as_often_as_it_says() -> None:
    # All 2^10 equally likely patterns of ten values below (-1) or above (+1) a median of 0.
    patterns = list(itertools.product((-1.0, 1.0), repeat=10))
    intervals = [median_interval(pattern) for pattern in patterns]
    covered = sum(interval.low <= 0 <= interval.high and interval.low != interval.high for interval in intervals)
    assert covered / len(patterns) == pytest.approx(intervals[0].coverage)


def test_paired_ratio_cancels_drift_that_both_sides_share() -> None:
    drift = [1.0, 3.0, 0.5, 2.0, 8.0, 1.5]
    ratio = paired_ratio([2 * d for d in drift], drift)
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.verdict == "faster"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1.2, 1.1, 1.3, 1.25, 1.4, 1.15], "faster"),
        ([0.8, 0.9, 0.7, 0.75, 0.95, 0.85], "slower"),
        ([1.2, 1.1, 0.9, 1.25, 1.4, 1.15], "no difference shown"),
        ([1.5, 1.5, 1.5], "no difference shown"),  # three pairs cover 75 % only
    ],
)
def test_verdicts(ours: list[float], verdict: str) -> None:
    assert paired_ratio(ours, [1.0] * len(ours)).verdict == verdict


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0]), ([-1.0], [1.0])])
def test_ratios_that_cannot_be_formed(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|positive|no values"):
        paired_ratio(ours, theirs)


def test_bootstrap_of_two_samples_is_known() -> None:
    """Draws have means 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4."""
    estimate = bootstrap_mean(np.array([0.0, 1.0]))
    assert estimate == Estimate(0.5, 0.0, 1.0, 2)
    inner = bootstrap_mean(np.array([0.0, 1.0]), confidence=0.4)
    assert (inner.low, inner.high) == (0.5, 0.5)


def test_bootstrap_is_repeatable() -> None:
    samples = np.random.default_rng(5).standard_normal(20)
    assert bootstrap_mean(samples) == bootstrap_mean(samples.copy())
    assert bootstrap_mean(samples, seed=1) != bootstrap_mean(samples)
    # Equal seeds draw the same samples: what is twice as large has an interval twice as wide.
    single, double = bootstrap_mean(samples), bootstrap_mean(2 * samples)
    assert (double.low, double.high) == pytest.approx((2 * (single.low or 0), 2 * (single.high or 0)))


def test_bootstrap_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        estimate = bootstrap_mean(rng.exponential(1.0, 40), resamples=400)
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 1.0 <= estimate.high
    assert 0.88 < covered / 300 < 0.98  # a skewed distribution: a little below 95 %


def test_a_single_sample_has_no_interval() -> None:
    estimate = bootstrap_mean(np.array([3.0])).map(lambda x: x + 1)
    assert estimate == Estimate(4.0, None, None, 1)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan]])
def test_no_bootstrap_of_nothing_or_of_non_numbers(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no samples|not finite"):
        bootstrap_mean(np.array(samples))
