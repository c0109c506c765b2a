"""What breaks inside: each failure has its documented outcome, and is told."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer import errors
from ninfer.engine import EnginePlan
from ninfer.engine.step import ForwardModel
from ninfer.engine.testing import FaultyModel, FormulaModel
from ninfer.errors import BackendError, InvariantError, NInferError, OverloadedError, RequestError
from ninfer.server import openai_chat
from ninfer.server.faults import TABLE, fault_of, openai_error
from server.harness import Live, live_server, sse_events

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ninfer"


def faulty(**faults: Any) -> Callable[[EnginePlan], ForwardModel]:
    return lambda plan: FaultyModel(FormulaModel(plan), **faults)


def error_of(live: Live, *, stream: bool, num_tokens: int) -> dict[str, Any]:
    """The error of a request that fails after `num_tokens` tokens."""
    response = live.complete(stream=stream, max_tokens=20, ignore_eos=True, return_token_ids=True)
    if stream and num_tokens:
        assert response.status_code == 200
        *events, last = sse_events(response.text)
        assert sum(len(e["choices"][0].get("token_ids", [])) for e in events) == num_tokens
        assert all(e["choices"][0]["finish_reason"] is None for e in events)
    else:
        assert response.status_code == 500
        last = json.loads(response.content)
    error = last["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_logits_are_an_error_and_the_next_request_is_fine(
    tmp_path: Path, value: float, stream: bool, step: int
) -> None:
    """C141."""
    with live_server(tmp_path, faulty(replace_at={step: (0, value)})) as live:
        error = error_of(live, stream=stream, num_tokens=step)
        assert (error["code"], error["type"]) == ("generation_failed", "server_error")
        assert "must be finite" in error["message"]
        (row,) = live.rows("request_error")
        assert row["error"]["code"] == "generation_failed"
        assert row["result"]["completion_tokens"] == step
        live.alive()
        assert live.metrics()["performance"]["totals"]["requests"]["failed"] == 1
    assert live.error is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_without_memory_fails_its_requests_only(tmp_path: Path, stream: bool) -> None:
    """C119."""
    with live_server(tmp_path, faulty(raise_at={2: BackendError("out of memory")})) as live:
        error = error_of(live, stream=stream, num_tokens=2)
        assert (error["code"], error["message"]) == ("generation_failed", "out of memory")
        live.alive()
    assert live.error is None


@pytest.mark.parametrize(
    ("raised", "code"), [(InvariantError("our bug"), "internal_error"), (ValueError("anything"), "engine_failed")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_breaks_tells_everybody_and_ends_the_server(
    tmp_path: Path, stream: bool, raised: Exception, code: str
) -> None:
    with live_server(tmp_path, faulty(raise_at={2: raised})) as live:
        error = error_of(live, stream=stream, num_tokens=2)
        assert error["code"] == code
        live.thread.join(20)
        assert not live.thread.is_alive()
    assert live.error is raised
    (row,) = live.rows("request_error")
    assert row["error"]["code"] == code
    assert row["result"]["completion_tokens"] == 2


def test_a_choice_that_fails_takes_the_answer_with_it(tmp_path: Path) -> None:
    with live_server(tmp_path, faulty(replace_at={3: (1, math.nan)}, sleep_s=0.01)) as live:
        response = live.complete(["a", "b", "c"], max_tokens=20, ignore_eos=True)
        assert response.status_code == 500
        (row,) = live.rows("request_error")
        assert [choice["finish_reason"] for choice in row["choices"]] == ["cancelled", "error", "cancelled"]
        live.alive()


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with live_server(tmp_path, request_log_jsonl="/dev/full") as live:
        assert live.chat().status_code == 200
        live.alive()
    assert live.error is None
    assert capfd.readouterr().err.count("the request log is switched off") == 1


def test_a_bug_in_writing_an_answer_is_a_500_with_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("secret detail")

    with live_server(tmp_path) as live:
        monkeypatch.setattr(openai_chat, "read_sampling", broken)
        response = live.chat()
        assert response.status_code == 500
        assert "secret" not in response.text
        assert json.loads(response.content)["error"]["code"] == "internal_error"
        assert live.rows("request_rejected")[-1]["error"]["code"] == "internal_error"
        monkeypatch.undo()
        monkeypatch.setattr(openai_chat.ChatWriter, "whole", broken)
        assert live.chat().status_code == 500
        monkeypatch.undo()
        live.alive()
        assert [row["error"]["code"] for row in live.rows("request_error")] == ["internal_error"]
        assert len(live.rows("request_done")) == 1


def raised_kinds() -> set[tuple[str, str]]:
    """(class, kind) of every error that the package's source raises with a kind written out."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for keyword in node.keywords:
                    if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
                        found.add((node.func.id, keyword.value.value))
    return {(name, kind) for name, kind in found if name in ("RequestError", "OverloadedError")}


def test_every_kind_that_is_raised_has_a_row_and_every_row_is_raised() -> None:
    raised = raised_kinds() | {("RequestError", "bad_value")}
    rows = {(cls.__name__, kind) for cls, kind in TABLE if kind is not None}
    dynamic = {("RequestError", "not_found"), ("RequestError", "method_not_allowed")}
    assert raised - rows == set()
    assert rows - raised - dynamic == set()


@pytest.mark.parametrize(("cls", "kind"), TABLE, ids=lambda v: getattr(v, "__name__", str(v)))
def test_every_row_gives_a_status_and_a_body(cls: type[NInferError], kind: str | None) -> None:
    if cls is RequestError:
        error: NInferError = RequestError("words", kind=str(kind), param="field")
    elif cls is OverloadedError:
        error = OverloadedError("words", kind=str(kind), retry_after_s=1.2)
    else:
        error = cls("words")
    fault = fault_of(error)
    assert (fault.status, fault.type, fault.code) == TABLE[cls, kind]
    body = openai_error(fault)["error"]
    param = "field" if cls is RequestError else None
    assert body == {"message": "words", "type": fault.type, "param": param, "code": fault.code}
    assert fault.headers() == ({"retry-after": "2"} if cls is OverloadedError else {})


def test_every_error_class_has_a_fault() -> None:
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, NInferError):
            assert any(base in {row for row, _ in TABLE} for base in cls.__mro__)
    assert fault_of(KeyError("secret")).message == "internal error; the server's log has more"
