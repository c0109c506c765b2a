"""Penalties on tokens already seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.decoding.history import TokenHistory
from ninfer.decoding.params import SamplingParams

Float64 = npt.NDArray[np.float64]


def penalised(
    logits: npt.NDArray[np.float32], params: SamplingParams, history: TokenHistory
) -> npt.NDArray[np.float32]:
    """Logits `[V]` after repetition, then frequency and presence penalties; a new array, `logits` is left alone.

        l <- l / r if l > 0 else l * r          for tokens of prompt or output, r = repetition_penalty
        l <- l - frequency * count - presence   for tokens of the output, count = occurrences there

    Computed in float64 and rounded once to float32. A prompt may hold padding ids of the vocabulary, which have no
    logit.
    """
    with_logit = history.ids < len(logits)
    seen = history.ids[with_logit]
    values = logits[seen].astype(np.float64)
    values = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    counts = history.output_counts[with_logit]
    values -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    result = logits.copy()
    result[seen] = values
    return result
