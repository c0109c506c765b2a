"""Plans with drafts: what they say, cost and refuse; and the costs of rounds that are measured when they start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import assert_all_memory_is_free, draft_kinds, expected, formula_engine, formula_model, run
from test_planning import plan

from ninfer.cache import StateLayout
from ninfer.decoding.proposers import NgramProposer, ngram
from ninfer.engine import Engine, EngineConfig, EnginePlan, GenerationRequest
from ninfer.engine.calibration import measure_step_costs
from ninfer.engine.drafting import AUTO_WINDOW, make_proposer
from ninfer.engine.engine import token_memory
from ninfer.engine.plan import SpeculationPlan, StatePlan
from ninfer.engine.step import Logits
from ninfer.engine.testing import ScriptedProposer, make_plan
from ninfer.engine.window import RoundCosts
from ninfer.errors import InvariantError
from ninfer.models.batch import ForwardBatch


def test_without_drafts_a_plan_has_no_rows_for_them() -> None:
    made = plan(EngineConfig(max_context=64))
    assert (made.speculation, made.verify_rows, made.options.max_logit_rows) == (None, 1, 1)
    assert make_proposer(made) is None


def test_a_fixed_window_is_planned_for_every_lane() -> None:
    made = plan(EngineConfig(max_context=640, max_concurrency=3, spec="ngram", draft_tokens=4))
    assert made.speculation == SpeculationPlan("ngram", 4)
    assert (made.verify_rows, made.options.max_rows, made.options.max_logit_rows) == (5, 512 + 2 * 5, 15)
    tables = {item.name: item.num_bytes for item in made.memory}["n-gram tables"]
    assert tables == 3 * ngram.memory_bytes(640)
    assert isinstance(make_proposer(made), NgramProposer)
    assert "draft_tokens" not in {choice.field for choice in made.choices}


def test_an_automatic_window_is_planned_at_its_longest_and_says_so() -> None:
    made = plan(EngineConfig(max_context=640, spec="ngram"))
    assert made.speculation == SpeculationPlan("ngram", AUTO_WINDOW, adaptive=True)
    (choice,) = [choice for choice in made.choices if choice.field == "draft_tokens"]
    assert choice.value == AUTO_WINDOW
    assert "most tokens per second" in choice.reason


def test_an_engine_has_a_proposer_exactly_as_its_plan() -> None:
    plain, drafted = make_plan(vocab_size=9), make_plan(vocab_size=9, verify_rows=3)
    proposer = ScriptedProposer(lambda tokens, k: [], 2)
    for made, given in ((plain, proposer), (drafted, None)):
        with pytest.raises(InvariantError, match="speculation"):
            Engine(made, formula_model(made), proposer=given)
    adaptive = replace(drafted, speculation=SpeculationPlan("ngram", 2, adaptive=True))
    with pytest.raises(InvariantError, match="costs"):
        Engine(adaptive, formula_model(adaptive), proposer=proposer)


class Clockless:
    """Keeps the batches it is asked to run; its logits are zeros."""

    def __init__(self, made: EnginePlan) -> None:
        self.made = made
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch) -> Logits:
        assert len(batch.token_ids) <= self.made.options.max_rows
        assert len(batch.logit_rows) <= self.made.options.max_logit_rows
        assert batch.token_ids.max() < self.made.vocab_size
        self.batches.append(replace(batch))
        return np.zeros((len(batch.logit_rows), self.made.vocab_size), dtype=np.float32)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
@pytest.mark.parametrize(("context", "lanes", "window"), [(2, 1, 8), (9, 1, 8), (64, 1, 1), (640, 5, 4), (9000, 2, 8)])
def test_costs_are_measured_within_the_plan_and_leave_no_trace(
    rollback: str | None, context: int, lanes: int, window: int
) -> None:
    state = None if rollback is None else StatePlan(StateLayout(rollback, 1 + window))  # type: ignore[arg-type]
    made = make_plan(
        vocab_size=50, max_context=context, max_concurrency=lanes, verify_rows=1 + window, prefill_chunk=9, state=state
    )
    memory = token_memory(made)
    costs = measure_step_costs(Clockless(made), made, memory, budget_s=60.0)  # type: ignore[arg-type]
    assert memory.pages.num_free == made.num_pages
    assert memory.slots is None or memory.slots.slots.num_free == made.options.num_state_slots
    block = min(1 + window, context)
    for by_rows in costs.values():
        assert set(by_rows) >= {1, block}
        assert min(by_rows.values()) > 0
    assert max(max(by_rows) for by_rows in costs.values()) >= block * (4 if lanes == 5 else lanes)


def test_no_budget_measures_what_is_needed() -> None:
    made = make_plan(vocab_size=50, max_context=640, verify_rows=9)
    costs = measure_step_costs(Clockless(made), made, token_memory(made), budget_s=0.0)  # type: ignore[arg-type]
    assert [set(by_rows) for by_rows in costs.values()] == [{1, 9}]


@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
@pytest.mark.parametrize("kind", ["random", "right", "half right"])
def test_windows_that_set_themselves_change_no_answer(rollback: str | None, kind: str) -> None:
    """Costs that favour long windows, then short ones, then none: the text is the same, the windows are not."""
    state = None if rollback is None else StatePlan(StateLayout(rollback, 9))  # type: ignore[arg-type]
    base = make_plan(vocab_size=50, max_context=200, max_concurrency=3, verify_rows=9, state=state)
    made = replace(base, speculation=SpeculationPlan("ngram", 8, adaptive=True))
    requests = [GenerationRequest((i + 1, 2, 3), max_new=100) for i in range(3)]
    used = set()
    for slope in (0.01, 0.3, 5.0):
        costs = RoundCosts({100: {1: 1.0, 30: 1.0 + 29 * slope}})
        proposer = ScriptedProposer(draft_kinds(made, requests)[kind], 8)
        engine = Engine(made, formula_model(made), proposer=proposer, costs=costs)
        for request in requests:
            outcome = run(engine, request)
            assert outcome.ids == expected(request, made)[0]
            used.add(outcome.finished.rounds.counts.windows)
        assert_all_memory_is_free(engine)
    assert len(used) > 1


def test_copies_are_found_by_the_planned_proposer() -> None:
    """A text that repeats itself by its prompt: the engine's own n-gram proposer drafts, and some of it holds."""
    made = make_plan(vocab_size=6, max_context=400, verify_rows=4)
    request = GenerationRequest((1, 2, 3), max_new=300)
    proposer = make_proposer(made)
    outcome = run(Engine(made, formula_model(made), proposer=proposer), request)
    assert outcome.ids == run(formula_engine(make_plan(vocab_size=6, max_context=400)), request).ids
    assert outcome.finished.rounds.counts.drafted > 0
