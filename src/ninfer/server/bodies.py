"""Bodies: those of requests bounded and strict JSON, or an error that says what was wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ninfer.errors import RequestError

MAX_DEPTH = 64
"""Objects and arrays within one another; tool schemas of real clients stay under 20, the chat template takes 64."""
BODY_TIMEOUT_S = 60.0
"""Seconds for a body to arrive; a client that announces more than it sends must not hold a connection for ever."""


JSON = "application/json"


def json_response(value: object, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a request's body. RequestError: `request_too_large`, `body_timeout`, `invalid_json`."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await _read(request, max_bytes)
    except TimeoutError:
        raise RequestError(f"the body was not complete within {BODY_TIMEOUT_S:g} s", kind="body_timeout") from None
    except ClientDisconnect:
        raise RequestError("the client went away while it sent the body", kind="client_gone") from None
    return parse_object(data)


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than {max_bytes:,} bytes, the limit of this server (--max-request-mib)",
        kind="request_too_large",
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object. RequestError (`invalid_json`) for anything else, however malformed."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}", kind="invalid_json") from error
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise RequestError(
            f"the body must be a JSON object, got {'null' if value is None else type(value).__name__}",
            kind="invalid_json",
        )
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_DEPTH} levels", kind="invalid_json")
