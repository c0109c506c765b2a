"""The official OpenAI client, unmodified: thinking, tools, forms, streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.chatting import TEMPLATE, chat_server, tool
from server.harness import MODEL_ID, Live

openai = pytest.importorskip("openai", reason="the official client is a dev dependency")

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES: Any = [{"role": "user", "content": "hello"}]


def client(live: Live) -> Any:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def test_tools_whole_and_streamed(tmp_path: Path) -> None:
    with chat_server(tmp_path, f"why\n</think>\n\nOK {CALL}\n{CALL}", template=TEMPLATE) as live:
        fields: Any = {"model": MODEL_ID, "messages": MESSAGES, "tools": [tool("f")], "temperature": 0}
        whole = client(live).chat.completions.create(**fields)
        (choice,) = whole.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.reasoning_content == "why"
        with client(live).chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
            built = stream.get_final_completion()
        found = [
            [(c.function.name, json.loads(c.function.arguments)) for c in completion.choices[0].message.tool_calls]
            for completion in (whole, built)
        ]
        assert found[0] == found[1] == [("f", {"city": "Oslo"})] * 2
        assert built.choices[0].message.content == choice.message.content == "OK"
        assert built.usage.completion_tokens_details.reasoning_tokens == (
            whole.usage.completion_tokens_details.reasoning_tokens
        )


def test_a_form_asked_for_by_the_client(tmp_path: Path) -> None:
    with chat_server(tmp_path, "</think>free text", template=TEMPLATE) as live:
        answer = client(live).chat.completions.create(
            model=MODEL_ID,
            messages=MESSAGES,
            temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": {"a": 1}}}},
        )
        assert json.loads(answer.choices[0].message.content) == {"a": 1}
        with pytest.raises(openai.BadRequestError) as caught:
            client(live).chat.completions.create(
                model=MODEL_ID, messages=MESSAGES, tools=[tool("f")], reasoning_effort="high"
            )
        assert caught.value.param == "reasoning_effort"
