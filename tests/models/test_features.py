"""Features for draft models: what they are, and that wanting them changes no logit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make import tiny_hybrid, tiny_llama
from make.model_runs import state_access
from make.op_runs import BACKENDS, StoredWeights, compile_on
from ninfer.artifact import Artifact
from ninfer.errors import InvariantError
from ninfer.models import ForwardBatch, Model, RuntimeOptions, SequenceRows, load_model, plan_memory
from ninfer.ops.graph import Feature, Graph
from ninfer.ops.linear import linear
from ninfer.ops.select_rows import select_rows

LLAMA = tiny_llama.CONFIGS["uneven"]
HYBRID = tiny_hybrid.CONFIG
FAMILIES = ("llama", "hybrid")
ROWS = 23


def options(backend: str, **changes: Any) -> RuntimeOptions:
    where = {"backend": "reference"} if backend == "reference" else {"isa": backend, "threads": 2}
    return RuntimeOptions(**{"num_pages": 4, "max_rows": ROWS, "max_logit_rows": ROWS, **where, **changes})


def write(family: str, path: Path, num_layers: int = 3, format: str = "q8g32") -> Path:
    """A tiny model, or its first layers."""
    if family == "llama":
        weights = tiny_llama.random_weights(LLAMA)
        config = replace(LLAMA, num_layers=num_layers)
        kept = {name: weights[name] for name in config.tensor_shapes()}
        return tiny_llama.write_artifact(path, config, kept, format)
    hybrid = replace(HYBRID, layer_types=HYBRID.layer_types[:num_layers])
    weights = tiny_hybrid.random_weights(HYBRID)
    return tiny_hybrid.write_artifact(path, hybrid, {name: weights[name] for name in hybrid.tensor_shapes()}, format)


def load(path: Path, backend: str, features: Collection[Feature] = (), **changes: Any) -> tuple[Artifact, Model]:
    artifact = Artifact.open(path)
    state = {"num_state_slots": 2} if artifact.architecture == "qwen3_5" else {}
    return artifact, load_model(artifact, options(backend, **state, **changes), features)


def steps(hybrid: bool) -> list[ForwardBatch]:
    """Two sequences: a prompt and a decode step with few wanted rows."""
    rng = np.random.default_rng(3)
    batches = []
    for counts, positions, wanted in (((14, 9), (0, 0), (13, 22)), ((1, 4), (14, 9), (0, 2, 4))):
        sequences, start = [], 0
        for slot, (count, position) in enumerate(zip(counts, positions, strict=True)):
            state = state_access(slot if hybrid else None, position, count)
            sequences.append(SequenceRows(start, count, position, np.array([slot], np.int32), state))
            start += count
        ids = rng.integers(0, 60, start).astype(np.int32)
        batches.append(ForwardBatch(ids, tuple(sequences), np.array(wanted, np.int32)))
    return batches


def run(path: Path, backend: str, features: Collection[Feature] = (), **changes: Any) -> list[dict[Any, np.ndarray]]:
    """By step the logits, and every feature."""
    artifact, model = load(path, backend, features, **changes)
    with artifact:
        found = []
        for batch in steps(artifact.architecture == "qwen3_5"):
            logits = model.forward(batch).copy()
            found.append({"logits": logits, **{feature: model.feature(feature).copy() for feature in features}})
        model.close()
    return found


@pytest.mark.parametrize("features", [("final",), (0,), (1,), (2,), ("final", 0, 2)])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same_to_the_bit(
    family: str, backend: str, features: tuple[Feature, ...], tmp_path: Path
) -> None:
    path = write(family, tmp_path / "tiny.ninfer")
    for without, wanted in zip(run(path, backend), run(path, backend, features), strict=True):
        np.testing.assert_array_equal(wanted["logits"], without["logits"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_residual_is_the_last_one_of_a_model_cut_behind_its_layer(family: str, backend: str, tmp_path: Path) -> None:
    whole = run(write(family, tmp_path / "whole.ninfer"), backend, (0, 1, 2, "final"))
    for layers in (1, 2):
        cut = run(write(family, tmp_path / f"{layers}.ninfer", layers), backend, (layers - 1, "final"))
        for a, b in zip(whole, cut, strict=True):
            np.testing.assert_array_equal(a[layers - 1], b[layers - 1])
            assert not np.array_equal(a["final"], b["final"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_final_is_what_the_head_reads(family: str, backend: str, tmp_path: Path) -> None:
    path = write(family, tmp_path / "tiny.ninfer", format="f32")
    make = tiny_llama if family == "llama" else tiny_hybrid
    config: Any = LLAMA if family == "llama" else HYBRID
    weights = make.random_weights(config)
    for batch, found in zip(steps(family == "hybrid"), run(path, backend, ("final", 2), numerics="f32"), strict=True):
        assert found["final"].shape == found[2].shape == (len(batch.token_ids), config.hidden_size)
        logits = found["final"][batch.logit_rows].astype(np.float64) @ weights["embed"].astype(np.float64).T
        np.testing.assert_allclose(found["logits"], logits[:, : found["logits"].shape[1]], rtol=1e-4, atol=1e-4)
        squares = (found[2].astype(np.float64) ** 2).mean(axis=1, keepdims=True)
        normed = found[2] / np.sqrt(squares + config.rms_norm_eps) * weights["norm"]
        np.testing.assert_allclose(found["final"], normed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_residuals_are_the_hidden_states_of_transformers(backend: str, tmp_path: Path) -> None:
    """`hidden_states[l + 1]` there is the residual after layer l; its last entry is normed."""
    import torch

    weights = tiny_llama.random_weights(LLAMA)
    path = tiny_llama.write_artifact(tmp_path / "tiny.ninfer", LLAMA, weights, "f32")
    found = run(path, backend, (0, 1, "final"), numerics="f32", kv_format="bf16")[0]
    ids = steps(False)[0].token_ids[:14]
    with torch.no_grad():
        model = tiny_llama.hf_model(LLAMA, weights)
        states = model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True).hidden_states
    for feature, want in ((0, states[1]), (1, states[2]), ("final", states[3])):
        error = np.abs(found[feature][:14] - want[0].numpy()).max() / want.abs().max().item()
        assert error < 1e-2  # keys and values are stored as bf16 here, and as float32 there


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_is_what_is_held_with_features(family: str, backend: str, tmp_path: Path) -> None:
    path = write(family, tmp_path / "tiny.ninfer")
    artifact, model = load(path, backend, (0, 1))
    with artifact:
        assert dict(model.memory) == plan_memory(artifact, model.options, (0, 1))
        model.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_not_asked_for_cannot_be_read(backend: str, tmp_path: Path) -> None:
    path = write("llama", tmp_path / "tiny.ninfer")
    artifact, model = load(path, backend, ("final",))
    with artifact:
        with pytest.raises(InvariantError, match="final"):
            model.feature("final")
        model.forward(steps(False)[0])
        with pytest.raises(InvariantError, match="feature 1"):
            model.feature(1)
        with pytest.raises(InvariantError, match="feature 3 of a model that has layers 0 to 2"):
            load_model(artifact, model.options, (3,))
        model.close()


@pytest.mark.parametrize("weights_memory", ["mapped", "auto"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_executable_uses_the_weights_of_the_first_in_place(backend: str, weights_memory: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 40)).astype(np.float32)
    weights = StoredWeights({"w": rng.standard_normal((24, 40)).astype(np.float32)}, "q8g32")

    def graph() -> Graph:
        g = Graph()
        g.mark_logits(linear(g, select_rows(g, g.new_input(40)), [("w", 24)]))
        return g

    class Held:
        def matrix(self, name: str) -> Any:
            return first.held_matrix(name)

        vector = weights.vector

    made = {"max_rows": 5, "max_logit_rows": 5, "num_pages": 1, "weights_memory": weights_memory}
    batch = ForwardBatch(
        np.zeros(5, np.int32), (SequenceRows(0, 5, 0, np.zeros(1, np.int32)),), np.arange(5, dtype=np.int32)
    )
    results = []
    first = compile_on(backend, graph(), weights, **made)
    second_graph = graph()
    second = compile_on(backend, second_graph, Held(), **made)
    for executable in (first, second):
        executable.set_input(second_graph.nodes[0].inputs[0], x)
        results.append(executable.forward(batch).copy())
    np.testing.assert_array_equal(*results)
    if backend != "reference":
        assert first.memory["weights"] > 0
        assert second.memory["weights"] == 0
        assert np.shares_memory(first.held_matrix("w").data, second.held_matrix("w").data)
    second.close()
    first.close()
