"""Places, deadlines, clients that go away, and the end: nobody waits for ever, nothing stays taken."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.harness import expected
from ninfer.decoding import SamplingParams
from ninfer.engine import EnginePlan, GenerationRequest
from ninfer.engine.testing import FormulaModel, ScriptedModel
from ninfer.server import exchange, run
from server.harness import GatedModel, Live, live_server, plan_of, sse_events, wait_until

LONG: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True}


@contextmanager
def gated(tmp_path: Path, **settings: Any) -> Iterator[tuple[Live, GatedModel, ThreadPoolExecutor]]:
    """A server whose steps wait for permission, with one lane; threads for its clients."""
    gates: list[GatedModel] = []

    def model(plan: EnginePlan) -> GatedModel:
        gates.append(GatedModel(FormulaModel(plan)))
        return gates[0]

    plan = settings.pop("plan", None) or plan_of(max_concurrency=1)
    with ThreadPoolExecutor(16) as clients, live_server(tmp_path, model, plan=plan, **settings) as live:
        try:
            yield live, gates[0], clients
        finally:
            gates[0].open()


def taken(live: Live) -> int:
    found = live.metrics()["engine"]["places"]["taken"]
    assert isinstance(found, int)
    return found


def post_slowly(live: Live, fields: dict[str, Any]) -> httpx.Response:
    """From a thread of its own: a client of its own."""
    with httpx.Client(base_url=live.url, timeout=30) as client:
        return client.post("/v1/completions", json={"prompt": "hello", "temperature": 0, "max_tokens": 4, **fields})


def test_one_more_than_there_are_places_is_told_when_to_come_back(tmp_path: Path) -> None:
    """C118: 429 with Retry-After and the queue; the others get their answers, in order."""
    with gated(tmp_path, max_pending_requests=2) as (live, gate, clients):
        waiting: list[Future[httpx.Response]] = []
        for number in range(3):
            waiting.append(clients.submit(post_slowly, live, {"seed": number}))
            wait_until(lambda n=number: taken(live) == n + 1)
        for stream in (False, True):
            refused = post_slowly(live, {"stream": stream})
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == ("server_overloaded", "rate_limit_error")
            assert "2 requests are waiting" in error["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.headers["x-ninfer-queue-position"] == "2"
        assert live.client.get("/health").json() == {"status": "ok"}
        gate.open()
        answers = [future.result(timeout=20) for future in waiting]
        assert [a.status_code for a in answers] == [200] * 3
        wait_until(lambda: taken(live) == 0)
        assert post_slowly(live, {}).status_code == 200
        totals = live.metrics()["performance"]["totals"]["requests"]
        assert totals == {"completed": 4, "cancelled": 0, "failed": 0, "rejected": 2}


def test_choices_and_prompts_take_a_place_each(tmp_path: Path) -> None:
    with live_server(tmp_path, max_pending_requests=2, plan=plan_of(max_concurrency=2)) as live:
        assert live.complete(["a", "b"], n=2).status_code == 200
        too_many = live.complete(["a", "b", "c"], n=2)
        assert too_many.status_code == 400
        assert too_many.json()["error"]["param"] == "n"
        live.alive()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_too_long_is_told_so(tmp_path: Path, stream: bool) -> None:
    """C103: never a clean end without an answer. A stream whose headers are out gets an error event."""
    with gated(tmp_path, pending_timeout_ms=900) as (live, gate, clients):
        first = clients.submit(post_slowly, live, LONG)
        wait_until(lambda: taken(live) == 1)
        second = clients.submit(post_slowly, live, {"stream": stream})
        wait_until(lambda: taken(live) == 2)
        pause(1.0)
        gate.allow(2)
        response = second.result(timeout=20)
        if stream:
            assert response.status_code == 200
            (error,) = [event["error"] for event in sse_events(response.text)]
            assert "[DONE]" not in response.text
        else:
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            error = response.json()["error"]
        assert error["code"] == "request_queue_timeout"
        gate.open()
        assert first.result(timeout=20).status_code == 200
        (row,) = live.rows("request_error")
        assert row["error"]["code"] == "request_queue_timeout"
        assert row["result"]["computed_prefill_tokens"] == 0
        live.alive()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends_with_an_error(tmp_path: Path, stream: bool) -> None:
    with gated(tmp_path, request_timeout_ms=700) as (live, gate, clients):
        gate.allow(3)
        future = clients.submit(post_slowly, live, {**LONG, "stream": stream})
        wait_until(lambda: live.engine.counters.completion == 3)
        pause(0.8)
        gate.allow(2)
        response = future.result(timeout=20)
        if stream:
            *texts, last = sse_events(response.text)
            assert len(texts) >= 3
            error = last["error"]
        else:
            assert response.status_code == 504
            error = response.json()["error"]
        assert error["code"] == "request_timeout"
        (row,) = live.rows("request_error")
        assert 3 <= row["result"]["completion_tokens"] <= 5
        gate.open()
        live.alive()


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "ignore_eos": True},
    "/v1/completions": {"prompt": "hello", **LONG},
    "/v1/responses": {"input": "hello", "max_output_tokens": 60},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60},
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_takes_too_long_ends_with_its_protocols_error(tmp_path: Path, path: str) -> None:
    """C103: on every endpoint, and nothing that looks like a clean end behind it."""
    with gated(tmp_path, request_timeout_ms=700) as (live, gate, clients):
        gate.allow(2)
        body = {**STREAMS[path], "temperature": 0, "stream": True}
        future = clients.submit(httpx.post, f"{live.url}{path}", json=body, timeout=30)
        wait_until(lambda: live.engine.counters.completion == 2)
        pause(0.8)
        gate.allow(2)
        response = future.result(timeout=20)
        assert response.status_code == 200
        events = [json.loads(data) for data in re.findall(r"^data: (\{.*)$", response.text, re.MULTILINE)]
        told = [event.get("error") or event for event in events if "error" in event or event.get("type") == "error"]
        assert told[0]["code"] == "request_timeout"
        for word in ("[DONE]", "message_stop", "response.completed", "response.incomplete"):
            assert word not in response.text
        gate.open()
        live.alive()


def pause(seconds: float) -> None:
    """Let a deadline pass; nothing is asserted about how long it took."""
    threading.Event().wait(seconds)


def raw_request(live: Live, **fields: Any) -> socket.socket:
    body = json.dumps({"prompt": "hello", "temperature": 0, **LONG, **fields}).encode()
    raw = live.socket()
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return raw


def leave(raw: socket.socket, how: str) -> None:
    match how:
        case "close":
            raw.close()
        case "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.close()
        case "half":
            raw.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path, phase: str, stream: bool, how: str) -> None:
    """C114: in every phase; the next request is served at once, the account says what was made."""
    plan = plan_of(max_concurrency=1, prefill_chunk=4, max_context=512)
    with gated(tmp_path, plan=plan) as (live, gate, clients):
        first = None
        if phase == "queue":
            first = clients.submit(post_slowly, live, LONG)
            wait_until(lambda: live.metrics()["engine"]["running"] == 1)
        raw = raw_request(live, stream=stream, max_tokens=200, prompt="hello, this is a prompt. " * 9)
        wait_until(lambda: taken(live) == (2 if first else 1))
        if phase == "prefill":
            gate.allow(2)
            wait_until(lambda: live.engine.counters.prefill >= 8)
        if phase == "decode":
            gate.allow(65)
            wait_until(lambda: live.engine.counters.completion >= 3)
        leave(raw, how)
        for _ in range(40):
            pause(0.05)
            if live.rows("request_done"):
                break
            gate.allow(1)
        gone = live.rows("request_done")[0]
        assert gone["outcome"] == "cancelled"
        assert gone["result"]["finish_reason"] == "cancelled"
        assert (gone["result"]["completion_tokens"] > 0) == (phase == "decode")
        if phase != "decode":
            assert gone["result"]["computed_prefill_tokens"] < gone["result"]["prompt_tokens"]
        gate.open()
        if first is not None:
            assert first.result(timeout=20).status_code == 200
        live.alive()
        raw.close()


def test_thirty_leavers_change_no_count_of_pages(tmp_path: Path) -> None:
    with live_server(tmp_path, plan=plan_of(max_concurrency=2)) as live:
        for number in range(30):
            raw = raw_request(live, stream=bool(number % 2), max_tokens=200)
            if number % 3:
                raw.recv(100)
            leave(raw, ("close", "reset")[number % 2])
        live.alive()
        totals = live.metrics()["performance"]["totals"]["requests"]
        starts = {row["request"]["id"] for row in live.rows("request_start")}
        ends = [row["request"]["id"] for row in live.rows("request_done")]
        assert sorted(ends) == sorted(starts)
        assert sum(totals.values()) == 31


def ids_of(live: Live, number: int) -> tuple[int, list[int]]:
    fields = {"prompt": [number % 200 + 6, 7, 8], "max_tokens": 1 + number % 40, "return_token_ids": True}
    response = post_slowly(live, {**fields, "temperature": 1, "seed": number, "stream": bool(number % 2)})
    assert response.status_code == 200, response.text
    if number % 2:
        choices = [e["choices"][0] for e in sse_events(response.text) if e != "[DONE]" and e["choices"]]
        return number, [token for choice in choices for token in choice.get("token_ids", [])]
    return number, response.json()["choices"][0]["token_ids"]


def test_many_at_once_get_what_each_gets_alone(tmp_path: Path) -> None:
    """C038, C121, and the engine law through HTTP: streams and bodies, mixed lengths, random draws."""
    plan = plan_of(max_concurrency=4, prefill_chunk=16)
    with (
        live_server(tmp_path, plan=plan, max_pending_requests=200) as live,
        ThreadPoolExecutor(16) as clients,
    ):
        for number, ids in clients.map(lambda n: ids_of(live, n), range(120)):
            request = GenerationRequest(
                (number % 200 + 6, 7, 8), 1 + number % 40, SamplingParams(temperature=1, seed=number)
            )
            assert ids == expected(request, plan)[0]
        live.alive()
        assert len(live.rows("request_done")) == len(live.rows("request_start")) == 121


def test_the_key_is_asked_for(tmp_path: Path) -> None:
    with live_server(tmp_path, api_key="s3cret") as live:
        assert live.client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": "s3cret"}, {"x-api-key": "s3cre"}):
            for path in ("/v1/models", "/metrics", "/plan", "/nope"):
                refused = live.client.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.json()["error"]["code"] == "invalid_api_key"
        for headers in (
            {"authorization": "Bearer s3cret"},
            {"x-api-key": "s3cret"},
            {"authorization": "bearer s3cret"},
        ):
            assert live.client.get("/v1/models", headers=headers).status_code == 200
        assert b"s3cret" not in live.log_path.read_bytes()


def test_cors_is_off_unless_asked_for(tmp_path: Path) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    with live_server(tmp_path) as live:
        assert "access-control-allow-origin" not in live.client.get("/health", headers=asked).headers
        assert live.client.options("/v1/models", headers=asked).status_code == 405
    (tmp_path / "cors").mkdir()
    with live_server(tmp_path / "cors", cors=True, api_key="k") as live:
        preflight = live.client.options("/v1/models", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "*"


def test_the_end_waits_for_answers_and_refuses_new_ones(tmp_path: Path) -> None:
    with gated(tmp_path) as (live, gate, clients):
        future = clients.submit(post_slowly, live, {"stream": True, "max_tokens": 5, "ignore_eos": True})
        wait_until(lambda: taken(live) == 1)
        live.running.end()
        wait_until(lambda: live.client.get("/health").status_code == 503)
        assert live.client.get("/health").json() == {"status": "draining"}
        refused = live.complete()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "service_unavailable"
        gate.open()
        assert sse_events(future.result(timeout=20).text)[-1] == "[DONE]"
        live.thread.join(20)
        assert not live.thread.is_alive()
    assert live.error is None


def test_the_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    with gated(tmp_path, drain_timeout_ms=100) as (live, gate, clients):
        gate.allow(2)
        future = clients.submit(post_slowly, live, {**LONG, "stream": True})
        wait_until(lambda: live.engine.counters.completion == 2)
        live.running.end()
        pause(0.2)
        gate.allow(2)
        assert sse_events(future.result(timeout=20).text)[-1]["error"]["code"] == "service_unavailable"
        live.thread.join(20)
        assert not live.thread.is_alive()
    assert live.error is None


def test_a_silent_stream_has_headers_and_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C106: headers although no token is there yet, then comments, which clients skip."""
    monkeypatch.setattr(exchange, "HEADERS_AFTER_S", 0.05)
    monkeypatch.setattr(exchange, "HEARTBEAT_S", 0.05)
    with gated(tmp_path) as (live, gate, _), live.socket() as raw:
        body = b'{"prompt": "a", "max_tokens": 1, "stream": true}'
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        seen = b""
        while seen.count(b": still working") < 3:
            seen += raw.recv(4096)
        assert seen.startswith(b"HTTP/1.1 200")
        assert b"data: " not in seen
        gate.open()
        while b"[DONE]" not in seen:
            seen += raw.recv(4096)


def unread_stream(live: Live) -> socket.socket:
    """A client with a small window that asks for much and reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = live.url.removeprefix("http://").rsplit(":", 1)
    raw.connect((host, int(port)))
    body = b'{"prompt": [7], "max_tokens": 30000, "stream": true, "ignore_eos": true}'
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return raw


def talkative(plan: EnginePlan) -> ScriptedModel:
    return ScriptedModel(plan.vocab_size, [50])


def test_a_client_that_stops_reading_does_not_keep_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.TCP_OPTIONS, "TCP_USER_TIMEOUT", 300)
    with live_server(tmp_path, talkative, plan=plan_of(max_context=32768)) as live:
        raw = unread_stream(live)
        wait_until(lambda: len(live.rows("request_done")) == 1)
        wait_until(lambda: taken(live) == 0)
        live.alive()
        raw.close()


def test_a_client_that_does_not_read_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LAST_BYTES_S", 0.3)
    with live_server(tmp_path, talkative, plan=plan_of(max_context=32768), drain_timeout_ms=1000) as live:
        raw = unread_stream(live)
        wait_until(lambda: live.engine.counters.completion >= 30000)
        live.running.end()
        live.thread.join(20)
        assert not live.thread.is_alive()
        raw.close()
    assert live.error is None
    starts, ends = live.rows("request_start"), [*live.rows("request_done"), *live.rows("request_error")]
    assert len(starts) == len(ends) == 1
