"""What was reused of a prompt, in every place where it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.engine.plan import PrefixPlan
from server.harness import Live, live_server, plan_of, sse_events, wait_until

WORDS = " ".join(f"word{i}" for i in range(90))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    plan = plan_of(max_context=2048, prefill_chunk=64, max_concurrency=2, prefix=PrefixPlan())
    with live_server(tmp_path, plan=plan) as started:
        yield started


def messages(live: Live, text: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **fields}
    return live.client.post("/v1/messages", json=body)


def row_of(live: Live, request_id: str) -> dict[str, Any]:
    rows = [row for row in live.rows("request_done") if row["request"]["id"] == request_id]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("path", ["chat", "complete", "messages", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_hits_are_told_alike_by_usage_log_and_metrics(live: Live, path: str, stream: bool) -> None:
    """C132, and C128 by the way: the second answer is the first one, to the last logprob."""
    found = []
    for _ in range(2):
        before = live.metrics()["performance"]["totals"]
        if path == "messages":
            response = messages(live, WORDS, stream=stream)
        elif path == "responses":
            body = {"input": WORDS, "temperature": 0, "max_output_tokens": 8, "stream": stream, "store": False}
            response = live.client.post("/v1/responses", json=body)
        else:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            logprobs = {"logprobs": True, "top_logprobs": 3} if path == "chat" else {"logprobs": 3}
            response = getattr(live, path)(WORDS, stream=stream, **options, **logprobs)
        assert response.status_code == 200
        request_id = response.headers["x-request-id"]
        wait_until(lambda: any(row["request"]["id"] == request_id for row in live.rows("request_done")))  # noqa: B023
        result = row_of(live, request_id)["result"]
        usage_of = {"messages": messages_usage, "responses": responses_usage}.get(path, openai_usage)
        assert usage_of(response, stream) == (result["prompt_tokens"], result["cached_tokens"])
        after = live.metrics()["performance"]["totals"]
        assert after["cached_tokens"] - before["cached_tokens"] == result["cached_tokens"]
        assert after["engine"]["cached_tokens"] - before["engine"]["cached_tokens"] == result["cached_tokens"]
        assert result["computed_prefill_tokens"] + result["cached_tokens"] == result["prompt_tokens"]
        found.append((result["cached_tokens"], [] if path == "responses" else answer_of(response, stream)))
    (first, cold), (second, warm) = found
    assert first == 0
    assert second == (result["prompt_tokens"] - 1) // 64 * 64 > 0
    assert cold == warm


def openai_usage(response: Any, stream: bool) -> tuple[int, int]:
    usage = (sse_events(response.text)[-2] if stream else response.json())["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def responses_usage(response: Any, stream: bool) -> tuple[int, int]:
    if not stream:
        found = response.json()
    else:
        (found,) = [event["response"] for event in data_of(response) if event["type"] == "response.incomplete"]
    return found["usage"]["input_tokens"], found["usage"]["input_tokens_details"]["cached_tokens"]


def data_of(response: Any) -> list[Any]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def messages_usage(response: Any, stream: bool) -> tuple[int, int]:
    """The counts of the end; those of the beginning are the same."""
    if not stream:
        ends = [response.json()["usage"]]
    else:
        events = data_of(response)
        assert events[0]["type"] == "message_start"
        ends = [events[0]["message"]["usage"], events[-2]["usage"]]
    assert all(usage["cache_creation_input_tokens"] == 0 for usage in ends)
    ((uncached, cached),) = {(usage["input_tokens"], usage["cache_read_input_tokens"]) for usage in ends}
    return uncached + cached, cached


def answer_of(response: Any, stream: bool) -> list[Any]:
    """What was said, with its logprobs where there are any."""
    if not stream:
        body = response.json()
        return [body.get("content"), body.get("choices")]
    return [[event.get("delta"), event.get("choices")] for event in data_of(response)]


def test_choices_of_one_prompt_are_billed_the_first_one_and_worked_out_once(live: Live) -> None:
    body = live.complete(WORDS, n=2, seed=1, temperature=1).json()
    usage, timings = body["usage"], body["timings"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    full = (usage["prompt_tokens"] - 1) // 64 * 64
    assert timings["cache_n"] == full
    assert timings["prompt_n"] + timings["cache_n"] == 2 * usage["prompt_tokens"]


def test_kept_pages_are_told_apart_from_used_ones(live: Live) -> None:
    live.complete(WORDS)
    wait_until(lambda: live.metrics()["engine"]["places"]["taken"] == 0)
    pages = live.metrics()["engine"]["kv_pages"]
    assert pages["used"] == 0
    assert pages["kept"] > 2
    text = live.client.get("/metrics?format=prometheus").text
    assert f"ninfer_kv_kept_pages {float(pages['kept'])}" in text
    assert "ninfer_preemptions_total 0.0" in text
