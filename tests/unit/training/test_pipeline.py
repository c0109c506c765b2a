"""From a tiny model and a few prompts to a companion that the engine's own draft model runs as torch did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from make.make_gguf import TINY, write_gguf
from make.tiny_llama import random_weights
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.errors import ConfigError
from ninfer.models import ForwardBatch, RuntimeOptions, SequenceRows, load_model
from ninfer.models.drafts import attach, find_mtp, load_draft
from ninfer.training.data import collate
from ninfer.training.evaluate import evaluate
from ninfer.training.export import export_mtp
from ninfer.training.loop import CURVE, Training, read_curve
from ninfer.training.module import load_target
from ninfer.training.pipeline import RESPONSES, Trained, describe, train_mtp
from ninfer.training.prompts import Prompt
from ninfer.training.settings import DataSettings, TrainSettings

PROMPTS = [Prompt(f"say {word}", "chat" if i % 2 else "code", i < 2) for i, word in enumerate("abcdefgh")]
DATA = DataSettings(max_new=24, max_context=64, lanes=3, threads=1)
SETTINGS = TrainSettings(
    steps=40, batch_columns=128, learning_rate=3e-3, loss_words=128, shortlist=160, checkpoint_every=10
)


class Counter:
    """What a stage says of its progress."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def update(self, done: int, total: int) -> None:
        self.seen.append((done, total))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    directory = tmp_path_factory.mktemp("target")
    gguf = write_gguf(directory / "a.gguf", TINY, random_weights(TINY), kind="Q8_0")
    convert(gguf, directory / "a.ninfer")
    with Artifact.open(directory / "a.ninfer") as artifact:
        yield artifact


def run(target: Artifact, directory: Path, settings: TrainSettings = SETTINGS, data: DataSettings = DATA) -> Trained:
    @contextmanager
    def show(title: str) -> Iterator[Counter]:
        yield Counter()

    return train_mtp(target, PROMPTS, directory, data, settings, show)


@pytest.fixture(scope="module")
def trained(target: Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    directory = tmp_path_factory.mktemp("work")
    return run(target, directory), directory


def test_a_head_learns_what_it_was_shown(target: Artifact, trained: tuple[Trained, Path]) -> None:
    result, directory = trained
    curve = read_curve(directory)
    assert [point.step for point in curve] == list(range(1, SETTINGS.steps + 1))
    assert curve[-1].loss < curve[0].loss
    assert min(curve[-1].agreement) > 0.9 > curve[0].agreement[-1]
    # On greedy text that it was trained on nearly all of a draft is accepted.
    greedy = [example for example in result.trained if example.key.endswith("greedy")]
    [*_, overall] = evaluate(result.training, load_target(target), result.shortlist, greedy, 3)
    assert overall.tokens_per_round > 3.5


def test_responses_are_kept_for_all_prompts_and_held_out_ones_are_not_trained(trained: tuple[Trained, Path]) -> None:
    result, directory = trained
    lines = [json.loads(line) for line in (directory / RESPONSES).read_text().splitlines()]
    assert len(lines) == 6 * 2 + 2  # greedy and sampled for trained prompts, greedy for held-out ones
    held_out = {prompt.key for prompt in PROMPTS if prompt.held_out}
    assert {example.key.split("-")[0] for example in result.held_out} <= held_out
    assert not {example.key.split("-")[0] for example in result.trained} & held_out
    facts = describe(result)
    assert facts["steps"] == SETTINGS.steps
    assert facts["response_tokens"] == sum(len(line["ids"]) for line in lines if not line["held_out"])


def weights_of(training: Training) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in training.head.named_parameters()}


def test_a_stopped_run_ends_with_the_same_weights(
    target: Artifact, trained: tuple[Trained, Path], tmp_path: Path
) -> None:
    whole, directory = trained
    for name in [RESPONSES, *(path.name for path in directory.glob("*.npy"))]:
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    # Stopped at step 23 with a curve that is one step longer: its end is cut.
    training = Training(load_target(target), whole.training.words, SETTINGS)
    steps = iter(range(23))
    training.run(whole.trained, tmp_path, stop=lambda: next(steps, None) is None)
    with (tmp_path / CURVE).open("a") as curve:
        curve.write((tmp_path / CURVE).read_text().splitlines()[-1].replace('"step": 23', '"step": 24') + "\n")
    resumed = run(target, tmp_path)
    assert [point.step for point in read_curve(tmp_path)] == list(range(1, SETTINGS.steps + 1))
    expected = weights_of(whole.training)
    for name, value in weights_of(resumed.training).items():
        assert torch.equal(value, expected[name]), name


def test_responses_go_on_where_they_were_cut(target: Artifact, trained: tuple[Trained, Path], tmp_path: Path) -> None:
    """Half a line at the end of the file, as a stopped machine leaves it."""
    _, directory = trained
    whole = (directory / RESPONSES).read_text()
    (tmp_path / RESPONSES).write_text(whole[: len(whole) // 2])
    run(target, tmp_path, replace(SETTINGS, steps=1))
    assert sorted((tmp_path / RESPONSES).read_text().splitlines()) == sorted(whole.splitlines())


def test_responses_to_other_prompts_are_refused(
    target: Artifact, trained: tuple[Trained, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same texts, one of them held out by now, although the head was trained on it."""
    monkeypatch.setitem(globals(), "PROMPTS", [replace(prompt, held_out=True) for prompt in PROMPTS[:3]] + PROMPTS[3:])
    with pytest.raises(ConfigError, match="other prompts"):
        run(target, trained[1])


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        (replace(SETTINGS, learning_rate=1e-3), DATA, "learning_rate"),
        (SETTINGS, replace(DATA, max_new=23), "max_new"),
    ],
)
def test_a_directory_of_other_settings_is_refused(
    target: Artifact, trained: tuple[Trained, Path], settings: TrainSettings, data: DataSettings, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(target, trained[1], settings, data)


@torch.no_grad()
def test_the_companion_drafts_what_the_module_does(
    target: Artifact, trained: tuple[Trained, Path], tmp_path: Path
) -> None:
    result, _ = trained
    path = export_mtp(
        tmp_path / "draft.ninfer",
        result.training.head,
        result.shortlist,
        target,
        weights="f32",
        training=describe(result),
    )
    example = result.held_out[0]
    batch = collate([example])
    (m,) = result.training.outputs(batch, 1)
    rows = load_target(target).head[torch.from_numpy(result.shortlist)].float()
    expected = functional.linear(m[0].double(), rows.double()).numpy()

    options = RuntimeOptions(numerics="f32", kv_format="bf16", num_pages=1, max_rows=64)
    with Artifact.open(path) as companion:
        assert attach(companion, target).shortlist_size == SETTINGS.shortlist
        assert companion.provenance["training"]["steps"] == SETTINGS.steps
        model = load_model(target, options, features=("final",))
        draft = load_draft(find_mtp(target, companion, shortlist=True), model, lanes=64)
        n = example.num_columns
        columns = ForwardBatch(
            example.ids[1:].astype(np.int32),
            (SequenceRows(0, n, 0, np.zeros(1, np.int32)),),
            np.arange(n, dtype=np.int32),
        )
        logits = draft.passes[0].run(columns, (batch.hidden[0, :-1].float().numpy(),))
        assert draft.ids is not None
        assert draft.ids.tolist() == result.shortlist.tolist()
        np.testing.assert_allclose(logits, expected, rtol=0.05, atol=0.05 * float(np.abs(expected).max()))
        draft.close()
        model.close()
