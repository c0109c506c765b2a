"""What engine tests share: events collected under their protocol, and what a request must give by the rules alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ninfer.decoding import TokenHistory, sample
from ninfer.engine import Delta, Engine, EnginePlan, Failed, Finished, GenerationEvent, GenerationRequest
from ninfer.engine.testing import (
    FormulaModel,
    NextIds,
    RecurrentFormulaModel,
    ScriptedProposer,
    fixed_drafts,
    formula_logits,
    known_drafts,
    random_drafts,
)
from ninfer.metrics import NO_ROUNDS, FinishReason, SpeculationCounts


@dataclass
class Outcome:
    """The events of one request, checked as they come: deltas first, then one ending and nothing after it."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    deltas: list[Delta] = field(default_factory=list)
    ending: Finished | Failed | None = None

    def add(self, event: GenerationEvent) -> None:
        assert self.ending is None, f"{event} after the ending {self.ending}"
        if isinstance(event, Delta):
            assert event.ids or event.text, "a delta without content"
            self.ids += event.ids
            self.text += event.text
            self.deltas.append(event)
        else:
            assert isinstance(event, Finished | Failed)
            self.ending = event
            if isinstance(event, Finished):
                assert event.usage.completion == len(self.ids)
            check_rounds(event, self.deltas)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.ending, Finished), self.ending
        return self.ending

    @property
    def failed(self) -> Failed:
        assert isinstance(self.ending, Failed), self.ending
        return self.ending


def check_rounds(end: Finished | Failed, deltas: list[Delta]) -> None:
    """The identities of spec/speculative.md section 4, which hold for every request however it ended."""
    counts, seconds = end.rounds.counts, end.rounds.seconds
    if isinstance(end, Failed) and end.rounds is NO_ROUNDS:
        return  # the engine is gone, and its service ends what it left open
    if end.usage.completion:
        assert end.usage.completion == 1 + counts.rounds + counts.accepted
    else:
        assert counts == SpeculationCounts(0, 0, 0)
    assert sum(counts.windows) == counts.rounds
    assert sum(k * n for k, n in enumerate(counts.windows)) == counts.drafted
    assert 0 <= counts.accepted <= counts.drafted
    if isinstance(end, Finished):
        with_ids = [delta for delta in deltas if delta.ids]
        assert len(with_ids) == counts.rounds + (1 if with_ids else 0), "one delta per round, and one before them"
        assert sum(len(delta.ids) - 1 for delta in with_ids) == counts.accepted
    assert min(seconds.draft, seconds.verify, seconds.sample, seconds.rollback) >= 0
    if end.timings.decode and isinstance(end, Finished):
        assert seconds.total > 0


def collect(events: Iterable[GenerationEvent]) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    for event in events:
        outcomes.setdefault(event.request_id, Outcome()).add(event)
    return outcomes


def run(engine: Engine, request: GenerationRequest) -> Outcome:
    """One request on an idle engine."""
    outcomes = collect(engine.generate(request))
    (outcome,) = outcomes.values()
    return outcome


def formula_model(plan: EnginePlan) -> FormulaModel:
    return FormulaModel(plan) if plan.state is None else RecurrentFormulaModel(plan)


def formula_engine(plan: EnginePlan, drafts: NextIds | None = None) -> Engine:
    """An engine whose drafts, if it has any, come as `drafts` says, as long as the plan lets them be."""
    proposer = None if drafts is None else ScriptedProposer(drafts, plan.verify_rows - 1)
    return Engine(plan, formula_model(plan), proposer=proposer)


def draft_kinds(plan: EnginePlan, requests: Iterable[GenerationRequest]) -> dict[str, NextIds]:
    """Drafts of every quality for requests on a `FormulaModel`."""
    texts = [[*request.prompt_ids, *expected(request, plan)[0]] for request in requests]

    def known(right: Callable[[int], bool]) -> NextIds:
        return known_drafts(texts, right, plan.vocab_size)

    return {
        "fixed": fixed_drafts([3] * plan.verify_rows),
        "random": random_drafts(plan.vocab_size, seed=1),
        "right": known(lambda position: True),
        "wrong": known(lambda position: False),
        "half right": known(lambda position: position * 2654435761 >> 7 & 1 == 0),
    }


DRAFT_KINDS = ("fixed", "random", "right", "wrong", "half right")


def assert_all_memory_is_free(engine: Engine) -> None:
    plan = engine.plan
    assert engine.num_free_pages == plan.num_pages
    assert engine.num_free_state_slots == plan.options.num_state_slots


def expected(request: GenerationRequest, plan: EnginePlan) -> tuple[list[int], FinishReason]:
    """Ids and ending of a request (greedy or with a seed) on a `FormulaModel`, worked out without an engine."""
    end_tokens = set(request.stop.token_ids)
    if request.stop.model_end_tokens:
        end_tokens.update(plan.end_token_ids)
    history = TokenHistory(request.prompt_ids)
    tokens = list(request.prompt_ids)
    output: list[int] = []
    while True:
        logits = formula_logits(np.array(tokens), plan.vocab_size)
        token = sample(logits, request.sampling, history, seed=request.sampling.seed, position=len(tokens))
        history.append(token)
        tokens.append(token)
        output.append(token)
        if token in end_tokens:
            return output, FinishReason.STOP_TOKEN
        if len(output) == request.max_new:
            return output, FinishReason.OUTPUT_LIMIT
        if len(tokens) == plan.max_context:
            return output, FinishReason.CONTEXT_CAPACITY
