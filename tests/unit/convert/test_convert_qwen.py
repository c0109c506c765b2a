"""Conversions of Qwen3.5 checkpoints: what the kinds of files hold differently arrives equal, the rest is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

from make.gguf_qwen35 import converted, write_gguf_qwen35
from make.make_hf import assert_config_refused, change_json
from make.tiny_qwen import (
    CONFIGS,
    FULL,
    LINEAR,
    MTP_CONFIG,
    add_tensors,
    hf_model,
    mtp_tensors,
    padded_metadata,
    random_parameter,
    text_config,
    text_tensors,
    write_qwen,
    write_qwen_gguf,
)
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.convert.convert import convert
from ninfer.errors import ArtifactError, ConversionError, NInferError
from ninfer.models.qwen3_5 import Qwen35Config

NAME = MTP_CONFIG
HEADS, GROUPS = CONFIGS[NAME]["linear_num_value_heads"], CONFIGS[NAME]["linear_num_key_heads"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text-only directory with an MTP module."""
    path = write_qwen(tmp_path_factory.mktemp("qwen") / "model", hf_model(NAME), mtp_num_hidden_layers=1)
    add_tensors(path, mtp_tensors(NAME))
    return path


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every tensor of the checkpoint by our name, rearranged by plain indexing."""
    return ours(load_file(checkpoint / "model.safetensors"), text_config(NAME))


def ours(theirs: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Hugging Face tensors by our names, as our formulas need them."""
    result = {}
    plain = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    full = {"k": "k_proj", "v": "v_proj", "o": "o_proj"}
    linear = {"qkv": "in_proj_qkv", "z": "in_proj_z", "a": "in_proj_a", "b": "in_proj_b", "out": "out_proj"}
    places = {f"layers.{i}": f"model.layers.{i}" for i in range(config["num_hidden_layers"])}
    places["mtp.layers.0"] = "mtp.layers.0"
    for place, their_place in places.items():
        get = {name.removeprefix(their_place + "."): v for name, v in theirs.items() if name.startswith(their_place)}
        result[f"{place}.mix_norm"] = 1 + get["input_layernorm.weight"]
        result[f"{place}.mlp_norm"] = 1 + get["post_attention_layernorm.weight"]
        result |= {f"{place}.{name}": get[f"{their}.weight"] for name, their in plain.items()}
        if "linear_attn.A_log" in get:
            result |= {f"{place}.{name}": get[f"linear_attn.{their}.weight"] for name, their in linear.items()}
            result[f"{place}.conv"] = np.concatenate(list(get["linear_attn.conv1d.weight"][:, 0].T))
            result[f"{place}.decay"] = np.exp(get["linear_attn.A_log"].astype(np.float64)).astype(np.float32)
            result[f"{place}.dt_bias"] = get["linear_attn.dt_bias"]
            result[f"{place}.out_norm"] = get["linear_attn.norm.weight"]
        else:
            result |= {f"{place}.{name}": get[f"self_attn.{their}.weight"] for name, their in full.items()}
            result |= {f"{place}.{n}_norm": 1 + get[f"self_attn.{n}_norm.weight"] for n in ("q", "k")}
            width = config["head_dim"]
            rows = get["self_attn.q_proj.weight"]
            heads = [rows[start : start + width] for start in range(0, len(rows), width)]
            result[f"{place}.q"], result[f"{place}.q_gate"] = np.concatenate(heads[::2]), np.concatenate(heads[1::2])
    result |= {"embed": theirs["model.embed_tokens.weight"], "norm": 1 + theirs["model.norm.weight"]}
    result |= {"head": theirs["lm_head.weight"], "mtp.fc": theirs["mtp.fc.weight"]}
    norms = {"embed_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "norm": "norm"}
    return result | {f"mtp.{name}": 1 + theirs[f"mtp.{their}.weight"] for name, their in norms.items()}


def values_of(artifact: Artifact, name: str) -> np.ndarray:
    entry = artifact.tensors[name]
    return formats.get(entry.format).unpack(artifact.planes(name)).reshape(entry.shape)


def digests(path: Path) -> dict[str, str]:
    with Artifact.open(path) as artifact:
        return {name: entry.blake2b for name, entry in artifact.tensors.items()}


def test_every_tensor_of_a_directory_arrives(checkpoint: Path, expected: dict[str, np.ndarray], tmp_path: Path) -> None:
    report = convert(checkpoint, tmp_path / "a.ninfer")
    assert report.exact
    assert report.notes == []
    assert not verify(tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert set(artifact.tensors) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(values_of(artifact, name), values, err_msg=name)
        config = Qwen35Config.read(artifact.config)
    assert config.layer_types == (LINEAR, LINEAR, LINEAR, FULL)
    assert (config.vocab_size, config.num_decodable, config.rotary_dim, config.num_mtp_layers) == (288, 274, 4, 1)
    assert config.stop_token_ids == (0, 2)  # <|endoftext|> of config.json, <|im_end|> of the tokenizer
    assert (config.bos_token_id, config.yarn) == (None, None)


def test_every_tensor_of_a_gguf_file_arrives(expected: dict[str, np.ndarray], tmp_path: Path) -> None:
    convert(write_qwen_gguf(tmp_path / "a.gguf", NAME, hf_model(NAME), mtp=True), tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert set(artifact.tensors) == set(expected)
        for name, values in expected.items():
            got = values_of(artifact, name)
            if name.endswith("decay"):  # exp was taken by whoever wrote the file
                np.testing.assert_allclose(got, values, rtol=3e-7, err_msg=name)
            else:
                np.testing.assert_array_equal(got, values, err_msg=name)
        gguf_config = Qwen35Config.read(artifact.config)
    assert (gguf_config.num_decodable, gguf_config.num_mtp_layers, gguf_config.num_layers) == (274, 1, 4)
    assert gguf_config.stop_token_ids == (0, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_values_arrive_exactly(dtype: str, tmp_path: Path) -> None:
    import torch

    source = write_qwen(tmp_path / "model", hf_model(NAME), dtype=dtype)
    assert convert(source, tmp_path / "a.ninfer").exact
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.tensors["layers.0.qkv"].format == ("bf16" if dtype == "bfloat16" else "f32")
        for name, theirs in (("layers.0.qkv", "in_proj_qkv.weight"), ("layers.0.decay", "A_log")):
            values = text_tensors(hf_model(NAME))[f"model.layers.0.linear_attn.{theirs}"]
            rounded = torch.from_numpy(values).to(getattr(torch, dtype)).double().numpy()
            want = np.exp(rounded).astype(np.float32) if name.endswith("decay") else rounded
            np.testing.assert_array_equal(values_of(artifact, name), want)


def test_shards_and_multimodal_files_give_the_same_tensors(tmp_path: Path) -> None:
    convert(write_qwen(tmp_path / "whole", hf_model(NAME)), tmp_path / "whole.ninfer")
    shards = write_qwen(tmp_path / "shards", hf_model(NAME), shard_size="60KB")
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    convert(shards, tmp_path / "shards.ninfer")
    report = convert(write_qwen(tmp_path / "images", hf_model(NAME, multimodal=True)), tmp_path / "images.ninfer")
    assert [note for note in report.notes if "vision tensors (model.visual.*) are left out" in note]
    assert digests(tmp_path / "whole.ninfer") == digests(tmp_path / "shards.ninfer")
    assert digests(tmp_path / "whole.ninfer") == digests(tmp_path / "images.ninfer")


def test_older_and_newer_spelling_of_rotary_positions(source: Path, tmp_path: Path) -> None:
    def rotary(**changed: Any) -> list[Any]:
        change_json(source / "config.json", rope_parameters=None, **changed)
        convert(source, tmp_path / "a.ninfer")
        with Artifact.open(tmp_path / "a.ninfer") as artifact:
            return [artifact.config[name] for name in ("rotary_dim", "rope_theta", "yarn")]

    assert rotary(rope_theta=123.0) == [4, 123.0, None]  # a quarter of the head
    assert rotary(partial_rotary_factor=0.5) == [8, 123.0, None]
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.5}
    _, _, found = rotary(rope_scaling=yarn)
    assert found == {"factor": 4.0, "original_length": 128, "beta_fast": 32.0, "beta_slow": 1.0, "magnitude": 1.5}


def test_inner_settings_of_a_multimodal_file_are_named_with_their_table(tmp_path: Path) -> None:
    """The outer word about a tied head counts, unless only the inner one explains why there is no output matrix."""
    source = write_qwen(tmp_path / "images", hf_model("equal heads, tied", multimodal=True))
    config = json.loads((source / "config.json").read_text())

    def tied(**changed: Any) -> bool:
        change_json(source / "config.json", **changed)
        convert(source, tmp_path / "a.ninfer")
        with Artifact.open(tmp_path / "a.ninfer") as artifact:
            return artifact.config["tied_head"]

    assert tied()
    assert tied(tie_word_embeddings=None)
    assert tied(tie_word_embeddings=False)
    with pytest.raises(ArtifactError, match=r"missing tensors: lm_head.weight"):
        tied(text_config={**config["text_config"], "tie_word_embeddings": False})
    with pytest.raises(ArtifactError, match=r"'text_config.linear_num_key_heads': is 5, which does not divide"):
        tied(text_config={**config["text_config"], "linear_num_key_heads": 5})
    with pytest.raises(ConversionError, match=r"'text_config.rope_parameters.rope_type' is 'linear'"):
        tied(text_config={**config["text_config"], "rope_parameters": {"rope_type": "linear"}})


BLOCKS: dict[str, Any] = {
    **text_config(NAME),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}


def block_tensors() -> dict[str, np.ndarray]:
    """The tensors of a model whose rows are whole blocks of 32, by their Hugging Face names."""
    hidden, v_width, k_width = 64, HEADS * 32, GROUPS * 16
    linear = {
        "in_proj_qkv.weight": (2 * k_width + v_width, hidden),
        "in_proj_z.weight": (v_width, hidden),
        "in_proj_a.weight": (HEADS, hidden),
        "in_proj_b.weight": (HEADS, hidden),
        "conv1d.weight": (2 * k_width + v_width, 1, 4),
        "A_log": (HEADS,),
        "dt_bias": (HEADS,),
        "norm.weight": (32,),
        "out_proj.weight": (hidden, v_width),
    }
    full = {
        "q_proj.weight": (2 * 6 * 32, hidden),
        "k_proj.weight": (2 * 32, hidden),
        "v_proj.weight": (2 * 32, hidden),
        "o_proj.weight": (hidden, 6 * 32),
        "q_norm.weight": (32,),
        "k_norm.weight": (32,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (288, hidden), "lm_head.weight": (288, hidden)}
    shapes["model.norm.weight"] = (hidden,)
    for i in range(4):
        place, kind = f"model.layers.{i}", "self_attn" if i == 3 else "linear_attn"
        shapes |= {f"{place}.{kind}.{part}": shape for part, shape in (full if i == 3 else linear).items()}
        shapes |= {f"{place}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes |= {f"{place}.mlp.{part}_proj.weight": (96, hidden) for part in ("gate", "up")}
        shapes[f"{place}.mlp.down_proj.weight"] = (hidden, 96)
    rng = np.random.default_rng(21)
    return {name: random_parameter(name, shape, rng) for name, shape in shapes.items()}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_stored_blocks_keep_their_bits_where_heads_move(kind: str, tmp_path: Path) -> None:
    """What the file's own decoder makes of its blocks, value heads put back by plain indexing, is what is stored."""
    tensors = block_tensors()
    shapes = {name: values.shape for name, values in tensors.items()}
    source = write_gguf_qwen35(
        tmp_path / "a.gguf", BLOCKS, shapes, tensors.__getitem__, kind=kind, tokenizer=padded_metadata(288)
    )
    assert convert(source, tmp_path / "a.ninfer").exact
    type_id, first = gguf.GGMLQuantizationType[kind], 2 * GROUPS * 16

    def stored(name: str) -> np.ndarray:
        return dequantize(quantize(converted(name, tensors[name], BLOCKS), type_id), type_id)

    def head(t: int) -> int:
        """Where our value head t is in the file."""
        return t // (HEADS // GROUPS) + GROUPS * (t % (HEADS // GROUPS))

    place = "model.layers.1.linear_attn"
    qkv, out = stored(f"{place}.in_proj_qkv.weight"), stored(f"{place}.out_proj.weight")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert {entry.format for entry in artifact.tensors.values()} == {
            {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4g32m"}[kind], "f32",
        }  # fmt: skip
        for t in range(HEADS):
            rows, start = slice(32 * t, 32 * t + 32), 32 * head(t)
            np.testing.assert_array_equal(
                values_of(artifact, "layers.1.qkv")[first:][rows].astype(np.float32), qkv[first + start :][:32]
            )
            np.testing.assert_array_equal(
                values_of(artifact, "layers.1.out")[:, rows].astype(np.float32), out[:, start : start + 32]
            )
        q_proj = stored("model.layers.3.self_attn.q_proj.weight").reshape(6, 2, 32, 64)
        for part, name in enumerate(("q", "q_gate")):
            got = values_of(artifact, f"layers.3.{name}").astype(np.float32)
            np.testing.assert_array_equal(got, q_proj[:, part].reshape(-1, 64))


def test_value_heads_that_share_a_block_are_refused_in_blocks_and_kept_by_value(tmp_path: Path) -> None:
    config = {**BLOCKS, "linear_value_head_dim": 16, "linear_num_value_heads": 6}
    tensors = {
        name: values[..., : 6 * 16] if "out_proj" in name else values for name, values in block_tensors().items()
    }
    for name in tensors:
        if ".in_proj_z." in name:
            tensors[name] = tensors[name][: 6 * 16]
        if ".in_proj_qkv." in name or ".conv1d." in name:
            tensors[name] = tensors[name][: 2 * GROUPS * 16 + 6 * 16]
        if "linear_attn.norm." in name:
            tensors[name] = tensors[name][:16]
    shapes = {name: values.shape for name, values in tensors.items()}
    source = write_gguf_qwen35(
        tmp_path / "a.gguf", config, shapes, tensors.__getitem__, kind="Q4_0", tokenizer=padded_metadata(288)
    )
    with pytest.raises(ConversionError, match=r"'blk.0.ssm_out.weight'.*whole groups of 32 of q4g32.*--weights f32"):
        convert(source, tmp_path / "a.ninfer")
    assert convert(source, tmp_path / "a.ninfer", weights="f32").exact


ROPE: dict[str, Any] = {"rope_theta": 1e4}
YARN: dict[str, Any] = {**ROPE, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
REFUSED: list[tuple[dict[str, Any], type[NInferError], str]] = [
    ({"linear_num_key_heads": 4}, ArtifactError, r"'linear_num_key_heads': is 4.*linear_num_value_heads, 6"),
    ({"num_key_value_heads": 3}, ArtifactError, r"'num_key_value_heads': is 3.*num_attention_heads, 4"),
    ({"linear_num_value_heads": 0}, ArtifactError, r"'linear_num_value_heads': is 0"),
    ({"linear_value_head_dim": None}, ArtifactError, r"'linear_value_head_dim': is missing"),
    ({"linear_key_head_dim": 10**6}, ArtifactError, r"'linear_key_head_dim': is 1000000; allowed is 1 to"),
    ({"linear_conv_kernel_dim": 3}, ArtifactError, r"conv1d.weight is \[\d+, 1, 4\], needed is \[\d+, 1, 3\]"),
    ({"layer_types": [LINEAR] * 3}, ArtifactError, r"'layer_types': has 3 entries; num_hidden_layers is 4"),
    ({"layer_types": [LINEAR, "mamba", LINEAR, FULL]}, ArtifactError, r"'layer_types': has 'mamba' for layer 1"),
    ({"layer_types": "full"}, ArtifactError, r"'layer_types': is 'full'"),
    ({"layer_types": [FULL] * 4}, ArtifactError, r"missing tensors: model.layers.0.self_attn.q_proj.weight"),
    ({"full_attention_interval": 0}, ArtifactError, r"'full_attention_interval': is 0"),
    ({"full_attention_interval": 2, "layer_types": None}, ArtifactError, r"missing tensors: model.layers.1.self_attn"),
    ({"num_hidden_layers": 10**9}, ArtifactError, r"'num_hidden_layers': is 1000000000"),
    ({"hidden_size": 64}, ArtifactError, r"wrong shapes: model.embed_tokens.weight is \[288, 48\], needed is"),
    ({"head_dim": 20}, ArtifactError, r"partial_rotary_factor': rotates 5 of the 20|wrong shapes"),
    ({"vocab_size": 320}, ArtifactError, r"wrong shapes: model.embed_tokens.weight"),
    ({"vocab_size": 100}, ArtifactError, r"tokenizer.*ids up to 273.*only 100 rows"),
    ({"intermediate_size": "80"}, ArtifactError, r"'intermediate_size': must be an integer, not str"),
    ({"rms_norm_eps": -1}, ArtifactError, r"'rms_norm_eps': is -1"),
    ({"eos_token_id": 5000}, ArtifactError, r"'eos_token_id': is 5000"),
    ({"output_gate_type": "sigmoid"}, ConversionError, r"'output_gate_type' is 'sigmoid'.*silu and swish"),
    ({"hidden_act": "gelu"}, ConversionError, r"'hidden_act' is 'gelu': only silu"),
    ({"attention_bias": True}, ConversionError, r"'attention_bias' is True: biases"),
    ({"attn_output_gate": False}, ConversionError, r"'attn_output_gate' is False"),
    ({"mamba_ssm_dtype": "bfloat16"}, ConversionError, r"'mamba_ssm_dtype'.*float32"),
    ({"mtp_num_hidden_layers": 2}, ConversionError, r"'mtp_num_hidden_layers' is 2: one"),
    ({"mtp_num_hidden_layers": 0}, ConversionError, r"tensors without a rule: mtp\."),
    ({"mtp_use_dedicated_embeddings": True}, ConversionError, r"'mtp_use_dedicated_embeddings' is True"),
    ({"rope_parameters": {"rope_type": "linear"}}, ConversionError, r"'rope_parameters.rope_type' is 'linear'"),
    ({"rope_scaling": {"type": "dynamic"}}, ConversionError, r"'rope_scaling.type' is 'dynamic'"),
    ({"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}}, ConversionError, r"'rope_parameters.factor'.*no rule"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.2}}, ArtifactError, r"rotates 3 of the 16"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ArtifactError, r"rope_parameters.factor': is mis"),
    ({"rope_parameters": YARN | {"rope_theta": 1.0}}, ArtifactError, r"rope_parameters.rope_theta': is 1.0; .*above 1"),
    ({"rope_parameters": YARN | {"factor": 0.5}}, ArtifactError, r"rope_parameters.factor': is 0.5; allowed is 1 to"),
    ({"rope_parameters": YARN | {"beta_fast": 1e308}}, ArtifactError, r"beta_fast': is 1e\+308; allowed is 0.001"),
    ({"rope_parameters": YARN | {"beta_slow": 1e-308}}, ArtifactError, r"beta_slow': is 1e-308; allowed is 0.001"),
    ({"rope_parameters": YARN | {"beta_slow": 40}}, ArtifactError, r"beta_slow': fast 32.0 is below slow 40"),
    ({"rope_parameters": YARN | {"attention_factor": 1e9}}, ArtifactError, r"attention_factor': is .*0.01 to 100"),
    ({"rope_parameters": ROPE | {"partial_rotary_factor": 1e308}}, ArtifactError, r"factor': is 1e\+308; .* 0 to 1"),
    ({"rope_parameters": None}, ArtifactError, r"'rope_theta': is missing"),
    ({"rope_theta": 5.0}, ArtifactError, r"'rope_theta': is 5.0, but rope_parameters.rope_theta is 10000.0"),
    ({"tie_word_embeddings": True}, ConversionError, r"lm_head.weight differs from model.embed_tokens.weight"),
    ({"quantization_config": {"quant_method": "x"}}, ConversionError, r"'quantization_config.quant_method' is 'x'"),
    ({"auto_map": {"AutoModel": "a.B"}}, ConversionError, r"'auto_map'.*code of its own"),
    ({"architectures": ["Qwen3_5MoeForCausalLM"]}, ConversionError, r"'architectures'.*Qwen3_5ForCausalLM"),
    ({"architectures": ["Qwen3_5ForConditionalGeneration"]}, ArtifactError, r"'text_config': is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "pattern"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_directory_is_refused_by_key_or_tensor(
    changed: dict[str, Any], kind: type[NInferError], pattern: str, source: Path
) -> None:
    assert_config_refused(source, changed, kind, pattern)


def test_tensors_are_refused_by_name(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")

    def refusal(changes: Mapping[str, np.ndarray | None]) -> str:
        kept = {name: values for name, values in {**tensors, **changes}.items() if values is not None}
        save_file(kept, source / "model.safetensors")
        with pytest.raises((ArtifactError, ConversionError)) as caught:
            convert(source, tmp_path / "a.ninfer")
        return str(caught.value)

    decay = "model.layers.0.linear_attn.A_log"
    assert f"missing tensors: {decay}" in refusal({decay: None})
    assert f"{decay} is [3], needed is [6]" in refusal({decay: np.zeros(3, np.float32)})
    assert "has dtype 'I32', which is not imported" in refusal({decay: np.zeros(6, np.int32)})
    assert "'model.norm.weight': holds NaN or infinity" in refusal(
        {"model.norm.weight": np.full(48, np.inf, np.float32)}
    )
    assert "exp of its values is beyond the range" in refusal({decay: np.full(6, 200, np.float32)})
    bias = "model.layers.3.self_attn.q_proj.bias"
    assert f"tensor {bias!r}: biases" in refusal({bias: np.zeros(128, np.float32)})
    extra = "model.layers.0.extra.weight"
    assert f"without a rule: {extra}" in refusal({extra: np.zeros(3, np.float32)})


def test_an_mtp_module_that_is_only_declared_is_noted(tmp_path: Path) -> None:
    source = write_qwen(tmp_path / "model", hf_model(NAME), mtp_num_hidden_layers=1)
    report = convert(source, tmp_path / "a.ninfer")
    assert [note for note in report.notes if "no mtp tensors" in note]


GGUF_REFUSED: list[tuple[dict[str, Any], type[NInferError], str]] = [
    ({"qwen35__ssm__group_count": 4}, ArtifactError, r"'qwen35.ssm.group_count': is 4, which does not divide"),
    ({"qwen35__ssm__inner_size": 97}, ArtifactError, r"'qwen35.ssm.inner_size': is 97.*6 value heads"),
    ({"qwen35__ssm__state_size": 8}, ArtifactError, r"wrong shapes: blk.0.attn_qkv.weight"),
    ({"qwen35__ssm__conv_kernel": None}, ArtifactError, r"'qwen35.ssm.conv_kernel': is missing"),
    ({"qwen35__attention__head_count_kv": 3}, ArtifactError, r"'qwen35.attention.head_count_kv': is 3"),
    ({"qwen35__attention__value_length": 8}, ConversionError, r"'qwen35.attention.value_length' is 8"),
    ({"qwen35__full_attention_interval": 2}, ArtifactError, r"missing tensors: blk.1.attn_q.weight"),
    ({"qwen35__attention__recurrent_layers": [True, False]}, ArtifactError, r"recurrent_layers': must be 4 flags"),
    ({"qwen35__attention__recurrent_layers": [True] * 4}, ArtifactError, r"missing tensors: blk.3.attn_qkv.weight"),
    ({"qwen35__nextn_predict_layers": 1}, ArtifactError, r"missing tensors: .*blk.3"),
    ({"qwen35__nextn_predict_layers": 2}, ConversionError, r"'qwen35.nextn_predict_layers' is 2: one"),
    ({"qwen35__rope__dimension_count": 5}, ArtifactError, r"'qwen35.rope.dimension_count': rotates 5 of the 16"),
    ({"qwen35__rope__freq_base": 1.0}, ArtifactError, r"'qwen35.rope.freq_base': is 1.0; .*above 1 is needed"),
    (
        {"qwen35__rope__scaling__type": "yarn", "qwen35__rope__scaling__factor": 0.0},
        ArtifactError,
        r"'qwen35.rope.scaling.factor': is 0.0; allowed is 1 to",
    ),
    ({"qwen35__rope__scaling__type": "linear"}, ConversionError, r"'qwen35.rope.scaling.type' is 'linear'"),
    ({"qwen35__rope__scaling__factor": 2.0}, ConversionError, r"'qwen35.rope.scaling.factor' is 2.0: only yarn"),
    ({"qwen35__expert_count": 8}, ConversionError, r"'qwen35.expert_count' is 8: this key has no rule"),
    ({"without": ["blk.0.ssm_a"]}, ArtifactError, r"missing tensors: blk.0.ssm_a"),
    ({"qwen35__embedding_length": 64}, ArtifactError, r"wrong shapes: token_embd.weight is \[288, 48\]"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "pattern"), GGUF_REFUSED, ids=lambda value: str(value)[:60])
def test_a_gguf_file_is_refused_by_key_or_tensor(
    changed: dict[str, Any], kind: type[NInferError], pattern: str, tmp_path: Path
) -> None:
    source = write_qwen_gguf(tmp_path / "a.gguf", NAME, hf_model(NAME), **changed)
    with pytest.raises(kind, match=pattern):
        convert(source, tmp_path / "a.ninfer")
