"""The real SmolLM2: the greedy answer that an independent float32 forward over the same weights gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from make.model_runs import logits_of
from make.op_runs import CPU_ISAS
from make.real_model import MISSING, find_real_gguf
from ninfer.artifact import Artifact, ArtifactWriter
from ninfer.convert.convert import convert
from ninfer.formats import Planes
from ninfer.models import Model, RuntimeOptions, load_model

pytestmark = pytest.mark.real_model

# The default system message, then "What is the capital of France?", in the model's chat template.
PROMPT_IDS = """
1 9690 198 2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182 2 198
1 4093 198 1780 314 260 3575 282 4649 47 2 198 1 520 9531 198
"""
PROMPT = np.array(PROMPT_IDS.split(), np.int32)
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]
"""The capital of France is Paris.<|im_end|>"""

TEXT = np.append(PROMPT, np.array(ANSWER[:-1], np.int32))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    source = find_real_gguf()
    if source is None:
        pytest.skip(MISSING)
    path = tmp_path_factory.mktemp("golden") / "smollm2.ninfer"
    convert(source, path)
    with Artifact.open(path) as opened:
        yield opened


@contextmanager
def loaded(artifact: Artifact, backend: str, **changes: Any) -> Iterator[Model]:
    where = {"backend": "reference"} if backend == "reference" else {"isa": backend, "threads": 2}
    settings = {"num_pages": 2, "max_rows": 64, "max_logit_rows": 64, **where, **changes}
    model = load_model(artifact, RuntimeOptions(**settings))
    try:
        yield model
    finally:
        model.close()


def answer_logits(model: Model, chunks: Sequence[int] = (len(TEXT),)) -> npt.NDArray[np.float32]:
    """Logits of every position of prompt and answer; ids that each position predicts are those of greedy decoding."""
    return logits_of(model, TEXT, chunks)


def predicted(logits: npt.NDArray[np.float32]) -> list[int]:
    """What greedy decoding says after the prompt."""
    return logits[len(PROMPT) - 1 :].argmax(axis=1).tolist()


@pytest.mark.parametrize(("numerics", "kv_format"), [("f32", "bf16"), ("f32", "int8"), ("a8", "bf16"), ("a8", "int8")])
@pytest.mark.parametrize("isa", CPU_ISAS)
def test_the_capital_of_france_is_paris(artifact: Artifact, isa: str, numerics: str, kv_format: str) -> None:
    with loaded(artifact, isa, numerics=numerics, kv_format=kv_format) as model:
        assert predicted(answer_logits(model)) == ANSWER


def test_the_reference_says_so_too(artifact: Artifact) -> None:
    with loaded(artifact, "reference", numerics="f32", kv_format="int8") as model:
        assert predicted(answer_logits(model)) == ANSWER


@pytest.mark.parametrize(("numerics", "kv_format"), [("a8", "int8"), ("f32", "bf16")])
def test_single_steps_equal_the_prefill(artifact: Artifact, numerics: str, kv_format: str) -> None:
    with loaded(artifact, CPU_ISAS[-1], numerics=numerics, kv_format=kv_format) as model:
        single = answer_logits(model, [1] * len(TEXT))
        np.testing.assert_array_equal(answer_logits(model), single)


@pytest.mark.parametrize(("numerics", "kv_format", "most"), [("a8", "bf16", 2e-4), ("f32", "int8", 3e-3)])
def test_what_profiles_cost(artifact: Artifact, numerics: str, kv_format: str, most: float) -> None:
    """Mean divergence over this text from exact products with a bf16 cache, in nat."""
    logits = []
    for settings in ({"numerics": "f32", "kv_format": "bf16"}, {"numerics": numerics, "kv_format": kv_format}):
        with loaded(artifact, CPU_ISAS[-1], **settings) as model:
            logits.append(answer_logits(model).astype(np.float64))
    exact, changed = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in logits)
    divergence = (np.exp(exact) * (exact - changed)).sum(axis=1)
    assert most / 100 < divergence.mean() < most


def test_half_pairing_of_rows_in_adjacent_order_changes_the_answer(artifact: Artifact, tmp_path: Path) -> None:
    """Query and key rows as the GGUF file has them, without the importer's permutation."""
    with ArtifactWriter(tmp_path / "swapped.ninfer", "llama", artifact.config, {}) as writer:
        for name, entry in artifact.tensors.items():
            if name.endswith((".q", ".k")):
                writer.add_matrix(name, entry.format, adjacent_order(artifact.planes(name)))
            else:
                writer.add(name, entry.format, entry.layout, entry.shape, artifact.payload(name))
        path = writer.finish()
    with Artifact.open(path) as swapped, loaded(swapped, CPU_ISAS[-1], numerics="f32", kv_format="bf16") as model:
        assert predicted(answer_logits(model))[0] != ANSWER[0]


def adjacent_order(planes: Planes) -> Planes:
    """Rows i and i + 32 of every head of 64 become rows 2i and 2i + 1."""
    order = np.arange(planes.shape[0]).reshape(-1, 2, 32).transpose(0, 2, 1).reshape(-1)
    moved = (None if plane is None else plane[order] for plane in (planes.scales, planes.mins))
    return Planes(planes.shape, planes.codes[order], *moved)
