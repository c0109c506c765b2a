"""The four commands: arguments reach the tools, JSON is one object on stdout, progress stays on stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ninfer.bench import engine, peers
from ninfer.bench.machine import Machine
from ninfer.bench.measurements import Run
from ninfer.cli import main
from ninfer.cli.exit_codes import ExitCode

MACHINE = Machine("Chip 9", "x86_64", 2, 3 << 30, "6.1", "madvise", (), ())


def test_ceilings_are_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "ceilings", "--threads", "1", "--buffer-mib", "1", "--repeats", "1", "--json"]
    assert main.run(arguments) == ExitCode.OK
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["tool"] == "ceilings"
    assert {m["inputs"].get("threads") for m in document["measurements"]} == {1}
    assert "memory read 1 MiB" in captured.err


def test_ops_print_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "ops", "--op", "rms_norm", "--rows", "2", "--threads", "1"]) == ExitCode.OK
    assert "rms_norm" in capsys.readouterr().out


def test_engine_settings_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def measure(model: Path, **fields: Any) -> Run:
        asked.update(fields, model=model)
        return Run("engine", MACHINE, {}, ())

    monkeypatch.setattr(engine, "measure", measure)
    path = tmp_path / "m.ninfer"
    path.touch()
    arguments = ["bench", "engine", str(path), "--threads", "1", "--processes", "2", "--kv-dtype", "bf16", "--json"]
    assert main.run(arguments) == ExitCode.OK
    assert (asked["model"], asked["threads"], asked["processes"]) == (path, 1, 2)
    assert asked["settings"] == {**engine.DEFAULT_SETTINGS, "kv_dtype": "bf16"}


def test_peers_take_an_interpreter_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def measure(contenders: list[peers.Contender], **fields: Any) -> peers.PeersResult:
        asked.update(fields, contenders=contenders)
        return peers.PeersResult(Run("peers", MACHINE, {}, ()), (), {})

    monkeypatch.setattr(peers, "measure", measure)
    path = tmp_path / "m.ninfer"
    path.touch()
    arguments = ["bench", "peers", str(path), "--work", "decode", "--rounds", "2", "--json"]
    assert main.run([*arguments, "--peer-python", "/opt/a", "--peer-python", "ik_llama.cpp=/opt/b"]) == ExitCode.OK
    commands = {c.name: c.command[0] for c in asked["contenders"]}
    assert commands == {"ninfer": sys.executable, "llama.cpp": "/opt/a", "ik_llama.cpp": "/opt/b"}
    assert {piece.name.split()[0] for piece in asked["work"]} == {"decode"}
    assert asked["rounds"] == 2


@pytest.mark.parametrize(
    ("extra", "message"),
    [(["--work", "dancing"], "dancing"), (["--peer-python", "vllm=/opt/c"], "vllm"), (["--peer", "vllm"], "vllm")],
)
def test_wrong_words_are_usage_errors(
    extra: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.ninfer"
    path.touch()
    assert main.run(["bench", "peers", str(path), *extra]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
