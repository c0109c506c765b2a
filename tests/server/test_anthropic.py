"""The Anthropic protocol: its events are one state machine, and its own client puts the same message together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.chatting import TEMPLATE, chat_server, whole
from server.harness import MODEL_ID, Live, tiny_tokenizer

anthropic = pytest.importorskip("anthropic", reason="the official client is a dev dependency")

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo \u00e9"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
TOOLS = [
    {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "g", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]
USER = [{"role": "user", "content": "hello"}]
TEXTS = {
    "text": "</think>Hi there.",
    "thinking": "let me see\n</think>\n\nHi.",
    "calls": f"hm</think>Both.\n{CALL}\n{OTHER}",
    "nothing": "</think>",
    "only thinking": "on and on",
}


def post(live: Live, **fields: Any) -> httpx.Response:
    return live.client.post("/v1/messages", json={"max_tokens": 300, "messages": USER, "temperature": 0, **fields})


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {**{k: v for k, v in message.items() if k != "id"}, "content": content}


def rebuilt(response: httpx.Response) -> dict[str, Any]:
    """The message of a stream, whose events must come in their order: C107."""
    assert response.status_code == 200, response.text
    message: dict[str, Any] = {}
    open_block: dict[str, Any] | None = None
    partial = ""
    ended = False
    for part in response.text.split("\n\n"):
        if not part or part.startswith(":"):
            continue
        name_line, data_line = part.split("\n")
        data = json.loads(data_line.removeprefix("data: "))
        assert name_line == f"event: {data['type']}"
        assert not ended
        match data["type"]:
            case "message_start":
                assert not message
                message = data["message"]
                assert message["content"] == []
            case "content_block_start":
                assert open_block is None
                assert data["index"] == len(message["content"])
                open_block = data["content_block"]
                message["content"].append(open_block)
                partial = ""
            case "content_block_delta":
                assert data["index"] == len(message["content"]) - 1
                assert open_block is not None
                delta = data["delta"]
                match delta["type"]:
                    case "text_delta":
                        open_block["text"] += delta["text"]
                    case "thinking_delta":
                        open_block["thinking"] += delta["thinking"]
                    case "input_json_delta":
                        partial += delta["partial_json"]
                        open_block["input"] = json.loads(partial)
            case "content_block_stop":
                assert data["index"] == len(message["content"]) - 1
                open_block = None
            case "message_delta":
                assert open_block is None
                message.update(data["delta"])
                message["usage"].update(data["usage"])
            case "message_stop":
                ended = True
            case other:
                raise AssertionError(other)
    assert ended
    return message


@pytest.mark.parametrize("kind", TEXTS)
def test_a_stream_is_the_message_and_so_says_the_client(tmp_path: Path, kind: str) -> None:
    """C107."""
    with chat_server(tmp_path, TEXTS[kind], template=TEMPLATE) as live:
        body = post(live, tools=TOOLS).json()
        assert without_ids(rebuilt(post(live, tools=TOOLS, stream=True))) == without_ids(body)
        client = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
        extra = {"temperature": 0}  # which newer clients have no argument for
        fields: Any = {"model": MODEL_ID, "max_tokens": 300, "messages": USER, "tools": TOOLS, "extra_body": extra}
        found = client.messages.create(**fields)
        assert found._request_id
        with client.messages.stream(**fields) as stream:
            built = stream.get_final_message()
        blocks = [[b.model_dump(exclude={"id"}, exclude_none=True) for b in m.content] for m in (found, built)]
        assert blocks[0] == blocks[1]
        assert found.stop_reason == built.stop_reason == body["stop_reason"]
        assert found.usage.output_tokens == built.usage.output_tokens == body["usage"]["output_tokens"]


def test_blocks_and_reasons(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXTS["calls"], template=TEMPLATE) as live:
        body = post(live, tools=TOOLS).json()
        assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        assert body["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
        assert body["content"][1] == {"type": "text", "text": "Both."}
        assert body["content"][2]["input"] == {"city": "Oslo \u00e9"}
        assert body["content"][3]["input"] == {}
        assert len({block["id"] for block in body["content"][2:]}) == 2
        assert body["stop_reason"] == "tool_use"
        assert body["stop_sequence"] is None
        short = post(live, max_tokens=5).json()
        assert short["stop_reason"] == "max_tokens"
        assert short["usage"]["output_tokens"] == 5
        stopped = post(live, stop_sequences=["th."]).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "th.")
        assert stopped["content"][1]["text"] == "Bo"
        full = post(live, max_tokens=100_000, messages=[{"role": "user", "content": "a" * 1950}]).json()
        assert full["stop_reason"] in ("model_context_window_exceeded", "end_turn")


def test_usage_is_that_of_chat_and_of_the_count(tmp_path: Path) -> None:
    """C109: what was cached is not counted twice."""
    with chat_server(tmp_path, TEXTS["thinking"], template=TEMPLATE) as live:
        fields = {"system": [{"type": "text", "text": "be short", "cache_control": {"type": "ephemeral"}}]}
        usage = post(live, **fields).json()["usage"]
        total = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        messages = [{"role": "system", "content": "be short"}, *USER]
        assert total == whole(live, messages=messages)["usage"]["prompt_tokens"]
        counted = live.client.post("/v1/messages/count_tokens", json={"messages": USER, **fields})
        assert counted.json() == {"input_tokens": total}
        client = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
        assert client.messages.count_tokens(model=MODEL_ID, messages=USER, **fields).input_tokens == total


def test_a_turn_with_tools_comes_back_as_the_template_wants_it(tmp_path: Path) -> None:
    calls = [{"type": "tool_use", "id": f"toolu_{i}", "name": "g", "input": {"i": i}} for i in range(2)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": f"r{i}"} for i in range(2)]
    messages = [
        *USER,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, *calls]},
        {"role": "user", "content": [results[1], {**results[0], "content": [{"type": "text", "text": "r0"}]}]},
    ]
    functions = [{"name": "g", "arguments": {"i": i}} for i in range(2)]
    chat = [
        *USER,
        {
            "role": "assistant",
            "reasoning_content": "t",
            "tool_calls": [{"id": str(i), "type": "function", "function": f} for i, f in enumerate(functions)],
        },
        *({"role": "tool", "tool_call_id": str(i), "content": f"r{i}"} for i in range(2)),
    ]
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE) as live:
        counted = live.client.post("/v1/messages/count_tokens", json={"messages": messages}).json()
        assert counted["input_tokens"] == whole(live, messages=chat)["usage"]["prompt_tokens"]
        messages[2]["content"].append({"type": "text", "text": "go on"})
        assert post(live, messages=messages).status_code == 200


def test_thinking_on_off_and_limited(tmp_path: Path) -> None:
    """C095."""
    with chat_server(tmp_path, "one two three\n</think>\n\nfour", template=TEMPLATE) as live:
        budget = post(live, thinking={"type": "enabled", "budget_tokens": 4}).json()
        assert budget["content"][0]["thinking"] == tiny_tokenizer().decode(tiny_tokenizer().encode("one two")[:4])
        kinds = [b["type"] for b in post(live, thinking={"type": "adaptive"}).json()["content"]]
        assert kinds == ["thinking", "text"]
    with chat_server(tmp_path, "four", template=TEMPLATE) as live:
        off = post(live, thinking={"type": "disabled"}).json()
        assert off["content"] == [{"type": "text", "text": "four"}]


def test_calls_that_must_be_made_and_answers_of_a_form(tmp_path: Path) -> None:
    """C077, C087."""
    with chat_server(tmp_path, "</think>no", template=TEMPLATE) as live:
        named = post(live, tools=TOOLS, tool_choice={"type": "tool", "name": "g"}, thinking={"type": "disabled"}).json()
        assert [b["type"] for b in named["content"]] == ["tool_use"]
        assert named["content"][0]["name"] == "g"
        none = post(live, tools=TOOLS, tool_choice={"type": "none"}).json()
        assert none["content"] == [{"type": "text", "text": "no"}]
        form = {"format": {"type": "json_schema", "schema": {"const": [1]}}}
        assert post(live, output_config=form).json()["content"][-1] == {"type": "text", "text": "[1]"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [*USER, {"role": "assistant", "content": "I"}]}, "messages[1].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"thinking": {"type": "enabled", "budget_tokens": 300}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "sometimes"}}, "thinking"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"output_config": {"effort": "high"}}, "output_config.effort"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
]


def test_refusals_have_the_protocols_shape(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE) as live:
        for fields, name in BAD:
            response = post(live, **fields)
            assert response.status_code == 400, (fields, response.text)
            body = response.json()
            assert body["type"] == "error"
            assert body["error"]["type"] == "invalid_request_error"
            assert name in body["error"]["message"], (fields, body)
        assert post(live, model="other").json()["error"]["type"] == "not_found_error"
        assert live.client.get("/v1/messages").json()["type"] == "error"
        bad = live.client.post("/v1/messages/count_tokens", json={"messages": 1}).json()
        assert bad["error"]["type"] == "invalid_request_error"
        client = anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model=MODEL_ID, max_tokens=5, messages=[])
        live.alive()
    with chat_server(tmp_path, TEXTS["text"], template=TEMPLATE, api_key="k") as live:
        assert post(live).json()["error"]["type"] == "authentication_error"
        good = anthropic.Anthropic(base_url=live.url, api_key="k", max_retries=0)
        assert good.messages.create(model=MODEL_ID, max_tokens=50, messages=USER).content
