"""What drafts for an engine: as the plan has it, and as it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ninfer import models
from ninfer.artifact import Artifact
from ninfer.backends.options import RuntimeOptions
from ninfer.decoding.proposer import Proposer
from ninfer.decoding.proposers import CombinedProposer, DFlashProposer, MTPProposer, NgramProposer, ngram
from ninfer.decoding.proposers.mtp import MAX_WINDOW
from ninfer.engine.config import MAX_DRAFT_TOKENS, EngineConfig
from ninfer.engine.plan import Choice, EnginePlan, MemoryItem, SpeculationPlan
from ninfer.errors import ConfigError, InvariantError
from ninfer.models import Model
from ninfer.models.dflash import DFlashConfig
from ninfer.models.draft_model import DraftModel
from ninfer.models.drafts import DraftSource, find_dflash, find_mtp, plan_draft_memory

AUTO_WINDOW = 8
"""The longest draft of an automatic window. Rows of a block cost more and more beside what they still win."""


MemoryPlanner = Callable[[Any, RuntimeOptions], Mapping[str, int]]


@contextmanager
def open_draft(config: EngineConfig, artifact: object) -> Iterator[DraftSource | None]:
    """The draft model that a config asks for, checked against its target; None where it asks for none.

    It can be loaded until the block ends. ConfigError if it is missing or belongs to another model, ArtifactError and
    UnsupportedError for a file that is no draft.
    """
    if config.spec in ("off", "ngram"):
        yield None
        return
    if not isinstance(artifact, Artifact):
        raise InvariantError(f"a draft model for {artifact}, which is no model file")
    find = find_dflash if config.spec == "dflash2" else find_mtp
    if config.draft is None:
        yield find(artifact, None, shortlist=config.lm_head_draft)
        return
    with Artifact.open(config.draft) as file:
        yield find(artifact, file, shortlist=config.lm_head_draft)


def plan_speculation(
    config: EngineConfig, source: DraftSource | None = None
) -> tuple[SpeculationPlan | None, Choice | None]:
    """How drafts are made and verified, and why so many. ConfigError for more tokens than the draft can give."""
    if config.spec == "off":
        return None, None
    most = _most_tokens(config, source)
    digest = None if source is None else source.digest
    shortlist = None if source is None else source.shortlist
    if config.draft_tokens != "auto":
        if config.draft_tokens > most:
            raise ConfigError(f"draft_tokens is {config.draft_tokens}; spec {config.spec} gives at most {most} here")
        window = config.draft_tokens
        plan = SpeculationPlan(config.spec, window, rule=config.draft_rule, draft_digest=digest, shortlist=shortlist)
        return plan, None
    window = min(AUTO_WINDOW, most)
    reason = "at most; each round takes what gives most tokens per second"
    plan = SpeculationPlan(
        config.spec, window, adaptive=True, rule=config.draft_rule, draft_digest=digest, shortlist=shortlist
    )
    return plan, Choice("draft_tokens", window, reason)


def _most_tokens(config: EngineConfig, source: DraftSource | None) -> int:
    """The longest draft."""
    if source is not None and isinstance(source.module, DFlashConfig):
        return source.module.block_size - 1
    return MAX_WINDOW if config.spec == "mtp" else MAX_DRAFT_TOKENS


def draft_memory(speculation: SpeculationPlan | None, *, max_context: int, max_concurrency: int) -> list[MemoryItem]:
    """What drafting allocates besides what models do."""
    if speculation is None or not speculation.method.startswith("ngram"):
        return []
    return [MemoryItem("n-gram tables", max_concurrency * ngram.memory_bytes(max_context), False)]


def with_draft(plan_memory: MemoryPlanner, source: DraftSource | None, max_concurrency: int) -> MemoryPlanner:
    """Counts a draft model too, and what its target keeps for it; `plan_memory` where there is none."""
    if source is None:
        return plan_memory

    def planned(artifact: Artifact, options: RuntimeOptions) -> dict[str, int]:
        parts = plan_draft_memory(source, options, max_concurrency)
        drafts = {f"draft {part}": size for part, size in parts.items() if size}
        return models.plan_memory(artifact, options, source.features) | drafts

    return planned


def make_proposer(plan: EnginePlan, model: Model | None = None, draft: DraftModel | None = None) -> Proposer | None:
    """The proposer of a plan, None without speculation. A plan with a draft model needs it and its target."""
    if plan.speculation is None:
        return None
    method, window = plan.speculation.method, plan.speculation.window
    if method == "ngram":
        return NgramProposer(window, max_context=plan.max_context)
    if model is None or draft is None:
        raise InvariantError(f"spec {method} without its models")
    if method == "dflash2":
        return DFlashProposer(model, draft)
    mtp = MTPProposer(model, draft, min(window, MAX_WINDOW))
    return mtp if method == "mtp" else CombinedProposer(NgramProposer(window, max_context=plan.max_context), mtp)
