"""Medians, spreads and ratios with a stated uncertainty; no distribution is assumed anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Verdict = Literal["faster", "slower", "no difference shown"]

DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Order statistics of `count` values; quartiles interpolate linearly between neighbours (Hyndman-Fan type 7)."""

    count: int
    median: float
    low_quartile: float
    high_quartile: float
    minimum: float
    maximum: float

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median; 0 when the median is 0."""
        return (self.high_quartile - self.low_quartile) / self.median if self.median else 0.0


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile (0 <= q <= 1) of at least one value, linear between order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(values: Sequence[float]) -> Summary:
    """Order statistics of `values`; raises ValueError when there are none or one is not finite."""
    if not values:
        raise ValueError("no values to summarize")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a value is not finite")
    return Summary(
        count=len(values),
        median=quantile(values, 0.5),
        low_quartile=quantile(values, 0.25),
        high_quartile=quantile(values, 0.75),
        minimum=min(values),
        maximum=max(values),
    )


@dataclass(frozen=True)
class MedianInterval:
    """Order statistics that enclose the true median with probability `coverage`, whatever the distribution."""

    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float], confidence: float = DEFAULT_CONFIDENCE) -> MedianInterval:
    """The narrowest symmetric pair of order statistics that covers the median with at least `confidence`.

    The k-th smallest and k-th largest of n values enclose the median with probability 1 - 2 P(Binomial(n, 1/2) < k).
    With few values (n < 6 at 95 %) even the extremes cover less than asked; they come back with the coverage they have.
    Source: the sign test's interval, Conover, Practical Nonparametric Statistics, section 3.2.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        raise ValueError("no values for an interval")
    best = MedianInterval(ordered[0], ordered[-1], 1 - 2 / 2**n)
    below = 0.0
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1) / 2**n
        coverage = 1 - 2 * below
        if coverage < confidence:
            break
        best = MedianInterval(ordered[k - 1], ordered[n - k], coverage)
    return best


@dataclass(frozen=True)
class Ratio:
    """Paired ratio `ours / theirs`: its median, the interval around it, and the pairs it rests on."""

    median: float
    low: float
    high: float
    coverage: float
    pairs: tuple[float, ...]

    @property
    def verdict(self) -> Verdict:
        """For a ratio of rates: `faster` when the whole interval lies above 1 and covers at least 90 %."""
        if self.coverage >= 0.9 and self.low > 1:
            return "faster"
        if self.coverage >= 0.9 and self.high < 1:
            return "slower"
        return "no difference shown"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = DEFAULT_CONFIDENCE) -> Ratio:
    """Ratio of values taken side by side (round i of both), so that drift of the machine cancels within a pair.

    Raises ValueError when the lengths differ, there is no pair, or a value is not positive.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} values cannot be paired with {len(theirs)}")
    if not all(value > 0 for value in (*ours, *theirs)):
        raise ValueError("a ratio needs positive values")
    pairs = tuple(a / b for a, b in zip(ours, theirs, strict=True))
    interval = median_interval(pairs, confidence)
    return Ratio(quantile(pairs, 0.5), interval.low, interval.high, interval.coverage, pairs)


DEFAULT_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over samples and its interval; a single sample has none (low and high are None)."""

    value: float
    low: float | None
    high: float | None
    num_samples: int

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of a growing function of the mean: value and interval go through it."""
        low = None if self.low is None else function(self.low)
        high = None if self.high is None else function(self.high)
        return Estimate(function(self.value), low, high, self.num_samples)


def bootstrap_mean(
    samples: npt.NDArray[np.float64],
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """The mean of independent `samples` `[n]` with the percentile bootstrap interval (Efron and Tibshirani, An
    Introduction to the Bootstrap, chapter 13): quantiles of the means of `resamples` draws of n samples with
    replacement.

    Equal arguments give an equal interval, and equal n and seed draw the same samples, so intervals of several
    quantities of one experiment belong together. With few samples (below about ten) the interval is too narrow.
    ValueError when there is no sample or one is not finite.
    """
    n = len(samples)
    if n == 0 or not np.isfinite(samples).all():
        raise ValueError("no samples to take a mean of" if n == 0 else "a sample is not finite")
    value = float(samples.mean())
    if n == 1:
        return Estimate(value, None, None, 1)
    drawn = np.random.default_rng(seed).integers(0, n, (resamples, n))
    means = samples[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high), n)
