"""Owns: logits to accepted tokens: penalties, filters, sampler.
Does not own: models, text.
Read first: sampler.py.
"""

from ninfer.decoding.constraint import Constraint, ConstraintState, TokenIds
from ninfer.decoding.history import TokenHistory
from ninfer.decoding.logprobs import TokenLogprobs, token_logprobs
from ninfer.decoding.params import SamplingParams
from ninfer.decoding.random import fresh_seed
from ninfer.decoding.sampler import Candidates, distribution, greedy, sample

__all__ = [
    "Candidates",
    "Constraint",
    "ConstraintState",
    "SamplingParams",
    "TokenHistory",
    "TokenIds",
    "TokenLogprobs",
    "distribution",
    "fresh_seed",
    "greedy",
    "sample",
    "token_logprobs",
]
