"""Truncation filters: each keeps a subset of candidates. Order and renormalisation are the sampler's business.

All filters rank tokens by falling weight (a logit or a probability), lower id first among equals, and return an
increasing array of positions to keep. They partition instead of sorting the vocabulary: ranking matters only near the
cut.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floating = npt.NDArray[np.floating]
Positions = npt.NDArray[np.intp]

_FIRST_NUCLEUS_GUESS = 256
"""Candidates ranked first by `top_p`; enough for nearly every distribution a language model gives."""


def top_k(weights: Floating, k: int) -> Positions:
    """Exactly the `k` highest-ranked positions (all, if there are not more than `k`)."""
    size = len(weights)
    if k >= size:
        return np.arange(size)
    threshold = np.partition(weights, size - k)[size - k]
    above = np.flatnonzero(weights > threshold)
    level = np.flatnonzero(weights == threshold)[: k - len(above)]
    return np.sort(np.concatenate((above, level)))


def top_p(probabilities: Floating, p: float) -> Positions:
    """Positions whose cumulative probability before them, in rank order, is below `p`; the first always stays.

    `probabilities` sum to 1 up to rounding; if rounding keeps them from ever reaching `p`, all stay.
    """
    guess = _FIRST_NUCLEUS_GUESS
    while True:
        kept = top_k(probabilities, guess)
        ranked = kept[np.argsort(-probabilities[kept], kind="stable")]
        before = np.cumsum(probabilities[ranked])
        reached = int(np.searchsorted(before, p, side="left"))  # the token that reaches p is the last one kept
        if reached < len(ranked):
            return np.sort(ranked[: reached + 1])
        if len(ranked) == len(probabilities):
            return kept
        guess *= 16


def min_p(probabilities: Floating, share: float) -> Positions:
    """Positions at least `share` times as probable as the most probable one."""
    return np.flatnonzero(probabilities >= share * probabilities.max())
