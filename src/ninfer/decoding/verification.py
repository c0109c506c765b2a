"""Whether a drawn draft holds: rejection sampling, which keeps the target's distribution exact.

Replay, the other rule, needs no code of its own: it draws every token as if there were no draft and compares.
"""

from __future__ import annotations

import numpy as np

from ninfer.decoding.random import Purpose, uniform
from ninfer.decoding.sampler import Candidates
from ninfer.errors import InvariantError


def verify_drawn(target: Candidates, draft: int, proposal: Candidates, *, seed: int, position: int) -> tuple[int, bool]:
    """The token at `position`, and whether it is the accepted draft; drafts behind one that is not are worth nothing.

    target: the fully processed distribution of the row before `position`. proposal: what `draft` was drawn from, with
    `Purpose.DRAFT`. The draft is accepted with probability min(1, p / q); otherwise the token comes from the normalised
    rest max(0, p - q), so that it has the distribution p either way (Leviathan et al., "Fast inference from
    transformers via speculative decoding", 2023). A rest of no mass, by rounding, gives way to p.
    """
    p, q = probability(target, draft), probability(proposal, draft)
    if q <= 0:
        raise InvariantError(f"token {draft} was drafted, which its distribution does not have")
    if uniform(seed, position, Purpose.ACCEPTANCE) * q < p:
        return draft, True
    rest = target.probabilities.copy()
    _, at, drawn = np.intersect1d(target.ids, proposal.ids, assume_unique=True, return_indices=True)
    rest[at] = np.maximum(0.0, rest[at] - proposal.probabilities[drawn])
    if not rest.any():
        rest = target.probabilities
    return Candidates(target.ids, rest).draw(uniform(seed, position, Purpose.RESIDUAL)), False


def probability(candidates: Candidates, token: int) -> float:
    """The probability of a token, 0 for one that is no candidate."""
    index = int(np.searchsorted(candidates.ids, token))
    if index < len(candidates.ids) and candidates.ids[index] == token:
        return float(candidates.probabilities[index])
    return 0.0
