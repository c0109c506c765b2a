"""Arguments of tool calls that a model wrote as plain text, as values of the types that the tool declares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MAX_REFERENCES = 16
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
}


def converted(text: str, name: str, parameters: Mapping[str, Any]) -> Any:
    """The value of the parameter `name` of a tool whose arguments have the schema `parameters`.

    * A string stays as it is; where a string is one of several types, only the text `null` can be another.
    * `true` and `false` in any case are booleans, `null` is null, all else is read as JSON.
    * Text that does not fit its type stays a string: the tool can say more about it than we could.
    * A parameter that is not declared is a string; one declared without a type is JSON, if it is valid, else a string.
    """
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    if schema is None:
        return text
    types = declared_types(schema, parameters)
    word = text.strip().lower()
    if "null" in types and word == "null":
        return None
    if "string" in types:
        return text
    if "boolean" in types and word in ("true", "false"):
        return word == "true"
    value = _json(text)
    if value is None and word != "null":
        return text
    if not types:
        return value
    for declared in types:
        wanted = _JSON_TYPES.get(declared)
        if wanted is not None and isinstance(value, wanted) and not isinstance(value, bool):
            return value
        if declared == "integer" and isinstance(value, float) and value.is_integer():
            return int(value)
    return text


def declared_types(schema: object, root: Mapping[str, Any]) -> set[str]:
    """The types a schema names, through local references and alternatives; empty if it names none."""
    found: set[str] = set()
    waiting = [schema]
    for _ in range(_MAX_REFERENCES):
        if not waiting:
            break
        current = waiting.pop()
        if not isinstance(current, Mapping):
            continue
        declared = current.get("type")
        named = declared if isinstance(declared, list) else [declared]
        found.update(word for word in named if isinstance(word, str))
        for value in current["enum"] if isinstance(current.get("enum"), list) else []:
            found.add(_type_of(value))
        if "const" in current:
            found.add(_type_of(current["const"]))
        for word in ("anyOf", "oneOf", "allOf"):
            waiting += current[word] if isinstance(current.get(word), list) else []
        if isinstance(current.get("$ref"), str):
            waiting.append(_target(current["$ref"], root))
    return found


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """What a local reference (`#/$defs/x`) points to, None if there is nothing."""
    if not reference.startswith("#"):
        return None
    current: Any = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        current = current.get(key) if isinstance(current, Mapping) else None
    return current


def _type_of(value: object) -> str:
    for name, kind in (("boolean", bool), ("integer", int), ("number", float), ("string", str), ("array", list)):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _json(text: str) -> Any:
    """A JSON value; None for text that is none."""
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
