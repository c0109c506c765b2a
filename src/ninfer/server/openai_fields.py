"""What the OpenAI protocols share: sampling fields, usage, timings, finish reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ninfer.decoding import SamplingParams, TokenLogprobs
from ninfer.decoding.params import MAX_SEED
from ninfer.engine import StopRules
from ninfer.engine.request import MAX_LOGPROBS
from ninfer.errors import RequestError
from ninfer.metrics import FinishReason, decode_rate, prefill_rate, request_rates, speculation_report
from ninfer.server.answer import Answer, WireUsage
from ninfer.server.fields import Count, shape
from ninfer.server.inputs import MAX_CHOICES, check_max_tokens, wire_seed
from ninfer.server.model import ServedModel
from ninfer.server.settings import ServerSettings
from ninfer.text.tokenizer import Tokenizer


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


Form = Annotated[Any, shape(type=["object", "null"], required=["type"], properties={"type": {"type": "string"}})]
"""What an answer must be: an object whose `type` says what else it has."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """How tokens are chosen, on every endpoint."""

    temperature: Annotated[float, shape(minimum=0, maximum=2)] | None = None
    top_p: Annotated[float, shape(minimum=0, maximum=1)] | None = None
    top_k: Annotated[int, shape(minimum=-1, maximum=2**31 - 1)] | None = None
    min_p: Annotated[float, shape(minimum=0, maximum=1)] | None = None
    presence_penalty: Annotated[float, shape(minimum=-2, maximum=2)] | None = None
    frequency_penalty: Annotated[float, shape(minimum=-2, maximum=2)] | None = None
    repetition_penalty: Annotated[float, shape(minimum=0.1, maximum=10)] | None = None
    seed: Annotated[int, shape(minimum=-(2**63), maximum=MAX_SEED)] | None = None
    logit_bias: dict[str, float] | None = None


Logprobs = Annotated[int, shape(minimum=0, maximum=MAX_LOGPROBS)]
"""How many alternatives of each token to tell."""
ToolChoice = Annotated[Any, shape(anyOf=[{"enum": ["auto", "none", "required", None]}, {"type": "object"}])]
"""Which tools an answer must call."""
StopString = Annotated[str, shape(minLength=1)]
Stop = StopString | list[StopString]
"""`stop`: one text or several."""


class SharedFields(SamplingFields, kw_only=True):
    """Fields of both endpoints; null is the same as absent. `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`,
    `ignore_eos` and `return_token_ids` are extensions that other servers have under the same names.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, shape(minimum=1, maximum=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    stop: Stop | None = None
    stop_token_ids: list[Annotated[int, shape(minimum=0)]] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    response_format: Form = None
    structured_outputs: Annotated[Any, shape(type=["object", "null"])] = None


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # What vLLM, llama.cpp and others take on these endpoints beyond OpenAI's fields.
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "grammar": ("",),
    "json_schema": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
    "top_a": (0, 0.0),
    "mirostat": (0,),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "dynatemp_range": (0, 0.0),
    "samplers": (),
    "lora": ([],),
}
"""Fields we know and do not honour -> values that ask for nothing. See `fields`."""


def read_sampling(fields: SamplingFields, model: ServedModel) -> SamplingParams:
    """The sampling of a request: its fields over those of the served model. RequestError names the field."""
    given = {
        name: value
        for name in SamplingParams.__dataclass_fields__
        if name not in ("seed", "logit_bias") and (value := getattr(fields, name, None)) is not None
    }
    seed = wire_seed(fields.seed)
    if seed is not None:
        given["seed"] = seed
    return SamplingParams(**{**model.sampling, **given, "logit_bias": _bias(fields.logit_bias or {})})


def _bias(wire: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """`logit_bias`, whose JSON keys are token ids in decimal."""
    for key in wire:
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise RequestError(f"logit_bias must name token ids, got {key[:40]!r}", param="logit_bias")
    return tuple(sorted((int(key), bias) for key, bias in wire.items()))


def read_stop(fields: SharedFields) -> StopRules:
    """What ends an answer besides its limits."""
    return StopRules(stop_strings(fields.stop), tuple(fields.stop_token_ids or ()), not fields.ignore_eos)


def read_top_logprobs(count: int | None) -> int:
    """`top_logprobs`, none if it is absent. RequestError names it."""
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise RequestError(f"top_logprobs must be in [0, {MAX_LOGPROBS}], got {count}", param="top_logprobs")
    return count or 0


def stop_strings(stop: Stop | None) -> tuple[str, ...]:
    """`stop`: one text or several."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def output_limit(settings: ServerSettings, **names: int | None) -> tuple[int | None, str]:
    """The output limit and who set it, from the fields that may name it. Of several the last counts."""
    given = [check_max_tokens(name, value) for name, value in names.items() if value is not None]
    if given:
        return given[-1], "client"
    if settings.default_max_tokens is not None:
        return settings.default_max_tokens, "server_default"
    return None, "context"


FINISH = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.OUTPUT_LIMIT: "length",
    FinishReason.CONTEXT_CAPACITY: "length",
    FinishReason.CANCELLED: "stop",  # nobody is left to read it
}
"""Our words to OpenAI's; `ninfer_finish_reason` in the answer keeps ours."""


def logprob_entries(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[dict[str, Any]]:
    """One entry per token, end tokens included; control tokens have no bytes, as they have no text."""
    return [
        {
            **_logprob_entry(tokenizer, token, found.chosen),
            "top_logprobs": [_logprob_entry(tokenizer, other, logprob) for other, logprob in found.top],
        }
        for token, found in zip(ids, logprobs, strict=True)
    ]


def _logprob_entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    is_control = token in tokenizer.control_ids
    return {
        "token": data.decode("utf-8", errors="replace"),
        "logprob": logprob,
        "bytes": [] if is_control else list(data),
    }


def usage_block(usage: WireUsage) -> dict[str, Any]:
    """`usage` of an answer."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking},
    }


def timings_block(answer: Answer) -> dict[str, Any]:
    """`timings` of an answer: llama.cpp's names, and our unrounded seconds and rates, which the request log has too."""
    usage, phases = answer.work, answer.phases
    return {
        "cache_n": usage.cached,
        "prompt_n": usage.computed,
        "prompt_ms": phases.prefill * 1e3,
        "prompt_per_second": prefill_rate(usage, phases),
        "predicted_n": usage.completion,
        "predicted_ms": phases.decode * 1e3,
        "predicted_per_second": decode_rate(usage, phases),
        "seconds": phases.to_dict(),
        "rates": request_rates(usage, phases),
        "speculative": speculation_report(answer.rounds, answer.decode_seconds),
    }
