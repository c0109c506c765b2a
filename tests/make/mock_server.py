"""A loopback HTTP server whose answers are scripts: bytes and pauses, one script per request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

Step = bytes | float | None
"""What a script does next: send a chunk, wait so many seconds, or reset the connection."""

DONE = b"data: [DONE]\n\n"


def event(**members: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def delta(finish: str | None = None, *, usage: int | None = None, **members: Any) -> bytes:
    """A chunk of one choice; `usage`: completion tokens so far."""
    extra = {} if usage is None else {"usage": {"prompt_tokens": 7, "completion_tokens": usage}}
    return event(choices=[{"index": 0, "delta": members, "finish_reason": finish}], **extra)


def usage(completion: int, cached: int = 0) -> bytes:
    """The last chunk of a stream with usage."""
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": 7, "completion_tokens": completion, "prompt_tokens_details": details}
    return event(choices=[], usage=counts)


class MockServer:
    """Serves `scripts` in turn and starts again at the end; `status` other than 200 makes every answer that error."""

    def __init__(self, scripts: Sequence[Sequence[Step]], status: int = 200) -> None:
        self._scripts = scripts
        self._status = status
        self.num_requests = 0
        self.in_flight = self.most_in_flight = 0
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (body := await _read_request(reader)) is not None:
                self.bodies.append(body)
                script = self._scripts[self.num_requests % len(self._scripts)]
                self.num_requests += 1
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    await self._answer(writer, script)
                finally:
                    self.in_flight -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, script: Sequence[Step]) -> None:
        head = f"HTTP/1.1 {self._status} X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for step in script:
            if step is None:
                writer.transport.abort()
                raise ConnectionResetError
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                writer.write(f"{len(step):x}\r\n".encode() + step + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> Any:
    """The JSON body of the next request; None at the end of the connection."""
    length = 0
    while True:
        line = await reader.readline()
        if not line:
            return None
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
        if line == b"\r\n":
            return json.loads(await reader.readexactly(length)) if length else {}


@asynccontextmanager
async def serving(scripts: Sequence[Sequence[Step]], status: int = 200) -> AsyncIterator[MockServer]:
    mock = MockServer(scripts, status)
    handle: Callable[..., Any] = mock.handle
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    mock.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield mock
    finally:
        server.close()
