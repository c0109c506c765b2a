"""Who runs when: rows of a step, admission, cancelling, event routing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import collect, expected, formula_engine, run

from ninfer.engine import Delta, Finished, GenerationRequest
from ninfer.engine.plan import StatePlan
from ninfer.engine.testing import make_plan
from ninfer.metrics import FinishReason


def test_decoding_goes_on_while_another_prompt_is_computed() -> None:
    plan = make_plan(vocab_size=50, max_context=256, prefill_chunk=16, max_concurrency=2)
    engine = formula_engine(plan)
    engine.submit(GenerationRequest((1,), max_new=20))
    engine.step()
    long = engine.submit(GenerationRequest((2,) * 64, max_new=1))
    for _ in range(4):
        events = engine.step()
        assert events[0].request_id == 0, "the decoding sequence has the first row and a token in every step"
    assert [event.request_id for event in events[1:]] == [long, long]
    assert engine._model.row_counts == [1, 17, 17, 17, 17]  # type: ignore[attr-defined]  # a FormulaModel keeps them


def test_prompts_share_the_chunk_in_order_of_arrival() -> None:
    plan = make_plan(vocab_size=50, max_context=64, prefill_chunk=16, max_concurrency=3)
    engine = formula_engine(plan)
    for length in (10, 10, 10):
        engine.submit(GenerationRequest((1,) * length, max_new=3))
    first = engine.step()
    assert [event.request_id for event in first] == [0]
    second = engine.step()  # one decode row, 4 + 10 prompt rows
    assert [event.request_id for event in second] == [0, 1, 2]
    assert engine._model.row_counts == [16, 15]  # type: ignore[attr-defined]  # a FormulaModel keeps them


def test_no_more_sequences_than_lanes() -> None:
    plan = make_plan(vocab_size=50, max_context=64, max_concurrency=2)
    engine = formula_engine(plan)
    for _ in range(5):
        engine.submit(GenerationRequest((1,), max_new=4))
    events = engine.step()
    assert (engine.num_running, engine.num_waiting) == (2, 3)
    outcomes = collect([*events, *engine.drain()])
    assert len(outcomes) == 5
    assert all(outcome.finished.reason is FinishReason.OUTPUT_LIMIT for outcome in outcomes.values())


def test_admission_waits_for_pages() -> None:
    """3 pages: the first request needs 2, the second 3."""
    plan = make_plan(vocab_size=50, max_context=192, num_pages=3, max_concurrency=3)
    engine = formula_engine(plan)
    engine.submit(GenerationRequest((1,) * 60, max_new=10))
    engine.submit(GenerationRequest((2,) * 130, max_new=5))
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (1, 1)
    order = [event.request_id for event in engine.drain() if isinstance(event, Finished)]
    assert order == [0, 1]


def test_a_request_without_room_is_overtaken_as_often_as_there_are_lanes_and_then_no_more() -> None:
    """The long one cannot start beside the first; of five short ones that could, three go first."""
    plan = make_plan(vocab_size=50, max_context=256, num_pages=4, max_concurrency=3)
    engine = formula_engine(plan)
    engine.submit(GenerationRequest((1,) * 60, max_new=40))
    long = engine.submit(GenerationRequest((2,) * 200, max_new=1))
    for _ in range(5):
        engine.submit(GenerationRequest((3,), max_new=2))
    order = [event.request_id for event in engine.drain() if isinstance(event, Finished)]
    assert order == [2, 3, 4, 0, long, 5, 6]


def test_several_that_wait_for_pages_are_overtaken_alike() -> None:
    plan = make_plan(vocab_size=50, max_context=256, num_pages=4, max_concurrency=2)
    engine = formula_engine(plan)
    engine.submit(GenerationRequest((1,) * 60, max_new=40))
    for _ in range(2):
        engine.submit(GenerationRequest((2,) * 200, max_new=1))
    for _ in range(3):
        engine.submit(GenerationRequest((3,), max_new=2))
    order = [event.request_id for event in engine.drain() if isinstance(event, Finished)]
    assert order == [3, 4, 0, 1, 2, 5], "each of the two was overtaken twice"


def test_admission_waits_for_a_state_slot() -> None:
    """Plans have a slot for every lane; with less of them a sequence waits for one, as it would for pages."""
    plan = make_plan(vocab_size=50, max_context=64, max_concurrency=3, state=StatePlan())
    engine = formula_engine(replace(plan, options=replace(plan.options, num_state_slots=2)))
    for _ in range(4):
        engine.submit(GenerationRequest((1, 2), max_new=3))
    events = engine.step()
    assert (engine.num_running, engine.num_waiting, engine.num_free_state_slots) == (2, 2, 0)
    assert engine.cancel(0)
    assert engine.num_free_state_slots == 1
    outcomes = collect([*events, *engine.drain()])
    assert [outcomes[i].finished.reason for i in range(4)] == [FinishReason.CANCELLED, *[FinishReason.OUTPUT_LIMIT] * 3]
    assert engine.num_free_state_slots == 2


def test_a_request_needs_no_page_for_its_last_token() -> None:
    """64 tokens in, one out: nothing is ever written behind the first page, so two of them fit into two pages."""
    plan = make_plan(vocab_size=50, max_context=65, num_pages=2, prefill_chunk=128, max_concurrency=2)
    engine = formula_engine(plan)
    for _ in range(2):
        engine.submit(GenerationRequest((1,) * 64))
    assert [event.request_id for event in engine.step() if isinstance(event, Finished)] == [0, 1]


def test_pages_follow_the_tokens() -> None:
    plan = make_plan(vocab_size=50, max_context=256, num_pages=4, prefill_chunk=64, max_concurrency=1)
    engine = formula_engine(plan)
    engine.submit(GenerationRequest((1,) * 100, max_new=60))
    assert engine.num_free_pages == 4
    engine.step()
    assert engine.num_free_pages == 3
    engine.step()
    assert engine.num_free_pages == 2
    assert list(engine.drain())
    assert engine.num_free_pages == 4


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_cancel_ends_a_request_in_any_phase(steps: int) -> None:
    """0: waiting; 1 and 2: within the prompt of three chunks; then decoding."""
    plan = make_plan(vocab_size=50, max_context=256, prefill_chunk=40, max_concurrency=1)
    engine = formula_engine(plan)
    request = GenerationRequest((1,) * 100, max_new=50)
    request_id = engine.submit(request)
    events = [event for _ in range(steps) for event in engine.step()]
    assert engine.cancel(request_id)
    assert engine.num_free_pages == plan.num_pages
    events += engine.drain()
    outcome = collect(events)[request_id]
    assert outcome.finished.reason is FinishReason.CANCELLED
    assert outcome.ids == expected(request, plan)[0][: max(0, steps - 2)]
    assert outcome.finished.usage.computed == min(100, 40 * steps)
    assert run(engine, request).ids == expected(request, plan)[0]


def test_a_cancel_of_what_has_ended_says_so() -> None:
    engine = formula_engine(make_plan(vocab_size=50))
    request_id = engine.submit(GenerationRequest((1,), max_new=1))
    collect(engine.drain())
    assert not engine.cancel(request_id)
    assert not engine.cancel(12345)
    assert engine.step() == []


def test_a_second_cancel_gives_no_second_ending() -> None:
    engine = formula_engine(make_plan(vocab_size=50))
    request_id = engine.submit(GenerationRequest((1,), max_new=9))
    assert engine.cancel(request_id)
    assert not engine.cancel(request_id)
    assert [type(event) for event in engine.drain()] == [Finished]


def test_iterators_and_steps_take_turns_and_each_sees_its_own_events() -> None:
    plan = make_plan(vocab_size=50, max_context=64, max_concurrency=4)
    engine = formula_engine(plan)
    requests = [GenerationRequest((i + 1, 7), max_new=6 + i) for i in range(3)]
    first, second = engine.generate(requests[0]), engine.generate(requests[1])
    events = [next(first), next(second)]
    engine.submit(requests[2])
    events += [next(second), next(first), *engine.step(), next(first), *first, *second, *engine.drain()]
    outcomes = collect(events)
    assert [outcomes[i].ids for i in range(3)] == [expected(request, plan)[0] for request in requests]
    assert not engine.has_work


def test_an_iterator_that_is_closed_early_cancels_its_request_only() -> None:
    plan = make_plan(vocab_size=50, max_context=64, num_pages=2, max_concurrency=2)
    engine = formula_engine(plan)
    other = engine.submit(GenerationRequest((1,), max_new=8))
    stream = engine.generate(GenerationRequest((2,), max_new=8))
    assert isinstance(next(stream), Delta)
    stream.close()
    assert engine.num_running == 1
    outcomes = collect(engine.drain())
    assert list(outcomes) == [other]
    assert len(outcomes[other].ids) == 8
