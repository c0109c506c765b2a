"""The request log: one JSON line per event, each whole or absent whatever happens to the process.

Members of every line and of every event: docs/serving.md, "Request log".
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import msgspec

from ninfer.errors import ConfigError

SCHEMA = "ninfer.request_log"
SCHEMA_VERSION = 1

_logger = logging.getLogger("ninfer.server")


class RequestLog:
    """Appends lines to a file, or goes nowhere without one. instance: the name of this server's run in every line.

    A line is one write(2) to a file opened for appending, so lines of one process never mix and a killed process leaves
    no part of one behind, but for a page-sized part in the rarest case; opening removes a line without an end. When the
    disk is full the log is switched off with one message, and serving goes on.
    """

    def __init__(self, path: str | None) -> None:
        """ConfigError when the file cannot be opened for appending."""
        self.instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
        self._descriptor: int | None = None
        if path is None:
            return
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _remove_cut_line(self._descriptor)
        except OSError as error:
            raise ConfigError(f"request_log_jsonl {path!r} cannot be written: {error.strerror}") from error

    def write(self, event: str, members: dict[str, Any]) -> None:
        if self._descriptor is None:
            return
        line = msgspec.json.encode(
            {
                "schema": SCHEMA,
                "schema_version": SCHEMA_VERSION,
                "event": event,
                "timestamp_unix_ms": time.time_ns() // 1_000_000,
                "server_instance_id": self.instance,
                **members,
            }
        )
        size = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, line + b"\n") == len(line) + 1:
                return
            reason = "the disk is full"
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            reason = str(error.strerror)
        self.close()
        _logger.error("the request log is switched off: %s", reason)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _remove_cut_line(descriptor: int) -> None:
    """Cut the file after its last newline."""
    if not os.path.isfile(f"/proc/self/fd/{descriptor}") or os.fstat(descriptor).st_size == 0:
        return
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(descriptor, end)
