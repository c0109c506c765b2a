"""What a caller asks for. An instance cannot hold a bad value; what depends on the model is checked at submission."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ninfer.decoding import Constraint, SamplingParams
from ninfer.errors import RequestError
from ninfer.text.channels import ThinkingStart

MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 20
"""Limits that keep the work per token bounded; both are above what the wire protocols allow."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends a generation besides its limits.

    strings: the answer ends right before the first of them to appear in it; needs a tokenizer. Thinking is not
        searched.
    token_ids: end the generation in addition to the model's own end tokens.
    model_end_tokens: whether the model's own end tokens end it; off for measurements of a fixed length.
    """

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    model_end_tokens: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "strings", tuple(self.strings))
        object.__setattr__(self, "token_ids", _token_ids("stop_token_ids", self.token_ids))
        if len(self.strings) > MAX_STOP_STRINGS:
            raise RequestError(f"stop has {len(self.strings)} strings, at most {MAX_STOP_STRINGS}", param="stop")
        for text in self.strings:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop must hold non-empty strings, got {text!r}", param="stop")


@dataclass(frozen=True, slots=True)
class Thinking:
    """That thinking is told from the answer (`ninfer.text.channels`); needs a tokenizer.

    start: how the prompt leaves it. budget: tokens of a block after its opening tag, >= 0; one that is open then is
    closed (`ninfer.engine.guide`). None: no limit.
    """

    start: ThinkingStart
    budget: int | None = None

    def __post_init__(self) -> None:
        _check_count("thinking_budget", self.budget, 0, None)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation.

    prompt_ids: at least one token id.
    max_new: completion tokens at most, at least 1; None is until the context is full. A limit beyond what the context
        still holds is legal: the generation then ends with `context_capacity` when prompt and completion fill it.
    logprobs: None for none, else how many of the most probable tokens to report beside the chosen one, [0, 20].
    thinking: None takes all text for answer.
    constraint: what the answer must be; thinking is free. visible_ids: control tokens whose text is part of the output.
    """

    prompt_ids: tuple[int, ...]
    max_new: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopRules = field(default_factory=StopRules)
    logprobs: int | None = None
    thinking: Thinking | None = None
    constraint: Constraint | None = None
    visible_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", _token_ids("prompt", self.prompt_ids))
        if not self.prompt_ids:
            raise RequestError("prompt is empty; at least one token is needed", param="prompt")
        _check_count("max_new", self.max_new, 1, None)
        _check_count("logprobs", self.logprobs, 0, MAX_LOGPROBS)


def _token_ids(param: str, ids: Iterable[int]) -> tuple[int, ...]:
    result = tuple(ids)
    for token in result:
        if type(token) is not int or token < 0:  # bool is an int to isinstance
            raise RequestError(f"{param} must hold token ids (integers >= 0), got {token!r}", param=param)
    return result


def _check_count(param: str, value: object, low: int, high: int | None) -> None:
    if value is None:
        return
    if type(value) is not int or value < low or (high is not None and value > high):
        limit = f">= {low}" if high is None else f"in [{low}, {high}]"
        raise RequestError(f"{param} must be an integer {limit}, got {value!r}", param=param)
