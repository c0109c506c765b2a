"""What a request may ask of the sampler, and within which limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninfer.errors import RequestError

MAX_SEED = 2**64 - 1
MAX_BIAS = 100.0
MAX_BIASES = 1024
"""Entries of a logit bias at most: bounds the work per token, and is above what clients send."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is chosen from logits. Every instance is valid: a bad value is a RequestError that names its field.

    temperature: [0, 2]; 0 is greedy (argmax, lowest id on ties), and then the filters and the seed change nothing.
    top_k: most candidates kept, 0 and -1 keep all.
    top_p: [0, 1]; smallest set of most probable tokens that reaches this probability, at least one token; 1 keeps all.
    min_p: [0, 1]; drops tokens less probable than this share of the most probable one; 0 keeps all.
    presence_penalty: [-2, 2]; subtracted once from the logit of every token the output has so far.
    frequency_penalty: [-2, 2]; subtracted once per occurrence in the output so far.
    repetition_penalty: [0.1, 10]; logits of tokens seen in prompt or output are divided by it when positive, multiplied
        when negative; 1 changes nothing. The limits only keep the arithmetic finite.
    logit_bias: (token id, bias) pairs, one per token; each bias in [-100, 100] is added to the logit before penalties.
        An id must be below the vocabulary's size, which the engine checks.
    seed: [0, 2**64 - 1], or None for fresh entropy, which the result then names.

    Defaults are greedy and change nothing, so that a caller who sets nothing gets a reproducible answer.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_integer("top_k", self.top_k, -1, 2**31 - 1)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.1, 10.0)
        _check_bias(self.logit_bias)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, MAX_SEED)

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the tokens seen so far."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def changes_logits(self) -> bool:
        """Whether the sampler's logits differ from the model's."""
        return self.has_penalties or bool(self.logit_bias)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def _check_number(field: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{field} must be a number in [{low:g}, {high:g}], got {value!r}", param=field)
    if math.isnan(value) or not low <= value <= high:
        raise RequestError(f"{field} must be in [{low:g}, {high:g}], got {value!r}", param=field)


def _check_bias(pairs: tuple[tuple[int, float], ...]) -> None:
    if len(pairs) > MAX_BIASES:
        raise RequestError(f"logit_bias has {len(pairs)} entries, at most {MAX_BIASES}", param="logit_bias")
    for token, bias in pairs:
        if type(token) is not int or token < 0:
            raise RequestError(f"logit_bias must name token ids (integers >= 0), got {token!r}", param="logit_bias")
        _check_number("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
    if len({token for token, _ in pairs}) != len(pairs):
        raise RequestError("logit_bias names a token twice", param="logit_bias")


def _check_integer(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{field} must be an integer in [{low}, {high}], got {value!r}", param=field)
