"""Truncation filters: each keeps a subset of candidates. Order and renormalisation are the sampler's business.

All filters rank candidates by falling weight (a logit, a probability or a multiple of it), lower position first among
equals, and return the positions to keep, increasing. None sorts the vocabulary: ranking matters only near the cut.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floating = npt.NDArray[np.floating]
Positions = npt.NDArray[np.intp]

_NUCLEUS_SHARES = (2.0**-5, 2.0**-10, 2.0**-15, 2.0**-20, 0.0)
"""Floors, as shares of the highest weight, above which `top_p` looks for its nucleus, one after the other."""


def top_k(weights: Floating, k: int) -> Positions:
    """Exactly the `k` highest-ranked positions (all, if there are not more than `k`)."""
    size = len(weights)
    if k >= size:
        return np.arange(size)
    threshold = np.partition(weights, size - k)[size - k]
    above = np.flatnonzero(weights > threshold)
    level = np.flatnonzero(weights == threshold)[: k - len(above)]
    return np.sort(np.concatenate((above, level)))


def top_p(weights: Floating, mass: float) -> Positions:
    """Positions whose cumulative weight before them, in rank order, is below `mass`; the first always stays.

    `mass` is the wanted probability times the sum of `weights`; if rounding keeps them from reaching it, all stay.
    """
    highest = weights.max()
    for share in _NUCLEUS_SHARES:
        candidates = np.flatnonzero(weights >= share * highest)  # a beginning of the ranking, with all its equals
        if share and weights[candidates].sum() < mass:
            continue
        ranked = candidates[np.argsort(-weights[candidates], kind="stable")]
        reached = int(np.searchsorted(np.cumsum(weights[ranked]), mass, side="left"))  # the last one that stays
        if reached < len(ranked):
            return np.sort(ranked[: reached + 1])
    return np.arange(len(weights))


def min_p(weights: Floating, share: float) -> Positions:
    """Positions with at least `share` times the highest weight."""
    return np.flatnonzero(weights >= share * weights.max())
