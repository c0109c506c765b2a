"""Lines of the request log are whole or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.errors import ConfigError
from ninfer.server.request_log import SCHEMA, SCHEMA_VERSION, RequestLog

WRITER = """
import sys
from ninfer.server.request_log import RequestLog
log = RequestLog(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    log.write("filler", {"number": number, "text": "x" * (number * 37 % 9000)})
    number += 1
"""


def test_members_of_every_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RequestLog(str(path))
    log.write("something", {"a": 1, "text": 'quo"te\nline\u2028'})
    log.close()
    log.write("after the end", {})
    (line,) = path.read_bytes().splitlines()
    row = json.loads(line)
    assert list(row) == [
        "schema", "schema_version", "event", "timestamp_unix_ms", "server_instance_id", "a", "text"
    ]  # fmt: skip
    assert (row["schema"], row["schema_version"], row["event"]) == (SCHEMA, SCHEMA_VERSION, "something")
    assert row["server_instance_id"].startswith(f"serve-{os.getpid()}-")


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    """C162: the log goes on from there, in the same file."""
    path = tmp_path / "log"
    numbers: list[int] = []
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while path.stat().st_size < 200_000 * (len(numbers) > 0) + 100_000:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        RequestLog(str(path)).close()
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        numbers = [row["number"] for row in rows]
        assert numbers[-1] > 0
    for instance in {row["server_instance_id"] for row in rows}:
        of_one = [row["number"] for row in rows if row["server_instance_id"] == instance]
        assert of_one == list(range(len(of_one)))


@pytest.mark.parametrize("tail", [b"", b"cut", b"x" * 100_000])
@pytest.mark.parametrize("head", [b"", b'{"a":1}\n', b'{"a":"' + b"y" * 70_000 + b'"}\n'])
def test_opening_removes_a_line_without_an_end(tmp_path: Path, head: bytes, tail: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(head + tail)
    log = RequestLog(str(path))
    assert path.read_bytes() == head
    log.write("next", {})
    log.close()
    assert path.read_bytes().startswith(head)
    assert path.read_bytes().count(b"\n") == head.count(b"\n") + 1


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "log", tmp_path):
        with pytest.raises(ConfigError, match="request_log_jsonl"):
            RequestLog(str(path))
    RequestLog(None).write("nowhere", {})
