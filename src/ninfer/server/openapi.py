"""`/openapi.json`: what the server takes and gives, from the declarations that its parsers use.

Requests are described by the same structs and tables that read them (`fields`), errors by the table of faults. Bodies
of answers are described in `answers`; a test sends generated requests and holds every answer to this description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ninfer.server.faults import TABLE

REFERENCE = "#/components/schemas/{name}"

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """One method of one path, as a client sees it.

    request: the struct of its body, None without one; required: what a body must have at least; neutral: as
    `read_fields`. answer: JSON schema of the body of a
    200. streams: whether that can be a stream of events instead. query: parameters by name. error: JSON schema of its
    errors. text: content type of another form that it has, as text. needs_key: where a key is asked for at all.
    """

    method: str
    path: str
    summary: str
    answer: Schema
    error: Schema
    request: type[msgspec.Struct] | None = None
    required: tuple[str, ...] = ()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    streams: bool = False
    query: Mapping[str, Schema] = field(default_factory=dict)
    text: str | None = None
    needs_key: bool = True


def describe(operations: Sequence[Operation], *, version: str, model_id: str, has_key: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of some operations of a server with one model."""
    structs = [operation.request for operation in operations if operation.request is not None]
    _, components = msgspec.json.schema_components(structs, ref_template=REFERENCE)
    for operation in operations:
        if operation.request is not None:
            body = components[operation.request.__name__]
            body["properties"] |= {**_neutral(operation.neutral), "model": {"enum": [model_id, None]}}
            body["required"] = sorted({*body["required"], *operation.required})
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, has_key=has_key)
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "NInfer", "version": version},
        "paths": paths,
        "components": {"schemas": components, **({"securitySchemes": schemes} if has_key else {})},
    }


def _neutral(fields: Mapping[str, tuple[Any, ...]]) -> dict[str, Schema]:
    """Fields that are known and not honoured: only the values that ask for nothing are taken."""
    return {
        name: {"enum": [None, *(a for i, a in enumerate(allowed) if a not in allowed[:i])]}
        for name, allowed in fields.items()
    }


def _operation(operation: Operation, *, has_key: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": operation.answer}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if operation.text is not None:
        content[operation.text] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "the answer", "content": content},
            **{str(status): _error(operation.error) for status in _statuses()},
        },
    }
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [
        *({"name": n, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for n in names),
        *({"name": n, "in": "query", "schema": schema} for n, schema in operation.query.items()),
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.request is not None:
        schema = {"$ref": REFERENCE.format(name=operation.request.__name__)}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if has_key and operation.needs_key:
        described["security"] = [{"bearer": []}, {"header": []}]
    return described


def _error(schema: Schema) -> dict[str, Any]:
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}


def _statuses() -> list[int]:
    return sorted({status for status, _, _ in TABLE.values()})
