"""Fields of a request body: typed, refused by name, or listed as ignored.

A protocol declares its fields three ways (decision table in docs/serving.md, "Fields"): a `msgspec.Struct` of those it
honours; `neutral`, fields we know and cannot honour, with the values that ask for what happens anyway; and `harmless`,
fields that do not touch the answer. Any other value of a neutral field is refused; a field that nobody declares is
harmless, because a new one of some vendor must not break a client.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from ninfer.errors import RequestError

Declared = TypeVar("Declared", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(.*?)`$")


def shape(**schema: Any) -> msgspec.Meta:
    """What a field holds beyond its type, in words of JSON schema, for `/openapi.json`. Whoever reads the field checks
    it, and says more of what is wrong than a schema could.
    """
    return msgspec.Meta(extra_json_schema=schema)


def conversation(*roles: str) -> msgspec.Meta:
    """The shape of messages in some roles."""
    part = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string"}, "text": {"type": "string"}},
    }
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": list(roles)}, "content": content},
    }
    return shape(type="array", minItems=1, items=message)


Objects = Annotated[Any, shape(type=["array", "null"], items={"type": "object"})]
"""A field that holds a list of objects, which are judged one by one."""
Count = Annotated[int, shape(minimum=1)]
"""A field that holds a number of tokens."""


def read_fields(
    declared: type[Declared], body: Mapping[str, Any], *, neutral: Mapping[str, tuple[Any, ...]]
) -> tuple[Declared, list[str]]:
    """The declared fields of a body, and the names of those that were ignored, sorted.

    RequestError: `bad_value` naming the field for a wrong type, `unsupported_field` for one that cannot be honoured.
    """
    known = set(declared.__struct_fields__)
    for name, allowed in neutral.items():
        value = body.get(name)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            raise unsupported(name)
    try:
        found = msgspec.convert(body, declared)
    except msgspec.ValidationError as error:
        path = _PATH.search(str(error))
        param = path.group(1) if path else None
        what = _PATH.sub("", str(error)).replace("`", "")
        raise RequestError(f"{param or 'the body'}: {what[:1].lower()}{what[1:]}", param=param) from error
    return found, sorted(set(body) - known - set(neutral))


def unsupported(name: str) -> RequestError:
    """The refusal of a field that we know and that would change the answer."""
    return RequestError(
        f"{name} is not supported by this server and would change the answer; leave it out",
        kind="unsupported_field",
        param=name,
    )


def header_of(names: Collection[str]) -> str:
    """Field names as a header value, whatever characters a client put into them; cut at 1,000 characters."""
    return ", ".join(quote(name, safe="[]") for name in names)[:1000]


def text_member(item: Mapping[str, Any], name: str, place: str) -> str:
    """The text that a part of a conversation must have under `name`; RequestError that names `place` otherwise."""
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} must be text", param=f"{place}.{name}")
    return value
