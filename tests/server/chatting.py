"""A chat template with all that templates of thinking, tool-calling models have; models that say a text; streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from ninfer.engine import EnginePlan
from ninfer.engine.testing import ScriptedModel
from server.harness import Live, live_server, plan_of, scripted, sse_events

TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n"
    'Call with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
XML_TEMPLATE = TEMPLATE.replace('{"name": ..., "arguments": ...}', "<function=...>")
UNOPENED_TEMPLATE = TEMPLATE.replace("{% else %}<think>\n{% endif %}", "{% endif %}")


def says(text: str, *, ends: bool = True) -> Callable[[EnginePlan], ScriptedModel]:
    """A model that gives `text` to every prompt."""
    return lambda plan: scripted(text, plan=plan, ends=ends)


def chat_server(
    tmp_path: Path, text: str, *, template: str = TEMPLATE, **settings: Any
) -> AbstractContextManager[Live]:
    """A server whose model says `text`, with room for conversations."""
    plan = plan_of(max_context=2048, prefill_chunk=2048)
    return live_server(tmp_path, says(text), plan=plan, template=template, **settings)


def tool(name: str = "f", **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


def whole(live: Live, **fields: Any) -> dict[str, Any]:
    """The only choice of a chat answer, with the usage."""
    response = live.chat(**{"max_tokens": 400, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    (choice,) = body["choices"]
    return {**choice, "usage": body["usage"]}


def streamed(live: Live, **fields: Any) -> dict[str, Any]:
    """The same, put together from a stream, whose shape is checked."""
    fields = {"max_tokens": 400, "stream": True, "stream_options": {"include_usage": True}, **fields}
    return joined(live.chat(**fields))


def joined(response: httpx.Response) -> dict[str, Any]:
    """One choice from the parts of a stream."""
    assert response.status_code == 200, response.text
    *events, done = sse_events(response.text)
    assert done == "[DONE]"
    usage = events.pop()["usage"]
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    finish: dict[str, Any] = {}
    for number, event in enumerate(events):
        (choice,) = event["choices"]
        assert not finish, "something after the finish"
        delta = choice["delta"]
        assert ("role" in delta) == (number == 0)
        assert set(delta) <= {"role", "content", "reasoning_content", "tool_calls"}
        if number and choice["logprobs"] is None:
            assert len(delta) <= 1
            assert "" not in (delta.get("content"), delta.get("reasoning_content")), "an empty delta"
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls", []):
            _add_call(message.setdefault("tool_calls", []), part)
        if choice["finish_reason"] is not None:
            finish = {key: choice[key] for key in ("finish_reason", "ninfer_finish_reason")}
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = ""
    return {"index": 0, "message": message, **finish, "usage": usage}


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """C073: who is called comes first and once, arguments after it."""
    if part["index"] == len(calls):
        assert part["type"] == "function"
        assert part["id"].startswith("call_")
        assert part["function"]["name"]
        calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
        return
    assert part["index"] == len(calls) - 1
    assert set(part) == {"index", "function"}
    assert set(part["function"]) == {"arguments"}
    calls[-1]["function"]["arguments"] += part["function"]["arguments"]


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice without what differs between any two answers."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        assert len({c["id"] for c in message["tool_calls"]}) == len(message["tool_calls"])
        message["tool_calls"] = [c["function"] for c in message["tool_calls"]]
    return {**{k: v for k, v in choice.items() if k != "logprobs"}, "message": message}


def pair(live: Live, **fields: Any) -> dict[str, Any]:
    """A choice that a stream and a body agree on."""
    first, second = whole(live, **fields), streamed(live, **fields)
    assert without_ids(first) == without_ids(second)
    return first
