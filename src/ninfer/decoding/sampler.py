"""Logits to a token.

The order is fixed: bias, penalties, the tokens that are allowed, logits / temperature, top-k, softmax, top-p, min-p,
renormalisation, one draw. Arithmetic from the temperature on is float64. Temperature 0 is the argmax of the changed
logits. Every distribution is a function of one row of logits, the parameters, the allowed tokens and the tokens before
it, every draw one of (seed, position); what else runs in the batch, and how the position was reached, do not exist
here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.decoding import filters
from ninfer.decoding.bias import biased
from ninfer.decoding.constraint import TokenIds
from ninfer.decoding.history import TokenHistory
from ninfer.decoding.params import SamplingParams
from ninfer.decoding.penalties import penalised
from ninfer.decoding.random import Purpose, uniform
from ninfer.errors import BackendError, InvariantError

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidates:
    """A distribution: increasing `ids` int64 `[C]`, and `probabilities` float64 `[C]` that sum to 1 up to rounding."""

    ids: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]

    def draw(self, u: float) -> int:
        """The token at `u` in `[0, 1)` of the cumulative distribution in id order."""
        cumulative = np.cumsum(self.probabilities)
        # u < 1 is a multiple of 2**-53, so the rounded product stays below the total: a token with mass is always
        # found.
        return int(self.ids[np.searchsorted(cumulative, u * cumulative[-1], side="right")])


def greedy(logits: Logits) -> int:
    """The id of the highest of `[V]` logits, the lowest id among equals. BackendError unless all logits are finite."""
    best = int(logits.argmax())  # NumPy ranks NaN highest, so the two extremes show every non-finite value
    _require_finite(logits, best)
    return best


def distribution(
    logits: Logits, params: SamplingParams, history: TokenHistory | None, allowed: TokenIds | None = None
) -> Candidates:
    """The fully processed distribution of one row of logits `[V]`, over the `allowed` tokens if there are any named.

    `history` may be None only without penalties. Greedy parameters give all mass to one token. BackendError unless all
    logits are finite and a token is allowed.
    """
    if params.changes_logits:
        _require_finite(logits, int(logits.argmax()))
    if params.logit_bias:
        logits = biased(logits, params.logit_bias)
    if params.has_penalties:
        if history is None:
            raise InvariantError("penalties need the history of the sequence")
        logits = penalised(logits, params, history)
    ids = np.arange(len(logits))
    if allowed is not None:
        _require_finite(logits, int(logits.argmax()))
        if not len(allowed):
            raise BackendError("no token is allowed here")
        ids, logits = allowed, logits[allowed]
    best = greedy(logits)
    if params.is_greedy:
        return Candidates(ids[best : best + 1], np.array([1.0]))
    highest = float(logits[best])
    if params.top_k > 0:
        kept = filters.top_k(logits, params.top_k)
        ids, logits = ids[kept], logits[kept]
    # Subtracting the maximum first keeps a tiny temperature from overflowing: exponents are never positive.
    weights = np.subtract(logits, highest, dtype=np.float64)
    with np.errstate(over="ignore"):  # a subnormal temperature gives -inf, whose weight is 0 as it should be
        weights /= params.temperature
    np.exp(weights, out=weights)
    # The softmax's division is left to the end: filters compare weights, and only what they keep is divided.
    if params.top_p < 1:
        kept = filters.top_p(weights, params.top_p * float(weights.sum()))
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0:
        kept = filters.min_p(weights, params.min_p)
        ids, weights = ids[kept], weights[kept]
    weights /= weights.sum()
    return Candidates(ids, weights)


def sample(
    logits: Logits,
    params: SamplingParams,
    history: TokenHistory | None,
    *,
    seed: int | None,
    position: int,
    allowed: TokenIds | None = None,
) -> int:
    """The token for absolute `position`, from the logits `[V]` of the row before it. BackendError as `distribution`.

    `seed` may be None only for greedy parameters.
    """
    if params.is_greedy and not params.changes_logits and allowed is None:
        return greedy(logits)
    candidates = distribution(logits, params, history, allowed)
    if params.is_greedy:
        return int(candidates.ids[0])
    if seed is None:
        raise InvariantError("sampling needs a seed")
    return candidates.draw(uniform(seed, position, Purpose.TOKEN))


def _require_finite(logits: Logits, best: int) -> None:
    # argmin and not min, which takes a longer way through NumPy: 18 against 32 us with the cold caches that a forward
    # leaves (49,152 logits, 2-core Zen 4, November 2026).
    if not (math.isfinite(logits[best]) and math.isfinite(logits[logits.argmin()])):
        bad = int(np.flatnonzero(~np.isfinite(logits))[0])
        raise BackendError(f"logit of token {bad} is {logits[bad]}; all {len(logits)} must be finite")
