"""What a caller adds to the logits of single tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def biased(logits: npt.NDArray[np.float32], pairs: tuple[tuple[int, float], ...]) -> npt.NDArray[np.float32]:
    """Logits `[V]` with each pair's bias added to its token, in float64, rounded once to float32; a new array.

    Tokens behind the last logit, which a model with padding rows never gives, have none to change.
    """
    known = [(token, bias) for token, bias in pairs if token < len(logits)]
    ids = [token for token, _ in known]
    result = logits.copy()
    result[ids] = logits[ids].astype(np.float64) + [bias for _, bias in known]
    return result
