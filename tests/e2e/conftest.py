"""The real command in child processes: what a user types and sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "ninfer"]
TIMEOUT_S = 120


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout of a command that succeeded."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def refusal(self, code: int) -> str:
        """The one error line of a command that ended with `code`; nothing went to stdout."""
        assert (self.code, self.out) == (code, ""), self
        lines = [line for line in self.err.splitlines() if line.startswith("ninfer: error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("ninfer: error: ")


Ninfer = Callable[..., Outcome]


@pytest.fixture(scope="session")
def ninfer() -> Ninfer:
    """Runs `ninfer ARGUMENTS...`; `stdin` is text for its input, `env` adds variables."""

    def run(*arguments: object, stdin: str = "", env: dict[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start_ninfer() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `ninfer ARGUMENTS...` with pipes and leaves the rest to the test; nothing outlives the test."""
    with ExitStack() as stack:

        def start(*arguments: object) -> subprocess.Popen[bytes]:
            process = stack.enter_context(
                subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
            stack.callback(process.kill)
            return process

        yield start
