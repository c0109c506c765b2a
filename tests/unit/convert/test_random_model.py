"""Random models: sizes of the published ones, numbers of seed, name and place alone, files that load."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.gguf_qwen35 import write_random
from make.model_runs import greedy_ids
from ninfer.artifact import Artifact, verify
from ninfer.convert.convert import convert
from ninfer.convert.random_model.directory import write_directory
from ninfer.convert.random_model.make import make_artifact, make_directory
from ninfer.convert.random_model.model import random_model
from ninfer.convert.random_model.tokenizer import tokenizer_files
from ninfer.convert.random_model.values import RandomTensor
from ninfer.errors import ArtifactError, ConfigError, ConversionError, NInferError
from ninfer.models import RuntimeOptions, load_model
from ninfer.text.tokenizer import Tokenizer

# spec: (text parameters, MTP parameters, tensors without the vision tower) of the published checkpoints.
PUBLISHED = {
    "0.8b": (752_393_024, 20_452_864, 488 - 153),
    "2b": (1_881_825_088, 60_828_160, 632 - 297),
    "4b": (4_205_751_296, 120_599_552, 738 - 297),
    "9b": (8_953_803_264, 243_290_624, 775 - 333),
    "27b": (26_895_998_464, 424_699_392, 1199 - 333),
}
TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    "mtp_num_hidden_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A config.json for the custom shape."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.mark.parametrize("shape", PUBLISHED)
def test_parameters_are_those_of_the_published_models(shape: str) -> None:
    model = random_model(shape)
    mtp = sum(prod(size) for name, size in model.shapes.items() if name.startswith("mtp."))
    assert (model.num_parameters - mtp, mtp, len(model.shapes)) == PUBLISHED[shape]


@pytest.mark.parametrize("shape", [(1000, 700), (5, 3), (70_000,), (33, 1, 4)])
def test_any_rows_can_be_drawn_in_any_order(shape: tuple[int, ...]) -> None:
    tensor = RandomTensor("a.weight", shape, seed=3)
    whole = tensor.all_values().reshape(tensor.num_rows, -1)
    rng = np.random.default_rng(0)
    for rows in (rng.integers(0, tensor.num_rows, 50), np.arange(tensor.num_rows)[::-1]):
        np.testing.assert_array_equal(tensor.values(rows), whole[rows])
    for start in (0, tensor.num_rows // 2):
        np.testing.assert_array_equal(tensor.values(slice(start, start + 7)), whole[start : start + 7])


def test_values_depend_on_seed_and_name() -> None:
    first = RandomTensor("a.weight", (64, 64), seed=3).all_values()
    assert np.unique(np.round(first, 4)).size > 1000
    for name, seed in (("a.weight", 4), ("b.weight", 3)):
        other = RandomTensor(name, (64, 64), seed=seed).all_values()
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.1
    # The numbers of a seed are promised; a change of them needs another `values.VERSION`.
    assert RandomTensor("a.weight", (1, 3), seed=1).bits(slice(None)).tolist() == [[15961, 48915, 16141]]


def test_values_have_the_stated_distributions() -> None:
    matrix = RandomTensor("x.weight", (512, 256), seed=1).all_values()
    assert matrix.mean() == pytest.approx(0, abs=1e-3)
    assert matrix.std() == pytest.approx(1 / 16, rel=0.01)
    rows = matrix[:-1] * matrix[1:]
    assert abs(rows.mean()) < 1e-4  # neighbouring rows have nothing to do with each other
    decay = np.exp(RandomTensor("x.A_log", (4096,), seed=1).all_values())
    assert (decay.min(), decay.max()) == (pytest.approx(0.01, abs=0.02), pytest.approx(16, abs=0.2))
    assert decay.mean() == pytest.approx(8, abs=0.3)
    conv = RandomTensor("x.conv1d.weight", (512, 1, 4), seed=1).all_values()
    assert np.abs(conv).max() == pytest.approx(0.5, abs=0.01)


def test_a_directory_loads_in_transformers_and_converts(tiny: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = random_model("custom", config_file=tiny, seed=5)
    write_directory(model, tmp_path / "model", shard_bytes=100_000)
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 3
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), model.tensor(name).all_values(), err_msg=name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ours = Tokenizer.from_json((tmp_path / "model" / "tokenizer.json").read_bytes())
    text = "in the heat, <think> \u00e9"
    assert tokenizer.encode(text) == ours.encode(text)
    report = convert(tmp_path / "model", tmp_path / "a.ninfer")
    assert report.exact
    assert len(report.tensors) == len(model.shapes) + 2  # two attention layers have queries and gates in one tensor


@pytest.mark.parametrize("choice", [{}, {"weights": "q4g32"}, {"weights": "nvfp4"}, {"recipe": "q4"}], ids=str)
def test_an_artifact_is_the_converted_directory(choice: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    """Weights drawn where they are read, or written and read back: the same tensors and the same tokenizer."""
    make_directory(tmp_path / "model", "custom", config_file=tiny, seed=5)
    convert(tmp_path / "model", tmp_path / "a.ninfer", **choice)
    model, report = make_artifact(tmp_path / "b.ninfer", "custom", config_file=tiny, seed=5, **choice)
    assert model.num_parameters == sum(prod(shape) for shape in model.shapes.values())
    assert not verify(tmp_path / "b.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        assert {name: entry.blake2b for name, entry in a.objects.items()} == {
            name: entry.blake2b for name, entry in b.objects.items()
        }
        assert a.config == b.config
        assert a.random == b.random == {"shape": "custom", "seed": 5, "version": 1}
        assert (a.provenance["source"]["kind"], b.provenance["source"]["kind"]) == ("huggingface", "random")
        assert a.quantization == b.quantization
    _, again = make_artifact(tmp_path / "c.ninfer", "custom", config_file=tiny, seed=5, **choice)
    assert again.path.read_bytes() == report.path.read_bytes()


def test_a_gguf_file_has_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    write_directory(random_model("custom", config_file=tiny, seed=5), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.ninfer", weights="f32")
    convert(write_random(tmp_path / "b.gguf", "custom", kind="BF16", seed=5, config_file=tiny, mtp=True),
            tmp_path / "b.ninfer", weights="f32")  # fmt: skip
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        differing = [name for name, entry in a.tensors.items() if b.tensors[name].blake2b != entry.blake2b]
        assert all(name.endswith("decay") for name in differing)  # exp was taken by whoever wrote the file
        configs = [{**artifact.config, "rms_norm_eps": 0} for artifact in (a, b)]  # float32 in GGUF
        assert configs[0] == configs[1]
        assert a.resource("frontend/tokenizer.json") == b.resource("frontend/tokenizer.json")
    report = convert(write_random(tmp_path / "c.gguf", "custom", kind="Q4_0", config_file=tiny), tmp_path / "c.ninfer")
    assert report.exact


def test_a_random_model_says_different_things(tiny: Path, tmp_path: Path) -> None:
    write_directory(random_model("custom", config_file=tiny), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.ninfer")
    options = RuntimeOptions(backend="reference", numerics="f32", num_pages=2, num_state_slots=1)
    answers = set()
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        model = load_model(artifact, options)
        for start in range(3):
            answers.add(tuple(greedy_ids(model, np.array([start, 40], np.int32), 30, state_slot=0)))
    assert len(answers) == 3
    assert all(len(set(answer)) > 5 for answer in answers)


def test_every_id_of_the_tokenizer_can_be_decoded() -> None:
    files = tokenizer_files(1000)
    tokenizer = Tokenizer.from_json(files["tokenizer.json"])
    assert tokenizer.vocab_size == 1000
    texts = [tokenizer.token_bytes(i) for i in range(1000)]
    assert len(set(texts)) == 1000
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [969, 967]
    assert tokenizer.control_tokens["<|im_end|>"] == 969
    text = "in the heat \u00e9"
    assert tokenizer.decode(tokenizer.encode(text)) == text


REFUSED: list[tuple[dict[str, Any], type[NInferError], str]] = [
    ({"shape": "3b"}, ConfigError, "shape '3b' is not known; choose one of 0.8b, 2b, 4b, 9b, 27b, custom"),
    ({"shape": "custom"}, ConfigError, "custom shape comes from a config file"),
    ({"shape": "2b", "config_file": True}, ConfigError, "config file goes with the custom shape"),
    ({"shape": "2b", "seed": -1}, ConfigError, "seed -1 must be from 0 to"),
    ({"vocab_size": 100}, ArtifactError, r"tiny.json: 'vocab_size': is 100; allowed is 305"),
    ({"linear_num_key_heads": 4}, ArtifactError, r"tiny.json: 'linear_num_key_heads': is 4"),
    ({"hidden_act": "gelu"}, ConversionError, r"tiny.json: 'hidden_act' is 'gelu'"),
    ({"hidden_size": 10**9}, ArtifactError, r"tiny.json: 'hidden_size': is 1000000000"),
]


@pytest.mark.parametrize(("changed", "kind", "pattern"), REFUSED, ids=str)
def test_what_makes_no_model_is_refused(
    changed: dict[str, Any], kind: type[NInferError], pattern: str, tiny: Path
) -> None:
    if "shape" in changed:
        arguments = {**changed, **({"config_file": tiny} if "config_file" in changed else {})}
    else:
        tiny.write_text(json.dumps({**TINY, **changed}))
        arguments = {"shape": "custom", "config_file": tiny}
    with pytest.raises(kind, match=pattern):
        random_model(**arguments)


def test_a_directory_that_holds_something_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a new or empty directory"):
        write_directory(random_model("custom", config_file=tiny), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]
