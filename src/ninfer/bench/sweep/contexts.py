"""The largest contexts that start on this machine: planned first, then tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from ninfer.artifact import Artifact
from ninfer.backends.options import KVFormat
from ninfer.engine import (
    EngineConfig,
    GenerationRequest,
    StopRules,
    detect_hardware,
    largest_contexts,
    load_engine,
    plan_engine,
)
from ninfer.errors import CapacityError, ConfigError
from ninfer.models.registry import read_config

TRIES = 8
STEP_BACK_TOKENS = 512
"""Less at each further try: the memory that is available moves by more than a page between plan and load."""


@dataclass(frozen=True)
class Ceiling:
    """planned: largest context that the plan accepts now. started: the largest one that was loaded and gave a token;
    None if none of a few tries did. refused: what a context of one token more than the last one tried is answered with.
    """

    kv_dtype: str
    trained: int
    planned: int | None
    started: int | None
    refused: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def context_ceilings(model: Path, base: EngineConfig, on_progress: Callable[[str], None]) -> list[Ceiling]:
    """By KV format. Each is loaded for real, so this takes as long as a few starts."""
    with Artifact.open(model) as artifact:
        return [_ceiling(artifact, base, kv_dtype, on_progress) for kv_dtype in get_args(KVFormat)]


def _ceiling(artifact: Artifact, base: EngineConfig, kv_dtype: KVFormat, on_progress: Callable[[str], None]) -> Ceiling:
    trained = read_config(artifact.architecture, artifact.config, file=artifact.path).max_position
    config = replace(
        base, prefix_reuse=False, kv_dtype=kv_dtype, max_context="auto", kv_capacity="auto", max_concurrency=1
    )
    planned = largest_contexts(config, artifact, detect_hardware())[kv_dtype]
    refused = None
    for attempt in range(TRIES if planned is not None else 0):
        context = (planned or 0) - attempt * STEP_BACK_TOKENS
        if context < 2:
            break
        on_progress(f"{kv_dtype}: starting with a context of {context}")
        refused = _refusal(replace(config, max_context=context + 1), artifact)
        if _starts(replace(config, max_context=context), artifact):
            return Ceiling(kv_dtype, trained, planned, context, refused)
    return Ceiling(kv_dtype, trained, planned, None, refused)


def _refusal(config: EngineConfig, artifact: Artifact) -> str | None:
    try:
        plan_engine(config, artifact, detect_hardware())
    except (CapacityError, ConfigError) as error:
        return str(error)
    return None


def _starts(config: EngineConfig, artifact: Artifact) -> bool:
    """Whether an engine loads and gives a token; memory that is gone by then is no error here."""
    try:
        engine = load_engine(plan_engine(config, artifact, detect_hardware()), artifact)
    except CapacityError:
        return False
    with engine:
        request = GenerationRequest((1,), max_new=1, stop=StopRules(model_end_tokens=False))
        return any(True for _ in engine.generate(request))
