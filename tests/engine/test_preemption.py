"""When pages run out: who gives way, what it costs, and that nobody notices but by time."""

from __future__ import annotations

import pytest
from harness import Outcome, assert_all_memory_is_free, collect, expected, formula_engine

from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, EnginePlan, Finished, GenerationRequest
from ninfer.engine.plan import PrefixPlan, StatePlan
from ninfer.engine.testing import make_plan
from ninfer.metrics import now_ns

VOCAB = 50


def tight(num_pages: int = 8, *, state: StatePlan | None = None, reuse: bool = False) -> EnginePlan:
    """Room for one full context of 8 pages, lanes for four."""
    prefix = PrefixPlan(128) if reuse else None
    return make_plan(
        vocab_size=VOCAB, max_context=512, num_pages=num_pages, max_concurrency=4, state=state, prefix=prefix
    )


PLANS = [
    tight(),
    tight(reuse=True),
    tight(state=StatePlan()),
    tight(state=StatePlan(max_snapshots=8), reuse=True),
    tight(11),
]
ALL = pytest.mark.parametrize("plan", PLANS, ids=["pages", "reused", "state", "snapshots", "roomier"])
REQUESTS = [
    GenerationRequest((i + 1, 5), max_new=300, sampling=SamplingParams(temperature=1.0, seed=i)) for i in range(4)
]


@ALL
def test_whoever_gives_way_goes_on_where_it_was(plan: EnginePlan) -> None:
    """Four answers of 300 tokens in room for 512: no token differs, none comes twice."""
    engine = formula_engine(plan)
    for request in REQUESTS:
        engine.submit(request)
    outcomes = collect(engine.drain())
    assert engine.num_preemptions > 0
    for i, request in enumerate(REQUESTS):
        assert outcomes[i].ids == expected(request, plan)[0]
        usage = outcomes[i].finished.usage
        assert (usage.prompt, usage.cached, usage.computed, usage.completion) == (2, 0, 2, 300)
    again = [outcomes[i].finished.usage.recomputed for i in range(4)]
    assert again[0] == 0, "the oldest never gives way"
    assert sum(again) == engine.counters.recomputed > 0
    assert engine.counters.prefill == 8
    assert engine.counters.completion == 1200
    assert_all_memory_is_free(engine)


@ALL
def test_the_youngest_gives_way_and_they_end_in_order(plan: EnginePlan) -> None:
    engine = formula_engine(plan)
    for request in REQUESTS:
        engine.submit(request)
    running = []
    order = []
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Finished):
                order.append(event.request_id)
        running.append([s.id for s in engine._scheduler._running])
    assert order == [0, 1, 2, 3]
    for ids in running:
        assert ids == sorted(ids)
    assert all(ids[0] == min(set(range(4)) - set(order[: order.index(ids[0])])) for ids in running if ids)


def test_what_was_kept_is_not_computed_again() -> None:
    """The pages of who gave way stay in the index until they are needed."""
    counts = {}
    for plan in (PLANS[0], PLANS[1]):
        engine = formula_engine(plan)
        for request in REQUESTS:
            engine.submit(request)
        collect(engine.drain())
        counts[plan.prefix is not None] = engine.counters.recomputed
    assert counts[True] < counts[False]


def test_a_random_seed_is_drawn_once() -> None:
    plan = tight()
    engine = formula_engine(plan)
    requests = [GenerationRequest((9, i), max_new=300, sampling=SamplingParams(temperature=1.0)) for i in range(3)]
    for request in requests:
        engine.submit(request)
    outcomes = collect(engine.drain())
    assert engine.num_preemptions > 0
    for i, request in enumerate(requests):
        seed = outcomes[i].finished.seed
        assert seed is not None
        seeded = GenerationRequest(request.prompt_ids, max_new=300, sampling=SamplingParams(temperature=1.0, seed=seed))
        assert outcomes[i].ids == expected(seeded, plan)[0]


@ALL
def test_a_cancel_of_one_that_has_given_way(plan: EnginePlan) -> None:
    engine = formula_engine(plan)
    for request in REQUESTS:
        engine.submit(request)
    outcomes = [Outcome() for _ in REQUESTS]
    while not engine.num_preemptions:
        for event in engine.step():
            outcomes[event.request_id].add(event)
    waiting = max(s.id for s in engine._scheduler._waiting)
    assert engine.cancel(waiting)
    for event in engine.drain():
        outcomes[event.request_id].add(event)
    for i, request in enumerate(REQUESTS):
        ids = expected(request, plan)[0]
        assert outcomes[i].ids == (ids[: len(outcomes[i].ids)] if i == waiting else ids)
    assert_all_memory_is_free(engine)


def test_time_without_memory_is_part_of_decode_and_admission_is_stamped_once() -> None:
    engine = formula_engine(tight())
    for request in REQUESTS:
        engine.submit(request)
    admitted = {}
    while not engine.num_preemptions:
        engine.step()
        admitted.update({s.id: s.timeline.admitted_ns for s in engine._scheduler._running if s.id not in admitted})
    before = now_ns()
    endings = {event.request_id: event for event in engine.drain() if not isinstance(event, Delta)}
    assert set(endings) == {0, 1, 2, 3}
    for i, stamp in admitted.items():
        assert stamp is not None
        assert stamp < before
        timings = endings[i].timings
        assert timings.prepare + timings.queue + timings.prefill + timings.decode <= timings.total


def test_a_prompt_that_is_being_computed_gives_way_too() -> None:
    """The older one grows into the pages that the younger one's prompt was promised."""
    plan = make_plan(vocab_size=VOCAB, max_context=512, num_pages=9, prefill_chunk=16, mixed_chunk=1, max_concurrency=2)
    engine = formula_engine(plan)
    requests = [GenerationRequest((1,), max_new=400), GenerationRequest((2,) * 380, max_new=10)]
    for request in requests:
        engine.submit(request)
    outcomes = collect(engine.drain())
    assert engine.num_preemptions > 0
    for i, request in enumerate(requests):
        assert outcomes[i].ids == expected(request, plan)[0]
    usage = outcomes[1].finished.usage
    assert (usage.computed, usage.cached) == (380, 0)
    assert usage.recomputed > 0
