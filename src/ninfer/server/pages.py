"""The endpoints that generate nothing and belong to no protocol's state."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ninfer.errors import RequestError
from ninfer.server.bodies import json_response
from ninfer.server.exchange import Server
from ninfer.server.panel import panel
from ninfer.server.prometheus import CONTENT_TYPE, ServerCollector, exposition


class Pages:
    """What a server says about itself."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._start_unix_s = time.time()
        self._collector = ServerCollector(server, self._start_unix_s)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._server.model.require(request.path_params["id"])
        return json_response(self._model())

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

    async def health(self, request: Request) -> Response:
        """200 exactly while requests are taken; a full queue does not change it."""
        service = self._server.service
        if service.failure is not None:
            return json_response({"status": "failed"}, 503)
        if service.is_draining:
            return json_response({"status": "draining"}, 503)
        return json_response({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        wanted = request.query_params.get("format")
        if wanted not in (None, "json", "prometheus"):
            raise RequestError(f"format must be json or prometheus, got {wanted!r}", param="format")
        accepted = request.headers.get("accept", "")
        asks_for_text = "text/plain" in accepted or "openmetrics" in accepted
        if wanted == "prometheus" or (wanted is None and asks_for_text):
            return Response(exposition(self._collector), headers={"content-type": CONTENT_TYPE})
        return json_response(panel(self._server, self._start_unix_s))

    async def plan(self, request: Request) -> Response:
        return json_response(self._server.model.plan.to_dict())
