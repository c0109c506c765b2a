"""Log-probabilities of the chosen and of the most probable tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.decoding import filters


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities under the model's own distribution: before penalties, temperature and filters.

    chosen: of the token that was taken; top: the most probable (id, logprob) pairs, falling, lower id first among
    equals.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: npt.NDArray[np.float32], token: int, num_top: int) -> TokenLogprobs:
    """Logprobs of one row of finite logits `[V]`: of `token`, and of the `num_top` most probable tokens."""
    highest = float(logits.max())
    # float32 exponentials summed in float64: a relative error near 1e-7, far below what a logprob is read to.
    log_total = highest + float(np.log(np.exp(logits - np.float32(highest)).sum(dtype=np.float64)))
    top = filters.top_k(logits, num_top) if num_top > 0 else np.empty(0, dtype=np.intp)
    ranked = top[np.argsort(-logits[top], kind="stable")]
    # The largest logprob may round to just above 0 when one token has all the mass.
    return TokenLogprobs(
        chosen=min(0.0, float(logits[token]) - log_total),
        top=tuple((int(i), min(0.0, float(logits[i]) - log_total)) for i in ranked),
    )
