"""The whole forward of tiny random Qwen3.5 models against transformers, through the files that people have."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.model_runs import greedy_ids, in_chunks, logits_of
from make.op_runs import BACKENDS
from make.tiny_qwen import CONFIGS, FULL, hf_model, qwen_logits, text_config, write_qwen, write_qwen_gguf
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.errors import ArtifactError
from ninfer.models import Model, RuntimeOptions, load_model
from ninfer.models.registry import read_config

TOKENS = 75
NUM_DECODABLE = 274  # ids of the tiny tokenizer: its last entry is unused
GREEDY_TOKENS = 200


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Every config, converted from the directory that transformers wrote and from a GGUF file."""
    found = {}
    place = tmp_path_factory.mktemp("qwen")
    for index, name in enumerate(CONFIGS):
        model = hf_model(name)
        sources = {
            "huggingface": write_qwen(place / f"{index}", model),
            "gguf": write_qwen_gguf(place / f"{index}.gguf", name, model),
        }
        for kind, source in sources.items():
            found[name, kind] = place / f"{index}-{kind}.ninfer"
            assert convert(source, found[name, kind]).exact
    return found


def prompt(length: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(11).integers(0, NUM_DECODABLE, length).astype(np.int32)


def load(artifact: Artifact, backend: str, **changes: Any) -> Model:
    where = {"backend": "reference"} if backend == "reference" else {"backend": "cpu", "isa": backend}
    options = {"num_pages": 5, "max_rows": TOKENS, "max_logit_rows": TOKENS, "num_state_slots": 1, **changes}
    return load_model(artifact, RuntimeOptions(**{"numerics": "f32", "kv_format": "bf16", **options, **where}))


@cache
def expected(name: str) -> np.ndarray:
    """transformers' logits of the prompt, of ids that can be decoded."""
    return qwen_logits(hf_model(name), prompt())[:, :NUM_DECODABLE]


def relative_error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    return np.abs(got - want) / np.abs(want).max()


CASES = [(name, kind) for name in CONFIGS for kind in ("huggingface", "gguf")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_logits_are_those_of_transformers(
    name: str, kind: str, backend: str, artifacts: dict[tuple[str, str], Path]
) -> None:
    """A value near a rounding border of the KV cache may fall to either side; every later row sees it."""
    with Artifact.open(artifacts[name, kind]) as artifact:
        model = load(artifact, backend)
        got = logits_of(model, prompt(), [40, 1, 1, 33], state_slot=0)
        model.close()
    error = relative_error(got, expected(name))
    assert error[0].max() < 1e-4  # the norm of a small output of the rule magnifies float32's last bits
    assert np.median(error) < 1e-4
    assert error.max() < 1e-2


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_answers_are_those_of_transformers(name: str, artifacts: dict[tuple[str, str], Path]) -> None:
    """Our own ids, judged by transformers in one forward over prompt and answer: each is its choice, too."""
    start = prompt(9)
    with Artifact.open(artifacts[name, "huggingface"]) as artifact:
        model = load(artifact, BACKENDS[-1])
        ids = greedy_ids(model, start, GREEDY_TOKENS, state_slot=0)
        model.close()
    whole = np.concatenate([start, np.array(ids, np.int32)])
    theirs = qwen_logits(hf_model(name), whole[:-1])[len(start) - 1 :, :NUM_DECODABLE]
    assert len(set(ids)) > 20
    assert theirs.argmax(axis=1).tolist() == ids


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_in_pieces_gives_the_logits_of_the_whole(backend: str, artifacts: dict[tuple[str, str], Path]) -> None:
    with Artifact.open(artifacts["three value heads", "huggingface"]) as artifact:
        model = load(artifact, backend, threads=2)
        whole, single = (logits_of(model, prompt(), in_chunks(TOKENS, n), state_slot=0) for n in (TOKENS, 1))
        model.close()
    if backend == "reference":  # NumPy sums in an order of its own
        np.testing.assert_allclose(single, whole, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(single, whole)


YARN = {"factor": 2.0, "original_length": 512, "beta_fast": 32.0, "beta_slow": 1.0, "magnitude": None}
CONFIG_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"num_decodable": 289}, r"config.num_decodable: must be an integer from 1 to 288, got 289"),
    (
        {"layer_types": ["mamba"]},
        r"config.layer_types: must be a list of 1 to 1024 of full_attention, linear",
    ),
    ({"layer_types": []}, r"config.layer_types"),
    ({"delta_num_k_heads": 4}, r"config.delta_num_k_heads: 4 key heads do not divide 6 value heads"),
    ({"num_kv_heads": 3}, r"config.num_kv_heads: 3 do not divide 4 heads"),
    ({"rotary_dim": 18}, r"config.rotary_dim: must be even and at most the 16 dims of a head, got 18"),
    ({"rotary_dim": 3}, r"config.rotary_dim"),
    ({"conv_taps": 65}, r"config.conv_taps: must be an integer from 1 to 64"),
    ({"num_mtp_layers": 2}, r"config.num_mtp_layers: must be an integer from 0 to 1"),
    ({"yarn": 3}, r"config.yarn: must be null or an object, got 3"),
    ({"yarn": {"factor": 2.0}}, r"config.yarn.original_length: missing"),
    ({"yarn": {"truncate": True}}, r"config.yarn.truncate: not known"),
    ({"yarn": YARN | {"factor": 0.5}}, r"config.yarn.factor: must be a number from 1 to 16777216, got 0.5"),
    ({"yarn": YARN | {"beta_fast": 1e308}}, r"config.yarn.beta_fast: must be a number from 0.001 to 1000, got 1e\+308"),
    ({"yarn": YARN | {"beta_slow": 1e-308}}, r"config.yarn.beta_slow: must be a number from 0.001 to 1000, got 1e-308"),
    ({"yarn": YARN | {"beta_slow": 33.0}}, r"config.yarn.beta_fast: must not be below beta_slow 33.0, got 32.0"),
    ({"yarn": YARN | {"magnitude": 1e308}}, r"config.yarn.magnitude: must be a number from 0.01 to 100"),
    ({"rope_theta": 1.0}, r"config.rope_theta: must be a number above 1, got 1.0"),
    ({"mystery": 1}, r"config.mystery: not known to this family"),
]


@pytest.mark.parametrize(("changed", "pattern"), CONFIG_ERRORS, ids=lambda value: str(value)[:50])
def test_a_configuration_is_refused_by_its_field(
    changed: dict[str, Any], pattern: str, artifacts: dict[tuple[str, str], Path]
) -> None:
    with Artifact.open(artifacts["three value heads", "huggingface"]) as artifact:
        config = dict(artifact.config)
    with pytest.raises(ArtifactError, match=pattern):
        read_config("qwen3_5", {**config, **changed})


def test_the_configurations_differ_where_bugs_hide() -> None:
    shapes = [text_config(name) for name in CONFIGS]
    assert {c["linear_num_value_heads"] // c["linear_num_key_heads"] for c in shapes} == {1, 2, 3}
    assert {c["tie_word_embeddings"] for c in shapes} == {True, False}
    assert any(c["linear_key_head_dim"] != c["linear_value_head_dim"] for c in shapes)
    assert any(c["num_hidden_layers"] % 2 for c in shapes)
    assert {c.get("layer_types", [None])[-1] for c in shapes} >= {FULL, "linear_attention"}
