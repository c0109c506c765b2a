"""Routes, authentication, and the endpoints that generate nothing."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ninfer.errors import NInferError, RequestError
from ninfer.server import anthropic_messages, openai_chat, openai_completions, openai_responses, tokens
from ninfer.server.exchange import ErrorBody, GenerationEndpoint, Server
from ninfer.server.faults import Fault, fault_of, openai_error
from ninfer.server.openai_responses import Responses
from ninfer.server.panel import panel
from ninfer.server.prometheus import CONTENT_TYPE, ServerCollector, exposition
from ninfer.server.response_pages import ResponsePages

MESSAGES = "/v1/messages"
"""Where the Anthropic protocol lives."""
RESPONSES = "/v1/responses"
"""Where the Responses protocol lives."""

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no key: what a supervisor asks."""


def make_app(server: Server) -> ASGIApp:
    """The ASGI application of a server."""
    pages = Pages(server)
    responses = Responses(server.responses)
    stored = ResponsePages(server, responses)
    generate = (
        ("/v1/chat/completions", "chat_completions", openai_chat.parse, "chatcmpl-"),
        ("/v1/completions", "completions", openai_completions.parse, "cmpl-"),
        (RESPONSES, "responses", responses.parse, "resp_"),  # the underscore is what clients know such ids by
        (MESSAGES, "messages", anthropic_messages.parse, "msg_"),
    )
    generating: dict[str, ASGIApp] = {
        path: GenerationEndpoint(server, name, parse, id_prefix=prefix, error_body=_error_body(path))
        for path, name, parse, prefix in generate
    }
    routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generating.items()),
        Route(f"{RESPONSES}/input_tokens", _page(stored.input_tokens), methods=["POST"]),
        Route(f"{RESPONSES}/{{id}}", _page(stored.get), methods=["GET"]),
        Route(f"{RESPONSES}/{{id}}", _page(stored.delete), methods=["DELETE"]),
        Route(f"{RESPONSES}/{{id}}/input_items", _page(stored.input_items), methods=["GET"]),
        Route(f"{MESSAGES}/count_tokens", pages.count_tokens, methods=["POST"]),
        Route("/v1/models", pages.models, methods=["GET"]),
        Route("/v1/models/{id:path}", pages.model, methods=["GET"]),
        Route("/tokenize", pages.tokenize, methods=["POST"]),
        Route("/detokenize", pages.detokenize, methods=["POST"]),
        Route("/health", pages.health, methods=["GET"]),
        Route("/metrics", pages.metrics, methods=["GET"]),
        Route("/plan", pages.plan, methods=["GET"]),
    ]
    handlers: Any = {HTTPException: _http_error, NInferError: _error, Exception: _error}
    app: ASGIApp = KeyCheck(Shortcut(Starlette(routes=routes, exception_handlers=handlers), generating), server)
    if server.settings.cors:
        app = CORSMiddleware(app, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    return app


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

    def __init__(self, app: ASGIApp, server: Server) -> None:
        key = server.settings.api_key
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key is None or scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = RequestError("the API key is missing or wrong", kind="invalid_api_key")
        await _answer(fault_of(error), scope["path"])(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return self._key is not None and hmac.compare_digest(given, self._key)


class Pages:
    """The endpoints that generate nothing."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._start_unix_s = time.time()
        self._collector = ServerCollector(server, self._start_unix_s)

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._server.model.require(request.path_params["id"])
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        model = self._server.model
        return {
            "id": model.id,
            "object": "model",
            "created": model.created,
            "owned_by": "ninfer",
            "max_model_len": model.plan.max_context,
            "architecture": model.plan.architecture,
        }

    async def count_tokens(self, request: Request) -> Response:
        return _json(await anthropic_messages.count_tokens(self._server, request))

    async def tokenize(self, request: Request) -> Response:
        return _json(await tokens.tokenize(self._server, request))

    async def detokenize(self, request: Request) -> Response:
        return _json(await tokens.detokenize(self._server, request))

    async def health(self, request: Request) -> Response:
        """200 exactly while requests are taken; a full queue does not change it."""
        service = self._server.service
        if service.failure is not None:
            return _json({"status": "failed"}, 503)
        if service.is_draining:
            return _json({"status": "draining"}, 503)
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        wanted = request.query_params.get("format")
        if wanted not in (None, "json", "prometheus"):
            raise RequestError(f"format must be json or prometheus, got {wanted!r}", param="format")
        accepted = request.headers.get("accept", "")
        asks_for_text = "text/plain" in accepted or "openmetrics" in accepted
        if wanted == "prometheus" or (wanted is None and asks_for_text):
            return Response(exposition(self._collector), headers={"content-type": CONTENT_TYPE})
        return _json(panel(self._server, self._start_unix_s))

    async def plan(self, request: Request) -> Response:
        return _json(self._server.model.plan.to_dict())


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _page(body: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers with a JSON body."""

    async def endpoint(request: Request) -> Response:
        return _json(await body(request))

    return endpoint


def _error_body(path: str) -> ErrorBody:
    """How the protocol of a path writes errors."""
    if path.startswith(RESPONSES):
        return openai_responses.error_body
    return anthropic_messages.error_body if path.startswith(MESSAGES) else openai_error


def _answer(fault: Fault, path: str) -> Response:
    response = _json(_error_body(path)(fault), fault.status)
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
