"""Python code of unknown origin in a process of its own, with limits and without a network.

The code is the first process of a room of its own (user, network, mount, IPC and process namespaces): there is no
interface but a loopback that is down, and what it starts ends with it. Time, memory, sizes and number of files are
limited; it starts in an empty directory with an empty environment. It can still read what this user may read, so judge
answers as somebody who owns no secrets. Where no such room can be made, nothing is run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from ninfer.bench.tasks import room

WALL_S = 10.0
MAX_PROBLEM_CHARACTERS = 400


@dataclass(frozen=True)
class RunResult:
    """problem: None if the code ended by itself and well. has_run: whether it was run at all."""

    has_run: bool
    problem: str | None


def run_python(code: str, *, wall_s: float = WALL_S) -> RunResult:
    """Run code to its end or to a limit. Nothing it prints counts; the last line of a failure is its problem."""
    with tempfile.TemporaryDirectory(prefix="ninfer-task-") as directory:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", room.__file__],
            cwd=directory,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, output = process.communicate(code.encode("utf-8", "surrogatepass"), timeout=wall_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return RunResult(True, f"did not end within {wall_s:g} s")
    if process.returncode == room.NO_ROOM:
        return RunResult(False, "this system allows no process without a network, so the code was not run")
    if process.returncode > room.SIGNALLED:
        return RunResult(True, f"was ended by {signal.Signals(process.returncode - room.SIGNALLED).name}")
    if process.returncode:
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["failed"]
        return RunResult(True, lines[-1][:MAX_PROBLEM_CHARACTERS])
    return RunResult(True, None)
