"""`ninfer train-draft mtp`: what it refuses, what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from make.make_gguf import TINY, write_gguf
from make.tiny_llama import random_weights
from ninfer.artifact import Artifact
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import run
from ninfer.convert.convert import convert

SMALL = ["--max-new=12", "--max-context=64", "--lanes=2", "--threads=1", "--steps=3", "--batch-columns=64"]


def write_prompts(path: Path) -> Path:
    lines = [{"text": f"say {i}", "workload": "chat", "held_out": i == 0} for i in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_companion_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY), kind="Q8_0")
    convert(gguf, tmp_path / "a.ninfer")
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    out = tmp_path / "draft.ninfer"
    command = ["train-draft", "mtp", f"--target={tmp_path / 'a.ninfer'}", f"--data={prompts}", f"--out={out}", *SMALL]
    assert run(command) == ExitCode.OK
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["workload", "window"]
    assert [row.split()[0] for row in rows] == ["chat", "all"]
    with Artifact.open(out) as companion:
        training = companion.provenance["training"]
    assert training["prompts"] == str(prompts)
    assert training["settings"]["steps"] == training["steps"] == 3
    # The directory keeps the checkpoint: what is given again with other settings would be another head.
    assert run([*command, "--seed=1"]) != ExitCode.OK
    assert "seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out=draft.bin"], "must end with .ninfer"),
        (["--out=draft.ninfer", "--steps=0"], "steps is 0"),
        (["--out=draft.ninfer", "--peak=1.5"], "peak is 1.5"),
        (["--out=draft.ninfer", "--learning-rate=nan"], "learning_rate is nan"),
        (["--out=draft.ninfer", "--lanes=0"], "lanes is 0"),
        (["--out=draft.ninfer", "--data=missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train-draft", "mtp", "--target=a.ninfer", *options]) != ExitCode.OK
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
