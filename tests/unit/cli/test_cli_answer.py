"""One generation through a fake model: everything it produced, how it ended, and Ctrl-C between steps."""

from __future__ import annotations

import os
import signal

import pytest

from ninfer.cli.answer import generate
from ninfer.engine import Engine, GenerationRequest, StopRules
from ninfer.engine.testing import FaultyModel, ScriptedModel, make_plan
from ninfer.errors import BackendError, RequestError
from ninfer.metrics import FinishReason, RequestTimeline, now_ns

PLAN = make_plan(vocab_size=16, max_context=64, end_token_ids=(2,))


def answer(model, on_text=lambda text: None, **request):
    timeline = RequestTimeline(arrival_ns=now_ns())
    return generate(Engine(PLAN, model), GenerationRequest((1, 3), **request), timeline=timeline, on_text=on_text)


def test_ids_ending_and_numbers() -> None:
    found = answer(ScriptedModel(16, [5, 6, 7, 2]))
    assert found.ids == (5, 6, 7, 2)
    assert found.text is None
    data = found.to_dict()
    assert data["finish"] == "stop_token"
    assert data["usage"] == {
        "prompt_tokens": 2,
        "cached_tokens": 0,
        "computed_tokens": 2,
        "recomputed_tokens": 0,
        "completion_tokens": 4,
    }
    seconds = data["seconds"]
    assert data["rates"]["prefill_tok_per_s"] == 2 / seconds["prefill"]
    assert data["rates"]["decode_tok_per_s"] == 3 / seconds["decode"]
    assert data["rates"]["end_to_end_tok_per_s"] == 4 / seconds["total"]
    assert "stop_token" in found.summary()


def test_no_decode_rate_of_a_single_token() -> None:
    found = answer(ScriptedModel(16, [2]))
    assert found.rates()["decode_tok_per_s"] is None
    assert "decode 1 tokens in 0.000 s," in found.summary()


def test_interrupt_ends_as_cancelled_with_what_there_is() -> None:
    seen = []

    def interrupt_at_third(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    found = answer(ScriptedModel(16, [5]), interrupt_at_third)
    assert found.was_cancelled
    assert found.ending.reason is FinishReason.CANCELLED
    assert found.ids == (5, 5, 5)
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_does_not_wait() -> None:
    def interrupt_twice(text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        answer(ScriptedModel(16, [5]), interrupt_twice)


def test_failure_is_raised() -> None:
    model = FaultyModel(ScriptedModel(16, [5]), raise_at={1: BackendError("out of memory")})
    with pytest.raises(BackendError, match="out of memory"):
        answer(model)


def test_request_that_can_never_run_is_refused() -> None:
    with pytest.raises(RequestError, match="need a tokenizer"):
        answer(ScriptedModel(16, [5]), stop=StopRules(strings=("x",)))
