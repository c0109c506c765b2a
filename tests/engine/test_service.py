"""The engine's thread: what goes in comes back, once, whatever happens between; and the same by hand."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.harness import Outcome, expected, formula_engine
from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, Engine, EnginePlan, GenerationRequest
from ninfer.engine.service import EngineService
from ninfer.engine.testing import FaultyModel, FormulaModel, make_plan
from ninfer.errors import BackendError, EngineFailedError, InvariantError, OverloadedError, RequestError
from ninfer.metrics import FinishReason, RequestTimeline, now_ns

PLAN = make_plan(vocab_size=50, max_context=128, max_concurrency=2)


def request(first: int = 1, count: int = 6, length: int = 3) -> GenerationRequest:
    return GenerationRequest(tuple(i % PLAN.vocab_size for i in range(first, first + length)), max_new=count)


class Front:
    """A caller's side by hand: outcomes of what it submitted, in order."""

    def __init__(self, service: EngineService) -> None:
        self.service = service
        self.outcomes: list[Outcome] = []
        self.tickets: list[Any] = []

    def submit(self, wanted: GenerationRequest, **deadlines: int | None) -> Outcome:
        outcome = Outcome()
        self.outcomes.append(outcome)
        timeline = RequestTimeline(arrival_ns=now_ns())
        self.tickets.append(self.service.submit(wanted, outcome.add, timeline=timeline, **deadlines))
        return outcome

    def run(self) -> None:
        for _ in range(1000):
            self.service.step()
            if all(outcome.ending is not None for outcome in self.outcomes):
                return
        raise AssertionError("a request has no ending")


def by_hand(model: Callable[[EnginePlan], Any] = FormulaModel, max_pending: int = 4) -> Front:
    return Front(EngineService(Engine(PLAN, model(PLAN)), max_pending=max_pending))


def test_steps_by_hand_give_what_the_rules_say() -> None:
    front = by_hand()
    wanted = [request(1), request(2, 9), request(3, 2, length=70), request(4)]
    for one in wanted:
        front.submit(one)
    front.run()
    for one, outcome in zip(wanted, front.outcomes, strict=True):
        assert (outcome.ids, outcome.finished.reason) == expected(one, PLAN)


def test_places_are_counted_from_before_preparation() -> None:
    service = by_hand(max_pending=1).service
    assert service.capacity == 3
    with service.reserved(2), service.reserved(1):
        with pytest.raises(OverloadedError) as caught, service.reserved(1):
            raise AssertionError
        assert (caught.value.kind, caught.value.position) == ("queue_full", 1)
        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s >= 1
    with service.reserved(3):
        assert service.num_open == 3
    with pytest.raises(RequestError, match="asks for 4"), service.reserved(4):
        raise AssertionError
    assert service.num_open == 0


def test_a_waiting_request_fails_at_its_deadline_and_a_running_one_does_not() -> None:
    front = by_hand()
    past = now_ns()
    running = [front.submit(request(1, 20), admission_deadline_ns=None) for _ in range(2)]
    front.service.step()
    late = front.submit(request(3), admission_deadline_ns=past)
    admitted = front.tickets[0]
    admitted.admission_deadline_ns = past
    front.service.step()
    front.service.step()
    assert isinstance(late.failed.error, OverloadedError)
    assert late.failed.error.kind == "queue_timeout"
    assert late.failed.usage.computed == 0
    front.run()
    assert [o.finished.reason for o in running] == [FinishReason.OUTPUT_LIMIT] * 2


def test_a_running_request_fails_at_its_end_deadline() -> None:
    front = by_hand()
    outcome = front.submit(request(1, 20), end_deadline_ns=now_ns() + 10**15)
    for _ in range(3):
        front.service.step()
    front.tickets[0].end_deadline_ns = now_ns()
    front.service._next_deadline_ns = 0
    front.run()
    assert isinstance(outcome.failed.error, OverloadedError)
    assert outcome.failed.error.kind == "request_timeout"
    assert outcome.failed.usage.completion == len(outcome.ids) > 0


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_cancel_in_every_phase(steps: int) -> None:
    front = by_hand()
    others = [front.submit(request(1, 30)), front.submit(request(2, 30))]
    outcome = front.submit(request(3, 30))
    for _ in range(steps):
        front.service.step()
    front.service.cancel(front.tickets[2 if steps % 2 else 0])
    front.service.cancel(front.tickets[2 if steps % 2 else 0])
    front.run()
    cancelled = outcome if steps % 2 else others[0]
    assert cancelled.finished.reason is FinishReason.CANCELLED
    assert front.service.engine.num_free_pages == PLAN.num_pages


def test_a_failed_step_fails_its_requests_only() -> None:
    front = by_hand(lambda plan: FaultyModel(FormulaModel(plan), raise_at={1: BackendError("out of memory")}))
    failing = [front.submit(request(1)), front.submit(request(2))]
    waiting = front.submit(request(3))
    front.run()
    assert all(isinstance(o.failed.error, BackendError) for o in failing)
    assert waiting.ids == expected(request(3), PLAN)[0]


class Loop:
    """An event loop of a few lines: functions posted from the engine's thread run here."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, function: Callable[[], None]) -> None:
        self._posted.put(function)

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._posted.get(timeout=20)()


@pytest.mark.parametrize("error", [InvariantError("our bug"), ValueError("anything"), KeyboardInterrupt()])
def test_an_exception_fails_every_open_request_and_ends_the_service(error: BaseException) -> None:
    loop = Loop()
    engine = Engine(PLAN, FaultyModel(FormulaModel(PLAN), raise_at={2: error}))
    failures: list[BaseException] = []
    service = EngineService(engine, max_pending=4, post=loop.post, on_failure=failures.append)
    front = Front(service)
    for first in range(1, 5):
        front.submit(request(first, 20))
    service.start()
    loop.run_until(lambda: bool(failures))
    assert failures == [error]
    for outcome in front.outcomes:
        assert isinstance(outcome.failed.error, InvariantError | EngineFailedError)
        assert outcome.failed.usage.completion == len(outcome.ids)
    late = front.submit(request(1))
    loop.run_until(lambda: late.ending is not None)
    assert late.failed.usage.computed == 0
    with pytest.raises(OverloadedError) as caught, service.reserved(1):
        raise AssertionError
    assert caught.value.kind == "unavailable"
    service.stop()


def test_many_callers_get_what_each_would_get_alone() -> None:
    """Requests come while others run, some are cancelled: no answer is lost, doubled or changed."""
    loop = Loop()
    service = EngineService(formula_engine(PLAN), max_pending=100, post=loop.post)
    service.start()
    front = Front(service)
    wanted = [
        GenerationRequest(tuple(range(i % 40, i % 40 + 1 + i % 7)), 1 + i % 9, SamplingParams(temperature=1, seed=i))
        for i in range(80)
    ]
    for index, one in enumerate(wanted):
        front.submit(one)
        if index % 5 == 4:
            service.cancel(front.tickets[index - 2])
    loop.run_until(lambda: all(o.ending is not None for o in front.outcomes))
    for one, outcome in zip(wanted, front.outcomes, strict=True):
        ids, reason = expected(one, PLAN)
        if outcome.finished.reason is FinishReason.CANCELLED:
            assert outcome.ids == ids[: len(outcome.ids)]
        else:
            assert (outcome.ids, outcome.finished.reason) == (ids, reason)
    service.stop()
    assert service.engine.num_free_pages == PLAN.num_pages


def test_events_come_back_in_one_call_per_step() -> None:
    calls: list[Callable[[], None]] = []
    service = EngineService(formula_engine(PLAN), max_pending=4, post=calls.append)
    front = Front(service)
    for first in (1, 2):
        front.submit(request(first))
    for _ in range(3):
        service.step()
    assert len(calls) == 3
    for call in calls:
        call()
    assert [len(o.ids) for o in front.outcomes] == [3, 3]


def test_an_idle_service_waits_without_turning() -> None:
    class CountingEngine(Engine):
        num_steps = 0

        def step(self) -> list[Any]:
            self.num_steps += 1
            return super().step()

    loop = Loop()
    engine = CountingEngine(PLAN, FormulaModel(PLAN))
    service = EngineService(engine, max_pending=4, post=loop.post)
    service.start()
    front = Front(service)
    outcome = front.submit(request(1, 4))
    loop.run_until(lambda: outcome.ending is not None)
    settled = threading.Event()
    settled.wait(0.05)
    assert 4 <= engine.num_steps <= 6
    service.stop()


def test_drain_refuses_new_ones_and_tells_when_the_open_ones_have_ended() -> None:
    front = by_hand()
    service = front.service
    told: list[bool] = []
    with service.reserved(1):
        outcome = front.submit(request(1))
        service.drain(lambda: told.append(True))
        with pytest.raises(OverloadedError) as caught, service.reserved(1):
            raise AssertionError
        assert caught.value.kind == "unavailable"
        front.run()
        assert outcome.finished.reason is FinishReason.OUTPUT_LIMIT
        assert told == []
    assert told == [True]


def test_fail_all_ends_what_waits_and_what_runs() -> None:
    front = by_hand()
    for first in range(1, 5):
        front.submit(request(first, 30))
    front.service.step()
    error = OverloadedError("going away", kind="unavailable")
    front.service.fail_all(error)
    front.run()
    assert [o.failed.error for o in front.outcomes] == [error] * 4
    assert front.service.engine.num_free_pages == PLAN.num_pages


def test_counters_add_up_to_the_usages() -> None:
    front = by_hand()
    for first in range(1, 6):
        front.submit(request(first, first, length=10 * first))
    front.service.step()
    front.service.cancel(front.tickets[1])
    front.run()
    counters = front.service.engine.counters
    usages = [o.finished.usage for o in front.outcomes]
    assert counters.prefill == sum(u.computed for u in usages)
    assert counters.completion == sum(u.completion for u in usages)
    assert counters.first == sum(u.completion > 0 for u in usages)
    deltas = [d for o in front.outcomes for d in o.deltas]
    assert counters.completion == sum(len(d.ids) for d in deltas if isinstance(d, Delta))
