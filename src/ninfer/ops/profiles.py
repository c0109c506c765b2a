"""How far an implementation may be from the float64 oracle: a short list of named tolerances, each with its reason.

A failing kernel never widens one; it is wrong, or the contract is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Profile:
    """`|got - want| <= relative * |want| + of_row * max|want of the row|`, element by element; NaN always fails."""

    name: str
    relative: float
    of_row: float

    def excess(self, got: Array, want: Array) -> float:
        """The largest error as a multiple of what is allowed: up to 1 is fine. NaN or a wrong shape give infinity."""
        if got.shape != want.shape:
            return np.inf
        if want.size == 0:
            return 0.0
        row_max = np.abs(want).max(axis=-1, keepdims=True)
        allowed = self.relative * np.abs(want) + self.of_row * row_max + np.finfo(np.float32).tiny
        worst = (np.abs(got.astype(np.float64) - want) / allowed).max()
        return np.inf if np.isnan(worst) else float(worst)


EXACT = Profile("exact", 0.0, 0.0)
"""Copies and decodes: the float32 nearest to the stored value, or that value."""

ELEMENTWISE = Profile("elementwise", 1e-6, 1e-7)
"""A few float32 roundings (2^-24 = 6e-8 each) and an exponential of 2 ulp; sums or differences of two products may
cancel, which the row term covers."""

ROW_REDUCTION = Profile("row_reduction", 6e-7, 1e-7)
"""A sum of same-signed float32 terms over a row (16 lanes, then the lanes), a square root, a division: some ten ulp."""

PRODUCT = Profile("product", 2e-6, 2e-6)
"""Sums of signed float32 products over K. The error grows like sqrt(K) * 2^-24 times the terms' norm, which the largest
element of the row stands for; K = 1024 would use the tolerance up if every step rounded by half an ulp the same way."""

RECURRENCE = Profile("recurrence", 4e-6, 4e-6)
"""A state that every row decays, corrects and reads: two sums of signed products per row, whose errors stay in the
state as long as their terms do, so that several hundred rows add like sqrt(T) * 2^-24."""

ATTENTION = Profile("attention", 4e-6, 4e-6)
"""A product of q and k, an exponential of the difference of two scores (an absolute error of a score becomes a relative
error of its weight; scores here reach 30, their ulp is 2e-6), and a weighted sum over the positions."""

ATTENTION_CODES = Profile("attention_codes", 4e-6, 6e-4)
"""As ATTENTION, and every weight of a segment of 256, times the scale of its value, is off by up to 1/65024 (1.5e-5) of
the largest such scale. Such errors have both signs and add like a random walk, 16 times that for a segment, 2.4e-4, of
values that reach two and a half times their deviation; outputs are sums with the weights themselves."""
