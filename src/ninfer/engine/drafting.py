"""What drafts for an engine: as the plan has it, and as it is made."""

from __future__ import annotations

from ninfer.decoding.proposer import Proposer
from ninfer.decoding.proposers import NgramProposer, ngram
from ninfer.engine.config import EngineConfig
from ninfer.engine.plan import Choice, EnginePlan, MemoryItem, SpeculationPlan
from ninfer.errors import UnsupportedError

AUTO_WINDOW = 8
"""The longest draft of an automatic window. Rows of a block cost more and more beside what they still win."""


def plan_speculation(config: EngineConfig) -> tuple[SpeculationPlan | None, Choice | None]:
    """How drafts are made and verified, and why so many. UnsupportedError where the model has no draft."""
    if config.spec == "off":
        return None, None
    if config.spec != "ngram":
        raise UnsupportedError(f"spec is {config.spec}, which needs a draft model; this model file has none")
    if config.draft_tokens != "auto":
        return SpeculationPlan(config.spec, config.draft_tokens, rule=config.draft_rule), None
    reason = "at most; each round takes what gives most tokens per second"
    plan = SpeculationPlan(config.spec, AUTO_WINDOW, adaptive=True, rule=config.draft_rule)
    return plan, Choice("draft_tokens", AUTO_WINDOW, reason)


def draft_memory(speculation: SpeculationPlan | None, *, max_context: int, max_concurrency: int) -> list[MemoryItem]:
    """What drafting allocates besides what the model does."""
    if speculation is None:
        return []
    return [MemoryItem("n-gram tables", max_concurrency * ngram.memory_bytes(max_context), False)]


def make_proposer(plan: EnginePlan) -> Proposer | None:
    """The proposer of a plan, None without speculation."""
    if plan.speculation is None:
        return None
    return NgramProposer(plan.speculation.window, max_context=plan.max_context)
