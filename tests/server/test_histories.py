"""Conversations of odd but legal forms, and answers of odd but legal lengths, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninfer.cache import StateLayout
from ninfer.engine import EnginePlan
from ninfer.engine.plan import StatePlan
from ninfer.engine.testing import RecurrentFormulaModel, ScriptedModel
from server.chatting import TEMPLATE, chat_server, pair, streamed, whole
from server.harness import end_token, live_server, plan_of, sse_events, tiny_tokenizer

USER = {"role": "user", "content": "hello"}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


RESULT = {"role": "tool", "tool_call_id": "c", "content": "ok"}


def test_the_last_turns_may_be_calls_and_results_only(tmp_path: Path) -> None:
    """C061: no user message anywhere; the same in all protocols that have conversations."""
    system = "be short"
    with chat_server(tmp_path, "</think>done", template=TEMPLATE) as live:
        chat = whole(live, messages=[{"role": "system", "content": system}, call("{}"), RESULT])
        assert chat["message"]["content"] == "done"
        used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "ok"}
        messages = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
        body = {"system": system, "messages": messages, "max_tokens": 100, "temperature": 0}
        message = live.client.post("/v1/messages", json=body).json()
        assert message["content"][-1] == {"type": "text", "text": "done"}
        assert message["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        items = [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
        ]
        response = live.client.post("/v1/responses", json={"instructions": system, "input": items, "temperature": 0})
        assert response.json()["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("arguments", ['{"path": "/a"}', "{}", "", "not json", "[1]", '"x"', "null"])
def test_arguments_of_earlier_calls_may_be_any_text(tmp_path: Path, arguments: str) -> None:
    """C066: those of an object are that object to the template; none is a fault of ours."""
    with chat_server(tmp_path, "</think>done", template=TEMPLATE) as live:
        response = live.chat(messages=[USER, call(arguments), RESULT])
        assert response.status_code == 200, response.text
        plain = [USER, call("{}"), RESULT]
        longer = response.json()["usage"]["prompt_tokens"] - whole(live, messages=plain)["usage"]["prompt_tokens"]
        # A character is a token here: the object's own text, with nothing escaped a second time.
        expected = {'{"path": "/a"}': len('{"path": "/a"}') - 2, "{}": 0, "": 0}
        assert longer == expected.get(arguments, longer)
        live.alive()


def test_every_end_token_ends_an_answer_and_shows_no_control_text(tmp_path: Path) -> None:
    """C068."""
    other = tiny_tokenizer().control_tokens["<|im_start|>"]
    plan = plan_of(max_context=512, end_token_ids=(end_token(), other))
    for token in (end_token(), other):
        folder = tmp_path / str(token)
        folder.mkdir()

        script = [*tiny_tokenizer().encode("hi"), token, *tiny_tokenizer().encode("user next turn")]

        def model(plan: EnginePlan, script: list[int] = script) -> ScriptedModel:
            return ScriptedModel(plan.vocab_size, script)

        with live_server(folder, model, plan=plan) as live:
            choice = pair(live, max_tokens=100)
            assert choice["message"]["content"] == "hi"
            assert choice["finish_reason"] == "stop"
            assert choice["usage"]["completion_tokens"] == 3


def test_a_recurrent_model_ends_cleanly_at_the_end_of_its_context(tmp_path: Path) -> None:
    """C033: its state cannot be shifted."""
    plan = plan_of(max_context=128, state=StatePlan(StateLayout("slots", 1)))
    with live_server(tmp_path, RecurrentFormulaModel, plan=plan) as live:
        body = live.complete("hello", max_tokens=1000, ignore_eos=True).json()
        assert body["usage"]["total_tokens"] == 128
        assert body["choices"][0]["finish_reason"] == "length"
        events = sse_events(live.complete("hello", max_tokens=1000, ignore_eos=True, stream=True).text)
        assert events[-1] == "[DONE]"
        assert "".join(e["choices"][0]["text"] for e in events[:-1]) == body["choices"][0]["text"]
        live.alive()


def test_a_very_long_answer_comes_to_its_end(tmp_path: Path) -> None:
    """C123."""
    plan = plan_of(max_context=8192)
    with live_server(tmp_path, plan=plan) as live:
        found = streamed(live, max_tokens=4000, ignore_eos=True)
        assert found["finish_reason"] == "length"
        assert found["usage"]["completion_tokens"] == 4000


def test_repetition_is_not_cut(tmp_path: Path) -> None:
    """C125: lines of one character, tables and deep indentation are legitimate answers."""
    text = "=" * 200 + "\n" + "| a | b |\n" * 20 + " " * 120 + "DONE"
    with chat_server(tmp_path, f"</think>{text}", template=TEMPLATE) as live:
        choice = pair(live, max_tokens=1500)
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == "stop"
