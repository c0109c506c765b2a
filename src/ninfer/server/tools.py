"""The tools of a request: declared as the OpenAI chat API has them, whatever protocol they came in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.errors import RequestError
from ninfer.text.tool_calls import CallParser, JsonCalls, ToolSchema, XmlCalls

MAX_TOOLS = 1024
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")

FORMS: Mapping[str, type[CallParser]] = {"hermes": JsonCalls, "qwen-xml": XmlCalls}
"""`--tool-parser` words -> the form of a model's calls."""


def form_of(template_source: str) -> str | None:
    """The form in which a chat template teaches its model to call tools, None if it is none we read."""
    if "<function=" in template_source:
        return "qwen-xml"
    return "hermes" if "<tool_call>" in template_source else None


@dataclass(frozen=True)
class ToolUse:
    """Which tools an answer may or must call.

    declared: for the template, as the client wrote them. schemas: by name. form: None leaves calls in the text.
    required: at least one call, and nothing else. only: the one tool that may be called. parallel: whether several
    calls may be made.
    """

    declared: Sequence[Mapping[str, Any]]
    schemas: Mapping[str, ToolSchema]
    form: type[CallParser] | None
    required: bool
    only: str | None
    parallel: bool

    def parser(self) -> CallParser | None:
        """What finds the calls in one answer."""
        return None if self.form is None else self.form(self.schemas)


def read_schemas(tools: object) -> dict[str, ToolSchema]:
    """The declared functions by name. RequestError names the place (`tools[1].function.name`)."""
    if tools is None:
        return {}
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", param="tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)} tools, at most {MAX_TOOLS}", param="tools")
    found: dict[str, ToolSchema] = {}
    for index, tool in enumerate(tools):
        schema = _schema(tool, f"tools[{index}]")
        if schema.name in found:
            raise RequestError(f"two tools are named {schema.name!r}", param=f"tools[{index}].function.name")
        found[schema.name] = schema
    return found


def _schema(tool: object, place: str) -> ToolSchema:
    if not isinstance(tool, dict):
        raise RequestError("a tool must be an object", param=place)
    if tool.get("type") != "function":
        raise RequestError(
            f"a tool of type {tool.get('type')!r}; this server has functions only",
            kind="unsupported_field",
            param=f"{place}.type",
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError("a tool must have a function", param=f"{place}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"a tool's name must be 1 to 128 letters, digits and any of _ . : -, got {name!r}",
            param=f"{place}.function.name",
        )
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise RequestError("parameters must be a JSON schema object", param=f"{place}.function.parameters")
    return ToolSchema(name, parameters or {"type": "object"})


def read_choice(choice: object, schemas: Mapping[str, ToolSchema]) -> tuple[str, str | None]:
    """`tool_choice`: `auto`, `none` or `required`, and the one tool that it names. RequestError (`tool_choice`)."""
    if choice is None:
        return "auto", None
    if choice in ("auto", "none"):
        return str(choice), None
    name = None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if name not in schemas:
            raise RequestError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    elif choice != "required":
        raise RequestError(
            "tool_choice must be auto, none, required or {type: function, function: {name}}", param="tool_choice"
        )
    if not schemas:
        raise RequestError("tool_choice asks for a call and there are no tools", param="tool_choice")
    return "required", name
