"""Chat: a stream and a body of the same request say the same, in the shape the protocol has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.harness import MODEL_ID, Live, end_token, live_server, plan_of, scripted, sse_events, tiny_tokenizer

ENDPOINTS = ("chat", "complete")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tmp_path_factory.mktemp("pairs")) as server:
        yield server
    assert server.error is None


def body_text(endpoint: str, choice: dict[str, Any]) -> str:
    text = choice["message"]["content"] if endpoint == "chat" else choice["text"]
    assert isinstance(text, str)
    return text


def joined(endpoint: str, response: httpx.Response, *, with_usage: bool) -> dict[int, dict[str, Any]]:
    """Checks the grammar of a stream and puts its choices together."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    for line in response.content.split(b"\n"):
        line.decode("utf-8", errors="strict")
    events = sse_events(response.text)
    assert events.pop() == "[DONE]"
    heads = {(e["id"], e["created"], e["model"], e["object"], e["system_fingerprint"]) for e in events}
    assert len(heads) == 1
    if with_usage:
        last = events.pop()
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert [("timings" in e) for e in events] == [False] * (len(events) - 1) + [not with_usage]
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        assert event.get("usage") is None
        assert ("usage" in event) == with_usage
        (choice,) = event["choices"]
        found = choices.setdefault(choice["index"], {"text": "", "finish": None, "logprobs": [], "ids": [], "parts": 0})
        assert found["finish"] is None, "something after the finish"
        if endpoint == "chat":
            delta = choice["delta"]
            assert ("role" in delta) == (found["parts"] == 0)
            found["text"] += delta.get("content", "")
        else:
            found["text"] += choice["text"]
        found["parts"] += 1
        found["finish"] = choice["finish_reason"]
        found["ours"] = choice.get("ninfer_finish_reason")
        found["ids"] += choice.get("token_ids", [])
        if choice["logprobs"] is not None:
            found["logprobs"].append(choice["logprobs"])
    assert all(found["finish"] is not None for found in choices.values())
    if with_usage:
        choices[-1] = last
    return choices


REQUESTS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1},
    {"max_tokens": 40, "n": 3, "temperature": 1.3, "seed": 11},
    {"max_tokens": 40, "temperature": 2, "seed": 5, "top_k": 40},
    {"max_tokens": 30, "temperature": 1, "seed": 6, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.2},
    {"max_tokens": 30, "frequency_penalty": 2, "presence_penalty": -1},
    {"max_tokens": 60, "stop": ["a", "e", "\u0120"]},
    {"max_tokens": 60, "temperature": 2, "seed": 9, "stop": "zz"},
    {"max_tokens": 500, "ignore_eos": True},
    {"max_tokens": 40, "stop_token_ids": [30, 31, 32, 33, 34, 35, 36]},
    {"max_tokens": 12, "return_token_ids": True},
]


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize("fields", REQUESTS, ids=lambda f: ",".join(f) or "plain")
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream_is_the_body_in_parts(live: Live, endpoint: str, fields: dict[str, Any], with_usage: bool) -> None:
    """C101, C102: the grammar is in `joined`."""
    send = getattr(live, endpoint)
    whole = send("Say: hello", **fields)
    assert whole.status_code == 200, whole.text
    body = whole.json()
    stream = send("Say: hello", stream=True, stream_options={"include_usage": with_usage}, **fields)
    parts = joined(endpoint, stream, with_usage=with_usage)
    if with_usage:
        last = parts.pop(-1)
        assert last["usage"] == body["usage"]
    assert sorted(parts) == [c["index"] for c in body["choices"]] == list(range(fields.get("n", 1)))
    assert body["model"] == MODEL_ID
    for choice in body["choices"]:
        part = parts[choice["index"]]
        assert part["text"] == body_text(endpoint, choice)
        assert part["finish"] == choice["finish_reason"] in ("stop", "length")
        assert part["ours"] == choice["ninfer_finish_reason"]
        assert part["ids"] == choice.get("token_ids", [])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 17])
def test_budgets_are_exact(live: Live, endpoint: str, limit: int) -> None:
    """C024: tiny budgets give that many tokens, and a prefix of the longer answer."""
    send = getattr(live, endpoint)
    long = send(max_tokens=40, ignore_eos=True).json()
    short = send(max_tokens=limit, ignore_eos=True).json()
    assert short["usage"]["completion_tokens"] == limit
    assert short["choices"][0]["finish_reason"] == "length"
    text = body_text(endpoint, short["choices"][0]).rstrip("\ufffd")
    assert body_text(endpoint, long["choices"][0]).startswith(text)


def test_the_newer_limit_counts(live: Live) -> None:
    """C025."""
    for fields in ({"max_completion_tokens": 5}, {"max_tokens": 9, "max_completion_tokens": 5}):
        answer = live.chat(ignore_eos=True, **fields).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_limit_beyond_the_context_ends_with_the_context(live: Live, endpoint: str) -> None:
    """C029, C032: one rule, no overflow."""
    for limit in (100_000_000, 2**63 - 1):
        answer = getattr(live, endpoint)("a" * 100, max_tokens=limit, ignore_eos=True).json()
        assert answer["usage"]["total_tokens"] == live.engine.plan.max_context
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["ninfer_finish_reason"] == "context_capacity"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("factor", [1, 10])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_prompt_beyond_the_context_is_refused_before_any_event(
    live: Live, endpoint: str, factor: int, stream: bool
) -> None:
    """C027: a status, a code, and both numbers."""
    context = live.engine.plan.max_context
    response = getattr(live, endpoint)("q" * (context * factor + 10), stream=stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(context) in error["message"]
    row = live.rows("request_rejected")[-1]
    assert row["request"]["id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_seeds_key_the_answer(live: Live, endpoint: str) -> None:
    """C035, C037, C041."""

    def text(**fields: Any) -> list[str]:
        answer = getattr(live, endpoint)(temperature=1.2, max_tokens=12, **fields).json()
        return [body_text(endpoint, choice) for choice in answer["choices"]]

    assert text(seed=7) == text(seed=7)
    assert len({text(seed=s)[0] for s in range(1, 6)}) > 1
    assert len({text()[0] for _ in range(6)}) > 1
    assert text(seed=7, n=3) == [text(seed=s)[0] for s in (7, 8, 9)]
    assert text(seed=-1) == text(seed=2**64 - 1)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_greedy_has_several_spellings(live: Live, endpoint: str) -> None:
    """C039, C040."""
    spellings = (
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 1, "top_p": 0},
        {"temperature": 1, "top_k": 1},
    )
    texts = {body_text(endpoint, getattr(live, endpoint)(**fields).json()["choices"][0]) for fields in spellings}
    assert len(texts) == 1


def test_logprobs_of_chat(live: Live) -> None:
    """C043, C044: the chosen token's own entry, falling, below zero, bytes that join to the text."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 5, "max_tokens": 40}
    body = live.chat(**fields).json()
    choice = body["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    for entry in entries:
        top = entry["top_logprobs"]
        assert len(top) == 5
        assert entry["logprob"] == top[0]["logprob"] == max(t["logprob"] for t in top) <= 0
        assert sum(2.718281828459045 ** t["logprob"] for t in top) <= 1.001
    data = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert data.decode("utf-8", errors="replace") == choice["message"]["content"]
    parts = joined("chat", live.chat(stream=True, **fields), with_usage=False)
    assert [e for part in parts[0]["logprobs"] for e in part["content"]] == entries


def test_logprobs_of_completions(live: Live) -> None:
    """C043, C046."""
    fields: dict[str, Any] = {"logprobs": 3, "max_tokens": 40}
    body = live.complete(**fields).json()
    found = body["choices"][0]["logprobs"]
    count = body["usage"]["completion_tokens"]
    assert [len(found[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [count] * 4
    assert found["text_offset"] == sorted(found["text_offset"])
    for logprob, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert logprob == max(top.values()) <= 0
    parts = joined("complete", live.complete(stream=True, **fields), with_usage=False)[0]["logprobs"]
    for key in found:
        assert [item for part in parts for item in part[key]] == found[key]


def test_prompts_of_completions(live: Live) -> None:
    """C046, C047: lists keep their order; ids are as good as their text."""
    ids = [tiny_tokenizer().encode_prompt(text) for text in "abc"]
    by_text = live.complete(["a", "b", "c"], n=2, temperature=1, seed=3, return_token_ids=True).json()
    by_ids = live.complete(ids, n=2, temperature=1, seed=3, return_token_ids=True).json()
    assert [c["index"] for c in by_text["choices"]] == list(range(6))
    assert by_text["choices"] == by_ids["choices"]
    assert [c["prompt_token_ids"] for c in by_text["choices"]] == [i for i in ids for _ in range(2)]
    assert by_text["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert by_text["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in by_text["choices"])
    for index, prompt in enumerate("abc"):
        alone = live.complete(prompt, temperature=1, seed=3, return_token_ids=True).json()
        assert alone["choices"][0]["token_ids"] == by_text["choices"][2 * index]["token_ids"]


def test_echo(live: Live) -> None:
    plain = live.complete("hello").json()["choices"][0]["text"]
    assert live.complete("hello", echo=True).json()["choices"][0]["text"] == "hello" + plain
    parts = joined("complete", live.complete("hello", echo=True, stream=True), with_usage=False)
    assert parts[0]["text"] == "hello" + plain
    assert live.complete("hello", echo=True, logprobs=1).status_code == 400


STOP_CASES = [
    (["orange yellow"], "red "),
    (["ge ye"], "red oran"),
    (["r"], ""),
    (["red orange yellow green blue"], "red orange yellow green"),
    (["ZZZZZZZZZZ"], "red orange yellow green"),
    (["yellow", "orange"], "red "),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_stop_strings_cut_right_before_their_first_match(tmp_path: Path, endpoint: str) -> None:
    """C012, C013, C020, C021, C023: however the tokens lie, in stream and body."""
    plan = plan_of()
    with live_server(tmp_path, lambda p: scripted("red orange yellow green", plan=p), plan=plan) as live:
        for stop, expected in STOP_CASES:
            send = getattr(live, endpoint)
            body = send(stop=stop, max_tokens=60).json()
            assert body_text(endpoint, body["choices"][0]) == expected
            assert body["choices"][0]["finish_reason"] == "stop"
            parts = joined(endpoint, send(stop=stop, max_tokens=60, stream=True), with_usage=False)
            assert parts[0]["text"] == expected


@pytest.mark.parametrize("text", ["鱗 麓 ő 👨\u200d🌾 𝛑", "one two  three\n  four", " leading", "trailing "])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_characters_of_several_tokens_come_whole(tmp_path: Path, endpoint: str, text: str) -> None:
    """C001, C007: every byte is a token of its own here."""
    with live_server(tmp_path, lambda p: scripted(text, plan=p)) as live:
        body = getattr(live, endpoint)(max_tokens=100).json()
        assert body_text(endpoint, body["choices"][0]) == text
        parts = joined(endpoint, getattr(live, endpoint)(max_tokens=100, stream=True), with_usage=False)
        assert parts[0]["text"] == text


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    """C003: a lone 0xFF byte, half characters, control tokens in the middle."""
    from ninfer.engine.testing import ScriptedModel
    from ninfer.text.byte_alphabet import BYTE_TO_CHAR

    library = tiny_tokenizer()
    tokens = {library.token_bytes(i): i for i in range(6, 262)}
    assert len(BYTE_TO_CHAR) == 256
    script = [tokens[b"\xff"], tokens[b"\xe6"], tokens[b"\xad"], 1, tokens[b"a"], tokens[b"\xf0"], end_token()]
    with live_server(tmp_path, lambda p: ScriptedModel(p.vocab_size, script)) as live:
        body = live.chat(logprobs=True, top_logprobs=2).json()
        assert body["choices"][0]["message"]["content"] == "\ufffd\ufffda\ufffd"
        parts = joined("chat", live.chat(stream=True), with_usage=False)
        assert parts[0]["text"] == "\ufffd\ufffda\ufffd"
        json.dumps(body, allow_nan=False)
        live.alive()
