"""From the logits of a draft model to a drafted token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.decoding.params import SamplingParams
from ninfer.decoding.proposer import DraftTask, Ids
from ninfer.decoding.random import Purpose, uniform
from ninfer.decoding.sampler import Candidates, distribution

Logits = npt.NDArray[np.float32]


def choose(logits: Logits, task: DraftTask, position: int, ids: Ids | None) -> tuple[int, Candidates | None]:
    """The draft for the token at absolute `position`, and what it was drawn from if it was drawn.

    logits `[n]`; `ids` names their tokens, ascending, None where logit i is token i's. A draw follows temperature and
    filters of the request. Its penalties and biases are left out: they belong to the text, which only the engine knows.
    """
    if task.seed is None or task.sampling.is_greedy:
        best = int(logits.argmax())
        return best if ids is None else int(ids[best]), None
    sampling = task.sampling
    plain = SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    drawn_from = distribution(logits, plain, None)
    if ids is not None:
        drawn_from = Candidates(ids[drawn_from.ids].astype(np.int64), drawn_from.probabilities)
    return drawn_from.draw(uniform(task.seed, position, Purpose.DRAFT)), drawn_from
