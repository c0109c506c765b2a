"""The parent's side of a worker: start it, send one JSON line, read one JSON line.

A worker prints a greeting first: `{"engine", "version", "system"}`, or `{"missing": reason}` when the engine cannot be
imported. Then every request line `{"do": word, ...}` gets one answer line, `{"error": text}` when it was refused:

| do | fields | answer |
|---|---|---|
| `load` | `model` path, `settings`, `threads`, `context` tokens per sequence, `sequences` | `load_s`, `facts` |
| `prefill` | `ids`, `repeats` | `seconds` of each repeat: empty KV to logits of the last token |
| `decode` | `ids`, `sequences`, `next_ids` | `seconds` of each step of one row per sequence, after `ids` |
| `rows` | `ids`, `next_ids`, `repeats` | `seconds` of each step: `next_ids` as rows of one sequence, logits of all |
| `generate` | `ids`, `max_new` (our engine only) | `seconds` and `kernel_seconds` of each decode step |

Every answer also has `peak_rss_bytes` of the worker so far. Anything else a worker prints goes to its log.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ninfer.errors import BackendError, UnsupportedError

LOG_TAIL_BYTES = 1000
_COMPLAINT = re.compile(r"assert|error|abort|fatal", re.IGNORECASE)


@dataclass(frozen=True)
class Greeting:
    """What a worker says of itself: engine, its version, and the engine's own words on the instructions it uses."""

    engine: str
    version: str
    system: str


class Worker:
    """A running child process with one engine. Use as a context manager: leaving it ends the process.

    Raises UnsupportedError when the engine is missing there, BackendError when the process dies or refuses a request.
    """

    def __init__(self, command: Sequence[str], *, env: dict[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker, closed by close()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=env
            )
        except OSError as error:
            self._log.close()
            raise UnsupportedError(f"cannot start {command[0]}: {error}") from error
        self._log_start = 0
        hello = self._read("the greeting")
        if "missing" in hello:
            self.close()
            raise UnsupportedError(str(hello["missing"]))
        self.greeting = Greeting(hello["engine"], hello["version"], hello["system"])
        self.peak_rss_bytes = 0

    def ask(self, word: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer; raises BackendError when the worker refuses it or dies."""
        stdin = self._process.stdin
        self._log_start = 0 if self._log.closed else self._log.seek(0, 2)
        try:
            if stdin is None:
                raise BrokenPipeError
            stdin.write(json.dumps({"do": word, **fields}).encode() + b"\n")
            stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise BackendError(f"the worker is gone before {word!r}{self._log_tail()}") from error
        answer = self._read(word)
        if "error" in answer:
            raise BackendError(f"{self.greeting.engine} cannot {word}: {answer['error']}{self._log_tail()}")
        self.peak_rss_bytes = int(answer["peak_rss_bytes"])
        return answer

    def seconds(self, word: str, **fields: Any) -> list[float]:
        """The `seconds` of a timed request."""
        return [float(value) for value in self.ask(word, **fields)["seconds"]]

    def log(self) -> str:
        """Everything the worker and its libraries have printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End the process: by closing its input, by force if it does not follow within five seconds."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self, what: str) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            code = self._process.wait()
            text = f"the worker ended with code {code} at {what!r}{self._log_tail()}"
            self.close()
            raise BackendError(text)
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise BackendError(f"the worker answered {line[:80]!r} to {what!r}")
        return answer

    def _log_tail(self) -> str:
        """What the worker printed since the last request: the first line that sounds like a complaint, else the end."""
        if self._log.closed:
            return ""
        self._log.seek(self._log_start)
        text = self._log.read().decode(errors="replace").strip()
        complaints = [line.strip() for line in text.splitlines() if _COMPLAINT.search(line)]
        if complaints:
            return f"; its log says: {complaints[0][:LOG_TAIL_BYTES]}"
        return f"; its log ends:\n{text[-LOG_TAIL_BYTES:]}" if text else ""
