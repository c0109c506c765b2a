"""What the Responses protocol has beside making answers: looking at stored ones, counting the tokens of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from ninfer.errors import RequestError
from ninfer.server.bodies import read_object
from ninfer.server.exchange import Server
from ninfer.server.fields import unsupported
from ninfer.server.inputs import encode_prompts
from ninfer.server.openai_responses import HARMLESS_INCLUDES, Responses

MAX_PAGE = 100
DEFAULT_PAGE = 20
"""Items of one page of `input_items`, as the protocol has them."""


class ResponsePages:
    """The endpoints below `/v1/responses`, each giving the body of its answer."""

    def __init__(self, server: Server, responses: Responses) -> None:
        self._server = server
        self._responses = responses

    async def get(self, request: Request) -> dict[str, Any]:
        """A stored response. It has ended, so there is nothing to stream."""
        if request.query_params.get("stream", "false") != "false":
            raise unsupported("stream")
        if "starting_after" in request.query_params:
            raise unsupported("starting_after")
        _check_includes(request)
        return self._server.responses.get(request.path_params["id"]).response()

    async def delete(self, request: Request) -> dict[str, Any]:
        response_id = request.path_params["id"]
        self._server.responses.delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def input_items(self, request: Request) -> dict[str, Any]:
        """A page of the items that an answer was made from, those of earlier responses included."""
        items = self._server.responses.get(request.path_params["id"]).input_items()
        _check_includes(request)
        query = request.query_params
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestError(f"order must be asc or desc, got {order!r}", param="order")
        limit = query.get("limit", str(DEFAULT_PAGE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
            raise RequestError(f"limit must be an integer in [1, {MAX_PAGE}], got {limit!r}", param="limit")
        if order == "desc":
            items.reverse()
        after = query.get("after")
        if after is not None:
            places = [place for place, item in enumerate(items, start=1) if item["id"] == after]
            if not places:
                raise RequestError(f"there is no item {after!r}", kind="item_not_found", param="after")
            items = items[places[0] :]
        page = items[: int(limit)]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }

    async def input_tokens(self, request: Request) -> dict[str, Any]:
        """Tokens of the prompt that the same request to `/v1/responses` would have."""
        server = self._server
        body = await read_object(request, server.settings.max_request_mib << 20)
        chat = self._responses.parse(body, server.model, server.settings).source
        loop = asyncio.get_running_loop()
        (prompt,) = await loop.run_in_executor(server.encoders, encode_prompts, chat, server.model)
        return {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}


def _check_includes(request: Request) -> None:
    """`include` can add nothing to what was stored."""
    for name in ("include", "include[]"):
        for word in request.query_params.getlist(name):
            if word not in HARMLESS_INCLUDES:
                raise unsupported("include")
