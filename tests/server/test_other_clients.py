"""Clients of two other projects, unmodified: litellm and langchain-openai (`pip install ninfer[clients]`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.chatting import TEMPLATE, chat_server
from server.harness import MODEL_ID, Live

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it looks for prices in the network
    return pytest.importorskip("litellm", reason="litellm is in the extra `clients`, which is large")


def test_litellm_through_three_protocols(tmp_path: Path, litellm: Any) -> None:
    with chat_server(tmp_path, f"why\n</think>\n\nOK {CALL}", template=TEMPLATE) as live:
        common = {"api_key": "none", "temperature": 0, "max_tokens": 300}
        for model, base in ((f"openai/{MODEL_ID}", f"{live.url}/v1"), (f"anthropic/{MODEL_ID}", live.url)):
            fields = {"model": model, "api_base": base, "messages": MESSAGES, "tools": [TOOL], **common}
            whole = litellm.completion(**fields)
            message = whole.choices[0].message
            assert message.content == "OK"
            assert message.reasoning_content == "why"
            assert whole.choices[0].finish_reason == "tool_calls"
            (call,) = message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
            built = litellm.stream_chunk_builder(list(litellm.completion(**fields, stream=True)))
            assert built.choices[0].message.content == "OK"
            assert json.loads(built.choices[0].message.tool_calls[0].function.arguments) == {"city": "Oslo"}
            assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        fields = {"model": f"openai/{MODEL_ID}", "api_base": f"{live.url}/v1", "api_key": "none", "temperature": 0}
        first = litellm.responses(**fields, input="hello")
        assert first.output[-1].content[0].text.startswith("OK")
        second = litellm.responses(**fields, input="and?", previous_response_id=first.id)
        assert second.usage.input_tokens > first.usage.input_tokens
        kinds = [event.type for event in litellm.responses(**fields, input="hello", stream=True)]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        with pytest.raises(litellm.BadRequestError, match="temperature"):
            litellm.completion(
                model=f"openai/{MODEL_ID}", api_base=f"{live.url}/v1", **{**common, "temperature": 3}, messages=MESSAGES
            )


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_openai(tmp_path: Path, responses: bool) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is in the extra `clients`")

    def model(live: Live, **fields: Any) -> Any:
        fields = {"use_responses_api": responses, "temperature": 0, "max_tokens": 300, "max_retries": 0, **fields}
        url = f"{live.url}/v1"
        return langchain.ChatOpenAI(model=MODEL_ID, base_url=url, api_key="none", stream_usage=True, **fields)

    with chat_server(tmp_path, f"</think>OK {CALL}", template=TEMPLATE) as live:
        bound = model(live).bind_tools([TOOL])
        whole = bound.invoke("hello")
        (call,) = whole.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        first, *rest = bound.stream("hello")
        for part in rest:
            first += part
        assert [(c["name"], c["args"]) for c in first.tool_calls] == [("weather", {"city": "Oslo"})]
        assert first.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
        schema = {
            "title": "n",
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
        }
        assert model(live).with_structured_output(schema, method="json_schema").invoke("hello") == {"a": 1}
        if responses:
            chained = model(live, use_previous_response_id=True)
            answer = chained.invoke(MESSAGES)
            again = chained.invoke([*MESSAGES, answer, {"role": "user", "content": "and?"}])
            assert again.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]
