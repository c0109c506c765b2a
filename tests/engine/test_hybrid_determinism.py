"""The determinism law on a hybrid model: one long text decoded token by token, and computed as a prompt in any chunks.

Ids after the text and the recurrent state at its end must be the same bits; so must they beside other sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness import collect, run

from make.tiny_hybrid import CONFIG, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.backends.base import LayerState
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

LENGTH = 8192
MORE = 6
SAMPLING = SamplingParams(temperature=1.5, seed=5)
"""A text that does not repeat itself; random numbers depend on seed and position, so a prompt can be continued."""


@dataclass(frozen=True)
class Decoded:
    """`LENGTH + MORE` ids of which only the first was a prompt, and the state after all but the last."""

    ids: tuple[int, ...]
    state: list[LayerState]


def request(ids: tuple[int, ...], max_new: int) -> GenerationRequest:
    return GenerationRequest(ids, max_new=max_new, sampling=SAMPLING, stop=StopRules(model_end_tokens=False))


def load(artifact: Artifact, **settings: object) -> Engine:
    config = EngineConfig.from_dict({"max_context": LENGTH + MORE, "prefix_reuse": False, **settings})
    return load_engine(plan_engine(config, artifact, detect_hardware()), artifact)


def state_of(engine: Engine, slot: int = 0) -> list[LayerState]:
    """What a slot holds; a lone sequence has the first one, if no snapshot is taken of it."""
    return engine._model._live().read_state(slot)  # type: ignore[attr-defined]  # only tests look at states


def assert_same_state(got: list[LayerState], want: list[LayerState]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.window, b.window)
        np.testing.assert_array_equal(a.s, b.s)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    path: Path = tmp_path_factory.mktemp("hybrid") / "hybrid.ninfer"
    write_artifact(path, CONFIG, random_weights(CONFIG), "q8g32")
    with Artifact.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def decoded(artifact: Artifact) -> Decoded:
    with load(artifact, threads=1) as engine:
        outcome = run(engine, request((7,), LENGTH + MORE - 1))
        return Decoded((7, *outcome.ids), state_of(engine))


def test_the_text_is_not_trivial(decoded: Decoded) -> None:
    """A model that forgets, or a text that repeats, would prove nothing."""
    ids = np.array(decoded.ids)
    assert len(ids) == LENGTH + MORE
    assert np.bincount(ids, minlength=CONFIG.num_decodable).max() < LENGTH // 4
    assert all(np.abs(layer.s).max() > 1e-3 for layer in decoded.state)


@pytest.mark.parametrize(("chunk", "threads"), [(1, 1), (64, 1), (100, 1), (1000, 1), (LENGTH, 1), (LENGTH, 2)])
def test_a_prompt_in_any_chunks_is_decoding(artifact: Artifact, decoded: Decoded, chunk: int, threads: int) -> None:
    with load(artifact, threads=threads, prefill_chunk=chunk) as engine:
        outcome = run(engine, request(decoded.ids[:LENGTH], MORE))
        assert tuple(outcome.ids) == decoded.ids[LENGTH:]
        assert_same_state(state_of(engine), decoded.state)


@pytest.mark.parametrize(("chunk", "threads"), [(1, 1), (7, 1), (64, 1), (512, 1), (512, 2)])
def test_company_changes_nothing(artifact: Artifact, decoded: Decoded, chunk: int, threads: int) -> None:
    """Prompts of several lengths share chunks, decode side by side and end at different times."""
    lengths = [600, 1, 63, 64, 65, 333]
    with load(artifact, threads=threads, prefill_chunk=chunk, max_concurrency=3, max_context=700) as engine:
        for length in lengths:
            engine.submit(request(decoded.ids[:length], 12))
        outcomes = collect(engine.drain())
        for i, length in enumerate(lengths):
            assert tuple(outcomes[i].ids) == decoded.ids[length : length + 12], f"prompt of {length} tokens"
        assert engine.num_free_state_slots == engine.plan.options.num_state_slots == 3


def test_the_plan_is_what_the_model_holds(artifact: Artifact) -> None:
    with load(artifact, max_concurrency=3) as engine:
        held = engine._model.memory  # type: ignore[attr-defined]  # a loaded model says what it holds
        assert {item.name: item.num_bytes for item in engine.plan.memory if item.name in held} == dict(held)
        assert held["state"] > 0
