"""The whole forward of tiny random Llama models against transformers, on every backend."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.make_gguf import TINY
from make.make_hf import write_hf
from make.model_runs import in_chunks, logits_of
from make.op_runs import BACKEND_FORMATS, BACKENDS, CPU_ISAS
from make.tiny_llama import CONFIGS, hf_logits, hf_model, random_weights, stored_values, write_artifact
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.formats import bf16
from ninfer.models import RuntimeOptions, load_model
from ninfer.models.llama import LlamaConfig

TOKENS = 75


def options(backend: str, **changes: Any) -> RuntimeOptions:
    common: dict[str, Any] = {
        "num_pages": 4,
        "max_rows": TOKENS,
        "max_logit_rows": TOKENS,
        "numerics": "f32",
        "kv_format": "bf16",
    }
    where = {"backend": "reference"} if backend == "reference" else {"backend": "cpu", "isa": backend, "threads": 2}
    return RuntimeOptions(**{**common, **where, **changes})


def prompt(config: LlamaConfig, length: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(11).integers(0, config.vocab_size, length).astype(np.int32)


def relative_error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors `[T, V]` as parts of the largest logit; everything must be finite."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    return np.abs(got - want) / np.abs(want).max()


@cache
def expected(config_name: str, weight_format: str, kv_format: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """transformers' logits of the whole prompt, and of its short pieces alone."""
    config = CONFIGS[config_name]
    model = hf_model(config, stored_values(random_weights(config), weight_format))
    ids = prompt(config)
    return hf_logits(model, ids, kv_format), [hf_logits(model, piece, kv_format) for piece in pieces(ids)]


def pieces(ids: np.ndarray) -> np.ndarray:
    """Fifteen prompts of three tokens."""
    return ids[:45].reshape(15, 3)


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
@pytest.mark.parametrize("config_name", CONFIGS)
def test_logits_are_those_of_transformers(
    config_name: str, weight_format: str, kv_format: str, backend: str, tmp_path: Path
) -> None:
    """A value near a rounding border of the cache may fall to either side, and every later row sees it.

    That moves logits by some 1e-3 and happens about once in a long prompt, but in few of many short ones.
    """
    config = CONFIGS[config_name]
    ids = prompt(config)
    path = write_artifact(tmp_path / "tiny.ninfer", config, random_weights(config), weight_format)
    with Artifact.open(path) as artifact:
        model = load_model(artifact, options(backend, kv_format=kv_format))
        long = logits_of(model, ids, [40, 1, 1, 33])
        short = [logits_of(model, piece, [2, 1]) for piece in pieces(ids)]
        model.close()
    want_long, want_short = expected(config_name, weight_format, kv_format)
    errors = [relative_error(got, want).max() for got, want in zip(short, want_short, strict=True)]
    assert np.median(errors) < 3e-6
    assert relative_error(long, want_long).max() < 1e-2


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize("weight_format", ["q8g32", "q4g32", "q4g32m"])
@pytest.mark.parametrize("config_name", CONFIGS)
def test_quantised_activations_are_those_of_the_reference(
    config_name: str, weight_format: str, isa: str, tmp_path: Path
) -> None:
    config = CONFIGS[config_name]
    path = write_artifact(tmp_path / "tiny.ninfer", config, random_weights(config), weight_format)
    with Artifact.open(path) as artifact:
        logits = {}
        for backend in ("reference", isa):
            model = load_model(artifact, options(backend, numerics="a8", kv_format="int8"))
            logits[backend] = logits_of(model, prompt(config), [TOKENS])
            model.close()
    noise = relative_error(logits[isa], expected(config_name, weight_format, "int8")[0])
    error = relative_error(logits[isa], logits["reference"])
    assert error[0].max() < 5e-5  # a code of an activation may fall to either side of a rounding border, too
    assert np.median(error) < 0.5 * np.median(noise)
    assert np.median(noise) > 1e-4  # otherwise nothing was quantised


@pytest.mark.parametrize("backend", BACKENDS)
def test_adjacent_pairs_of_rotary_dims_change_the_logits(backend: str, tmp_path: Path) -> None:
    """Query and key rows in adjacent order, as GGUF files have them, must not pass for half-paired ones."""
    config = CONFIGS["uneven"]
    weights = random_weights(config)
    half = np.arange(config.head_dim).reshape(2, -1)
    adjacent = half.T.reshape(-1)
    swapped = dict(weights)
    for name, array in weights.items():
        if name.endswith((".q", ".k")):
            swapped[name] = array.reshape(-1, config.head_dim, array.shape[1])[:, adjacent].reshape(array.shape)
    path = write_artifact(tmp_path / "swapped.ninfer", config, swapped, "f32")
    with Artifact.open(path) as artifact:
        model = load_model(artifact, options(backend))
        got = logits_of(model, prompt(config), [TOKENS])
        model.close()
    error = relative_error(got, expected("uneven", "f32", "bf16")[0])
    assert error[0].max() < 2e-6  # position 0 is not rotated
    assert error[1:].max(axis=1).min() > 1e-3


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_reference_chunks_do_not_matter(kv_format: str, tmp_path: Path) -> None:
    """The native backend does better, see test_determinism; here NumPy's own summation order may differ."""
    config = CONFIGS["wide"]
    path = write_artifact(tmp_path / "tiny.ninfer", config, random_weights(config), "q8g32")
    with Artifact.open(path) as artifact:
        model = load_model(artifact, options("reference", numerics="a8", kv_format=kv_format))
        whole, single = (logits_of(model, prompt(config), in_chunks(TOKENS, size)) for size in (TOKENS, 1))
        model.close()
    np.testing.assert_allclose(single, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_converted_checkpoint_has_the_logits_of_its_authors(dtype: str, backend: str, tmp_path: Path) -> None:
    """From a directory that transformers wrote, through the converter, to logits."""
    weights = random_weights(TINY)
    source = tmp_path / "checkpoint"
    convert(write_hf(source, TINY, weights, dtype=dtype), tmp_path / "tiny.ninfer")
    ids = prompt(TINY)
    if dtype == "bfloat16":  # norms too
        weights = {name: bf16.decode(bf16.encode(array)) for name, array in weights.items()}
    want = hf_logits(hf_model(TINY, weights), ids, "bf16")
    with Artifact.open(tmp_path / "tiny.ninfer") as artifact:
        model = load_model(artifact, options(backend))
        error = relative_error(logits_of(model, ids, [TOKENS]), want)
        model.close()
    assert error.max() < 1e-2
    assert np.median(error) < 2e-3
