"""What engine tests share: events collected under their protocol, and what a request must give by the rules alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ninfer.decoding import TokenHistory, sample
from ninfer.engine import Delta, Engine, EnginePlan, Failed, Finished, GenerationEvent, GenerationRequest
from ninfer.engine.testing import FormulaModel, RecurrentFormulaModel, formula_logits
from ninfer.metrics import FinishReason


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

    @property
    def finished(self) -> Finished:
        assert isinstance(self.ending, Finished), self.ending
        return self.ending

    @property
    def failed(self) -> Failed:
        assert isinstance(self.ending, Failed), self.ending
        return self.ending


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


def formula_engine(plan: EnginePlan) -> Engine:
    return Engine(plan, formula_model(plan))


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
