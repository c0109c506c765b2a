"""The life of a server process: bind, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

import ninfer
from ninfer.engine import Engine
from ninfer.engine.service import EngineService
from ninfer.errors import ConfigError, OverloadedError
from ninfer.server.accounts import Accounts
from ninfer.server.app import make_app
from ninfer.server.exchange import Server
from ninfer.server.model import ServedModel
from ninfer.server.request_log import RequestLog
from ninfer.server.response_store import ResponseStore
from ninfer.server.settings import ServerSettings

KEEP_ALIVE_S = 75
"""Seconds an idle connection stays open: longer than clients keep theirs, so that none is closed under a request."""

TCP_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 120_000}
"""A peer that vanished without a word is noticed after half a minute (seconds), one that has stopped reading after two
minutes (milliseconds): neither may hold a place for ever.
"""
LAST_BYTES_S = 10
"""Seconds that clients have to read the last bytes of their answers when the server ends."""

_logger = logging.getLogger("ninfer.server")


def bind(settings: ServerSettings) -> socket.socket:
    """The socket to serve on, bound and not yet listening. ConfigError when the address cannot be had."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_OPTIONS.items():
            if hasattr(socket, option):
                bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        bound.bind((settings.host, settings.port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    settings: ServerSettings,
    model: ServedModel,
    engine: Engine,
    bound: socket.socket,
    log: RequestLog,
    *,
    on_ready: Callable[[RunningServer], None] = lambda running: None,
    argv: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises what ended the engine, if that did."""
    with _logging():
        asyncio.run(_serve(settings, model, engine, bound, log, on_ready, argv))


async def _serve(
    settings: ServerSettings,
    model: ServedModel,
    engine: Engine,
    bound: socket.socket,
    log: RequestLog,
    on_ready: Callable[[RunningServer], None],
    argv: Sequence[str],
) -> None:
    loop = asyncio.get_running_loop()
    accounts = Accounts(log, engine, interval_s=settings.log_stats_interval_ms * 1e-3)
    running = RunningServer(settings, bound)
    service = EngineService(
        engine, max_pending=settings.max_pending_requests, post=loop.call_soon_threadsafe, on_failure=running.failed
    )
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="ninfer-encode") as encoders:
        responses = ResponseStore(settings.response_store_max_records, settings.response_store_bytes)
        server = Server(settings, model, service, accounts, encoders, responses)
        running.attach(service, _Http(make_app(server), on_started=lambda: on_ready(running)))
        accounts.write("server_start", _start_facts(settings, model, argv))
        gc.collect()
        # What is loaded stays, and a full collection that walks through it takes 7 ms in which no stream moves
        # (SmolLM2, 2-core AMX Xeon, November 2026).
        gc.freeze()
        service.start()
        try:
            await running.run()
        finally:
            service.stop()
            accounts.close()
            gc.unfreeze()
    if running.error is not None:
        raise running.error


class RunningServer:
    """A server that runs: where it is, and how it ends."""

    def __init__(self, settings: ServerSettings, bound: socket.socket) -> None:
        self.url = url_of(bound)
        self.error: BaseException | None = None
        self._settings = settings
        self._bound = bound
        self._loop = asyncio.get_running_loop()

    def attach(self, service: EngineService, http: uvicorn.Server) -> None:
        self._service = service
        self._http = http

    async def run(self) -> None:
        """Serve until the end; SIGTERM and SIGINT ask for it where signals arrive, which is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._end)
        await self._http.serve(sockets=[self._bound])
        cancelled = set(self._http.server_state.tasks)
        if cancelled:
            await asyncio.wait(cancelled, timeout=1.0)  # each still writes its account

    def end(self) -> None:
        """What SIGTERM does, for any thread; nothing when the server has ended."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def failed(self, error: BaseException) -> None:
        """The engine is gone: every request has got its error; say so and end."""
        _logger.error("the engine has failed: %s: %s", type(error).__name__, error, exc_info=error)
        self.error = error
        self._http.should_exit = True

    def _end(self) -> None:
        """Take no more requests and let the open ones end, until the drain timeout or a second signal."""
        if self._service.is_draining:
            self._fail_all()
            return
        seconds = self._settings.drain_timeout_ms * 1e-3
        _logger.info("shutting down: %d requests are open, at most %.1f s", self._service.num_open, seconds)
        timer = self._loop.call_later(seconds, self._fail_all)

        def leave() -> None:
            timer.cancel()
            self._http.should_exit = True

        self._service.drain(leave)

    def _fail_all(self) -> None:
        """End what is still open; a client that does not read its error is left behind after `LAST_BYTES_S`."""
        self._service.fail_all(OverloadedError("the server is shutting down", kind="unavailable"))
        self._http.should_exit = True


class _Http(uvicorn.Server):
    """uvicorn without its signal handlers, because ours drain first, and telling when it listens."""

    def __init__(self, app: ASGIApp, *, on_started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=LAST_BYTES_S,
            ws="none",
        )
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _start_facts(settings: ServerSettings, model: ServedModel, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "server": {**settings.to_dict(), "version": ninfer.__version__, "public_model_id": model.id},
        "artifact": dict(model.identity),
        "engine": model.plan.to_dict(),
        "sampling_defaults": dict(model.sampling),
        "environment": {"python": sys.version.split()[0], "pid": os.getpid()},
        "argv": _without_key(argv),
    }


def _without_key(argv: Sequence[str]) -> list[str]:
    """A command line that may be kept: the key is not part of it."""
    shown: list[str] = []
    for word in argv:
        if shown and shown[-1] == "--api-key":
            shown.append("***")
        else:
            shown.append("--api-key=***" if word.startswith("--api-key=") else word)
    return shown


@contextmanager
def _logging() -> Iterator[None]:
    """One line per message on stderr, ours and uvicorn's errors."""
    handler = logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    handler.setFormatter(form)
    loggers = {"ninfer.server": logging.INFO, "uvicorn": logging.WARNING}
    for name, level in loggers.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).propagate = True
