"""How far one model's predictions are from another's on the same tokens: every number defined once, on logits.

All arithmetic is float64 over the whole vocabulary. Apart from the other metrics, because it is the only one that needs
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64Array = npt.NDArray[np.float64]

BLOCK_ROWS = 16
"""Rows that are in float64 at a time: 6 MiB each copy for a vocabulary of 49,152."""


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's predictions beside the reference's, one value per position, all of one shape.

    loss, reference_loss: -ln p(next token), nat. divergence: KL(reference || model) of the two distributions of the
    next token, nat. agrees: whether the most probable token is the reference's (ties: the lowest id).
    """

    loss: F64Array
    reference_loss: F64Array
    divergence: F64Array
    agrees: npt.NDArray[np.bool_]

    @property
    def shift(self) -> F64Array:
        """ln p(next token) of the model minus that of the reference, nat."""
        return self.reference_loss - self.loss


def compare_logits(
    reference: npt.NDArray[np.float32], model: npt.NDArray[np.float32], targets: npt.NDArray[np.integer]
) -> Scores:
    """Scores `[T]` of logits `[T, V]` against reference logits of the same shape; `targets` `[T]` are the next tokens.

    Equal logits give a divergence of exactly 0; rounding below 0 is cut off. ValueError for shapes that do not fit,
    values that are not finite, or targets outside the vocabulary.
    """
    num_rows = len(targets)
    if reference.ndim != 2 or reference.shape != model.shape or len(reference) != num_rows:
        raise ValueError(f"logits {list(model.shape)}, reference {list(reference.shape)} and {num_rows} targets differ")
    if num_rows and not 0 <= targets.min() <= targets.max() < reference.shape[1]:
        raise ValueError(f"targets from {targets.min()} to {targets.max()} in a vocabulary of {reference.shape[1]}")
    scores = Scores(np.empty(num_rows), np.empty(num_rows), np.empty(num_rows), np.empty(num_rows, np.bool_))
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        ours, theirs = _log_softmax(model[rows]), _log_softmax(reference[rows])
        wanted = (np.arange(len(ours)), targets[rows])
        scores.loss[rows] = -ours[wanted]
        scores.reference_loss[rows] = -theirs[wanted]
        scores.agrees[rows] = model[rows].argmax(axis=1) == reference[rows].argmax(axis=1)
        difference = theirs - ours
        scores.divergence[rows] = np.maximum(0.0, np.einsum("tv,tv->t", np.exp(theirs, out=theirs), difference))
    return scores


def perplexity(mean_loss: float) -> float:
    """exp of the mean of -ln p(token) over tokens: as unsure as an even choice among that many tokens."""
    return float(np.exp(mean_loss))


def _log_softmax(logits: npt.NDArray[np.float32]) -> F64Array:
    """ln p, float64 `[rows, V]`."""
    if not np.isfinite(logits).all():
        raise ValueError("logits are not finite")
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
