"""What requests reuse of each other: exactly counted, and never seen in what comes out."""

from __future__ import annotations

import math

import pytest
from harness import Outcome, assert_all_memory_is_free, collect, expected, formula_engine, formula_model, run

from ninfer.engine import Engine, EnginePlan, GenerationRequest
from ninfer.engine.plan import PrefixPlan, StatePlan
from ninfer.engine.testing import FaultyModel, make_plan
from ninfer.errors import BackendError, OverloadedError

VOCAB = 50


def make(*, state: StatePlan | None = None, interval: int = 128, **settings: int) -> EnginePlan:
    return make_plan(
        vocab_size=VOCAB, state=state, prefix=PrefixPlan(interval), **{"max_context": 1024, "num_pages": 64, **settings}
    )


PLAIN = make()
RECURRENT = make(state=StatePlan(max_snapshots=20))
BOTH = pytest.mark.parametrize("plan", [PLAIN, RECURRENT], ids=["pages", "recurrent"])


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((i * i + i // 7 + salt) % VOCAB for i in range(length))


def check(engine: Engine, ids: tuple[int, ...], max_new: int = 4) -> Outcome:
    """One request on an idle engine, with the ids that it must give."""
    request = GenerationRequest(ids, max_new=max_new)
    outcome = run(engine, request)
    assert outcome.ids == expected(request, engine.plan)[0]
    usage = outcome.finished.usage
    assert usage.cached + usage.computed == usage.prompt == len(ids)
    assert usage.recomputed == 0
    return outcome


def cached(engine: Engine, ids: tuple[int, ...], max_new: int = 4) -> int:
    return check(engine, ids, max_new).finished.usage.cached


@BOTH
def test_the_same_prompt_again_and_cut_and_longer(plan: EnginePlan) -> None:
    """C127: at least one token is always computed."""
    engine = formula_engine(plan)
    ids = prompt(320)
    assert [cached(engine, ids) for _ in range(4)] == [0, 256, 256, 256]
    first = {length: cached(engine, ids[:length]) for length in (319, 318, 304, 257, 256, 255, 65, 64)}
    # With recurrent state a prompt starts at the last snapshot, and leaves one at its last page border.
    pages = {length: (length - 1) // 64 * 64 for length in first}
    assert first == (pages if plan is PLAIN else {**pages, 256: 128, 65: 0})
    assert {length: cached(engine, ids[:length]) for length in first} == pages
    assert cached(engine, (*ids, *prompt(100, 3))) == 320
    assert cached(engine, (*ids, *prompt(100, 3))) == 384
    assert_all_memory_is_free(engine)


@BOTH
def test_the_reply_is_to_the_own_question_behind_a_shared_text(plan: EnginePlan) -> None:
    """C126. The first question tells where texts part; from the second on the whole shared text is reused."""
    engine = formula_engine(plan)
    system = prompt(250)
    counts = [cached(engine, (*system, *prompt(30, salt)), max_new=9) for salt in range(1, 21)]
    assert counts == [0, 192 if plan is PLAIN else 128, *[192] * 18]


@BOTH
def test_a_request_reuses_what_one_that_still_runs_has_computed(plan: EnginePlan) -> None:
    engine = formula_engine(plan)
    ids = prompt(300)
    first = engine.submit(GenerationRequest(ids, max_new=3))
    events = [*engine.step(), *engine.step(), *engine.step()]
    second = engine.submit(GenerationRequest(ids, max_new=3))
    outcomes = collect([*events, *engine.drain()])
    assert outcomes[first].ids == outcomes[second].ids == expected(GenerationRequest(ids, max_new=3), plan)[0]
    assert outcomes[first].finished.usage.cached == 0
    assert outcomes[second].finished.usage.cached == 256


@BOTH
def test_choices_of_one_prompt_compute_it_once(plan: EnginePlan) -> None:
    """Four at once: the first computes, the others wait for rows until they can reuse it."""
    engine = formula_engine(plan)
    ids = prompt(280)
    for _ in range(4):
        engine.submit(GenerationRequest(ids, max_new=2))
    outcomes = collect(engine.drain())
    assert [outcome.finished.usage.cached for outcome in outcomes.values()] == [0, 256, 256, 256]
    assert engine.counters.prefill == 280 + 3 * 24


@BOTH
def test_a_turn_reuses_the_turns_before(plan: EnginePlan) -> None:
    """C130: a growing conversation, and between its turns a request with another text."""
    engine = formula_engine(plan)
    history = prompt(330)
    previous = 0
    for turn in range(6):
        outcome = check(engine, history, max_new=70)
        assert outcome.finished.usage.cached >= 0.8 * previous
        previous = len(history)
        history = (*history, *outcome.ids, *prompt(25, turn))
        check(engine, prompt(100, 9 + turn))


@BOTH
def test_an_answer_is_reused_up_to_its_last_full_page(plan: EnginePlan) -> None:
    engine = formula_engine(plan)
    ids = prompt(100)
    answer = check(engine, ids, max_new=120).ids
    assert cached(engine, (*ids, *answer[:-1], 3, 4)) == 192


def test_snapshots_stay_in_their_budget_and_useful_ones_survive() -> None:
    """C134: answers that no later prompt has (dropped thinking) do not push out the conversation itself."""
    plan = make(state=StatePlan(max_snapshots=4), interval=512)
    engine = formula_engine(plan)
    history = prompt(200)
    for turn in range(12):
        check(engine, history, max_new=130)
        assert engine.num_kept_snapshots <= 4
        history = (*history, *prompt(40, turn))
        assert cached(engine, history, max_new=1) >= len(history) - 40 - 64


@BOTH
def test_a_pool_that_is_too_small_forgets_what_was_used_longest_ago(plan: EnginePlan) -> None:
    engine = formula_engine(make(state=plan.state, max_context=300, num_pages=12))
    for salt in (1, 2, 3):
        assert cached(engine, prompt(250, salt)) == 0
    assert cached(engine, prompt(250, 3)) == 192
    assert cached(engine, prompt(250, 2)) == 192
    assert cached(engine, prompt(250, 1)) <= 192
    assert engine.num_kept_pages <= 12


@BOTH
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_cancelled_request_leaves_whole_pages_only(plan: EnginePlan, steps: int) -> None:
    engine = formula_engine(plan)
    request_id = engine.submit(GenerationRequest(prompt(300), max_new=200))
    events = [event for _ in range(steps) for event in engine.step()]
    assert engine.cancel(request_id)
    usage = collect([*events, *engine.drain()])[request_id].finished.usage
    assert (usage.computed, usage.cached) == (min(300, 64 * steps), 0)
    assert_all_memory_is_free(engine)
    assert cached(engine, prompt(300)) <= 64 * steps


@BOTH
@pytest.mark.parametrize("where", ["in the prompt", "first token", "later"])
def test_a_failed_request_leaves_nothing_that_it_computed(plan: EnginePlan, where: str) -> None:
    """In the prompt the step fails, later the logits are NaN. What the request had reused stays."""
    errors: dict[int, BaseException] = {-1: BackendError("device lost")}
    values = {-1: (0, math.nan)}
    model = FaultyModel(formula_model(plan), raise_at=errors, replace_at=values)
    engine = Engine(plan, model)
    assert cached(engine, prompt(100)) == 0
    ids = (*prompt(100), *prompt(200, 1))
    if where == "in the prompt":
        errors[model.num_calls + 2] = errors[-1]
    else:
        values[model.num_calls + (3 if where == "first token" else 100)] = values[-1]
    usage = run(engine, GenerationRequest(ids, max_new=200)).failed.usage
    assert (usage.cached, usage.computed) == (64, 128 if where == "in the prompt" else 236)
    assert_all_memory_is_free(engine)
    assert engine.num_kept_pages == 1, "the page of the first request"
    assert cached(engine, ids) == 64


@BOTH
def test_a_request_that_was_too_late_leaves_what_it_computed(plan: EnginePlan) -> None:
    engine = formula_engine(plan)
    request_id = engine.submit(GenerationRequest(prompt(200), max_new=50))
    events = [event for _ in range(6) for event in engine.step()]
    assert engine.fail(request_id, OverloadedError("too late", kind="request_timeout"))
    assert collect([*events, *engine.drain()])[request_id].failed.usage.computed == 200
    assert cached(engine, prompt(200)) == 192


def test_without_a_prefix_plan_nothing_is_reused() -> None:
    engine = formula_engine(make_plan(vocab_size=VOCAB, max_context=512))
    assert [cached(engine, prompt(300)) for _ in range(3)] == [0, 0, 0]
    assert engine.num_kept_pages == engine.num_kept_snapshots == engine.counters.cached == 0


def test_without_snapshots_recurrent_state_is_not_reused() -> None:
    engine = formula_engine(make(state=StatePlan(max_snapshots=0)))
    assert [cached(engine, prompt(300)) for _ in range(2)] == [0, 0]
    assert engine.num_kept_pages == 0
