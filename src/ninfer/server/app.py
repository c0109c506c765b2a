"""The ASGI application: routes, authentication, errors of whatever no endpoint answers."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ninfer.errors import NInferError, RequestError
from ninfer.server.bodies import json_response
from ninfer.server.exchange import GenerationEndpoint, Server
from ninfer.server.faults import Fault, fault_of
from ninfer.server.operations import error_body_of, operations_of


def make_app(server: Server) -> ASGIApp:
    """The ASGI application of a server."""
    table = operations_of(server)
    routes = [Route(_router_path(op.path), endpoint, methods=[op.method]) for op, endpoint in table]
    generating = {op.path: endpoint for op, endpoint in table if isinstance(endpoint, GenerationEndpoint)}
    handlers: Any = {HTTPException: _http_error, NInferError: _error, Exception: _error}
    app: ASGIApp = Shortcut(Starlette(routes=routes, exception_handlers=handlers), generating)
    app = KeyCheck(app, server, open_paths={op.path for op, _ in table if not op.needs_key})
    if server.settings.cors:
        app = CORSMiddleware(app, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    return app


def _router_path(path: str) -> str:
    """A path of the table in the router's words: a model's name may have slashes."""
    return path.replace("/v1/models/{id}", "/v1/models/{id:path}")


class Shortcut:
    """Calls generating endpoints without Starlette's error layers, which would see every chunk of a stream; these
    endpoints answer for all their errors themselves.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if is_post else None
        await (endpoint or self._app)(scope, receive, send)


class KeyCheck:
    """Refuses requests without the key, in time that does not depend on what they bring."""

    def __init__(self, app: ASGIApp, server: Server, *, open_paths: Collection[str]) -> None:
        """open_paths: what needs no key."""
        key = server.settings.api_key
        self._app = app
        self._open_paths = open_paths
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key is None or scope["type"] != "http" or scope["path"] in self._open_paths or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = RequestError("the API key is missing or wrong", kind="invalid_api_key")
        await _answer(fault_of(error), scope["path"])(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return self._key is not None and hmac.compare_digest(given, self._key)


def _answer(fault: Fault, path: str) -> Response:
    response = json_response(error_body_of(path)(fault), fault.status)
    response.headers.update(fault.headers())
    return response


async def _error(request: Request, error: Exception) -> Response:
    return _answer(fault_of(error), request.url.path)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: paths and methods there are none of."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = "method_not_allowed" if status == 405 else "not_found"
    fault = fault_of(RequestError(f"there is no {request.method} {request.url.path}", kind=kind))
    return _answer(fault, request.url.path)
