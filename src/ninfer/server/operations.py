"""All endpoints: what each takes and gives, and what does it. Routes and `/openapi.json` are made of this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import ninfer
from ninfer.server import (
    answers,
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
    tokens,
)
from ninfer.server.bodies import json_response
from ninfer.server.exchange import ErrorBody, GenerationEndpoint, Parse, Server
from ninfer.server.faults import openai_error
from ninfer.server.openai_responses import Responses
from ninfer.server.openapi import Operation, describe
from ninfer.server.pages import Pages
from ninfer.server.response_pages import MAX_PAGE, ResponsePages

MESSAGES = "/v1/messages"
"""Where the Anthropic protocol lives."""
RESPONSES = "/v1/responses"
"""Where the Responses protocol lives."""

Table = list[tuple[Operation, Any]]


def error_body_of(path: str) -> ErrorBody:
    """How the protocol of a path writes errors."""
    if path.startswith(RESPONSES):
        return openai_responses.error_body
    return anthropic_messages.error_body if path.startswith(MESSAGES) else openai_error


def operations_of(server: Server) -> Table:
    """Every operation with its endpoint."""
    responses = Responses(server.responses)
    table = [*_generating(server, responses), *_stored(server, responses), *_counting(server), *_pages(server)]
    described: dict[str, Any] = {}

    async def openapi(request: Request) -> Response:
        return json_response(described)

    table.append((_operation("GET", "/openapi.json", "This description.", answers.OBJECT), openapi))
    has_key = server.settings.api_key is not None
    described.update(
        describe([op for op, _ in table], version=ninfer.__version__, model_id=server.model.id, has_key=has_key)
    )
    return table


def _operation(method: str, path: str, summary: str, answer: Mapping[str, Any], **more: Any) -> Operation:
    error = answers.ANTHROPIC_ERROR if path.startswith(MESSAGES) else answers.OPENAI_ERROR
    return Operation(method, path, summary, answer, error, **more)


@dataclass(frozen=True)
class _Protocol:
    """One protocol that generates. name: its word in logs; id_prefix: of answers; required: what a body must have."""

    path: str
    name: str
    id_prefix: str
    fields: type[msgspec.Struct]
    required: str
    neutral: Mapping[str, tuple[Any, ...]]
    parse: Parse
    answer: Mapping[str, Any]


def _generating(server: Server, responses: Responses) -> Table:
    protocols = [
        _Protocol(
            path="/v1/chat/completions",
            name="chat_completions",
            id_prefix="chatcmpl-",
            fields=openai_chat.ChatFields,
            required="messages",
            neutral=openai_chat.CHAT_NEUTRAL,
            parse=openai_chat.parse,
            answer=answers.CHAT,
        ),
        _Protocol(
            path="/v1/completions",
            name="completions",
            id_prefix="cmpl-",
            fields=openai_completions.CompletionFields,
            required="prompt",
            neutral=openai_completions.COMPLETION_NEUTRAL,
            parse=openai_completions.parse,
            answer=answers.COMPLETION,
        ),
        _Protocol(
            path=RESPONSES,
            name="responses",
            id_prefix="resp_",  # with the underscore, by which clients know such ids
            fields=openai_responses.ResponseFields,
            required="input",
            neutral=openai_responses.NEUTRAL,
            parse=responses.parse,
            answer=answers.RESPONSE,
        ),
        _Protocol(
            path=MESSAGES,
            name="messages",
            id_prefix="msg_",
            fields=anthropic_messages.MessageFields,
            required="messages",
            neutral=anthropic_messages.NEUTRAL,
            parse=anthropic_messages.parse,
            answer=answers.ANTHROPIC_MESSAGE,
        ),
    ]
    table: Table = []
    for one in protocols:
        operation = _operation(
            "POST",
            one.path,
            "Generate an answer.",
            one.answer,
            request=one.fields,
            required=(one.required,),
            neutral=one.neutral,
            streams=True,
        )
        error_body = error_body_of(one.path)
        endpoint = GenerationEndpoint(server, one.name, one.parse, id_prefix=one.id_prefix, error_body=error_body)
        table.append((operation, endpoint))
    return table


def _stored(server: Server, responses: Responses) -> Table:
    pages = ResponsePages(server, responses)
    one = f"{RESPONSES}/{{id}}"
    paging = {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
        "order": {"enum": ["asc", "desc"]},
    }
    counted = _operation(
        "POST",
        f"{RESPONSES}/input_tokens",
        "Count the tokens of a request's prompt.",
        answers.INPUT_TOKENS,
        request=openai_responses.ResponseFields,
        neutral=openai_responses.NEUTRAL,
    )
    return [
        (counted, _body(pages.input_tokens)),
        (_operation("GET", one, "A stored response.", answers.RESPONSE), _body(pages.get)),
        (_operation("DELETE", one, "Forget a stored response.", answers.DELETED), _body(pages.delete)),
        (
            _operation("GET", f"{one}/input_items", "What it was made from.", answers.ITEM_LIST, query=paging),
            _body(pages.input_items),
        ),
    ]


def _counting(server: Server) -> Table:
    """What counts tokens or translates them."""
    count = _operation(
        "POST",
        f"{MESSAGES}/count_tokens",
        "Count the tokens of a request's prompt.",
        answers.COUNTED,
        request=anthropic_messages.MessageFields,
        neutral=anthropic_messages.NEUTRAL,
    )
    tokenize = _operation("POST", "/tokenize", "Text to ids.", answers.TOKENS, request=tokens.TokenizeFields)
    detokenize = _operation("POST", "/detokenize", "Ids to text.", answers.DETOKENIZED, request=tokens.DetokenizeFields)
    return [
        (count, _body(partial(anthropic_messages.count_tokens, server))),
        (tokenize, _body(partial(tokens.tokenize, server))),
        (detokenize, _body(partial(tokens.detokenize, server))),
    ]


def _pages(server: Server) -> Table:
    pages = Pages(server)
    forms = {"format": {"enum": ["json", "prometheus"]}}
    metrics = _operation("GET", "/metrics", "Figures.", answers.METRICS, query=forms, text="text/plain")
    return [
        (_operation("GET", "/v1/models", "The models, which is one.", answers.MODEL_LIST), pages.models),
        (_operation("GET", "/v1/models/{id}", "The model.", answers.MODEL), pages.model),
        (_operation("GET", "/health", "Whether requests are taken.", answers.HEALTH, needs_key=False), pages.health),
        (metrics, pages.metrics),
        (_operation("GET", "/plan", "What runs and what was allocated.", answers.PLAN), pages.plan),
    ]


def _body(body: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers with a JSON body."""

    async def endpoint(request: Request) -> Response:
        return json_response(await body(request))

    return endpoint
