"""Tool calls in a model's answer, found as the text comes.

A call is a region between `<tool_call>` and `</tool_call>`; what stands in it is one of two forms:

    {"name": "f", "arguments": {"x": 1}}                                        JSON (Hermes, Qwen2.5, Qwen3)
    <function=f> <parameter=x> 1 </parameter> </function>                        XML (Qwen3-Coder, Qwen3.5)

A call comes out when all of it is there and sound: it names a declared tool, and its arguments are an object. Anything
else that looks like one is given back as text, to the letter. A closing tag inside a string or a parameter does not end
a region; at the end of the answer a call that lacks only its closing tag counts. White space around calls is dropped.
None of this depends on how the text is cut.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ninfer.text.arguments import converted

OPEN = "<tool_call>"
CLOSE = "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*</function>\s*\Z")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPEN_END = re.compile(rf"\s*(?:{'|'.join(re.escape(OPEN[:n]) for n in range(len(OPEN), 0, -1))})?\Z")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model made it. arguments: the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A declared tool. parameters: JSON schema of its arguments' object."""

    name: str
    parameters: Mapping[str, Any]


class _UnfinishedError(Exception):
    """A region whose end is not its end: a closing tag inside of a value."""


class CallParser(ABC):
    """Finds the calls in one answer. Pieces come in order; joined texts and calls are the same however it is cut."""

    def __init__(self, tools: Mapping[str, ToolSchema]) -> None:
        """`tools`: what is declared, by name."""
        self._tools = tools
        self._held = ""
        self._gap = ""  # white space in front of the region that is open
        self._is_inside = False
        self._searched = 0  # of `_held`, inside a region
        self._follows_call = False

    def push(self, text: str) -> list[str | ToolCall]:
        """Take more text; texts and calls that are certain now."""
        self._held += text
        found: list[str | ToolCall] = []
        while self._inside(found) if self._is_inside else self._outside(found):
            pass
        return found

    def finish(self) -> list[str | ToolCall]:
        """The end of the answer: what was held back."""
        held, self._held = self._held, ""
        if not self._is_inside:
            return [held] if held and not (self._follows_call and held.isspace()) else []
        self._is_inside = False
        try:
            call = self._read(held)
        except _UnfinishedError:
            call = None
        return [self._gap + OPEN + held if call is None else call]

    @abstractmethod
    def _read(self, region: str) -> ToolCall | None:
        """The call that a region holds, None if it is none. `_UnfinishedError` where it ends within a value."""

    def _outside(self, found: list[str | ToolCall]) -> bool:
        start = self._held.find(OPEN)
        if start >= 0:
            before, self._held = self._held[:start], self._held[start + len(OPEN) :]
            text = before.rstrip()
            self._gap = before[len(text) :]
            self._is_inside, self._searched = True, 0
        else:
            match = _OPEN_END.search(self._held)
            cut = len(self._held) if match is None else match.start()
            text, self._held = self._held[:cut], self._held[cut:]
        if text:
            found.append(text.lstrip() if self._follows_call else text)
            self._follows_call = False
        return self._is_inside

    def _inside(self, found: list[str | ToolCall]) -> bool:
        end = self._held.find(CLOSE, self._searched)
        if end < 0:
            self._searched = max(self._searched, len(self._held) - len(CLOSE) + 1)
            return False
        self._searched = end + len(CLOSE)
        try:
            call = self._read(self._held[:end])
        except _UnfinishedError:
            return True
        if call is None:
            found.append(self._gap + OPEN + self._held[: self._searched])
        else:
            found.append(call)
        self._follows_call = call is not None
        self._held = self._held[self._searched :]
        self._is_inside = False
        return True


class JsonCalls(CallParser):
    """The JSON form."""

    def _read(self, region: str) -> ToolCall | None:
        try:
            value = json.loads(region, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            if '"' in _JSON_STRING.sub("", region):
                raise _UnfinishedError from None
            return None
        if not isinstance(value, dict) or value.get("name") not in self._tools:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):  # some models write the object as its text
            try:
                arguments = json.loads(arguments, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                return None
        return ToolCall(value["name"], json_text(arguments)) if isinstance(arguments, dict) else None


class XmlCalls(CallParser):
    """The XML form, whose values are text: they become what the tool's schema says (`arguments.converted`)."""

    def _read(self, region: str) -> ToolCall | None:
        function = _FUNCTION.match(region)
        if function is None or function.group(1) not in self._tools:
            return None
        tool = self._tools[function.group(1)]
        arguments: dict[str, Any] = {}
        position = function.end()
        while parameter := _PARAMETER.match(region, position):
            end = _VALUE_END.search(region, parameter.end())
            if end is None:
                raise _UnfinishedError
            name = parameter.group(1)
            if name in arguments:
                return None
            text = region[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
            arguments[name] = converted(text, name, tool.parameters)
            position = end.end()
        return ToolCall(tool.name, json_text(arguments)) if _FUNCTION_END.match(region, position) else None


def json_text(value: object) -> str:
    """JSON as chat templates write it; characters stay themselves unless they are no valid text."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if any("\ud800" <= char <= "\udfff" for char in text) else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
