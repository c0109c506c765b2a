"""GGUF files of the Qwen3.5 family as llama.cpp's converter writes them, from tensors by their Hugging Face names.

Written from that converter's rules and the gguf package's own name table, not from ours. Tensors stream, so that large
models need the memory of their largest tensor.

As a program it writes the random model that `ninfer make-checkpoint` makes of the same shape and seed:

    PYTHONPATH=src:tests python -m make.gguf_qwen35 OUT.gguf --shape 0.8b --kind Q4_0 [--seed N] [--mtp] [--config FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quant_shape_to_byte_shape, quantize

from ninfer.convert.random_model.model import SHAPE_NAMES, random_model
from ninfer.convert.random_model.tokenizer import NUM_CONTROL, tokenizer_metadata

Config = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


def write_gguf_qwen35(
    path: Path,
    config: Config,
    shapes: Shapes,
    load: Callable[[str], np.ndarray],
    *,
    kind: str = "F32",
    tokenizer: Mapping[str, Any],
    without: Iterable[str] = (),
    **changed: Any,
) -> Path:
    """All matrices in type `kind`, everything else in F32.

    config: the text model's config.json. shapes: Hugging Face name (`model.` or `mtp.` in front) -> shape; load: the
    float32 values of one. tokenizer: GGUF keys. without: GGUF names to leave out. changed: metadata, `__` for a dot,
    None to leave a key out.
    """
    writer = gguf.GGUFWriter(path, "qwen35")
    num_mtp = int(any(name.startswith("mtp.") for name in shapes))
    add_metadata(writer, {**metadata(config, num_mtp), **tokenizer}, changed)
    names = {name: gguf_tensor_name(name, config) for name in shapes}
    kept = [name for name in shapes if names[name] not in set(without)]
    for name in kept:
        shape, stored = stored_shape(name, shapes[name]), stored_kind(name, shapes[name], kind)
        byte_shape = quant_shape_to_byte_shape(shape, stored) if stored != gguf.GGMLQuantizationType.F32 else shape
        item = 1 if stored != gguf.GGMLQuantizationType.F32 else 4
        dtype = np.dtype(np.uint8 if item == 1 else np.float32)
        nbytes = int(np.prod(byte_shape)) * item
        writer.add_tensor_info(names[name], byte_shape, dtype, nbytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in kept:
        values = converted(name, load(name), config)
        stored = stored_kind(name, shapes[name], kind)
        writer.write_tensor_data(values if stored == gguf.GGMLQuantizationType.F32 else in_blocks(values, stored))
    writer.close()
    return path


def in_blocks(values: np.ndarray, kind: gguf.GGMLQuantizationType, rows: int = 4096) -> np.ndarray:
    """The package's encoding, some rows at a time: it works with several float32 copies."""
    return np.concatenate([quantize(values[start : start + rows], kind) for start in range(0, len(values), rows)])


def stored_kind(name: str, shape: tuple[int, ...], kind: str) -> gguf.GGMLQuantizationType:
    matrix = len(shape) == 2 and "conv1d" not in name
    return gguf.GGMLQuantizationType[kind if matrix else "F32"]


def stored_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[2]) if "conv1d" in name else shape


def gguf_tensor_name(name: str, config: Config) -> str:
    """The name that the gguf package's table gives to a Hugging Face name."""
    layers = config["num_hidden_layers"]
    table = name_table(layers + 1)
    special = {
        "mtp.fc.weight": "nextn.eh_proj.weight",
        "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
        "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
        "mtp.norm.weight": "nextn.shared_head_norm.weight",
    }
    if name in special:
        return f"blk.{layers}.{special[name]}"
    name = name.replace("mtp.layers.0.", f"model.layers.{layers}.").replace(".dt_bias", ".dt_proj.bias")
    found = table.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise ValueError(f"the gguf package has no name for {name}")
    return found


@cache
def name_table(num_layers: int) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35, num_layers)


def converted(name: str, values: np.ndarray, config: Config) -> np.ndarray:
    """The values as the converter stores them: 1 + w, -exp(A_log), value heads in rounds of the key heads."""
    if name.endswith("A_log"):
        values = -np.exp(values)
    elif "conv1d" in name:
        values = values[:, 0]
    elif name.startswith("mtp.pre_fc_norm") or (
        name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    ):
        values = values + np.float32(1)
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if "linear_attn." not in name or groups == heads:
        return np.ascontiguousarray(values, np.float32)
    width, first = config["linear_value_head_dim"], 2 * groups * config["linear_key_head_dim"]
    if ".out_proj." in name:
        values = in_rounds(values.T, groups, heads).T
    elif ".in_proj_qkv." in name or ".conv1d." in name:
        if len(values) != first + heads * width:
            raise ValueError(f"{name} has {len(values)} rows")
        values = np.concatenate([values[:first], in_rounds(values[first:], groups, heads)])
    elif not name.endswith("linear_attn.norm.weight"):
        values = in_rounds(values, groups, heads)
    return np.ascontiguousarray(values, np.float32)


def in_rounds(rows: np.ndarray, groups: int, heads: int) -> np.ndarray:
    """Heads in the order g0s0 g1s0 ... g0s1 g1s1 ..., as ggml repeats key heads, from g0s0 g0s1 ... g1s0 ..."""
    width = len(rows) // heads
    order = [g * (heads // groups) + s for s in range(heads // groups) for g in range(groups)]
    return np.concatenate([rows[h * width : (h + 1) * width] for h in order])


def metadata(config: Config, num_mtp: int) -> dict[str, Any]:
    """What llama.cpp's converter writes for this model and its loader asks for."""
    rope = config["rope_parameters"]
    rotary_dim = int(config["head_dim"] * rope.get("partial_rotary_factor", 0.25))
    sections = rope.get("mrope_section", [rotary_dim // 2, 0, 0])
    keys = {
        "block_count": config["num_hidden_layers"] + num_mtp,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": rotary_dim,
        "rope.dimension_sections": [*sections, *[0] * (4 - len(sections))],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": config.get("full_attention_interval", 4),
    }
    if "layer_types" in config:
        keys["attention.recurrent_layers"] = [kind == "linear_attention" for kind in config["layer_types"]]
        keys["attention.recurrent_layers"] += [False] * num_mtp
    if rope.get("rope_type", "default") == "yarn":
        keys["rope.scaling.type"] = "yarn"
        keys["rope.scaling.factor"] = float(rope["factor"])
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if num_mtp:
        keys["nextn_predict_layers"] = num_mtp
    return {f"qwen35.{key}": value for key, value in keys.items()}


def add_metadata(writer: gguf.GGUFWriter, values: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    for key, value in {**values, **{name.replace("__", "."): value for name, value in changed.items()}}.items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int) and not isinstance(value, bool):
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32)
        else:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))


def write_random(
    path: Path, shape: str, *, kind: str, seed: int = 0, config_file: Path | None = None, mtp: bool = False
) -> Path:
    """The random model of a shape and seed; the same numbers, bf16 before they are encoded, as `make-checkpoint`."""
    model = random_model(shape, config_file=config_file, seed=seed)
    shapes = {name: shape for name, shape in model.shapes.items() if mtp or not name.startswith("mtp.")}
    vocab_size, num_ids = model.config["vocab_size"], model.config["pad_token_id"] + NUM_CONTROL
    tokenizer = tokenizer_metadata(num_ids)
    padding = range(num_ids, vocab_size)
    tokenizer["tokenizer.ggml.tokens"] += [f"[PAD{i}]" for i in padding]
    tokenizer["tokenizer.ggml.token_type"] += [5] * len(padding)
    return write_gguf_qwen35(
        path, model.config, shapes, lambda name: model.tensor(name).all_values(), kind=kind, tokenizer=tokenizer
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a random Qwen3.5 model as a GGUF file.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPE_NAMES, required=True)
    parser.add_argument("--config", type=Path, help="a config.json, for --shape custom")
    parser.add_argument("--kind", choices=["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"], required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mtp", action="store_true", help="write the MTP module, too")
    given = parser.parse_args()
    write_random(given.out, given.shape, kind=given.kind, seed=given.seed, config_file=given.config, mtp=given.mtp)


if __name__ == "__main__":
    main()
