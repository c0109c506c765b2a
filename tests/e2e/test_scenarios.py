"""`ninfer bench scenarios` and `sweep` on a real model: in this process, and against a server in another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.bench.records.reader import RunRecord, read_run
from ninfer.bench.records.verify import verify_run
from ninfer.cli.exit_codes import ExitCode

pytestmark = pytest.mark.real_model

CHOICE = ("--suite", "workloads", "--scenario", "enumeration", "--language", "en", "--max-new", "12", "--repeats", "1")


def scenarios(out: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[RunRecord]]:
    command = [sys.executable, "-m", "ninfer", "bench", "scenarios", *arguments, *CHOICE, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"})
    records = [read_run(path) for path in sorted(out.iterdir())] if out.exists() else []
    assert [problem for record in records for problem in verify_run(record.directory)] == []
    return done, records


def texts(record: RunRecord) -> list[str | None]:
    rows = sorted(record.measured, key=lambda row: row.prompt)
    return [None if (response := record.response(row)) is None else response.text for row in rows]


def test_engine_and_server_give_the_same_answers_and_each_says_where_it_measured(smollm2: Path, tmp_path: Path) -> None:
    done, (bf16, int8) = scenarios(tmp_path / "engine", f"{smollm2}:kv-dtype=bf16", str(smollm2), "--reuse")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "TTFT" in done.stdout
    assert "8 samples taken, 0 of them failed" in done.stderr
    assert {int8.run.facts["settings.kv_dtype"].value, bf16.run.facts["settings.kv_dtype"].value} == {"int8", "bf16"}
    command = [sys.executable, "-m", "ninfer", "serve", str(smollm2), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().decode().split(" at ")[1].split()[0]
            done, (client,) = scenarios(tmp_path / "client", "--url", url, "--name", "served", "--reuse")
        finally:
            server.terminate()
    assert done.returncode == ExitCode.OK, done.stderr
    assert client.run.facts["engine.measured_at"].value == "client"
    assert client.run.facts["artifact.digest"] == int8.run.facts["artifact.digest"], "a server of ours tells its plan"
    assert texts(client) == texts(next(r for r in (bf16, int8) if r.run.facts["settings.kv_dtype"].value == "int8"))
    assert all(row.seconds.prefill is None and row.seconds.ttft is not None for row in client.rows)


def test_a_server_that_is_not_there_fails_the_command(tmp_path: Path) -> None:
    done, _ = scenarios(tmp_path, "--url", "http://127.0.0.1:9", "--model-name", "m")
    assert done.returncode == ExitCode.RUNTIME
    assert "connection" not in done.stdout
    assert "4 of them failed" in done.stderr or "5 of them failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give models as VARIANT..., or a server by --url"),
        (("m", "--url", "http://127.0.0.1:9"), "give models as VARIANT..., or a server by --url"),
        (("m:speed=9",), "'speed' must be one of"),
        (("m:threads=many",), "'many' is neither an integer"),
        (("--url", "http://127.0.0.1:9", "--model-name", "m", "--fact", "a"), "--fact takes NAME=VALUE"),
        (("--url", "http://127.0.0.1:9", "--model-name", "m", "--rate", "0"), "rate is 0.0"),
    ],
)
def test_what_cannot_be_asked_is_named(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done, _ = scenarios(tmp_path, *arguments)
    assert done.returncode == ExitCode.USAGE
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_a_sweep_writes_its_tables_and_records_every_cell(smollm2: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ninfer", "bench", "sweep", "prefill", str(smollm2), "--out", str(tmp_path)]
    command += ["--lengths", "20,70", "--chunks", "32,64", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.OK, done.stderr
    assert (tmp_path / "prefill.md").read_text() == done.stdout
    runs = [read_run(tmp_path / name) for name in ("chunk-32", "chunk-64")]
    for run in runs:
        assert verify_run(run.directory) == []
        assert [len(run.measured), len(run.rows) - len(run.measured)] == [4, 2], "a warm-up per round"
        assert {row.usage.computed_tokens for row in run.measured} == {20, 70}
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.stdout == done.stdout, "nothing is measured twice"
