"""The engine's measurements on a tiny artifact: what is recorded and derived, never how long it took."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from make.tiny_llama import CONFIGS, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.bench import engine, page_cache, rendering
from ninfer.bench.machine import Machine
from ninfer.bench.measurements import Measurement, Run, Work
from ninfer.bench.workers.own import weight_bytes_per_step
from ninfer.bench.workload import ID_RANGE, Decode, Prefill, Rows
from ninfer.errors import BackendError, ConfigError

MACHINE = Machine("Chip 9", "x86_64", 2, 3 << 30, "6.1", "madvise", (), ())
WORK = (Prefill(9), Decode(70), Rows(3, depth=5), Decode(4, sequences=2))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Uneven shapes, a vocabulary that holds the bench's ids, a tied head."""
    config = dataclasses.replace(CONFIGS["uneven"], vocab_size=1000 + ID_RANGE)
    path = tmp_path_factory.mktemp("bench") / "tiny.ninfer"
    return write_artifact(path, config, random_weights(config), "q4g32m")


@pytest.fixture
def stub_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is not what is tested here; its stand-in answers at once."""
    monkeypatch.setattr(engine, "COMMAND", (sys.executable, "-c", "print('hello')"))


@pytest.mark.usefixtures("stub_command")
def test_everything_is_recorded_in_every_process(artifact: Path) -> None:
    run = engine.measure(artifact, threads=1, work=WORK, processes=2)
    for piece in WORK:
        step = run.find(engine.STEP, work=piece.name)
        assert step is not None
        assert len(step.values) == 2 * piece.repeats
        assert len(step.warmups) == 2 * piece.warmups
        assert step.work == Work(piece.tokens_per_value, "token")
    for name in (engine.LOAD, engine.FIRST_TOKEN):
        for state in ("cold", "warm"):
            measurement = run.find(name, case=state)
            assert measurement is not None
            assert len(measurement.values) == 2
    steps, kernels = run.find(engine.ENGINE_STEP), run.find(engine.ENGINE_KERNELS)
    assert steps is not None
    assert kernels is not None
    assert len(steps.values) == len(kernels.values) == 2 * (engine.LOOP_NEW_TOKENS - 1)
    assert all(0 < k < s for s, k in zip(steps.values, kernels.values, strict=True))
    assert run.plan is not None
    assert run.plan["options"]["threads"] == 1
    assert run.conditions["file_bytes"] == artifact.stat().st_size
    assert run.conditions["cached_bytes_warm"] == [artifact.stat().st_size] * 4
    json.dumps(run.to_json())
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(rendering.engine_tables(run))
    assert "decode at 70" in console.export_text()


def test_bytes_of_a_step_leave_out_a_table_that_is_only_looked_up(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        config = dataclasses.replace(CONFIGS["ragged"], tied_head=tied)
        path = write_artifact(tmp_path / f"{tied}.ninfer", config, random_weights(config), "q8g32")
        with Artifact.open(path) as opened:
            sizes[tied] = weight_bytes_per_step(opened)
            assert sizes[tied] == sum(entry.nbytes for name, entry in opened.tensors.items() if tied or name != "embed")
    assert sizes[True] == sizes[False]


def test_share_is_bytes_over_time_over_the_ceiling() -> None:
    decode = Decode(100)
    run = Run(
        "engine",
        MACHINE,
        {},
        (
            Measurement(engine.STEP, "s", (0.5,), inputs={"work": decode.name}),
            Measurement(engine.STEP, "s", (0.5,), inputs={"work": Decode(1, sequences=2).name}),
            Measurement("memory read", "s", (0.25,), work=Work(5000, "byte")),
        ),
        conditions={"weight_bytes_per_step": 1000, "kv_bytes_per_token": 10.0},
    )
    (share,) = engine.decode_shares(run, [decode, Decode(1, sequences=2), Prefill(4)])
    # After 4 warm-ups the 16 timed steps of a visit read 105 to 120 positions, 112.5 in the middle.
    assert share.bytes_per_step == 1000 + 10 * 112.5
    assert share.bytes_per_s == share.bytes_per_step / 0.5
    assert share.share == share.bytes_per_s / 20000


def test_overhead_is_what_kernels_leave() -> None:
    steps = Measurement(engine.ENGINE_STEP, "s", (1.0, 2.0, 4.0))
    kernels = Measurement(engine.ENGINE_KERNELS, "s", (0.9, 1.9, 3.9))
    assert engine.overhead_share(Run("engine", MACHINE, {}, (steps, kernels))) == pytest.approx(0.05)
    assert engine.overhead_share(Run("engine", MACHINE, {}, (steps,))) is None


def test_failures_of_children_are_told(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "COMMAND", (sys.executable, "-c", "raise SystemExit('no model today')"))
    with pytest.raises(BackendError, match="no model today"):
        engine.measure(artifact, threads=1, work=(Prefill(3),), processes=1)
    with pytest.raises(BackendError, match="numerics must be one of"):
        engine.measure(artifact, threads=1, work=(Prefill(3),), settings={"numerics": "a9"}, processes=1)
    with pytest.raises(ConfigError, match="at least one process"):
        engine.measure(artifact, threads=1, processes=0)


def test_page_cache_state_is_counted_in_pages(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_001)
    page_cache.warm(path)
    assert page_cache.resident_bytes(path) == 100_001
    page_cache.drop(path)
    assert 0 <= page_cache.resident_bytes(path) <= 100_001
    assert path.read_bytes() == b"x" * 100_001
    empty = tmp_path / "empty"
    empty.touch()
    assert page_cache.resident_bytes(empty) == 0
