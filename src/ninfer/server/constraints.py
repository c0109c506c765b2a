"""What an answer must be, in the forms clients ask for it, as one grammar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer.decoding.grammar import Grammar, GrammarCompiler, json_rule, text_rule
from ninfer.errors import RequestError
from ninfer.server.fields import unsupported
from ninfer.server.tools import ToolUse
from ninfer.text.arguments import declared_types
from ninfer.text.tokenizer import Tokenizer
from ninfer.text.tool_calls import CLOSE, OPEN, ToolSchema, XmlCalls


@dataclass(frozen=True)
class Rule:
    """What the answer must be. kind: `schema`, `regex`, `grammar`, `choice`; param: names it in errors."""

    kind: str
    value: Any
    param: str


def read_rule(response_format: object, structured_outputs: object) -> Rule | None:
    """The rule of a request, None for free text. RequestError names the field."""
    first = _response_format(response_format)
    second = _structured_outputs(structured_outputs)
    if first is not None and second is not None:
        raise RequestError("give response_format or structured_outputs, not both", param="structured_outputs")
    return second if first is None else first


def _response_format(value: object) -> Rule | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Rule("schema", {"type": "object"}, "response_format")
    if kind != "json_schema" or not isinstance(value, dict):
        raise RequestError(
            f"response_format must have type text, json_object or json_schema, got {kind!r}",
            kind="unsupported_field",
            param="response_format",
        )
    described = value.get("json_schema")
    if not isinstance(described, dict) or "schema" not in described:
        raise RequestError("json_schema must have a schema", param="response_format.json_schema")
    return Rule("schema", described["schema"], "response_format.json_schema.schema")


def _structured_outputs(value: object) -> Rule | None:
    if value is None:
        return None
    kinds = {"json": "schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
    given = [name for name, rule in value.items() if rule is not None] if isinstance(value, dict) else []
    for name in given:
        if name not in kinds:
            raise unsupported(f"structured_outputs.{name}")
    if len(given) != 1 or not isinstance(value, dict):
        raise RequestError(
            "structured_outputs must have exactly one of json, regex, choice and grammar", param="structured_outputs"
        )
    name, found = given[0], value[given[0]]
    param = f"structured_outputs.{name}"
    if name == "choice":
        if not (isinstance(found, list) and found and all(isinstance(text, str) and text for text in found)):
            raise RequestError(f"{param} must be a list of non-empty texts", param=param)
    elif name != "json" and not isinstance(found, str):
        raise RequestError(f"{param} must be text", param=param)
    return Rule(kinds[name], found, param)


def compile_rules(
    grammars: GrammarCompiler, tokenizer: Tokenizer, rule: Rule | None, use: ToolUse | None
) -> Grammar | None:
    """One grammar for a rule and for calls that must be made; calls that may be made stand beside a rule.

    Takes time; the server calls it on a thread of its own. RequestError names the schema that is wrong.
    """
    calls = use is not None and use.form is not None and (use.required or rule is not None)
    if not calls or use is None:
        return None if rule is None else _alone(grammars, rule)
    if rule is not None and rule.kind in ("grammar", "regex"):
        raise RequestError(f"{rule.param} cannot be combined with tools", kind="unsupported_field", param=rule.param)
    lines = _call_rules(grammars, tokenizer, use)
    if rule is None or use.required:
        lines.insert(0, "start: calls")
    else:
        lines = ["start: calls | answer", f"answer: {_answer(grammars, rule)}", *lines]
    return grammars.lark("\n".join(lines), param="tools")


def _alone(grammars: GrammarCompiler, rule: Rule) -> Grammar:
    if rule.kind == "regex":
        return grammars.regex(rule.value, param=rule.param)
    if rule.kind == "grammar":
        return grammars.gbnf(rule.value, param=rule.param)
    return grammars.lark(f"start: {_answer(grammars, rule)}", param=rule.param)


def _answer(grammars: GrammarCompiler, rule: Rule) -> str:
    if rule.kind == "choice":
        return " | ".join(text_rule(text) for text in rule.value)
    grammars.check_schema(rule.value, param=rule.param)
    return json_rule(rule.value)


def _call_rules(grammars: GrammarCompiler, tokenizer: Tokenizer, use: ToolUse) -> list[str]:
    """Lark rules of `calls`: of one tool exactly one call, otherwise one or more where several may be made."""
    opening, closing = (_tag(tag, tokenizer) for tag in (OPEN, CLOSE))
    names = list(use.schemas) if use.only is None else [use.only]
    several = use.parallel and use.only is None
    newline = text_rule("\n")
    lines = [
        f"calls: call ({newline} call)*" if several else "calls: call",
        f"call: {opening} {newline} ({' | '.join(f'tool_{i}' for i in range(len(names)))}) {newline} {closing}",
    ]
    places = {name: index for index, name in enumerate(use.schemas)}
    for index, name in enumerate(names):
        tool = use.schemas[name]
        param = f"tools[{places[name]}].function.parameters"
        grammars.check_schema(_object_schema(tool.parameters), param=param)
        lines += _xml_call(index, tool) if use.form is XmlCalls else _json_call(index, tool)
    return lines


def _tag(tag: str, tokenizer: Tokenizer) -> str:
    control = tokenizer.control_tokens.get(tag)
    return text_rule(tag) if control is None else f"<[{control}]>"


def _json_call(index: int, tool: ToolSchema) -> list[str]:
    head = text_rule(f'{{"name": "{tool.name}", "arguments": ')
    return [
        f"tool_{index}: {head} arguments_{index} {text_rule('}')}",
        f"arguments_{index}: {json_rule(_object_schema(tool.parameters))}",
    ]


def _object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, also where their schema does not say so."""
    return dict(schema) if "type" in schema or "$ref" in schema else {**schema, "type": "object"}


def _xml_call(index: int, tool: ToolSchema) -> list[str]:
    """Parameters in declared order, those that are not required may be missing."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    shared = {word: tool.parameters[word] for word in ("$defs", "definitions") if word in tool.parameters}
    end = "\n</parameter>\n"
    parts, lines = [], []
    for number, (name, schema) in enumerate(properties.items() if isinstance(properties, dict) else ()):
        rule = f"parameter_{index}_{number}"
        parts.append(rule if isinstance(required, list) and name in required else f"{rule}?")
        head = text_rule(f"<parameter={name}>\n")
        enum = schema.get("enum") if isinstance(schema, dict) else None
        lines.append(f"{rule}: {head} value_{index}_{number}")
        if isinstance(enum, list) and enum and all(isinstance(value, str) for value in enum):
            values = " | ".join(text_rule(value + end) for value in enum)
            lines.append(f"value_{index}_{number}: {values}")
        elif "string" in declared_types(schema, tool.parameters):
            lines.append(f"value_{index}_{number}[suffix={text_rule(end)}]: /(?s:.*)/")
        else:
            value = {**schema, **shared} if isinstance(schema, dict) else schema
            lines.append(f"value_{index}_{number}: json_{index}_{number} {text_rule(end)}")
            lines.append(f"json_{index}_{number}: {json_rule(value)}")
    head = text_rule(f"<function={tool.name}>\n")
    return [f"tool_{index}: {head} {' '.join(parts)} {text_rule('</function>')}", *lines]
