"""Tiny Llama checkpoints quantised by the `compressed-tensors` package, and hand-made ones of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from loguru import logger
from safetensors.torch import load_file, save_file

from make.make_hf import change_json, write_hf
from make.tiny_llama import hf_model
from ninfer.models.llama import LlamaConfig

Tensors = dict[str, torch.Tensor]

INPUT_GLOBAL_SCALE = 123.5

logger.disable("compressed_tensors")
torch.set_num_threads(1)  # tiny products; waiting threads only disturb whoever else computes


def write_compressed_tensors(
    path: Path, config: LlamaConfig, weights: Mapping[str, np.ndarray], preset: str, group_size: int | None = None
) -> dict[str, np.ndarray]:
    """Write a checkpoint of which the package has quantised every Linear but lm_head.

    Returns what the package decodes, float32 by the name of the module.
    """
    write_hf(path, config, weights)
    model = hf_model(config, weights)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if group_size is not None:
        scheme.weights.group_size = group_size
    quantization = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, quantization, show_progress=False)
    modules = {name: m for name, m in model.named_modules() if hasattr(m, "quantization_scheme")}
    for module in modules.values():
        _calibrate(module)
    compressor = ModelCompressor(quantization_config=quantization)
    compressor.compress_model(model)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, path / "model.safetensors")
    compressor.update_config(str(path))
    compressor.remove_decompression_hook(model)
    return {name: _decoded(module, tensors, name).float().numpy() for name, module in modules.items()}


def _calibrate(module: torch.nn.Module) -> None:
    """Give a module the scales that the package computes from its weight."""
    args = module.quantization_scheme.weights
    weight = module.weight.detach()
    if hasattr(module, "weight_global_scale"):
        module.weight_global_scale.data = generate_gparam(weight.min(), weight.max()).reshape(1)
    n, k = weight.shape
    groups = {"tensor": weight.reshape(1, -1), "channel": weight, "block": weight.reshape(1, -1)}.get(args.strategy)
    groups = weight.reshape(n, k // args.group_size, -1) if groups is None else groups[:, None]
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, getattr(module, "weight_global_scale", None))
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
    if hasattr(module, "input_global_scale"):
        module.input_global_scale.data = torch.tensor([INPUT_GLOBAL_SCALE])
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.02)


def _decoded(module: torch.nn.Module, tensors: Tensors, name: str) -> torch.Tensor:
    """The weight as the package decodes it in float32; its own `decompress` gives E2M1 weights as bfloat16."""
    from compressed_tensors.compressors.base import decompress_module

    scheme = module.quantization_scheme
    decompress_module(module)
    weight = module.weight.detach()
    if weight.dtype == torch.float32:
        return weight
    packed = tensors[f"{name}.weight_packed"]
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    global_scale = tensors.get(f"{name}.weight_global_scale")
    exact = dequantize(
        codes,
        module.weight_scale.detach().float(),
        args=scheme.weights,
        dtype=torch.float32,
        global_scale=global_scale,
    )
    assert torch.equal(exact.to(weight.dtype), weight)
    return exact


def rewrite(path: Path, change: Callable[[Tensors], None], **config: Any) -> Path:
    """Change the tensors of a checkpoint in one file, and fields of its config.json."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    change_json(path / "config.json", **config)
    return path


def shard(path: Path, count: int) -> None:
    """Distribute the tensors of a checkpoint over several files, companions of a weight apart from it."""
    tensors = load_file(path / "model.safetensors")
    names = sorted(tensors)
    places = {name: f"model-{i % count + 1:05d}-of-{count:05d}.safetensors" for i, name in enumerate(names)}
    for place in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == place}, path / place)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (path / "model.safetensors").unlink()
