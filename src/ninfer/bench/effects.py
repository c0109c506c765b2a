"""The size of a difference between two series of paired rounds, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from ninfer.bench.statistics import DEFAULT_CONFIDENCE

Method = Literal["bootstrap", "t", "none"]
Shown = Literal["higher", "lower", "no difference shown"]

RESAMPLES = 4_000
MIN_BOOTSTRAP_ROUNDS = 8
"""With fewer, resampled means hardly leave the range of the rounds, and that range alone misses the truth too often:
five rounds of equal runs lie on one side of it in one of sixteen experiments."""
POWER = 0.8
"""An effect counts as detectable when it would be found in four of five repetitions of the experiment."""

Round = tuple[float, float]
"""Numerator and denominator of a quantity, summed over the requests of one round."""


@dataclass(frozen=True)
class Effect:
    """How many times as large a quantity is on the right side as on the left.

    ratio: of the sums over all rounds. low, high: its interval at `confidence`, None for a single round. smallest: the
    smallest change (as a share, 0.02 is 2 %) that this many rounds with this spread would find four times of five; None
    where the spread is unknown.
    """

    ratio: float
    low: float | None
    high: float | None
    confidence: float
    num_rounds: int
    method: Method
    smallest: float | None

    @property
    def is_single(self) -> bool:
        return self.num_rounds == 1

    @property
    def shown(self) -> Shown:
        """The direction that the interval shows; none when it reaches 1 or there is no interval."""
        if self.low is not None and self.low > 1:
            return "higher"
        if self.high is not None and self.high < 1:
            return "lower"
        return "no difference shown"


def paired_effect(
    left: Sequence[Round], right: Sequence[Round], *, confidence: float = DEFAULT_CONFIDENCE, seed: int = 0
) -> Effect:
    """The effect between paired rounds: round i of both sides was taken under the same conditions.

    A round is the unit that is resampled, because whatever disturbs a machine disturbs neighbouring requests together.
    From eight rounds on the interval is the expanded percentile bootstrap of the ratio: percentile tails are widened so
    that they match Student's t where the data are normal; without it intervals of few samples are too narrow
    (Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69:4, 2015). With two to
    seven rounds it is Student's interval of the mean log ratio, which assumes normal log ratios.

    ValueError when there is no round, the lengths differ or a sum is not positive.
    """
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if a.shape != b.shape or a.ndim != 2 or len(a) == 0:
        raise ValueError(f"{len(a)} rounds cannot be paired with {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise ValueError("a ratio needs positive sums")
    n = len(a)
    ratio = float(_ratio(a.sum(0), b.sum(0)))
    if n == 1:
        return Effect(ratio, None, None, confidence, 1, "none", None)
    logs = np.log(_ratio(a, b))
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    critical = t_quantile((1 + confidence) / 2, n - 1)
    smallest = math.expm1((critical + t_quantile(POWER, n - 1)) * error)
    if n < MIN_BOOTSTRAP_ROUNDS:
        low, high = ratio * math.exp(-critical * error), ratio * math.exp(critical * error)
        return Effect(ratio, low, high, confidence, n, "t", smallest)
    tail = NormalDist().cdf(-critical * math.sqrt(n / (n - 1)))
    # How often each round is drawn, which is all that a sum over a resample needs.
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    ratios = _ratio(counts @ a, counts @ b)
    low, high = (float(edge) for edge in np.quantile(ratios, [tail, 1 - tail]))
    return Effect(ratio, low, high, confidence, n, "bootstrap", smallest)


def _ratio(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(right numerator / right denominator) / (left numerator / left denominator) along the last axis."""
    ratio: npt.NDArray[np.float64] = (right[..., 0] * left[..., 1]) / (right[..., 1] * left[..., 0])
    return ratio


def t_cdf(t: float, degrees: int) -> float:
    """Student's distribution function for a whole number of degrees of freedom: the finite series of Abramowitz and
    Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    total, term = 0.0, 1.0 if degrees % 2 == 0 else cosine
    for k in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= (k + 1) / (k + 2) * cosine * cosine
    inside = sine * total if degrees % 2 == 0 else 2 / math.pi * (theta + sine * total)
    return 0.5 + inside / 2


def t_quantile(probability: float, degrees: int) -> float:
    """The inverse of `t_cdf` for probabilities above 1/2, by bisection to float64 accuracy."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return high
