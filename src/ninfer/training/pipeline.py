"""From a target and prompts to a measured head: every stage in one directory, each continued where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ninfer.artifact import Artifact
from ninfer.engine import EngineConfig, EnginePlan, detect_hardware, load_engine, plan_engine
from ninfer.errors import ConfigError, UnsupportedError
from ninfer.models import load_model
from ninfer.text.frontend import load_frontend
from ninfer.training.capture import FEATURE, capture, load_hidden
from ninfer.training.data import Example, Ids, make_examples, most_frequent, token_counts
from ninfer.training.evaluate import Acceptance, evaluate
from ninfer.training.loop import Point, Training, read_curve
from ninfer.training.module import load_target
from ninfer.training.prompts import Prompt
from ninfer.training.regenerate import read_responses, regenerate
from ninfer.training.settings import DataSettings, TrainSettings

JOB = "job.json"
RESPONSES = "responses.jsonl"
EVALUATED_WINDOW = 5


class Progress(Protocol):
    """How far one stage is."""

    def update(self, done: int, total: int) -> None: ...


ShowStage = Callable[[str], AbstractContextManager[Progress]]
"""Called with a stage's title; what it gives is told how far the stage is."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A head as training left it, with what it was measured to accept and the data behind it."""

    training: Training
    curve: list[Point]
    shortlist: Ids
    acceptance: list[Acceptance]
    trained: list[Example]
    held_out: list[Example]


def train_mtp(
    artifact: Artifact,
    prompts: Sequence[Prompt],
    directory: Path,
    data: DataSettings,
    settings: TrainSettings,
    show: ShowStage,
    watch: Callable[[Point], None] = lambda point: None,
) -> Trained:
    """Regenerate, capture, train and evaluate; `directory` keeps every stage's results.

    ConfigError if the directory belongs to another target or other data; the errors of the stages.
    """
    target = load_target(artifact)
    directory.mkdir(parents=True, exist_ok=True)
    _claim(directory, artifact, data)
    examples = _examples(artifact, prompts, directory, data, show)
    trained = [example for example in examples if not example.held_out]
    held_out = [example for example in examples if example.held_out]
    counts, vocab_size = token_counts(trained), target.config.vocab_size
    words = most_frequent(counts, min(settings.loss_words, vocab_size))
    shortlist = most_frequent(counts, min(settings.shortlist, vocab_size))
    training = Training(target, words, settings, threads=data.threads)
    with show("training") as bar:

        def progress(point: Point) -> None:
            bar.update(point.step, settings.steps)
            watch(point)

        training.run(trained, directory, progress)
    acceptance = evaluate(training, target, shortlist, held_out, EVALUATED_WINDOW)
    return Trained(training, read_curve(directory), shortlist, acceptance, trained, held_out)


def describe(trained: Trained) -> dict[str, Any]:
    """What a head came from and what it was measured to accept, as JSON values."""
    training = trained.training
    return {
        "steps": training.step,
        "seconds": round(sum(point.seconds for point in trained.curve), 1),
        "responses": len(trained.trained),
        "response_tokens": sum(len(example.ids) - example.first for example in trained.trained),
        "held_out_responses": len(trained.held_out),
        "acceptance": [asdict(row) for row in trained.acceptance],
    }


def _examples(
    artifact: Artifact, prompts: Sequence[Prompt], directory: Path, data: DataSettings, show: ShowStage
) -> list[Example]:
    path = directory / RESPONSES
    tokenizer, template = load_frontend(artifact.find_resource, file=artifact.path)
    if template is None:
        raise UnsupportedError(f"{artifact.path} has no chat template to put prompts into")
    plan = _plan(artifact, data)
    with load_engine(plan, artifact, tokenizer) as engine, show("regenerating responses") as bar:
        regenerate(engine, template, prompts, path, max_new=data.max_new, progress=bar.update)
    responses = read_responses(path)
    options = replace(plan.options, max_rows=data.max_context, max_logit_rows=1)
    model = load_model(artifact, options, features=(FEATURE,))
    try:
        with show("capturing hidden rows") as bar:
            capture(model, responses, directory, progress=bar.update)
    finally:
        model.close()
    return make_examples(responses, load_hidden(responses, directory))


def _plan(artifact: Artifact, data: DataSettings) -> EnginePlan:
    config = EngineConfig(max_context=data.max_context, max_concurrency=data.lanes, threads=data.threads)
    return plan_engine(config, artifact, detect_hardware())


def _claim(directory: Path, artifact: Artifact, data: DataSettings) -> None:
    """Note what the directory is for, or refuse it if that is something else."""
    job = {"target": artifact.digest, "max_new": data.max_new, "max_context": data.max_context}
    path = directory / JOB
    if not path.exists():
        path.write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in job.items():
        if found.get(name) != value:
            raise ConfigError(f"{directory} was begun with {name} {found.get(name)}, not {value}; use another one")
