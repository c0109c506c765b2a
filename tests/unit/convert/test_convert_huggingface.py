"""Conversions of Hugging Face directories written by transformers, and their refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from make.make_gguf import TEMPLATE, TINY, write_gguf
from make.make_hf import assert_config_refused, change_json, write_hf
from make.tiny_llama import random_weights
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.convert.convert import convert
from ninfer.errors import ArtifactError, ConfigError, ConversionError, NInferError
from ninfer.models.llama import LlamaConfig

UNTIED = replace(TINY, tied_head=False)
WEIGHTS = random_weights(UNTIED)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("hf") / "model", UNTIED, WEIGHTS, shard_size="60KB")


def values_of(artifact: Artifact, name: str) -> np.ndarray:
    entry = artifact.tensors[name]
    return formats.get(entry.format).unpack(artifact.planes(name)).reshape(entry.shape)


@pytest.mark.parametrize(("dtype", "format"), [("float32", "f32"), ("float16", "f32"), ("bfloat16", "bf16")])
def test_every_tensor_arrives_exactly(dtype: str, format: str, tmp_path: Path) -> None:
    import torch

    report = convert(write_hf(tmp_path / "hf", UNTIED, WEIGHTS, dtype=dtype), tmp_path / "a.ninfer")
    assert report.exact
    assert not verify(tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert list(artifact.tensors) == list(WEIGHTS)
        for name, values in WEIGHTS.items():
            expected = torch.from_numpy(values).to(getattr(torch, dtype)).double().numpy()
            assert artifact.tensors[name].format == ("f32" if values.ndim == 1 else format)
            np.testing.assert_array_equal(values_of(artifact, name), expected)
        config = LlamaConfig.read(artifact.config)
    assert config == UNTIED


def test_gguf_and_hugging_face_give_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    convert(checkpoint, tmp_path / "a.ninfer", weights="q4g32m")
    convert(write_gguf(tmp_path / "b.gguf", UNTIED, WEIGHTS), tmp_path / "b.ninfer", weights="q4g32m")
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        assert {name: entry.blake2b for name, entry in a.tensors.items()} == {
            name: entry.blake2b for name, entry in b.tensors.items()
        }
        assert a.resource("frontend/tokenizer.json") == b.resource("frontend/tokenizer.json")
        assert a.resource("frontend/chat_template.jinja").decode() == TEMPLATE


def test_shards_and_one_file_give_the_same_tensors(checkpoint: Path, tmp_path: Path) -> None:
    assert len(list(checkpoint.glob("model-*.safetensors"))) > 2
    whole = write_hf(tmp_path / "whole", UNTIED, WEIGHTS)
    assert (whole / "model.safetensors").is_file()
    first, second = convert(checkpoint, tmp_path / "a.ninfer"), convert(whole, tmp_path / "b.ninfer")
    assert first.tensors == second.tensors
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        assert [entry.blake2b for entry in a.tensors.values()] == [entry.blake2b for entry in b.tensors.values()]
        names = [file["name"] for file in a.provenance["source"]["files"]]
    assert "config.json" in names
    assert "model.safetensors.index.json" in names
    assert "tokenizer.json" in names


def test_same_content_gives_same_bytes_wherever_it_lies(checkpoint: Path, source: Path, tmp_path: Path) -> None:
    convert(checkpoint, tmp_path / "a.ninfer")
    convert(source, tmp_path / "b.ninfer")
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()


def test_older_and_newer_spelling_of_the_rotary_base(source: Path, tmp_path: Path) -> None:
    change_json(source / "config.json", rope_parameters=None, rope_theta=123.0)
    change_json(source / "config.json", rope_scaling={"type": "default"})
    convert(source, tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.config["rope_theta"] == 123.0


def test_end_ids_of_both_files_and_the_known_ones_add_up(source: Path, tmp_path: Path) -> None:
    change_json(source / "config.json", eos_token_id=7)
    change_json(source / "generation_config.json", eos_token_id=[9, 7])
    convert(source, tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.config["stop_token_ids"] == [7, 9, 0, 2]
        assert json.loads(artifact.resource("frontend/generation_config.json"))["eos_token_id"] == [9, 7]


def test_a_template_file_is_preferred_and_of_several_named_ones_the_default_is_taken(
    source: Path, tmp_path: Path
) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "default one"}]
    change_json(source / "tokenizer_config.json", chat_template=named)

    def template() -> bytes:
        convert(source, tmp_path / "a.ninfer")
        with Artifact.open(tmp_path / "a.ninfer") as artifact:
            return artifact.resource("frontend/chat_template.jinja")

    assert template() == b"default one"
    (source / "chat_template.jinja").write_text("from the file")
    assert template() == b"from the file"
    change_json(source / "tokenizer_config.json", chat_template=named[:1])
    (source / "chat_template.jinja").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer_config.json.*'chat_template'.*'default'"):
        template()


def test_without_tokenizer_files_the_model_converts_for_use_with_ids(source: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (source / name).unlink()
    report = convert(source, tmp_path / "a.ninfer")
    assert report.resources == []


def tied(path: Path, head: np.ndarray | None) -> Path:
    """A tied checkpoint in one file that stores an output matrix all the same."""
    source = write_hf(path, TINY, random_weights(TINY))
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] if head is None else head},
              source / "model.safetensors")  # fmt: skip
    return source


def test_a_tied_output_matrix_that_is_stored_again_must_be_the_embedding(tmp_path: Path) -> None:
    report = convert(tied(tmp_path / "same", None), tmp_path / "a.ninfer")
    assert "lm_head.weight equals the embedding" in report.notes[0]
    assert "head" not in {tensor.name for tensor in report.tensors}
    other = tied(tmp_path / "other", np.zeros((TINY.vocab_size, 64), np.float32))
    with pytest.raises(ConversionError, match=r"'tie_word_embeddings'.*lm_head.weight differs"):
        convert(other, tmp_path / "b.ninfer")


CONFIGS: list[tuple[dict[str, Any], type[NInferError], str]] = [
    ({"architectures": ["MistralForCausalLM"]}, ConversionError, r"'architectures'.*LlamaForCausalLM"),
    ({"architectures": None}, ConversionError, r"'architectures'"),
    ({"hidden_act": "gelu"}, ConversionError, r"'hidden_act' is 'gelu'"),
    ({"attention_bias": True}, ConversionError, r"'attention_bias'.*biases"),
    ({"mlp_bias": True}, ConversionError, r"'mlp_bias'.*biases"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ConversionError, r"'rope_scaling.rope_type'.*llama3"),
    ({"rope_parameters": {"rope_type": "yarn"}}, ConversionError, r"'rope_parameters.rope_type' is 'yarn'"),
    ({"rope_scaling": {"type": "default", "factor": 2.0}}, ConversionError, r"'rope_scaling.factor'.*no rule"),
    ({"partial_rotary_factor": 0.5}, ConversionError, r"'partial_rotary_factor' is 0.5"),
    ({"rope_interleaved": True}, ConversionError, r"'rope_interleaved'"),
    ({"quantization_config": {"quant_method": "gptq"}}, ConversionError, r"config.quant_method' is 'gptq'"),
    ({"quantization_config": {"bits": 4}}, ConversionError, r"config.quant_method' is None"),
    ({"auto_map": {"AutoModelForCausalLM": "x.Y"}}, ConversionError, r"'auto_map'.*code of its own"),
    ({"rope_theta": 1.0}, ArtifactError, r"'rope_theta': is 1.0; a finite number above 1"),
    ({"rope_theta": 2.0}, ArtifactError, r"'rope_theta': is 2.0, but rope_parameters.rope_theta is 5000"),
    ({"num_hidden_layers": 0}, ArtifactError, r"'num_hidden_layers': is 0"),
    ({"num_hidden_layers": 10**9}, ArtifactError, r"'num_hidden_layers': is 1000000000"),
    ({"num_attention_heads": 0}, ArtifactError, r"'num_attention_heads': is 0"),
    ({"num_key_value_heads": 3}, ArtifactError, r"'num_key_value_heads': is 3.*divide"),
    ({"head_dim": 13}, ArtifactError, r"'head_dim'.*13.*even"),
    ({"head_dim": None, "num_attention_heads": 6}, ArtifactError, r"'num_attention_heads'.*divide the width 64"),
    ({"hidden_size": 128}, ArtifactError, r"wrong shapes: model.embed_tokens.weight is \[\d+, 64\], needed is"),
    ({"vocab_size": 3}, ArtifactError, r"'eos_token_id'|tokenizer.*has ids up to|wrong shapes"),
    ({"rms_norm_eps": 0}, ArtifactError, r"'rms_norm_eps': is 0"),
    ({"eos_token_id": [2, 999999]}, ArtifactError, r"'eos_token_id': is 999999"),
    ({"eos_token_id": "2"}, ArtifactError, r"'eos_token_id': must be token ids"),
    ({"max_position_embeddings": None}, ArtifactError, r"'max_position_embeddings': is missing"),
    ({"num_hidden_layers": 3}, ArtifactError, r"missing tensors: model.layers.2.input_layernorm.weight"),
    ({"num_hidden_layers": 1}, ConversionError, r"without a rule: model.layers.1"),
    ({"tie_word_embeddings": True}, ConversionError, r"lm_head.weight differs"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "pattern"), CONFIGS, ids=lambda value: str(value)[:60])
def test_configuration_is_refused_by_its_key(
    changed: dict[str, Any], kind: type[NInferError], pattern: str, source: Path
) -> None:
    assert_config_refused(source, changed, kind, pattern)


def write_text(name: str, text: str) -> Any:
    return lambda source: (source / name).write_text(text)


def break_index(source: Path, place: str) -> None:
    index = source / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.norm.weight"] = place
    index.write_text(json.dumps(document))


def only_pickles(source: Path) -> None:
    for file in [*source.glob("*.safetensors"), source / "model.safetensors.index.json"]:
        file.unlink()
    (source / "pytorch_model.bin").write_bytes(b"PK")


def only_sentencepiece(source: Path) -> None:
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.model").write_bytes(b"\n")


FILES: dict[str, tuple[Any, type[NInferError], str]] = {
    "no config": (lambda source: (source / "config.json").unlink(), ArtifactError, "has no config.json"),
    "config is no JSON": (write_text("config.json", "{"), ArtifactError, "config.json: not valid JSON"),
    "config is a list": (write_text("config.json", "[]"), ArtifactError, "config.json: must be a JSON object"),
    "tokenizer is no JSON": (write_text("tokenizer.json", "no"), ArtifactError, "tokenizer"),
    "tokenizer config is no JSON": (write_text("tokenizer_config.json", "no"), ArtifactError, "tokenizer_config.json"),
    "broken template": (write_text("chat_template.jinja", "{% if %}"), ArtifactError, "chat_template"),
    "shard missing": (
        lambda source: next(source.glob("model-00002*")).unlink(), ArtifactError, r"model-00002.*cannot be opened",
    ),
    "index leaves the directory": (
        lambda source: break_index(source, "../x.safetensors"), ArtifactError, r"weight_map.*no safetensors file",
    ),
    "index and shards disagree": (
        lambda source: break_index(source, min(source.glob("model-*")).name), ArtifactError, r"do not agree.*norm",
    ),
    "only pickles": (only_pickles, ConversionError, "pickle"),
    "only sentencepiece": (only_sentencepiece, ConversionError, "tokenizer.model without tokenizer.json"),
    "no weights": (
        lambda source: [file.unlink() for file in source.glob("model*")], ArtifactError, "has neither",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_broken_directories_are_refused_by_file(name: str, source: Path, tmp_path: Path) -> None:
    damage, kind, pattern = FILES[name]
    damage(source)
    with pytest.raises(kind, match=pattern):
        convert(source, tmp_path / "a.ninfer")


def test_a_single_safetensors_file_points_to_its_directory(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the directory"):
        convert(next(source.glob("*.safetensors")), tmp_path / "a.ninfer")
