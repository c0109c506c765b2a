"""The Responses protocol: its events are one state machine, its own client puts the same response together, and what
is stored can be continued, read and deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from ninfer.engine import EnginePlan
from ninfer.engine.testing import FaultyModel
from ninfer.server.response_store import ResponseStore
from server.chatting import TEMPLATE, chat_server, whole
from server.harness import MODEL_ID, Live, live_server, scripted

openai = pytest.importorskip("openai", reason="the official client is a dev dependency")
pydantic = pytest.importorskip("pydantic", reason="the official client brings it")

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo é"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    },
    {
        "type": "function",
        "name": "g",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
]
TEXTS = {
    "text": "</think>Hi there.",
    "characters of several tokens": "</think>鱗 麓 ő 👨‍🌾 𝛑",
    "thinking": "let me see\n</think>\n\nHi.",
    "calls": f"hm</think>Both.\n{CALL}\n{OTHER}",
    "nothing": "</think>",
    "only thinking": "on and on",
}


def post(live: Live, **fields: Any) -> httpx.Response:
    body = {"max_output_tokens": 300, "input": "hello", "temperature": 0, **fields}
    return live.client.post("/v1/responses", json=body)


def answer(live: Live, **fields: Any) -> dict[str, Any]:
    response = post(live, **fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def same(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between any two."""
    names = ("id", "created_at", "completed_at", "timings")
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return {**{k: v for k, v in response.items() if k not in names}, "output": output}


def events_of(text: str) -> Iterator[dict[str, Any]]:
    for number, part in enumerate(part for part in text.split("\n\n") if part and not part.startswith(":")):
        name_line, data_line = part.split("\n")
        data = json.loads(data_line.removeprefix("data: "))
        assert name_line == f"event: {data['type']}"
        assert data["sequence_number"] == number
        yield data


def rebuilt(response: httpx.Response) -> dict[str, Any]:
    """The response of a stream, whose events must come in their order: C111."""
    assert response.status_code == 200, response.text
    events = list(events_of(response.text))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    output: list[dict[str, Any]] = []
    growing: dict[str, Any] | None = None
    text = ""
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert growing is None
            assert event["output_index"] == len(output)
            growing = event["item"]
            assert growing["status"] == "in_progress"
            text = ""
            continue
        assert growing is not None
        assert event["output_index"] == len(output)
        if kind == "output_item.done":
            assert event["item"]["id"] == growing["id"]
            output.append(event["item"])
            growing = None
            continue
        assert event["item_id"] == growing["id"]
        if kind == "content_part.added":
            assert event["content_index"] == 0
            assert event["part"]["text"] == ""
        elif kind.endswith(".delta"):
            assert event["delta"]
            text += event["delta"]
        elif kind == "content_part.done":
            assert event["part"]["text"] == text
        else:
            assert kind in ("output_text.done", "reasoning_text.done", "function_call_arguments.done")
            assert event.get("text", event.get("arguments")) == text
    assert growing is None
    last: dict[str, Any] = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"] == output
    assert last["id"] == events[0]["response"]["id"] == response.headers["x-request-id"]
    return last


def client(live: Live) -> Any:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_stream_is_the_response_and_so_says_the_client(tmp_path: Path, kind: str) -> None:
    """C001, C075, C111."""
    with chat_server(tmp_path, TEXTS[kind], template=TEMPLATE) as live:
        body = answer(live, tools=TOOLS)
        assert same(rebuilt(post(live, tools=TOOLS, stream=True))) == same(body)
        assert "\ufffd" not in json.dumps(body, ensure_ascii=False)
        fields: Any = {"model": MODEL_ID, "input": "hello", "max_output_tokens": 300, "tools": TOOLS, "temperature": 0}
        found = client(live).responses.create(**fields)
        assert found._request_id == found.id
        with client(live).responses.stream(**fields) as stream:
            for _ in stream:
                pass
            ending = "incomplete" if kind == "only thinking" else "completed"
            built = stream.get_final_response() if ending == "completed" else None
        assert same(found.model_dump(mode="json", exclude_unset=True)) == same(body)
        if built is not None:
            plain = {"parsed", "parsed_arguments"}
            outputs = [item.model_dump(mode="json", exclude={*plain, "id", "call_id"}) for item in built.output]
            for item in outputs:
                for part in item.get("content") or []:
                    part.pop("parsed", None)
            assert outputs == [item.model_dump(mode="json", exclude={"id", "call_id"}) for item in found.output]


def test_items_and_endings(tmp_path: Path) -> None:
    """C025: the limit is exact, names itself, and an item that it cut says so."""
    with chat_server(tmp_path, TEXTS["calls"], template=TEMPLATE) as live:
        body = answer(live, tools=TOOLS)
        assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call", "function_call"]
        assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert body["output"][1]["content"][0]["text"] == "Both."
        assert json.loads(body["output"][2]["arguments"]) == {"city": "Oslo é"}
        assert len({item["call_id"] for item in body["output"][2:]}) == 2
        assert (body["status"], body["incomplete_details"]) == ("completed", None)
        assert [tool["name"] for tool in body["tools"]] == ["f", "g"]
        for limit in (1, 2, 3, 5, 17):
            cut = answer(live, max_output_tokens=limit)
            assert cut["usage"]["output_tokens"] == limit
            assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
            assert all(item["status"] == "completed" for item in cut["output"][:-1])
            assert all(item["status"] == "incomplete" for item in cut["output"][-1:])
            assert same(rebuilt(post(live, max_output_tokens=limit, stream=True))) == same(cut)
        stopped = answer(live, stop=["th."])
        assert stopped["output"][1]["content"][0]["text"] == "Bo"
        assert stopped["status"] == "completed"
        long = answer(live, max_output_tokens=2**62, input="a" * 1950)
        assert long["ninfer_finish_reason"] in ("context_capacity", "stop_token")


def test_usage_is_that_of_chat_and_of_the_count(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXTS["thinking"], template=TEMPLATE) as live:
        usage = answer(live, instructions="be short")["usage"]
        chat = whole(live, messages=[{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}])
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert usage["output_tokens"] == chat["usage"]["completion_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        reasoning = chat["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] == reasoning > 0
        assert usage["input_tokens_details"]["cached_tokens"] == chat["usage"]["prompt_tokens_details"]["cached_tokens"]
        fields: Any = {"model": MODEL_ID, "input": "hello", "instructions": "be short"}
        assert client(live).responses.input_tokens.count(**fields).input_tokens == usage["input_tokens"]


def test_a_turn_goes_on_from_a_stored_one(tmp_path: Path) -> None:
    """C113: also from one that was streamed; instructions are not carried over; what is deleted is gone, alone."""
    with chat_server(tmp_path, TEXTS["thinking"], template=TEMPLATE) as live:
        first = rebuilt(post(live, stream=True, instructions="be short", metadata={"a": "b"}))
        second = answer(live, previous_response_id=first["id"], input="and?")
        chat = whole(
            live,
            messages=[
                {"role": "user", "content": "hello"},
                {"role": "assistant", "reasoning_content": "let me see", "content": "Hi."},
                {"role": "user", "content": "and?"},
            ],
        )
        assert second["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert second["previous_response_id"] == first["id"]

        api = client(live).responses
        kept = api.retrieve(first["id"])
        assert kept.model_dump(mode="json", exclude_unset=True) == first
        assert kept.metadata == {"a": "b"}
        api.delete(first["id"])
        for call in (api.retrieve, api.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                call(first["id"])
            assert caught.value.code == "response_not_found"
        gone = post(live, previous_response_id=first["id"])
        assert gone.status_code == 404
        assert gone.json()["error"]["param"] == "previous_response_id"
        third = answer(live, previous_response_id=second["id"], input="so?")
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


def test_the_items_of_a_stored_answer_in_pages(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXTS["thinking"], template=TEMPLATE) as live:
        first = answer(live, input=[{"role": "user", "content": f"{n}"} for n in range(3)])
        second = answer(live, previous_response_id=first["id"], input="last")
        api = client(live).responses.input_items
        texts = [item.content[0].text for item in api.list(second["id"], order="asc")]
        assert texts == ["0", "1", "2", "let me see", "Hi.", "last"]
        paged = [item.id for item in api.list(second["id"], limit=2)]  # fetches page by page
        assert len(set(paged)) == 6
        assert paged == [item.id for item in api.list(second["id"], limit=100, order="asc")][::-1]
        reference = {"type": "item_reference", "id": first["output"][1]["id"]}
        referred = answer(live, input=[{"role": "user", "content": "x"}, reference, {"role": "user", "content": "y"}])
        assert [i.content[0].text for i in api.list(referred["id"], order="asc")] == ["x", "Hi.", "y"]
        path = f"/v1/responses/{second['id']}"
        for query in (
            "order=up",
            "limit=0",
            "limit=101",
            "limit=x",
            "after=nope",
            "include=message.output_text.logprobs",
        ):
            refused = live.client.get(f"{path}/input_items?{query}")
            assert refused.status_code in (400, 404)
            assert refused.json()["error"]["param"] == query.partition("=")[0]
        for query in ("stream=true", "starting_after=3"):
            refused = live.client.get(f"{path}?{query}")
            assert refused.json()["error"]["code"] == "unsupported_field"


def test_what_is_kept_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE, response_store_max_records=3) as live:
        ids = [answer(live)["id"] for _ in range(3)]
        assert live.client.get(f"/v1/responses/{ids[0]}").status_code == 200
        ids += [answer(live)["id"]]
        found = [live.client.get(f"/v1/responses/{name}").status_code for name in ids]
        assert found == [200, 404, 200, 200]
        unkept = answer(live, store=False)
        assert unkept["store"] is False
        assert live.client.get(f"/v1/responses/{unkept['id']}").status_code == 404
        assert [live.client.get(f"/v1/responses/{name}").status_code for name in ids] == [200, 404, 200, 200]
        kept = live.metrics()["server"]["stored_responses"]
        assert kept["count"] == 3
        assert 0 < kept["bytes"] < kept["max_bytes"] == 64 << 20
        for name in (ids[0], *ids[2:]):
            live.client.delete(f"/v1/responses/{name}")
        assert live.metrics()["server"]["stored_responses"]["bytes"] == 0
    (tmp_path / "none").mkdir()
    with chat_server(tmp_path / "none", TEXTS["text"], template=TEMPLATE, response_store_max_records=0) as live:
        assert answer(live)["store"] is False
        assert post(live, store=True).json()["error"]["param"] == "store"


def test_bytes_bound_what_is_kept() -> None:
    """Whatever the sizes: never above the limit, and an item is found while any answer has it."""
    store = ResponseStore(100, 2000)
    rng = Random(1)
    for number in range(200):
        items = [{"id": "shared", "text": ""}, {"id": f"i{number}", "text": "x" * rng.randrange(600)}]
        assert store.put({"id": f"r{number}", "output": []}, items)
        assert store.num_bytes <= 2000
        assert store.get(f"r{number}").conversation() == items
        assert store.find_item(f"i{number}") == items[1]
        assert store.find_item("shared") == items[0]
    assert not store.put({"id": "big", "output": []}, [{"id": "x", "text": "x" * 2000}])
    assert len(store) > 1
    kept = [number for number in range(200) if store.find_item(f"i{number}")]
    assert len(kept) == len(store)
    for number in kept:
        store.delete(f"r{number}")
    assert (len(store), store.num_bytes, store.find_item("shared")) == (0, 0, None)


def test_a_turn_with_tools_comes_back_as_the_template_wants_it(tmp_path: Path) -> None:
    calls = [{"type": "function_call", "call_id": f"c{i}", "name": "g", "arguments": f'{{"i": {i}}}'} for i in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{i}", "output": f"r{i}"} for i in range(2)]
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    parts = [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]
    items = [{"role": "user", "content": parts}, thought, *calls, results[1], results[0]]
    functions = [{"name": "g", "arguments": {"i": i}} for i in range(2)]
    chat = [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "reasoning_content": "t",
            "tool_calls": [{"id": f"c{i}", "type": "function", "function": f} for i, f in enumerate(functions)],
        },
        *({"role": "tool", "tool_call_id": f"c{i}", "content": f"r{i}"} for i in range(2)),
    ]
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE) as live:
        body = answer(live, input=items)
        assert body["usage"]["input_tokens"] == whole(live, messages=chat)["usage"]["prompt_tokens"]
        orphan = post(live, input=[*items[:2], results[0]])
        assert orphan.json()["error"]["code"] == "invalid_tool_history"
        assert orphan.json()["error"]["param"] == "input[2].call_id"


def test_calls_that_must_be_made_and_answers_of_a_form(tmp_path: Path) -> None:
    """C077, C087, C088, C095."""
    with chat_server(tmp_path, "</think>no", template=TEMPLATE) as live:
        off = {"reasoning": {"effort": "none"}}
        named = answer(live, tools=TOOLS, tool_choice={"type": "function", "name": "g"}, **off)
        assert [(item["type"], item.get("name")) for item in named["output"]] == [("function_call", "g")]
        none = answer(live, tools=TOOLS, tool_choice="none")
        assert [item["type"] for item in none["output"]] == ["message"]

        class Found(pydantic.BaseModel):  # type: ignore[misc, name-defined]
            ok: bool

        fields: Any = {"model": MODEL_ID, "input": "hello", "temperature": 0, "max_output_tokens": 100, **off}
        parsed = client(live).responses.parse(**fields, text_format=Found)
        assert isinstance(parsed.output_parsed, Found)
        assert (
            answer(live, text={"format": {"type": "json_object"}}, **off)["output"][-1]["content"][0]["text"][0] == "{"
        )
        assert answer(live, text={"format": {"type": "text"}})["text"]["format"] == {"type": "text"}


def test_logprobs_of_the_text(tmp_path: Path) -> None:
    """C043, C044: joined bytes are the text; stream and body agree."""
    with chat_server(tmp_path, TEXTS["thinking"], template=TEMPLATE) as live:
        fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        body = answer(live, **fields)
        part = body["output"][1]["content"][0]
        assert (
            len(part["logprobs"]) + body["usage"]["output_tokens_details"]["reasoning_tokens"]
            == (body["usage"]["output_tokens"])
        )
        assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode().strip() == part["text"]
        assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0 for entry in part["logprobs"])
        assert same(rebuilt(post(live, stream=True, **fields))) == same(body)


IGNORED = {
    "user": "u",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "max_tool_calls": 3,
    "x_vendor": 1,
}
BAD: list[tuple[dict[str, Any], str]] = [
    *[({"max_output_tokens": value}, "max_output_tokens") for value in (0, -1, 1.5, "10", True, 1e30)],  # C026
    *[({"input": value}, "input") for value in (None, [], 5, {})],
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"include": ["all"]}, "include: all"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "#/nope"}}}}, "text.format.schema"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "tool_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "f", "strict": True}]}, "tools[0].strict"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "h"}}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "include": ["message.output_text.logprobs"]}, "include"),
    ({"stream": "yes"}, "stream"),
]


def test_what_is_refused_is_named(tmp_path: Path) -> None:
    """C026, C052, C092, C113."""
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE) as live:
        for fields, name in BAD:
            response = live.client.post("/v1/responses", json={"input": "hello", **fields})
            assert response.status_code == 400, (fields, response.text)
            error = response.json()["error"]
            assert error["param"] == name, (fields, error)
            assert error["type"] == "invalid_request_error"
        missing = post(live, input=[{"type": "item_reference", "id": "msg_x"}])
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "input[0].id")
        assert post(live, model="other").status_code == 404
        refused = live.client.post("/v1/responses/input_tokens", json={"input": 5})
        assert refused.json()["error"]["param"] == "input"
        told = post(live, **IGNORED, include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})
        assert told.status_code == 200
        ignored = set(told.headers["x-ninfer-ignored"].split(", "))
        assert ignored == {*IGNORED, "include[reasoning.encrypted_content]", "reasoning.summary"}
        for path in ("/v1/responses/x/cancel", "/v1/responses/compact"):
            assert live.client.post(path, json={}).status_code in (404, 405)
        live.alive()


def test_a_failure_within_a_stream_is_an_event_and_a_failed_response(tmp_path: Path) -> None:
    """C141: what the client gets when logits go wrong after the first token."""

    def model(plan: EnginePlan) -> FaultyModel:
        return FaultyModel(scripted("one two three four", plan=plan), replace_at={6: (0, math.nan)})

    with live_server(tmp_path, model) as live:
        events = list(events_of(post(live, stream=True).text))
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-3]["type"] == "response.output_item.done"
        assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete"]
        assert events[-2]["code"] == "generation_failed"
        assert events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["error"]["message"] == events[-2]["message"]
        assert live.client.get(f"/v1/responses/{events[0]['response']['id']}").status_code == 404
        live.alive()
