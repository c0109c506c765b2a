"""Chat messages in the one form that templates get, whatever legal form the caller used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ninfer.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def normalized_messages(messages: object) -> list[dict[str, Any]]:
    """A copy of `messages` in which roles are known, content is text and tool-call arguments are objects.

    * `developer` becomes `system`, which templates know.
    * Content given as text parts becomes their joined text; absent or null content becomes "".
    * Arguments of a tool call that are the JSON text of an object become that object ("" the empty one); other text,
      which a model may have produced, stays as it is.
    * Other members (`name`, `reasoning_content`, ...) are kept, null ones dropped.

    Raises `RequestError` naming the place (`messages[3].role`) for anything else.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def normalized_tools(tools: object) -> list[dict[str, Any]] | None:
    """Tool definitions, or None for an absent or empty list. Raises `RequestError` (`tools[1]`)."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RequestError("tools must be a list", param="tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError("a tool must be an object", param=f"tools[{index}]")
    return [dict(tool) for tool in tools] or None


def _message(message: object, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("a message must be an object with role and content", param=place)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"role is {role!r}; allowed roles: {', '.join(ROLES)}", param=f"{place}.role")
    found = {key: value for key, value in message.items() if value is not None}
    found["role"] = "system" if role == "developer" else role
    found["content"] = _content(message.get("content"), f"{place}.content")
    if "tool_calls" in found:
        found["tool_calls"] = _tool_calls(found["tool_calls"], f"{place}.tool_calls")
        if not found["tool_calls"]:
            del found["tool_calls"]
    return found


def _content(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError("content must be text or a list of text parts", param=place)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise RequestError(
                f"content part of type {kind!r}; this model takes text parts only",
                kind="unsupported_content",
                param=f"{place}[{index}]",
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise RequestError("a text part must have a text", param=f"{place}[{index}].text")
        texts.append(text)
    return "".join(texts)


def _tool_calls(calls: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError("tool_calls must be a list", param=place)
    found = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError("a tool call must have a function with a name", param=f"{place}[{index}].function")
        arguments = _arguments(function.get("arguments"))
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
