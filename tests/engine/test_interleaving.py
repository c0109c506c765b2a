"""The determinism law of the engine: whatever runs beside a request, and whatever is drafted for it, its ids are those
it has alone and without drafts."""

from __future__ import annotations

import pytest
from harness import (
    DRAFT_KINDS,
    Outcome,
    assert_all_memory_is_free,
    draft_kinds,
    expected,
    formula_engine,
    formula_model,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.cache import StateLayout, pages_for
from ninfer.decoding import SamplingParams
from ninfer.engine import Engine, EnginePlan, GenerationRequest, StopRules
from ninfer.engine.plan import PrefixPlan, StatePlan
from ninfer.engine.step import Logits
from ninfer.engine.testing import ScriptedProposer, make_plan
from ninfer.metrics import FinishReason
from ninfer.models.batch import ForwardBatch

VOCAB = 40
CONTEXT = 270

SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 1.0, 2.0]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 2**64 - 1),
)
REQUESTS = st.builds(
    GenerationRequest,
    prompt_ids=st.one_of(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8).map(tuple),
        st.integers(1, CONTEXT - 1).map(lambda n: tuple(i * i % VOCAB for i in range(n))),
        st.tuples(st.integers(60, 200), st.integers(1, 60)).map(
            lambda parts: tuple(i * i % VOCAB for i in range(parts[0])) + (5,) * parts[1]
        ),
        st.sampled_from([63, 64, 65, 127, 128, 129]).map(lambda n: (3,) * n),
    ),
    max_new=st.one_of(st.none(), st.integers(1, 12), st.integers(1, 90)),
    sampling=SAMPLING,
    stop=st.builds(StopRules, token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=1).map(tuple)),
)
ARRIVALS = st.lists(st.tuples(st.integers(0, 40), REQUESTS, st.one_of(st.none(), st.integers(0, 40))), max_size=7)
PLANS = st.builds(
    lambda chunk, mixed, lanes, spare, rollback, window, snapshots, prefix: make_plan(
        vocab_size=VOCAB,
        max_context=CONTEXT,
        prefill_chunk=chunk,
        mixed_chunk="auto" if mixed is None else min(mixed, chunk),
        max_concurrency=lanes,
        num_pages=pages_for(CONTEXT) + spare,
        end_token_ids=(0,),
        state=None if rollback is None else StatePlan(StateLayout(rollback, 1 + window), snapshots),
        verify_rows=1 + window,
        prefix=prefix,
    ),
    chunk=st.sampled_from([1, 2, 7, 64, 65, CONTEXT]),
    mixed=st.sampled_from([None, 1, 5, 64]),
    lanes=st.integers(1, 5),
    spare=st.integers(0, 8),
    rollback=st.sampled_from([None, "slots", "replay"]),
    window=st.sampled_from([0, 0, 1, 2, 3, 5, 8]),
    snapshots=st.sampled_from([0, 1, 2, 20]),
    prefix=st.sampled_from([None, PrefixPlan(), PrefixPlan(64), PrefixPlan(128)]),
)


class Watched:
    """A `FormulaModel` that sees whether a step writes to a page which anybody else may read."""

    def __init__(self, plan: EnginePlan) -> None:
        self._model = formula_model(plan)
        self.engine: Engine | None = None

    def forward(self, batch: ForwardBatch) -> Logits:
        assert self.engine is not None
        pages = self.engine._memory.pages
        for rows in batch.sequences:
            for page in rows.pages[rows.position // 64 : pages_for(rows.position + rows.count)]:
                assert (pages._holders[page], pages._kept[page]) == (1, 0), "a shared page is written to"
        return self._model.forward(batch)

    def close(self) -> None:
        self._model.close()


@settings(max_examples=150, deadline=None)
@given(plan=PLANS, arrivals=ARRIVALS, kind=st.sampled_from(DRAFT_KINDS))
def test_any_interleaving_gives_what_each_request_gives_alone(
    plan: EnginePlan, arrivals: list[tuple[int, GenerationRequest, int | None]], kind: str
) -> None:
    """Requests come and are cancelled at given steps, in pools of one context and more, so that they share prefixes and
    give way to each other. A `FormulaModel` watches, with and without recurrent state, and a `ScriptedProposer` where
    the plan has room for drafts."""
    proposer = None
    if plan.verify_rows > 1:
        drafts = draft_kinds(plan, [request for _, request, _ in arrivals])[kind]
        proposer = ScriptedProposer(drafts, plan.verify_rows - 1)
    model = Watched(plan)
    engine = model.engine = Engine(plan, model, proposer=proposer)
    outcomes: dict[int, Outcome] = {}
    requests: dict[int, GenerationRequest] = {}
    cancels: dict[int, list[int]] = {}
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    step = 0
    while pending or engine.has_work:
        while pending and pending[0][0] <= step:
            _, request, cancel_after = pending.pop(0)
            request_id = engine.submit(request)
            requests[request_id], outcomes[request_id] = request, Outcome()
            if cancel_after is not None:
                cancels.setdefault(step + cancel_after, []).append(request_id)
        for request_id in cancels.get(step, ()):
            engine.cancel(request_id)
        for event in engine.step():
            outcomes[event.request_id].add(event)
        step += 1
        assert step < 40 + len(arrivals) * 4 * CONTEXT, "the engine does not come to an end"
    for request_id, request in requests.items():
        ids, reason = expected(request, plan)
        outcome = outcomes[request_id]
        if outcome.finished.reason is FinishReason.CANCELLED:
            assert outcome.ids == ids[: len(outcome.ids)]
            assert len(outcome.ids) < len(ids)
        else:
            assert (outcome.ids, outcome.finished.reason) == (ids, reason)
            usage = outcome.finished.usage
            assert usage.cached + usage.computed == usage.prompt
    assert_all_memory_is_free(engine)
    usages = [outcome.finished.usage for outcome in outcomes.values()]
    counters = engine.counters
    assert counters.cached == sum(usage.cached for usage in usages)
    assert counters.prefill == sum(usage.computed for usage in usages)
    assert counters.recomputed == sum(usage.recomputed for usage in usages)
    assert counters.recomputed == 0 or engine.num_preemptions > 0
    if plan.prefix is None:
        assert counters.cached == 0
    assert engine.num_running == engine.num_waiting == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 99, 100, 101, 137])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64, 100, 512])
def test_prompt_lengths_around_chunk_and_page_borders(length: int, chunk: int) -> None:
    plan = make_plan(vocab_size=VOCAB, max_context=CONTEXT, prefill_chunk=chunk, max_concurrency=1)
    engine = formula_engine(plan)
    request = GenerationRequest(tuple(i % VOCAB for i in range(length)), max_new=3)
    ids, _ = expected(request, plan)
    assert run(engine, request).ids == ids
    rows = engine._model.row_counts  # type: ignore[attr-defined]  # a FormulaModel keeps them
    full, rest = divmod(length, chunk)
    assert rows == [chunk] * full + ([rest] if rest else []) + [1, 1]
