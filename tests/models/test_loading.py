"""Loading: exact memory plans, and files that do not fit the model they claim to be."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.model_runs import logits_of
from make.op_runs import BACKEND_FORMATS, BACKENDS
from make.tiny_llama import CONFIGS, random_weights, write_artifact
from ninfer.artifact import Artifact, ArtifactWriter
from ninfer.backends.base import MEMORY_PARTS
from ninfer.errors import ArtifactError, ConfigError, InvariantError, UnsupportedError
from ninfer.models import ForwardBatch, RuntimeOptions, SequenceRows, load_model, plan_memory
from ninfer.models.llama import LlamaConfig

CONFIG = CONFIGS["ragged"]
SMALL: dict[str, Any] = {"num_pages": 3, "max_rows": 70, "max_logit_rows": 5}


def options(backend: str, **changes: Any) -> RuntimeOptions:
    where = {"backend": "reference"} if backend == "reference" else {"isa": backend}
    return RuntimeOptions(**{**SMALL, **where, **changes})


@pytest.mark.parametrize("kv_format", ["int8", "bf16"])
@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_plan_is_what_is_held(name: str, weight_format: str, kv_format: str, backend: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    path = write_artifact(tmp_path / "tiny.ninfer", config, random_weights(config), weight_format)
    with Artifact.open(path) as artifact:
        plan = plan_memory(artifact, options(backend, kv_format=kv_format))
        model = load_model(artifact, options(backend, kv_format=kv_format))
        assert dict(model.memory) == plan
        model.close()
    assert tuple(plan) == MEMORY_PARTS
    assert all(type(size) is int for size in plan.values())
    assert [part for part, size in plan.items() if size <= 0] == ["state"]  # this family keeps none


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plan_follows_each_number(backend: str, tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny.ninfer", CONFIG, random_weights(CONFIG), "q8g32")
    with Artifact.open(path) as artifact:
        base = plan_memory(artifact, options(backend))
        pages = plan_memory(artifact, options(backend, num_pages=6))
        logit_rows = plan_memory(artifact, options(backend, max_logit_rows=10))
        rows = plan_memory(artifact, options(backend, max_rows=140))
        stored = sum(entry.nbytes for entry in artifact.tensors.values())
    assert pages["kv"] == 2 * base["kv"]
    assert pages["weights"] == base["weights"]
    assert logit_rows["logits"] == 2 * base["logits"]
    assert logit_rows["kv"] == base["kv"]
    assert rows["workspace"] > base["workspace"]
    assert (rows["kv"], rows["logits"]) == (base["kv"], base["logits"])
    assert base["logits"] == 5 * 80 * 4  # 67 columns in rows of whole cache lines
    if backend == "reference":
        parameters = sum(int(np.prod(shape)) for shape in CONFIG.tensor_shapes().values())
        assert base["weights"] == 8 * parameters
        assert base["kv"] == 3 * 64 * CONFIG.num_layers * 2 * CONFIG.num_kv_heads * (CONFIG.head_dim + 2)
    else:
        assert base["weights"] == stored


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_refuses_what_it_was_not_loaded_for_and_stays_usable(backend: str, tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "tiny.ninfer", CONFIG, random_weights(CONFIG), "bf16")
    ids = np.arange(5, dtype=np.int32)
    with Artifact.open(path) as artifact:
        model = load_model(artifact, options(backend))
        want = logits_of(model, ids, [5])
        too_many = ForwardBatch(np.zeros(71, np.int32), (SequenceRows(0, 71, 0, ids[:2]),), ids[:1])
        foreign_page = ForwardBatch(ids, (SequenceRows(0, 5, 0, ids[3:4]),), ids[:1])
        for batch in (too_many, foreign_page):
            with pytest.raises(InvariantError):
                model.forward(batch)
        np.testing.assert_array_equal(logits_of(model, ids, [5]), want)
        assert model.page_tokens == 64
        assert model.config == CONFIG
        model.close()
        model.close()
        with pytest.raises(InvariantError, match="closed"):
            logits_of(model, ids, [5])


def written(path: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """A good artifact, but for `tensors`: None leaves one out, an array replaces or adds one (1-D: f32 row)."""
    weights: dict[str, Any] = dict(random_weights(CONFIG))
    for name, array in tensors.items():
        weights[name.replace("__", ".")] = array
    kept = {name: array for name, array in weights.items() if array is not None}
    return write_artifact(path, CONFIG, kept, "q8g32", **(config or {}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"layers__1__down": None, "norm": None}, "tensors are missing: layers.1.down, norm"),
        ({"head": None}, "tensors are missing: head"),
        ({"layers__0__q_bias": np.ones(102, np.float32)}, "not part of this model: layers.0.q_bias"),
        (
            {"layers__0__up": np.ones((77, 44), np.float32)},
            r"layers.0.up is q8g32 \[77, 44\] in layout n16, not",
        ),
        ({"norm": np.ones(44, np.float32)}, r"norm is f32 \[44\] in layout row, not f32 \[45\] in layout row"),
        ({"norm": np.ones((1, 45), np.float32)}, r"norm is q8g32 \[1, 45\] in layout n16"),
        ({"embed": np.ones(67 * 45, np.float32)}, r"embed is f32 \[3015\] in layout row, not a weight \[67, 45\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.ninfer", **tensors)
    with Artifact.open(path) as artifact:
        for load in (load_model, plan_memory):
            with pytest.raises(ArtifactError, match=f"{re.escape(str(path))}.*{message}"):
                load(artifact, options("reference"))


TAILS: list[tuple[int, bytes, str]] = [
    (0, bytes(8), "tensor scale factor 0.0 must be from 2^-100 to 2^100"),
    (0, struct.pack("<d", -1.0), "tensor scale factor -1.0 must be"),
    (8, struct.pack("<f", math.nan), "input scale nan must be from 2^-100 to 2^100"),
    (63, b"\x01", "bytes behind the tensor scale are not zero"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("at", "content", "message"), TAILS, ids=lambda value: str(value)[:30])
def test_tensor_scales_that_cannot_be_are_refused(
    at: int, content: bytes, message: str, backend: str, tmp_path: Path
) -> None:
    path = write_artifact(tmp_path / "bad.ninfer", CONFIG, random_weights(CONFIG), "nvfp4")
    with Artifact.open(path) as artifact:
        entry = artifact.tensors["layers.1.up"]
    with path.open("r+b") as file:
        file.seek(entry.offset + entry.nbytes - 64 + at)
        file.write(content)
    with Artifact.open(path) as artifact:
        for load in (load_model, plan_memory):
            with pytest.raises(ArtifactError, match=re.escape(f"{path}: layers.1.up: {message}")):
                load(artifact, options(backend))


def test_many_missing_tensors_give_a_short_message(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "bad.ninfer", "llama", document(), {}) as writer:
        writer.add_vector("norm", np.ones(45, np.float32))
        path = writer.finish()
    with Artifact.open(path) as artifact, pytest.raises(ArtifactError, match=r"embed, .* and 12 more$"):
        load_model(artifact, options("reference"))


def document(**changes: Any) -> dict[str, Any]:
    fields = {name: getattr(CONFIG, name) for name in LlamaConfig.__dataclass_fields__}
    return {**fields, "stop_token_ids": list(CONFIG.stop_token_ids), **changes}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", 0, "from 1 to"),
        ("vocab_size", 1 << 30, "from 1 to"),
        ("hidden_size", 45.0, "must be an integer"),
        ("hidden_size", True, "must be an integer"),
        ("num_layers", 5000, "from 1 to 1024"),
        ("num_kv_heads", 2, "do not divide 3"),
        ("head_dim", 33, "33 is odd"),
        ("rope_theta", 1.0, "above 1, got 1.0"),
        ("rope_theta", 10**400, "above 1"),
        ("rms_norm_eps", "1e-5", "above 0"),
        ("rms_norm_eps", True, "above 0"),
        ("tied_head", 1, "true or false"),
        ("bos_token_id", 67, "null or an id below 67"),
        ("bos_token_id", True, "null or an id below 67"),
        ("stop_token_ids", 2, "list of ids"),
        ("stop_token_ids", [1, -1], "list of ids below 67"),
        ("rope_scaling", {"rope_type": "llama3"}, "not known to this family"),
    ],
)
def test_wrong_config_fields_are_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(ArtifactError, match=rf"^m\.ninfer: config\.{field}: .*{message}"):
        LlamaConfig.read(document(**{field: value}), file="m.ninfer")


@pytest.mark.parametrize("field", sorted(LlamaConfig.__dataclass_fields__))
def test_every_config_field_is_needed(field: str) -> None:
    config = document()
    del config[field]
    with pytest.raises(ArtifactError, match=rf"config\.{field}: missing"):
        LlamaConfig.read(config)


def test_a_good_config_is_read_as_it_was_written() -> None:
    assert LlamaConfig.read(document()) == CONFIG


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.ninfer", "mamba", {}, {}) as writer:
        path = writer.finish()
    with (
        Artifact.open(path) as artifact,
        pytest.raises(UnsupportedError, match="'mamba' is not supported; known: llama"),
    ):
        load_model(artifact, options("reference"))


def test_the_reference_has_no_instruction_sets(tmp_path: Path) -> None:
    with Artifact.open(written(tmp_path / "m.ninfer")) as artifact:
        for load in (load_model, plan_memory):
            with pytest.raises(UnsupportedError, match="isa=avx2"):
                load(artifact, options("reference", isa="avx2"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("numerics", "f16"), ("kv_format", "fp8"), ("backend", "gpu"), ("weights_memory", "swap")]
    + [(name, 0) for name in ("num_pages", "max_rows", "max_logit_rows", "threads")],
)
def test_options_that_cannot_be_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value!r}"):
        RuntimeOptions(**{field: value})
