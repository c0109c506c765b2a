"""Run records: what is appended is there whatever happens, and what was changed is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from make import tiny_llama
from make.run_records import make_prompts, make_row, make_run, make_sample, write_run
from ninfer.artifact import Artifact
from ninfer.bench.compare.differences import find_differences
from ninfer.bench.records.conditions import (
    DRAFT_SETTINGS,
    artifact_facts,
    build_facts,
    circumstances,
    engine_facts,
    machine_facts,
)
from ninfer.bench.records.facts import FACTS, Declaration
from ninfer.bench.records.reader import read_run
from ninfer.bench.records.schema import Circumstances, RowSeconds, RowSpeculation, RowUsage, SampleKey, Source
from ninfer.bench.records.verify import verify_run
from ninfer.bench.records.writer import RunWriter
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import run
from ninfer.engine import EngineConfig, detect_hardware, plan_engine
from ninfer.errors import ConfigError, InvariantError, RecordError
from ninfer.metrics import Phases, SpeculationCounts, Usage

PROMPTS = make_prompts("a", "b")
RUN = make_run("one", PROMPTS)


def write_small(directory: Path) -> Path:
    samples = [make_sample("a", 0, (5, 6, 7)), make_sample("b", 0, (8, 9)), make_sample("a", 1, (5, 6, 7))]
    return write_run(directory, RUN, PROMPTS, samples)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    record = read_run(write_small(tmp_path / "run"))
    assert record.run == RUN
    assert list(record.prompts.values()) == PROMPTS
    assert [row.key for row in record.rows] == [SampleKey("a", 0), SampleKey("b", 0), SampleKey("a", 1)]
    response = record.response(record.rows[1])
    assert response is not None
    assert response.output_ids == [8, 9]
    assert [event.event for event in record.events] == ["session", "finished"]
    assert verify_run(tmp_path / "run") == []


def test_a_row_takes_the_numbers_of_an_engine_as_they_are() -> None:
    usage = Usage(prompt=7, cached=2, completion=5, computed=5, thinking=1)
    phases = Phases(load=0.1, prepare=0.2, queue=0.3, prefill=0.4, decode=0.5, total=1.6, ttft=1.0)
    counts = SpeculationCounts(3, 4, 1, (3, 1), (1, 0))
    assert msgspec.to_builtins(RowUsage.of(usage)) == {**usage.to_dict(), "reasoning_tokens": 1}
    assert RowSeconds.of(phases).decode == 0.5
    assert RowSpeculation.of("mtp", 2, counts).rounds_with_draft == [3, 1]


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with RunWriter(tmp_path, RUN, PROMPTS) as writer:
        writer.append(*make_sample("a", 0))
    again = msgspec.structs.replace(RUN, created_unix_ns=99, command=["other"])
    with RunWriter(tmp_path, again, PROMPTS) as writer:
        assert writer.done == {SampleKey("a", 0)}
        with pytest.raises(InvariantError, match="taken already"):
            writer.append(*make_sample("a", 0))
        writer.append(*make_sample("b", 0))
        writer.finish()
    with RunWriter(tmp_path, again, PROMPTS) as writer:
        writer.finish()
    record = read_run(tmp_path)
    assert record.run == RUN
    assert [event.event for event in record.events] == ["session", "session", "finished"]
    assert [event.command for event in record.events] == [["bench", "one"], ["other"], None]
    assert verify_run(tmp_path) == []


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    write_small(tmp_path)
    other = make_run("one", PROMPTS, {"settings.kv_dtype": "bf16", "engine.build": "b2"})
    with pytest.raises(ConfigError, match=r"engine\.build, settings\.kv_dtype"):
        RunWriter(tmp_path, other, PROMPTS)
    longer = make_prompts("a", "b", "c")
    with pytest.raises(ConfigError, match="inputs"):
        RunWriter(tmp_path, make_run("one", longer), longer)
    with pytest.raises(ConfigError, match="name"):
        RunWriter(tmp_path, make_run("two", PROMPTS), PROMPTS)
    with pytest.raises(InvariantError, match="not the inputs"):
        RunWriter(tmp_path / "new", RUN, longer)


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    with RunWriter(tmp_path, RUN, PROMPTS), pytest.raises(ConfigError, match="another process"):
        RunWriter(tmp_path, RUN, PROMPTS)
    RunWriter(tmp_path, RUN, PROMPTS).close()


KILLED = """
import sys
from pathlib import Path
from make import tiny_llama
from make.run_records import make_prompts, make_run, make_sample
from ninfer.bench.records.writer import RunWriter
prompts = make_prompts("a")
with RunWriter(Path(sys.argv[1]), make_run("one", prompts), prompts) as writer:
    first = len(writer.done)
    assert {key.repeat for key in writer.done} == set(range(first))
    for repeat in range(first, 100_000):
        writer.append(*make_sample("a", repeat, range(repeat % 900 + 1)))
        print(repeat, flush=True)
"""


def test_a_killed_run_loses_and_redoes_nothing(tmp_path: Path) -> None:
    told = -1
    for attempt in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(5 + 3 * attempt):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        told = max([told, *map(int, process.stdout.read().split())])
        process.stdout.close()
        repeats = [row.repeat for row in read_run(tmp_path).rows]
        assert repeats == list(range(len(repeats)))
        assert len(repeats) - 1 in (told, told + 1)  # killed between the append and telling of it
    problems = [p for p in verify_run(tmp_path) if "belongs to no row" not in p]
    assert problems == []


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def remove_line(path: Path, number: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: number - 1] + lines[number:]))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed setting": (lambda d: edit(d / "run.json", '"int8"', '"bf16"'), "line 1: it or a line before it was"),
    "a changed number": (lambda d: edit(d / "requests.jsonl", '"decode":1.0', '"decode":0.9'), "line 1: it or a"),
    "a removed row": (lambda d: remove_line(d / "requests.jsonl", 2), "line 2: it or a line before it"),
    "a row without a digest": (lambda d: edit(d / "requests.jsonl", '"chain":', '"chian":'), "no digest at its end"),
    "no last row": (lambda d: remove_line(d / "requests.jsonl", 3), "3 rows when the run was finished, 2 are there"),
    "a changed answer": (lambda d: edit(d / "responses/000001.json", "b 0", "b 1"), "000001.json was changed"),
    "a lost answer": (lambda d: (d / "responses/000002.json").unlink(), "000002.json: cannot be read"),
    "a foreign answer": (lambda d: (d / "responses/9.json").write_text("{}") and None, "9.json: belongs to no row"),
    "another prompt": (lambda d: edit(d / "inputs.jsonl", "say a", "say b"), "prompt 'a' is not the one"),
    "no inputs": (lambda d: (d / "inputs.jsonl").unlink(), "inputs.jsonl: cannot be read"),
    "no run": (lambda d: (d / "run.json").unlink(), "run.json: cannot be read"),
    "a newer version": (lambda d: edit(d / "run.json", '"schema_version": 1', '"schema_version": 2'), "reads version"),
    "something else": (lambda d: edit(d / "run.json", '"ninfer.run"', '"other"'), "is no run record"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_what_was_changed_is_named(tmp_path: Path, what: str) -> None:
    damage, message = DAMAGE[what]
    write_small(tmp_path)
    damage(tmp_path)
    problems = verify_run(tmp_path)
    assert any(message in problem for problem in problems), problems


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "negative time": ({"decode_s": -1.0}, "seconds.decode is -1.0"),
    "phases beyond the total": ({"seconds": RowSeconds(prefill=1.0, decode=1.0, total=1.5)}, "phases last 2.0 s"),
    "more cached than there is": (
        {"usage": RowUsage(prompt_tokens=3, cached_tokens=4, completion_tokens=1)}, "token counts contradict"
    ),
    "more accepted than drafted": (
        {"speculation": RowSpeculation(backend="mtp", draft_window=2, rounds=2, drafted_tokens=4, accepted_tokens=5)},
        "5 of 4 drafted",
    ),
    "positions that do not add up": (
        {"speculation": RowSpeculation(
            backend="mtp", draft_window=2, rounds=2, drafted_tokens=4, accepted_tokens=3,
            accepted_per_position=[2, 2], rounds_with_draft=[2, 2],
        )},
        "counts of speculation contradict",
    ),
    "more tokens than rounds can give": ({"rounds": 0, "speculation": RowSpeculation(
        backend="off", draft_window=0, rounds=3, drafted_tokens=0, accepted_tokens=0
    )}, "3 rounds with 0 accepted drafts cannot yield 32 tokens"),
    "no ending": ({"finish": None}, "neither a finish nor an error"),
}  # fmt: skip


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_numbers_are_named(tmp_path: Path, what: str) -> None:
    members, message = IMPOSSIBLE[what]
    write_run(tmp_path, RUN, PROMPTS, [make_row(**members)])
    problems = verify_run(tmp_path)
    assert all("line 1 (a, repeat 0)" in problem for problem in problems)
    assert any(message in problem for problem in problems), problems


def test_answers_have_to_be_those_of_their_rows(tmp_path: Path) -> None:
    row, response = make_sample("a", 0, (1, 2))
    other = msgspec.structs.replace(response, output_ids=[1, 2, 3])
    write_run(tmp_path, RUN, PROMPTS, [(row, other)])
    problems = verify_run(tmp_path)
    assert [("ids_digest" in p, "2 completion tokens, 3 ids" in p) for p in problems] == [(True, False), (False, True)]


def test_times_of_an_imported_run_may_be_rounded(tmp_path: Path) -> None:
    row = make_row(seconds=RowSeconds(prefill=0.37, decode=53.79, total=54.15))
    rounded = make_run("rounded", PROMPTS, source=Source(kind="a table", file="report.txt", digest=""))
    assert verify_run(write_run(tmp_path / "rounded", rounded, PROMPTS, [row])) == []
    assert len(verify_run(write_run(tmp_path / "raw", RUN, PROMPTS, [row]))) == 1


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.json: cannot be read"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RecordError, match=r"run\.json: "):
        read_run(tmp_path)
    write_small(tmp_path / "run")
    edit(tmp_path / "run" / "run.json", '"command"', '"komando"')
    with pytest.raises(RecordError, match="komando"):
        read_run(tmp_path / "run")


def test_the_sets_of_inputs_are_equal_in_any_order() -> None:
    assert make_run("x", PROMPTS).inputs.digest == make_run("x", PROMPTS[::-1]).inputs.digest
    assert make_run("x", PROMPTS).inputs.digest != make_run("x", make_prompts("a", "b", max_new=65)).inputs.digest


def test_what_a_declaration_covers() -> None:
    some = Declaration(label="y", by="me", covers=["machine.", "engine.build"])
    assert [some.does_cover(n) for n in ("machine.num_cpus", "engine.build", "engine.builder")] == [True, True, False]
    assert Declaration(label="y", by="me").does_cover("anything")


def test_facts_of_this_process_have_known_names_or_say_more(tmp_path: Path) -> None:
    facts = {**build_facts(), **machine_facts()}
    assert facts["engine.name"].value == "ninfer"
    assert {"machine.processor", "machine.num_cpus", "machine.memory_bytes", "engine.build"} <= facts.keys()
    assert build_facts() == build_facts()
    for name, meaning in FACTS.items():
        assert all(followed in FACTS for followed in meaning.follows), name


def test_circumstances_are_read_and_what_is_not_told_is_unrecorded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"x" * 5000)
    seen = circumstances(model)
    assert (seen.model_bytes, seen.model_resident_bytes) == (5000, 5000)
    assert circumstances(root=tmp_path) == Circumstances()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("0.50 1.25 2.00 1/99 1234\n")
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\ncpu MHz\t\t: 2600.5\nprocessor : 1\ncpu MHz\t\t: 800.0\n")
    seen = circumstances(root=tmp_path)
    assert (seen.load_average, seen.cpu_mhz) == ([0.5, 1.25, 2.0], [2600.5, 800.0])


def test_every_setting_of_the_engine_is_stated_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ninfer"
    config = tiny_llama.CONFIGS["uneven"]
    tiny_llama.write_artifact(path, config, tiny_llama.random_weights(config), "q4g32")
    with Artifact.open(path) as artifact:
        plan = plan_engine(EngineConfig(kv_dtype="bf16", prefill_chunk=100_000), artifact, detect_hardware())
        named = artifact_facts(artifact)
    facts = engine_facts(plan.to_dict())
    assert set(facts) >= {f"settings.{name}" for name in EngineConfig().to_dict() if name not in DRAFT_SETTINGS}
    assert (facts["settings.kv_dtype"].value, facts["settings.kv_dtype"].origin) == ("bf16", "chosen")
    assert (facts["settings.max_concurrency"].value, facts["settings.max_concurrency"].origin) == (1, "default")
    assert facts["settings.prefill_chunk"].origin == "auto"
    assert facts["settings.prefill_chunk"].value == plan.prefill_chunk
    assert facts["settings.threads"].reason
    assert named["artifact.digest"].value == plan.artifact_digest
    assert (facts["draft.backend"].value, facts["draft.tokens"].value, facts["draft.rule"].value) == ("off", 0, None)


def test_drafts_are_stated_as_they_were_planned(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ninfer"
    config = tiny_llama.CONFIGS["uneven"]
    tiny_llama.write_artifact(path, config, tiny_llama.random_weights(config), "q4g32")
    with Artifact.open(path) as artifact:
        plans = [
            plan_engine(EngineConfig(spec="ngram", draft_tokens=tokens), artifact, detect_hardware()).to_dict()
            for tokens in (4, "auto")
        ]
    chosen, auto = (engine_facts(plan) for plan in plans)
    assert (chosen["draft.backend"].value, chosen["draft.tokens"].value) == ("ngram", 4)
    assert (chosen["draft.head"].value, chosen["draft.digest"].value) == (None, None)
    assert (chosen["draft.adaptive"].value, auto["draft.adaptive"].value) == (False, True)
    assert (chosen["draft.tokens"].origin, auto["draft.tokens"].origin) == ("chosen", "auto")
    prompts = make_prompts("a")
    runs = [make_run(name, prompts, dict(facts)) for name, facts in (("chosen", chosen), ("auto", auto))]
    assert find_differences(runs[0], runs[0]).kind == "repeatability"
    assert [difference.fact for difference in find_differences(*runs).own] == ["draft.adaptive"]
    off = make_run("off", prompts, dict(chosen) | {"draft.backend": "off", "draft.tokens": 0, "draft.rule": None})
    assert [difference.fact for difference in find_differences(runs[0], off).own] == ["draft.backend"]


def test_the_command_names_every_problem_and_exits_accordingly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write_small(tmp_path / "good"), write_small(tmp_path / "bad")
    assert run(["bench", "verify", str(good)]) == ExitCode.OK
    assert capsys.readouterr().out == f"{good}: as it was written\n"
    edit(bad / "responses/000001.json", "b 0", "b 1")
    assert run(["bench", "verify", str(good), str(bad)]) == ExitCode.BAD_FILE
    assert "responses/000001.json was changed" in capsys.readouterr().err
