"""What one request may be, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from harness import collect, expected, formula_engine, run

from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, Engine, Finished, GenerationRequest, StopRules
from ninfer.engine.testing import ScriptedModel, make_plan
from ninfer.errors import RequestError
from ninfer.metrics import FinishReason, RequestTimeline, now_ns

PLAN = make_plan(vocab_size=50, max_context=96)


@pytest.mark.parametrize("max_new", [1, 2, 3, 5, 17])
def test_the_output_limit_is_exact(max_new: int) -> None:
    request = GenerationRequest((1, 2, 3), max_new=max_new)
    outcome = run(formula_engine(PLAN), request)
    assert outcome.finished.reason is FinishReason.OUTPUT_LIMIT
    assert len(outcome.ids) == max_new
    longer, _ = expected(GenerationRequest((1, 2, 3), max_new=40), PLAN)
    assert outcome.ids == longer[:max_new]


@pytest.mark.parametrize("max_new", [None, 57, 10**8, 2**63 - 1])
def test_a_limit_beyond_the_context_ends_when_the_context_is_full(max_new: int | None) -> None:
    request = GenerationRequest(tuple(range(40)), max_new=max_new)
    outcome = run(formula_engine(PLAN), request)
    assert outcome.finished.reason is FinishReason.CONTEXT_CAPACITY
    assert len(request.prompt_ids) + len(outcome.ids) == PLAN.max_context


def test_a_limit_that_just_fills_the_context_is_the_limit() -> None:
    outcome = run(formula_engine(PLAN), GenerationRequest(tuple(range(40)), max_new=56))
    assert outcome.finished.reason is FinishReason.OUTPUT_LIMIT
    assert len(outcome.ids) == 56


def test_the_longest_prompt_leaves_one_token() -> None:
    outcome = run(formula_engine(PLAN), GenerationRequest((7,) * 95))
    assert (len(outcome.ids), outcome.finished.reason) == (1, FinishReason.CONTEXT_CAPACITY)


@pytest.mark.parametrize("length", [96, 97, 960])
def test_a_prompt_that_can_never_run_is_refused_with_both_numbers(length: int) -> None:
    engine = formula_engine(PLAN)
    with pytest.raises(RequestError, match=rf"{length} tokens and the context holds 96") as caught:
        engine.submit(GenerationRequest((7,) * length))
    assert (caught.value.kind, caught.value.param) == ("context_length_exceeded", "prompt")
    assert not engine.has_work


def scripted(script: list[int], *, end_token_ids: tuple[int, ...] = (9,), **plan: Any) -> Engine:
    made = make_plan(vocab_size=50, end_token_ids=end_token_ids, **plan)
    return Engine(made, ScriptedModel(50, script))


def test_a_stop_token_ends_the_generation_and_is_counted() -> None:
    outcome = run(scripted([4, 5, 9, 6]), GenerationRequest((1,), max_new=10))
    assert outcome.ids == [4, 5, 9]
    assert outcome.finished.reason is FinishReason.STOP_TOKEN
    assert outcome.finished.usage.completion == 3


def test_every_end_token_of_the_model_ends_it() -> None:
    outcome = run(scripted([4, 8, 5], end_token_ids=(9, 8)), GenerationRequest((1,), max_new=10))
    assert outcome.ids == [4, 8]


def test_stop_tokens_of_a_request_come_on_top_of_the_models() -> None:
    rules = StopRules(token_ids=(5,))
    assert run(scripted([4, 5, 9]), GenerationRequest((1,), max_new=10, stop=rules)).ids == [4, 5]
    assert run(scripted([4, 9, 5]), GenerationRequest((1,), max_new=10, stop=rules)).ids == [4, 9]


def test_the_models_end_tokens_can_be_ignored() -> None:
    rules = StopRules(model_end_tokens=False)
    outcome = run(scripted([4, 9, 5]), GenerationRequest((1,), max_new=4, stop=rules))
    assert (outcome.ids, outcome.finished.reason) == ([4, 9, 5, 5], FinishReason.OUTPUT_LIMIT)


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    outcome = run(scripted([4, 9]), GenerationRequest((1,), max_new=2))
    assert outcome.finished.reason is FinishReason.STOP_TOKEN


def test_end_tokens_in_the_prompt_do_not_end_anything() -> None:
    outcome = run(scripted([4, 5]), GenerationRequest((9, 1, 9), max_new=2))
    assert outcome.ids == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"prompt_ids": ()}, "prompt"),
        ({"prompt_ids": (1, -1)}, "prompt"),
        ({"prompt_ids": (1, 1.5)}, "prompt"),
        ({"prompt_ids": (True,)}, "prompt"),
        ({"prompt_ids": ("1",)}, "prompt"),
        ({"prompt_ids": (1,), "max_new": 0}, "max_new"),
        ({"prompt_ids": (1,), "max_new": -1}, "max_new"),
        ({"prompt_ids": (1,), "max_new": 1.5}, "max_new"),
        ({"prompt_ids": (1,), "max_new": "10"}, "max_new"),
        ({"prompt_ids": (1,), "max_new": 1e30}, "max_new"),
        ({"prompt_ids": (1,), "max_new": True}, "max_new"),
        ({"prompt_ids": (1,), "logprobs": -1}, "logprobs"),
        ({"prompt_ids": (1,), "logprobs": 21}, "logprobs"),
    ],
)
def test_a_request_cannot_hold_a_bad_value(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        GenerationRequest(**arguments)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"strings": ("",)}, "stop"),
        ({"strings": (1,)}, "stop"),
        ({"strings": ("a",) * 65}, "stop"),
        ({"token_ids": (-1,)}, "stop_token_ids"),
        ({"token_ids": (None,)}, "stop_token_ids"),
    ],
)
def test_stop_rules_cannot_hold_a_bad_value(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        StopRules(**arguments)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerationRequest((1, 50)), "prompt"),
        (GenerationRequest((10**9,)), "prompt"),
        (GenerationRequest((1,), stop=StopRules(token_ids=(50,))), "stop_token_ids"),
        (GenerationRequest((1,), stop=StopRules(strings=("x",))), "stop"),
    ],
)
def test_what_this_model_cannot_do_is_refused_at_submission(request_: GenerationRequest, param: str) -> None:
    engine = formula_engine(PLAN)
    with pytest.raises(RequestError) as caught:
        engine.submit(request_)
    assert caught.value.param == param
    assert not engine.has_work


def test_prompts_may_be_any_iterable_of_ids() -> None:
    prompt: Any = [3, 1, 2]
    assert GenerationRequest(prompt).prompt_ids == (3, 1, 2)


def test_greedy_needs_no_seed_and_names_none() -> None:
    assert run(formula_engine(PLAN), GenerationRequest((1,), max_new=2)).finished.seed is None


def test_a_fresh_seed_is_named_and_replays_the_answer() -> None:
    engine = formula_engine(PLAN)
    request = GenerationRequest((1, 2), max_new=30, sampling=SamplingParams(temperature=2.0))
    first, second = run(engine, request), run(engine, request)
    assert first.finished.seed != second.finished.seed
    assert first.ids != second.ids
    replay = GenerationRequest((1, 2), max_new=30, sampling=SamplingParams(temperature=2.0, seed=first.finished.seed))
    assert run(engine, replay).ids == first.ids


def test_logprobs_come_with_each_token_when_asked_for() -> None:
    engine = formula_engine(PLAN)
    plain = run(engine, GenerationRequest((1, 2), max_new=4))
    asked = run(engine, GenerationRequest((1, 2), max_new=4, logprobs=3))
    assert asked.ids == plain.ids
    assert all(delta.logprobs == () for delta in plain.deltas)
    for delta in asked.deltas:
        (logprobs,) = delta.logprobs
        assert len(logprobs.top) == 3
        assert logprobs.top[0] == (delta.ids[0], logprobs.chosen)


def test_phases_cover_the_request_and_carry_what_happened_before() -> None:
    start = now_ns()
    timeline = RequestTimeline(arrival_ns=start - 4000, load_start_ns=start - 3500, load_end_ns=start - 500)
    (outcome,) = collect(
        formula_engine(PLAN).generate(GenerationRequest((1,) * 70, max_new=3), timeline=timeline)
    ).values()
    timings = outcome.finished.timings
    assert timings.load == 3000 * 1e-9
    assert timings.prepare > 0
    assert timings.prefill > 0
    assert timings.decode > 0
    assert timings.ttft is not None
    assert timings.ttft < timings.total
    parts = timings.load + timings.prepare + timings.queue + timings.prefill + timings.decode
    assert timings.ttft == pytest.approx(parts - timings.decode, abs=1e-9)
    assert parts <= timings.total


def test_one_token_has_no_decode_phase() -> None:
    timings = run(formula_engine(PLAN), GenerationRequest((1,), max_new=1)).finished.timings
    assert timings.decode == 0.0


def test_usage_counts_prompt_and_completion() -> None:
    usage = run(formula_engine(PLAN), GenerationRequest((1,) * 70, max_new=3)).finished.usage
    assert usage.to_dict() == {
        "prompt_tokens": 70, "cached_tokens": 0, "computed_tokens": 70, "recomputed_tokens": 0, "completion_tokens": 3
    }  # fmt: skip


def test_deltas_carry_one_token_each_and_the_ending_comes_with_the_last_step() -> None:
    engine = formula_engine(PLAN)
    request_id = engine.submit(GenerationRequest((1,), max_new=2))
    first, last = engine.step(), engine.step()
    assert [type(event) for event in first + last] == [Delta, Delta, Finished]
    assert {event.request_id for event in first + last} == {request_id}
    assert not engine.has_work
    assert engine.step() == []


def test_closing_closes_the_model() -> None:
    engine = formula_engine(PLAN)
    with engine:
        run(engine, GenerationRequest((1,), max_new=1))
    assert engine._model.closed  # type: ignore[attr-defined]  # a FormulaModel says so
