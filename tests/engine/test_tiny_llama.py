"""The engine on a real model of a few kilobytes: plan, load, and the determinism law through every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness import Outcome, collect, run

from make.tiny_llama import CONFIGS, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.decoding import SamplingParams
from ninfer.engine import (
    Engine,
    EngineConfig,
    GenerationRequest,
    StopRules,
    detect_hardware,
    load_engine,
    plan_engine,
)
from ninfer.errors import ConfigError

CONFIG = CONFIGS["uneven"]
ENDLESS = StopRules(model_end_tokens=False)
REQUESTS = [
    GenerationRequest(tuple(i * 7 % 200 for i in range(130)), max_new=40, stop=ENDLESS),
    GenerationRequest((5, 6, 7), max_new=70, stop=ENDLESS, sampling=SamplingParams(temperature=1.0, seed=11)),
    GenerationRequest((9,), max_new=20, stop=ENDLESS, sampling=SamplingParams(frequency_penalty=1.0)),
    GenerationRequest((8,) * 64, max_new=5, stop=ENDLESS, sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=3)),
]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.ninfer"
    write_artifact(path, CONFIG, random_weights(CONFIG), "q4g32")
    with Artifact.open(path) as opened:
        yield opened


def load(artifact: Artifact, config: EngineConfig) -> Engine:
    return load_engine(plan_engine(config, artifact, detect_hardware()), artifact)


@pytest.fixture(scope="module")
def alone(artifact: Artifact) -> list[Outcome]:
    with load(artifact, EngineConfig(max_context=256, threads=1)) as engine:
        return [run(engine, request) for request in REQUESTS]


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(max_context=256, max_concurrency=4, threads=1),
        EngineConfig(max_context=256, max_concurrency=4, threads=2, prefill_chunk=7),
        EngineConfig(max_context=256, max_concurrency=3, threads=2, prefill_chunk=64, weights_memory="mapped"),
        EngineConfig(max_context=256, max_concurrency=2, kv_capacity=320, prefill_chunk=1),
    ],
)
def test_together_is_alone(artifact: Artifact, alone: list[Outcome], config: EngineConfig) -> None:
    """Lanes, chunks, threads, memory and pages change nothing of any answer."""
    with load(artifact, config) as engine:
        ids = [engine.submit(request) for request in REQUESTS]
        together = collect(engine.drain())
        assert [together[i].ids for i in ids] == [outcome.ids for outcome in alone]
        assert engine.num_free_pages == engine.plan.num_pages


def test_the_answers_are_not_trivial(alone: list[Outcome]) -> None:
    assert all(len(set(outcome.ids)) > 3 for outcome in alone)


def test_the_plan_is_what_the_model_holds(artifact: Artifact) -> None:
    plan = plan_engine(EngineConfig(max_context=200, max_concurrency=2), artifact, detect_hardware())
    with load_engine(plan, artifact) as engine:
        held = engine._model.memory  # type: ignore[attr-defined]  # a loaded model says what it holds
        assert {item.name: item.num_bytes for item in plan.memory if item.name in held} == dict(held)


def test_a_plan_of_another_file_is_refused(artifact: Artifact) -> None:
    plan = plan_engine(EngineConfig(), artifact, detect_hardware())
    with pytest.raises(ConfigError, match="another file"):
        load_engine(replace(plan, artifact_digest="00" * 32), artifact)
