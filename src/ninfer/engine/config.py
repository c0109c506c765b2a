"""What the operator asked for. Nothing edits a config after it exists; what will run is the plan's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast, get_args

from ninfer.backends.options import KVFormat, Numerics, WeightsMemory
from ninfer.errors import ConfigError

Auto = Literal["auto"]

SpecMethod = Literal["off", "ngram", "mtp", "dflash2", "ngram-mtp"]
DraftRule = Literal["replay", "rejection"]

MAX_CONCURRENCY = 64
MAX_DRAFT_TOKENS = 16
MAX_THREADS = 256


def _help(text: str) -> dict[str, str]:
    """Metadata of a field: meaning, unit, range and the reason of its default, for CLI help and docs."""
    return {"help": text}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine. Each field's meaning, unit, range and default reason: `describe(name)`, also shown as CLI
    help.

    A bad value is a ConfigError that names field, value and limits.
    """

    max_context: int | Auto = field(
        default="auto",
        metadata=_help(
            "Tokens of prompt and completion together that one sequence may have, >= 2 and at most what the model was "
            "trained for. auto: 2048, or the trained context if that is smaller: a first start needs little memory."
        ),
    )
    kv_capacity: int | Auto = field(
        default="auto",
        metadata=_help(
            "Tokens of KV memory shared by all sequences, rounded up to pages of 64; at least max_context. What no "
            "running sequence needs of it is kept for reuse. auto: enough for max_concurrency full contexts, or as "
            "much of that as fits."
        ),
    )
    kv_dtype: KVFormat = field(
        default="int8",
        metadata=_help(
            "Storage of keys and values. int8 (groups of 64 with one scale) is the default: half the memory and half "
            "the traffic of bf16 at long contexts; bf16 is closer to unquantised attention."
        ),
    )
    prefill_chunk: int = field(
        default=512,
        metadata=_help(
            "Prompt tokens computed in one step, >= 1; never more than max_context is used. 512: large enough for full "
            "matrix speed, small enough that running sequences do not wait long."
        ),
    )
    mixed_chunk: int | Auto = field(
        default="auto",
        metadata=_help(
            "Prompt tokens computed in a step in which other sequences decode, >= 1; never more than prefill_chunk is "
            "used. auto: as many as keep such a step under 2.5 times the same step without them, by measured times, "
            "but at least 4; the tokens that come out are the same."
        ),
    )
    prefix_reuse: bool = field(
        default=True,
        metadata=_help(
            "True: requests reuse what others have computed of the same first tokens, which changes nothing but time. "
            "False is for measurements of prefill."
        ),
    )
    snapshot_mib: int | Auto = field(
        default="auto",
        metadata=_help(
            "MiB for snapshots of recurrent state, >= 0, without which a model that has such state cannot reuse a "
            "prefix; nothing for others. auto: 4 snapshots per sequence and 4 more, in at most an eighth of the "
            "available memory."
        ),
    )
    max_concurrency: int = field(
        default=1,
        metadata=_help(
            f"Sequences that run at the same time, 1 to {MAX_CONCURRENCY}. 1: one user gets the whole machine."
        ),
    )
    spec: SpecMethod = field(
        default="off",
        metadata=_help(
            "What drafts tokens that the model then verifies several at a time; the answer is the same. ngram copies "
            "what followed the same words in prompt or output; mtp and dflash2 are small models, ngram-mtp copies "
            "where it can. off: the others need a text that repeats itself, or a draft."
        ),
    )
    draft_tokens: int | Auto = field(
        default="auto",
        metadata=_help(
            f"Tokens drafted at most in one round, 1 to {MAX_DRAFT_TOKENS}. auto: what gives most tokens per second, "
            "by what drafts have been worth so far; 0 where they are worth nothing."
        ),
    )
    draft: str | None = field(
        default=None,
        metadata=_help(
            "The .ninfer file of a draft that was made for this model, for mtp, dflash2 and ngram-mtp. A model that "
            "has an MTP module of its own needs no file. None: no file."
        ),
    )
    lm_head_draft: bool = field(
        default=False,
        metadata=_help(
            "Choose drafts from the shortlist of the draft file instead of the whole vocabulary: a smaller product per "
            "draft, and tokens outside of it are never drafted. Answers do not change. False: a draft file may have no "
            "shortlist."
        ),
    )
    draft_rule: DraftRule = field(
        default="replay",
        metadata=_help(
            "When a draft is accepted. replay: when it is the token that is drawn without it, so that sampled text "
            "does not change either; rejection: as often as keeps the distribution, which accepts more of drafts that "
            "were drawn at random, and makes sampled text depend on them."
        ),
    )
    threads: int | Auto = field(
        default="auto",
        metadata=_help(f"Worker threads, 1 to {MAX_THREADS}. auto: one per CPU this process may use."),
    )
    numerics: Numerics = field(
        default="a8",
        metadata=_help(
            "Arithmetic of products with packed weights. a8 turns activation rows into two int8 digits, which "
            "the CPU's dot product instructions need; a8g32 takes one digit, with a scale per 32 columns, as other "
            "engines do: faster prompts where there is no AMX, about a hundred times less exact; f32 is exact and "
            "slower, for tests and quality work; w4a4 turns them into NVFP4 where an nvfp4 weight came with an input "
            "scale, and is a8 elsewhere."
        ),
    )
    weights_memory: WeightsMemory = field(
        default="auto",
        metadata=_help(
            "Where weights live. huge: copied once into huge pages, which are read faster; mapped: read from the "
            "file's mapping, no copy. auto: huge where the system has huge pages."
        ),
    )
    isa: str = field(
        default="auto",
        metadata=_help(
            "Instruction set of the kernels, one that this CPU has. auto: the best one; others are for tests."
        ),
    )

    def __post_init__(self) -> None:
        _check_count("max_context", self.max_context, 2, None, auto=True)
        _check_count("kv_capacity", self.kv_capacity, 1, None, auto=True)
        _check_count("prefill_chunk", self.prefill_chunk, 1, None)
        _check_count("mixed_chunk", self.mixed_chunk, 1, None, auto=True)
        _check_count("snapshot_mib", self.snapshot_mib, 0, None, auto=True)
        if type(self.prefix_reuse) is not bool:
            raise ConfigError(f"prefix_reuse must be true or false, got {self.prefix_reuse!r}")
        _check_count("max_concurrency", self.max_concurrency, 1, MAX_CONCURRENCY)
        _check_word("spec", self.spec, get_args(SpecMethod))
        _check_count("draft_tokens", self.draft_tokens, 1, MAX_DRAFT_TOKENS, auto=True)
        if self.draft is not None and (not isinstance(self.draft, str) or not self.draft):
            raise ConfigError(f"draft must be the path of a file, got {self.draft!r}")
        if type(self.lm_head_draft) is not bool:
            raise ConfigError(f"lm_head_draft must be true or false, got {self.lm_head_draft!r}")
        _check_word("draft_rule", self.draft_rule, get_args(DraftRule))
        if self.spec == "off" and self.draft_tokens != "auto":
            raise ConfigError(f"draft_tokens is {self.draft_tokens} and spec is off: nothing would draft them")
        if self.spec in ("off", "ngram"):
            for name in ("draft", "lm_head_draft"):
                if getattr(self, name):
                    raise ConfigError(f"{name} is {getattr(self, name)} and spec is {self.spec}: no draft model runs")
        if self.spec in ("off", "ngram") and self.draft_rule == "rejection":
            raise ConfigError(f"draft_rule is rejection and spec is {self.spec}: no draft is drawn from a distribution")
        _check_count("threads", self.threads, 1, MAX_THREADS, auto=True)
        _check_word("kv_dtype", self.kv_dtype, get_args(KVFormat))
        _check_word("numerics", self.numerics, get_args(Numerics))
        _check_word("weights_memory", self.weights_memory, get_args(WeightsMemory))
        if not isinstance(self.isa, str) or not self.isa:
            raise ConfigError(f"isa must be 'auto' or the name of an instruction set, got {self.isa!r}")
        capacity, context = self.kv_capacity, self.max_context
        if capacity != "auto" and context != "auto" and capacity < context:
            raise ConfigError(f"kv_capacity {capacity} is below max_context {context}: no full sequence could run")

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> EngineConfig:
        """A config from named values; missing ones take their defaults. ConfigError names unknown keys."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"unknown setting {', '.join(unknown)}; known: {', '.join(known)}")
        return cls(**cast("dict[str, Any]", dict(values)))

    @classmethod
    def describe(cls, name: str) -> str:
        """Meaning, unit, range and default reason of a field."""
        for declared in fields(cls):
            if declared.name == name:
                return str(declared.metadata["help"])
        raise ConfigError(f"there is no setting {name!r}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _check_count(name: str, value: object, low: int, high: int | None, *, auto: bool = False) -> None:
    if auto and value == "auto":
        return
    if type(value) is not int or value < low or (high is not None and value > high):
        limit = f">= {low}" if high is None else f"in [{low}, {high}]"
        raise ConfigError(f"{name} must be an integer {limit}{' or auto' if auto else ''}, got {value!r}")


def _check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(words)}, got {value!r}")
