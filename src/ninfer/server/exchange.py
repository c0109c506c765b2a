"""One generation over HTTP, the same for every protocol: read, check, queue, write, account."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ninfer.engine import Delta
from ninfer.engine.service import EngineService
from ninfer.errors import NInferError, OverloadedError, RequestError
from ninfer.metrics import now_ns
from ninfer.server import sse
from ninfer.server.accounts import Accounts, Entry
from ninfer.server.answer import AnswerHead, Call, Writer
from ninfer.server.bodies import JSON, read_object
from ninfer.server.faults import Fault, fault_of, openai_error
from ninfer.server.fields import header_of
from ninfer.server.generation import Batch, Generation
from ninfer.server.model import ServedModel
from ninfer.server.response_store import ResponseStore
from ninfer.server.settings import ServerSettings

HEADERS_AFTER_S = 0.5
"""Seconds a stream waits for its first event, so that an early error still gets its status; then headers go out."""
HEARTBEAT_S = 5.0
"""Seconds of silence after which a stream sends a comment."""
NS_PER_MS = 1_000_000

_logger = logging.getLogger("ninfer.server")

Parse = Callable[[dict[str, Any], ServedModel, ServerSettings], Call]
ErrorBody = Callable[[Fault], Mapping[str, object]]


@dataclass(frozen=True)
class Server:
    """What the routes share.

    encoders: threads for templates and tokenizers, which take their time. responses: answers that clients may come back
    to.
    """

    settings: ServerSettings
    model: ServedModel
    service: EngineService
    accounts: Accounts
    encoders: ThreadPoolExecutor
    responses: ResponseStore


class GenerationEndpoint:
    """A route that generates: an ASGI application around a protocol's `parse`."""

    def __init__(
        self, server: Server, protocol: str, parse: Parse, *, id_prefix: str, error_body: ErrorBody = openai_error
    ) -> None:
        self._server = server
        self._protocol = protocol
        self._parse = parse
        self._id_prefix = id_prefix
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        entry = self._server.accounts.arrived(self._protocol, self._id_prefix)
        try:
            await self._serve(entry, request, send)
        except asyncio.CancelledError:
            unread = RequestError("the client did not read its answer before the server ended", kind="client_gone")
            self._server.accounts.failed(entry, fault_of(unread))
            raise
        except Exception as error:  # one request: whatever it is must be answered, accounted for, and harm no other
            fault = fault_of(error)
            if not isinstance(error, NInferError):
                _logger.exception("%s: a bug of ours", entry.id)
            self._server.accounts.failed(entry, fault)
            if entry.is_answered:
                raise
            await self._refuse(entry, fault, request, send)

    async def _serve(self, entry: Entry, request: Request, send: Send) -> None:
        """NInferError for what is wrong before the first token; later failures are part of the answer."""
        server = self._server
        body = await read_object(request, server.settings.max_request_mib << 20)
        call = self._parse(body, server.model, server.settings)
        entry.describe(call)
        generation = Generation(server.service)
        watch = asyncio.create_task(_cancel_when_gone(request.receive, generation))
        try:
            with server.service.reserved(call.num_sequences):
                await self._queue(entry, call, generation)
                writer = call.make_writer(
                    AnswerHead(entry.id, int(time.time()), server.model.id, server.model.fingerprint)
                )
                if call.stream:
                    await self._stream(entry, generation, writer, request, send)
                else:
                    await self._collect(entry, generation, writer, request, send)
        finally:
            watch.cancel()
            generation.close()

    async def _queue(self, entry: Entry, call: Call, generation: Generation) -> None:
        """Encode the prompts and submit them."""
        server, settings = self._server, self._server.settings
        loop = asyncio.get_running_loop()
        prompts, requests = await loop.run_in_executor(server.encoders, call.prepare, server.model)
        if generation.is_cancelled:
            raise RequestError("the client went away before the request was queued", kind="client_gone")
        admission_deadline = entry.arrival_ns + settings.pending_timeout_ms * NS_PER_MS
        if now_ns() >= admission_deadline:
            raise OverloadedError(
                f"the prompt was not ready within {settings.pending_timeout_ms} ms (--pending-timeout-ms)",
                kind="queue_timeout",
            )
        timeout = settings.request_timeout_ms
        generation.submit(
            requests,
            prompts,
            call.reader,
            arrival_ns=entry.arrival_ns,
            admission_deadline_ns=admission_deadline,
            end_deadline_ns=entry.arrival_ns + timeout * NS_PER_MS if timeout else None,
        )
        server.accounts.started(entry)

    async def _collect(
        self, entry: Entry, generation: Generation, writer: Writer, request: Request, send: Send
    ) -> None:
        """Answer when everything is there."""
        answer = generation.answer
        await generation.finish()
        if answer.error is not None:
            self._server.accounts.ended(entry, answer)
            await self._refuse(entry, fault_of(answer.error), request, send)
            return
        body = msgspec.json.encode(writer.whole(answer))
        self._server.accounts.ended(entry, answer)
        entry.is_answered = True
        response = Response(body, headers=self._headers(entry), media_type=JSON)
        await response(request.scope, request.receive, send)

    async def _stream(self, entry: Entry, generation: Generation, writer: Writer, request: Request, send: Send) -> None:
        """Answer as it comes. What fails before the headers are sent has a status, later an event."""
        answer = generation.answer
        batch = await generation.next_batch(HEADERS_AFTER_S)
        if answer.error is not None and not any(choice.ids for choice in answer.choices):
            await generation.finish()
            self._server.accounts.ended(entry, answer)
            await self._refuse(entry, fault_of(answer.error), request, send)
            return
        headers = [(k.encode(), v.encode()) for k, v in {**sse.HEADERS, **self._headers(entry)}.items()]
        entry.is_answered = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        out = b""
        is_open = False
        while True:
            if batch and not is_open:  # not before: an opening may tell what was reused of the prompt
                out += writer.opening(answer.choices)
                is_open = True
            out += _events(writer, batch, generation) if batch else sse.HEARTBEAT
            if answer.has_ended:
                break
            if out:
                await send({"type": "http.response.body", "body": out, "more_body": True})
                out = b""
            batch = await generation.next_batch(HEARTBEAT_S)
        out += writer.closing(answer) if answer.error is None else writer.failure(fault_of(answer.error))
        # The account is complete before the client knows that the answer is.
        self._server.accounts.ended(entry, answer)
        await send({"type": "http.response.body", "body": out, "more_body": False})

    async def _refuse(self, entry: Entry, fault: Fault, request: Request, send: Send) -> None:
        response = Response(
            msgspec.json.encode(self._error_body(fault)),
            fault.status,
            headers={**self._headers(entry), **fault.headers()},
            media_type=JSON,
        )
        await response(request.scope, request.receive, send)

    def _headers(self, entry: Entry) -> dict[str, str]:
        headers = {"x-request-id": entry.id, "request-id": entry.id}  # the second is what Anthropic's clients read
        if entry.ignored:
            headers["x-ninfer-ignored"] = header_of(entry.ignored)
        return headers


def _events(writer: Writer, batch: Batch, generation: Generation) -> bytes:
    """The stream events of a batch; none for a choice that failed, which ends the whole answer."""
    parts = []
    answer = generation.answer
    for number, (choice, event, pieces) in enumerate(batch, start=1):
        if isinstance(event, Delta):
            parts.append(writer.delta(choice, event, pieces))
        elif answer.error is None:
            is_last = number == len(batch) and answer.has_ended
            parts.append(writer.choice_end(choice, pieces, answer if is_last else None))
    return b"".join(parts)


async def _cancel_when_gone(receive: Receive, generation: Generation) -> None:
    """Cancels a generation whose client has gone away, in whatever phase it is."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.cancel()
