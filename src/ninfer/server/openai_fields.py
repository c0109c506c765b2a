"""What `/v1/chat/completions` and `/v1/completions` share: sampling fields, usage, timings, finish reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ninfer.decoding import SamplingParams
from ninfer.engine import StopRules
from ninfer.errors import RequestError
from ninfer.metrics import FinishReason, decode_rate, prefill_rate, request_rates, speculation_report
from ninfer.server.answer import Answer, WireUsage
from ninfer.server.inputs import check_max_tokens, wire_seed
from ninfer.server.model import ServedModel
from ninfer.server.settings import ServerSettings


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """How tokens are chosen, on every endpoint."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None


class SharedFields(SamplingFields, kw_only=True):
    """Fields of both endpoints; null is the same as absent. `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids`,
    `ignore_eos` and `return_token_ids` are extensions that other servers have under the same names.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    response_format: Any = None
    structured_outputs: Any = None


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
    strings = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    return StopRules(tuple(strings), tuple(fields.stop_token_ids or ()), not fields.ignore_eos)


def output_limit(
    max_tokens: int | None, max_completion_tokens: int | None, settings: ServerSettings
) -> tuple[int | None, str]:
    """The output limit and who set it. Of two the newer name counts, which is the one that replaced the other."""
    check_max_tokens("max_tokens", max_tokens)
    check_max_tokens("max_completion_tokens", max_completion_tokens)
    asked = max_tokens if max_completion_tokens is None else max_completion_tokens
    if asked is not None:
        return asked, "client"
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
