"""When the machine fails: who ends, who lives on, what is left behind."""

from __future__ import annotations

import math

import pytest
from harness import Outcome, assert_all_memory_is_free, collect, expected, formula_model, run

from ninfer.engine import Engine, EnginePlan, Failed, GenerationRequest
from ninfer.engine.plan import StatePlan
from ninfer.engine.testing import FaultyModel, make_plan
from ninfer.errors import BackendError, InvariantError
from ninfer.metrics import FinishReason

PLAN = make_plan(vocab_size=50, max_context=128, max_concurrency=3)
RECURRENT = make_plan(vocab_size=50, max_context=128, max_concurrency=3, state=StatePlan())
REQUESTS = [GenerationRequest((i + 1, 5, 6), max_new=8) for i in range(3)]


def faulty_engine(plan: EnginePlan = PLAN, **faults: object) -> Engine:
    return Engine(plan, FaultyModel(formula_model(plan), **faults))  # type: ignore[arg-type]  # faults are of many types


def run_all(engine: Engine) -> dict[int, Outcome]:
    for request in REQUESTS:
        engine.submit(request)
    return collect(engine.drain())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_logits_fail_one_request_and_no_other(bad: float) -> None:
    engine = faulty_engine(replace_at={3: (1, bad)})
    outcomes = run_all(engine)
    failed = outcomes[1].failed
    assert isinstance(failed.error, BackendError)
    assert "must be finite" in str(failed.error)
    assert outcomes[1].ids == expected(REQUESTS[1], PLAN)[0][:3]
    assert failed.usage.completion == 3
    for i in (0, 2):
        assert outcomes[i].ids == expected(REQUESTS[i], PLAN)[0]
    assert engine.num_free_pages == PLAN.num_pages
    assert run(engine, REQUESTS[1]).ids == expected(REQUESTS[1], PLAN)[0]


def test_a_failed_step_fails_its_sequences_and_the_engine_lives_on() -> None:
    plan = make_plan(vocab_size=50, max_context=128, max_concurrency=2)
    error = BackendError("device lost")
    engine = faulty_engine(plan, raise_at={2: error})
    outcomes = run_all(engine)
    for i in (0, 1):
        assert outcomes[i].failed.error is error
        assert outcomes[i].ids == expected(REQUESTS[i], plan)[0][:2]
    assert outcomes[2].ids == expected(REQUESTS[2], plan)[0], "the request that waited runs afterwards"
    assert engine.num_free_pages == plan.num_pages


def test_a_failure_during_the_prompt_leaves_no_completion() -> None:
    engine = faulty_engine(raise_at={0: BackendError("out of memory")})
    outcome = run(engine, REQUESTS[0])
    assert isinstance(outcome.ending, Failed)
    assert outcome.failed.usage.to_dict() == {
        "prompt_tokens": 3, "cached_tokens": 0, "computed_tokens": 0, "recomputed_tokens": 0, "completion_tokens": 0
    }  # fmt: skip


@pytest.mark.parametrize("when", ["raise_at", "raise_after"])
@pytest.mark.parametrize("plan", [PLAN, RECURRENT], ids=["pages", "recurrent"])
@pytest.mark.parametrize("error", [InvariantError("our bug"), KeyboardInterrupt(), RuntimeError("anything")])
@pytest.mark.parametrize("call", [0, 1, 4])
def test_any_other_exception_leaves_the_step_undone(
    error: BaseException, call: int, plan: EnginePlan, when: str
) -> None:
    """The caller sees it; after that the same requests go on as if the step had never been tried.

    Recurrent state that the step may have written over is gone, so that all tokens are computed once more.
    """
    engine = faulty_engine(plan, **{when: {call: error}})
    for request in REQUESTS:
        engine.submit(request)
    events = [event for _ in range(call) for event in engine.step()]
    with pytest.raises(type(error)):
        engine.step()
    kept = call > 0 and plan is PLAN
    assert engine.num_free_pages == plan.num_pages - (3 if kept else 0)
    events += engine.drain()
    outcomes = collect(events)
    for i, request in enumerate(REQUESTS):
        assert outcomes[i].ids == expected(request, plan)[0]
    assert_all_memory_is_free(engine)


@pytest.mark.parametrize("plan", [PLAN, RECURRENT], ids=["pages", "recurrent"])
@pytest.mark.parametrize("when", ["raise_at", "raise_after"])
def test_a_failed_step_gives_all_memory_back(plan: EnginePlan, when: str) -> None:
    """It does not matter how far the step had come: its sequences end, and the next ones find nothing of it."""
    engine = faulty_engine(plan, **{when: {3: BackendError("device lost")}})
    assert all(isinstance(outcome.ending, Failed) for outcome in run_all(engine).values())
    assert_all_memory_is_free(engine)
    for request in REQUESTS:
        assert run(engine, request).ids == expected(request, plan)[0]


def test_an_interrupted_iterator_gives_its_memory_back() -> None:
    engine = faulty_engine(raise_at={2: KeyboardInterrupt()})
    stream = engine.generate(REQUESTS[0])
    with pytest.raises(KeyboardInterrupt):
        collect(stream)
    assert engine.num_free_pages == PLAN.num_pages
    assert not engine.has_work
    assert run(engine, REQUESTS[0]).finished.reason is FinishReason.OUTPUT_LIMIT
