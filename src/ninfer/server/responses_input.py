"""Items, tools and formats of the Responses protocol: checked, and in the form of the chat API."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ninfer.errors import RequestError
from ninfer.server.conversation import ordered_history
from ninfer.server.fields import text_member

FindItem = Callable[[str], dict[str, Any] | None]

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of a message that are text, and the member that holds it."""


def new_id(prefix: str) -> str:
    """An id for an item, unique for all time."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def read_items(value: object, find_item: FindItem) -> list[dict[str, Any]]:
    """The items of an `input` in one form: all members that the protocol shows, an id for those that came without.

    find_item: what an `item_reference` means. RequestError names the place (`input[2].content[0].type`).
    """
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        raise RequestError("input must be a text or a list of at least one item", param="input")
    return [_item(item, f"input[{index}]", find_item) for index, item in enumerate(value)]


def _item(item: object, place: str, find_item: FindItem) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError("an item must be an object", param=place)
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    match kind:
        case "message":
            return _message(item, place)
        case "reasoning":
            return _reasoning(item, place)
        case "function_call":
            return {
                "id": _id(item, "fc", place),
                "type": "function_call",
                "call_id": text_member(item, "call_id", place),
                "name": text_member(item, "name", place),
                "arguments": text_member(item, "arguments", place),
                "status": "completed",
            }
        case "function_call_output":
            return {
                "id": _id(item, "fco", place),
                "type": "function_call_output",
                "call_id": text_member(item, "call_id", place),
                "output": _text(item.get("output"), f"{place}.output"),
                "status": "completed",
            }
        case "item_reference":
            found = find_item(text_member(item, "id", place))
            if found is None:
                raise RequestError(
                    f"there is no item {item['id']!r} in a stored response", kind="item_not_found", param=f"{place}.id"
                )
            return found
    raise RequestError(
        f"an item of type {kind!r} is not supported here", kind="unsupported_content", param=f"{place}.type"
    )


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ROLES:
        raise RequestError(f"role is {role!r}; allowed roles: {', '.join(ROLES)}", param=f"{place}.role")
    text = _text(item.get("content"), place if place == "input" else f"{place}.content")
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": _id(item, "msg", place),
        "type": "message",
        "role": role,
        "content": [part],
        "status": "completed",
    }


def _reasoning(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Thinking in the clear. A summary alone is not what the model thought, and nobody here can decrypt another's."""
    if item.get("encrypted_content") is not None:
        raise RequestError(
            "encrypted reasoning cannot be read here; send its content or leave the item out",
            kind="unsupported_content",
            param=f"{place}.encrypted_content",
        )
    content = item.get("content")
    parts = [] if content is None else content
    if not isinstance(parts, list):
        raise RequestError("content must be a list of reasoning_text parts", param=f"{place}.content")
    texts = []
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != "reasoning_text" or not isinstance(part.get("text"), str):
            raise RequestError("a part must be a reasoning_text with a text", param=f"{place}.content[{index}]")
        texts.append(part["text"])
    return reasoning_item(_id(item, "rs", place), "".join(texts))


def reasoning_item(item_id: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Thinking as an item."""
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": None,
        "status": status,
    }


def _id(item: Mapping[str, Any], prefix: str, place: str) -> str:
    return new_id(prefix) if item.get("id") is None else text_member(item, "id", place)


def _text(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("must be text or a list of text parts", param=place)
    texts = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise RequestError("a part must be an object with a type", param=where)
        if kind not in _TEXTS:
            raise RequestError(
                f"a part of type {kind!r}; this model takes text only",
                kind="unsupported_content",
                param=f"{where}.type",
            )
        texts.append(text_member(part, _TEXTS[kind], where))
    return "".join(texts)


def chat_messages(items: Sequence[Mapping[str, Any]], instructions: str | None, num_earlier: int) -> list[Any]:
    """Items that `read_items` gave as a conversation of the chat API.

    What the assistant thought, said and called in a row becomes one message. The first `num_earlier` items are not of
    this request's `input`. RequestError (`input[3].call_id`) for the result of a call that was not made before it.
    """
    found: list[dict[str, Any]] = [] if instructions is None else [{"role": "developer", "content": instructions}]
    calls: set[str] = set()
    turn: dict[str, Any] = {}  # the assistant's message that grows
    for index, item in enumerate(items):
        match item["type"]:
            case "reasoning":
                turn = _turn(found, turn, before=("content", "tool_calls"))
                turn["reasoning_content"] = turn.get("reasoning_content", "") + _joined(item)
            case "function_call":
                turn = _turn(found, turn)
                calls.add(item["call_id"])
                function = {"name": item["name"], "arguments": item["arguments"]}
                turn.setdefault("tool_calls", []).append(
                    {"id": item["call_id"], "type": "function", "function": function}
                )
            case "message" if item["role"] == "assistant":
                turn = _turn(found, turn, before=("content", "tool_calls"))
                turn["content"] = _joined(item)
            case "message":
                turn = {}
                found.append({"role": item["role"], "content": _joined(item)})
            case "function_call_output":
                turn = {}
                if item["call_id"] not in calls:
                    raise RequestError(
                        f"there is no call {item['call_id']!r} before this result",
                        kind="invalid_tool_history",
                        param=f"input[{index - num_earlier}].call_id",
                    )
                found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return ordered_history(found)


def _turn(found: list[dict[str, Any]], turn: dict[str, Any], before: tuple[str, ...] = ()) -> dict[str, Any]:
    """The assistant's message to add to: the one that grows, unless it has what comes `before`."""
    if turn and not any(name in turn for name in before):
        return turn
    found.append({"role": "assistant"})
    return found[-1]


def _joined(item: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def chat_tools(tools: object) -> object:
    """Tools in the chat API's form. RequestError (`tools[0].type`) for tools that a server would run."""
    if not isinstance(tools, list):
        return tools
    found = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RequestError("a tool must be an object", param=f"tools[{index}]")
        if tool.get("type") != "function":
            raise RequestError(
                f"a tool of type {tool.get('type')!r} is not supported; this server has functions only",
                kind="unsupported_field",
                param=f"tools[{index}].type",
            )
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found


def name_as_sent(param: str) -> str:
    """The name of a field of the chat API as the client of this one knows it. Items are not messages one by one, so
    what is wrong with one of those is wrong with the input.
    """
    return "input" if param.startswith("messages") else param.replace(".function", "")
