"""What a client asks for, in no protocol's words: protocol modules make it, and all behind them read nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ninfer.decoding import Constraint, SamplingParams
from ninfer.decoding.params import MAX_SEED
from ninfer.engine import GenerationRequest, StopRules, Thinking
from ninfer.errors import RequestError
from ninfer.server.model import ServedModel
from ninfer.text.channels import ThinkingStart, thinking_start

MAX_CHOICES = 128
"""Answers to one prompt at most: what the OpenAI protocols allow."""
MAX_PROMPTS = 2048


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A conversation for the model's chat template.

    messages, tools: as the client wrote them; `ninfer.text.messages` judges them. variables: more values for the
    template (`enable_thinking`, ...).
    """

    messages: Any
    tools: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextInput:
    """Prompts to be continued as they are, each a text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids for the model; `text` is what they came from, None where that was ids or a conversation.

    thinking: how a conversation's prompt leaves it, None where all output is answer.
    """

    ids: tuple[int, ...]
    text: str | None = None
    thinking: ThinkingStart | None = None


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How each prompt is answered.

    num_choices: answers to each prompt. max_new: None is until the context is full. logprobs, visible_ids: as
    `GenerationRequest`. thinking_budget: as `Thinking`.
    """

    num_choices: int
    max_new: int | None
    sampling: SamplingParams
    stop: StopRules
    logprobs: int | None
    thinking_budget: int | None = None
    visible_ids: frozenset[int] = frozenset()

    def requests(self, prompts: Sequence[Prompt], constraint: Constraint | None = None) -> list[GenerationRequest]:
        """One request per answer, prompt by prompt. Choice `i` of a prompt is drawn with `seed + i`."""
        return [
            GenerationRequest(
                prompt.ids,
                self.max_new,
                self._sampling(choice),
                self.stop,
                self.logprobs,
                thinking=None if prompt.thinking is None else Thinking(prompt.thinking, self.thinking_budget),
                constraint=constraint,
                visible_ids=self.visible_ids,
            )
            for prompt in prompts
            for choice in range(self.num_choices)
        ]

    def _sampling(self, choice: int) -> SamplingParams:
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=(seed + choice) & MAX_SEED)


def encode_prompts(source: ChatInput | TextInput, model: ServedModel) -> list[Prompt]:
    """The prompts of an input as token ids. RequestError for what template and tokenizer cannot take.

    Takes time that grows with the text; the server calls it on a thread of its own.
    """
    if isinstance(source, ChatInput):
        ids = model.require_template().encode(source.messages, tools=source.tools, variables=source.variables)
        thinking = thinking_start(ids, model.require_tokenizer()) if model.thinks else None
        return [Prompt(tuple(ids), thinking=thinking)]
    return [
        Prompt(tuple(model.require_tokenizer().encode_prompt(prompt)), prompt)
        if isinstance(prompt, str)
        else Prompt(prompt)
        for prompt in source.prompts
    ]


def wire_seed(seed: int | None) -> int | None:
    """A seed of the wire, which may be negative, as one of ours: the same 64 bits."""
    if seed is None:
        return None
    if not -(2**63) <= seed <= MAX_SEED:
        raise RequestError(f"seed must be in [-2**63, 2**64 - 1], got {seed}", param="seed")
    return seed & MAX_SEED


def check_choices(count: int) -> int:
    """`n` of the wire."""
    if not 1 <= count <= MAX_CHOICES:
        raise RequestError(f"n must be in [1, {MAX_CHOICES}], got {count}", param="n")
    return count


def check_max_tokens(param: str, value: int | None) -> int | None:
    """A limit of the wire."""
    if value is not None and value < 1:
        raise RequestError(f"{param} must be >= 1, got {value}", param=param)
    return value
