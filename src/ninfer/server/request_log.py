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
from ninfer.metrics.line_file import LineFile

SCHEMA = "ninfer.request_log"
SCHEMA_VERSION = 1

_logger = logging.getLogger("ninfer.server")


class RequestLog:
    """Appends lines to a file, or goes nowhere without one. instance: the name of this server's run in every line.

    When the disk is full the log is switched off with one message, and serving goes on.
    """

    def __init__(self, path: str | None) -> None:
        """ConfigError when the file cannot be opened for appending."""
        self.instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
        self._file: LineFile | None = None
        if path is None:
            return
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise ConfigError(f"request_log_jsonl {path!r} cannot be written: {error.strerror}") from error

    def write(self, event: str, members: dict[str, Any]) -> None:
        if self._file is None:
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
        try:
            self._file.append(line)
        except OSError as error:
            self.close()
            _logger.error("the request log is switched off: %s", error.strerror)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
