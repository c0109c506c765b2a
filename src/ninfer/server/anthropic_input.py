"""Messages, tools and wishes of the Anthropic protocol in the form of the chat API, which templates are written for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ninfer.errors import RequestError
from ninfer.server.fields import text_member, unsupported


def chat_messages(messages: object, system: object) -> list[dict[str, Any]]:
    """A conversation. RequestError names the place (`messages[2].content[0].type`).

    Results of tools become messages of their own, in the order of the calls they answer, before what the user says with
    them. Thinking of earlier turns becomes `reasoning_content`; whether it is shown is the template's business.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    found: list[dict[str, Any]] = []
    if system is not None:
        found.append({"role": "system", "content": _text(system, "system")})
    calls: dict[str, int] = {}
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict):
            raise RequestError("a message must be an object with role and content", param=place)
        match message.get("role"):
            case "user":
                found += _user(message.get("content"), f"{place}.content", calls)
            case "assistant":
                found.append(_assistant(message.get("content"), f"{place}.content", calls))
            case "system":
                found.append({"role": "system", "content": _text(message.get("content"), f"{place}.content")})
            case role:
                raise RequestError(f"role is {role!r}; allowed roles: user, assistant, system", param=f"{place}.role")
    if found[-1]["role"] == "assistant":
        raise RequestError(
            "the last message is the assistant's; continuing it is not supported, end with the user's",
            kind="unsupported_field",
            param=f"messages[{len(messages) - 1}].role",
        )
    return found


def _blocks(content: object, place: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(type, block, place) of each block; a text is one block."""
    if isinstance(content, str):
        yield "text", {"text": content}, place
        return
    if not isinstance(content, list):
        raise RequestError("content must be text or a list of blocks", param=place)
    for index, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise RequestError("a block must be an object with a type", param=f"{place}[{index}]")
        yield block["type"], block, f"{place}[{index}]"


def _text(content: object, place: str) -> str:
    texts = []
    for kind, block, where in _blocks(content, place):
        if kind != "text":
            raise _unknown(kind, where)
        texts.append(text_member(block, "text", where))
    return "".join(texts)


def _unknown(kind: str, place: str) -> RequestError:
    return RequestError(
        f"a block of type {kind!r} is not supported here", kind="unsupported_content", param=f"{place}.type"
    )


def _user(content: object, place: str, calls: dict[str, int]) -> list[dict[str, Any]]:
    texts: list[str] = []
    results: list[dict[str, Any]] = []
    for kind, block, where in _blocks(content, place):
        if kind == "text":
            texts.append(text_member(block, "text", where))
        elif kind == "tool_result":
            call_id = text_member(block, "tool_use_id", where)
            if call_id not in calls:
                raise RequestError(
                    f"there is no call {call_id!r} before this result",
                    kind="invalid_tool_history",
                    param=f"{where}.tool_use_id",
                )
            text = "" if block.get("content") is None else _text(block["content"], f"{where}.content")
            results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            raise _unknown(kind, where)
    results.sort(key=lambda result: calls[result["tool_call_id"]])
    return results + ([{"role": "user", "content": "".join(texts)}] if texts or not results else [])


def _assistant(content: object, place: str, calls: dict[str, int]) -> dict[str, Any]:
    texts: list[str] = []
    thinking: list[str] = []
    made: list[dict[str, Any]] = []
    for kind, block, where in _blocks(content, place):
        match kind:
            case "text":
                texts.append(text_member(block, "text", where))
            case "thinking":
                thinking.append(text_member(block, "thinking", where))
            case "tool_use":
                call_id, name = text_member(block, "id", where), text_member(block, "name", where)
                if not isinstance(block.get("input"), dict):
                    raise RequestError("input must be an object", param=f"{where}.input")
                calls[call_id] = len(calls)
                function = {"name": name, "arguments": block["input"]}
                made.append({"id": call_id, "type": "function", "function": function})
            case _:
                raise _unknown(kind, where)
    return {
        "role": "assistant",
        "content": "".join(texts),
        **({"reasoning_content": "".join(thinking)} if thinking else {}),
        **({"tool_calls": made} if made else {}),
    }


def chat_tools(tools: object) -> object:
    """Tools in the chat API's form. RequestError (`tools[0].type`) for tools that a server would run."""
    if not isinstance(tools, list):
        return tools
    found = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RequestError("a tool must be an object", param=f"tools[{index}]")
        if tool.get("type", "custom") not in ("custom", None):
            raise unsupported(f"tools[{index}].type")
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
        extra = {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
        found.append({"type": "function", "function": {**function, **extra}})
    return found


def read_tool_choice(choice: object) -> tuple[object, bool | None]:
    """`tool_choice` of the chat API, and whether several calls may be made."""
    if choice is None:
        return None, None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or kind not in ("auto", "any", "none", "tool"):
        raise RequestError("tool_choice must have type auto, any, none or tool", param="tool_choice")
    single = choice.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise RequestError("must be true or false", param="tool_choice.disable_parallel_tool_use")
    word: object = {"any": "required"}.get(kind, kind)
    if kind == "tool":
        word = {"type": "function", "function": {"name": choice.get("name")}}
    return word, False if single else None


def read_thinking(thinking: object, max_tokens: int | None) -> tuple[bool | None, int | None]:
    """Whether to think, and for how many tokens; None leaves it to the template and the server."""
    if thinking is None:
        return None, None
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(thinking, dict) or kind not in ("enabled", "disabled", "adaptive"):
        raise RequestError("thinking must have type enabled, disabled or adaptive", param="thinking")
    if thinking.get("display") == "omitted":
        raise unsupported("thinking.display")
    if kind != "enabled":
        return (False if kind == "disabled" else None), None
    budget = thinking.get("budget_tokens")
    if budget is not None and (type(budget) is not int or budget < 1):
        raise RequestError(f"must be an integer >= 1, got {budget!r}", param="thinking.budget_tokens")
    if budget is not None and max_tokens is not None and budget >= max_tokens:
        raise RequestError(f"must be below max_tokens ({max_tokens}), got {budget}", param="thinking.budget_tokens")
    return True, budget


_NAMES = (
    (".function.parameters", ".input_schema"),
    (".function.name", ".name"),
    (".function.strict", ".strict"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("enable_thinking", "thinking"),
)


def name_as_sent(param: str) -> str:
    """The name of a field of the chat API as the client of this one knows it."""
    for ours, theirs in _NAMES:
        param = param.replace(ours, theirs)
    return param
