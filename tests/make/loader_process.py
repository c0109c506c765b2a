"""Converting files in a process of its own, where a crash, a hang or greed shows and harms nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# VmHWM and not ru_maxrss: the latter starts with what the parent had when it forked.
_PROGRAM = """
import json, sys, time
from pathlib import Path
from ninfer.convert.convert import convert
from ninfer.errors import NInferError
for line in sys.stdin:
    path = Path(json.loads(line))
    started = time.process_time()
    try:
        convert(path, path.with_name("out.ninfer"))
        error = message = None
    except NInferError as problem:
        error, message = type(problem).__name__, str(problem)
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps([error, message, time.process_time() - started, peak]), flush=True)
"""


@dataclass(frozen=True)
class Ending:
    """How one conversion ended: error class and message (None: it worked), the processor time it took, and the
    largest resident memory of the process up to then, imports included."""

    error: str | None
    message: str | None
    seconds: float
    peak_bytes: int


def convert_in_child(paths: Sequence[Path], *, timeout_s: float = 300) -> list[Ending]:
    """Convert files one by one in one child. RuntimeError with its last words if the child does not survive."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            output, _ = child.communicate("".join(json.dumps(str(path)) + "\n" for path in paths), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise
        endings = [Ending(*json.loads(line)) for line in output.splitlines()]
        if child.returncode != 0 or len(endings) != len(paths):
            errors.seek(0)
            words = errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"the child ended with {child.returncode} at {paths[len(endings) :][:1]}: {words}")
    return endings
