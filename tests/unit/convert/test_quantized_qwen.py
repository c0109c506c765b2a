"""Quantised Qwen3.5 checkpoints: rows that are taken apart on import keep their codes and scales."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from make.make_quantized import Tensors, rewrite, shard
from make.tiny_qwen import MTP_CONFIG, add_tensors, hf_model, mtp_tensors, write_qwen
from ninfer import formats
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.convert.recipes import find_recipe, formats_of

PLAIN = ("in_proj_a", "in_proj_b", "conv1d", "lm_head", "embed_tokens", "mtp.fc")
NVFP4 = ("q_proj", "gate_proj", "up_proj", "in_proj_z")
"""What is left is FP8 with a scale per row, as mixed checkpoints are."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_qwen(tmp_path_factory.mktemp("qwen") / "hf", hf_model(MTP_CONFIG), mtp_num_hidden_layers=1)
    add_tensors(path, mtp_tensors(MTP_CONFIG))
    return path


def quantised(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """(the tensors as a mixed checkpoint of compressed-tensors, the same decoded), coded by our own encoders."""
    stored: Tensors = {}
    decoded: Tensors = {}
    for name, tensor in tensors.items():
        base = name.removesuffix(".weight")
        decoded[name] = tensor
        if tensor.ndim != 2 or base.endswith(PLAIN):
            stored[name] = tensor
            continue
        fmt = formats.get("nvfp4" if base.endswith(NVFP4) else "fp8")
        planes = fmt.pack(tensor.numpy())
        decoded[name] = torch.from_numpy(fmt.unpack(planes).astype(np.float32))
        codes, k = planes.codes[:, : tensor.shape[1]], tensor.shape[1]
        if fmt.name == "fp8":
            stored[name] = torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)
            stored[f"{base}.weight_scale"] = torch.from_numpy(planes.scales)
        else:
            stored[f"{base}.weight_packed"] = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
            scales = torch.from_numpy(planes.scales[:, : k // 16].copy())
            stored[f"{base}.weight_scale"] = scales.view(torch.float8_e4m3fn)
            stored[f"{base}.weight_global_scale"] = torch.tensor([1 / planes.tensor.factor], dtype=torch.float32)
            stored[f"{base}.input_global_scale"] = torch.tensor([99.5])
    return stored, decoded


def test_a_mixed_checkpoint_arrives_with_every_bit(plain: Path, tmp_path: Path) -> None:
    stored, decoded = quantised(load_file(plain / "model.safetensors"))
    floats = Path(shutil.copytree(plain, tmp_path / "floats"))
    mixed = Path(shutil.copytree(plain, tmp_path / "mixed"))

    def replace_by(new: Tensors, tensors: Tensors) -> None:
        tensors.clear()
        tensors.update(new)

    rewrite(floats, lambda tensors: replace_by(decoded, tensors))
    rewrite(
        mixed, lambda tensors: replace_by(stored, tensors), quantization_config={"quant_method": "compressed-tensors"}
    )
    shard(mixed, 3)
    convert(floats, tmp_path / "floats.ninfer")
    report = convert(mixed, tmp_path / "mixed.ninfer")
    assert report.exact
    with Artifact.open(tmp_path / "floats.ninfer") as a, Artifact.open(tmp_path / "mixed.ninfer") as b:
        assert a.config == b.config
        assert a.tensors.keys() == b.tensors.keys()
        for name, entry in b.tensors.items():
            values = [formats.get(x.tensors[name].format).unpack(x.planes(name)) for x in (a, b)]
            np.testing.assert_array_equal(values[0].astype(np.float32), values[1].astype(np.float32), err_msg=name)
            last = name.rpartition(".")[2]
            if len(entry.shape) == 2:
                expected = "nvfp4" if last in ("q", "q_gate", "gate", "up", "z") else "fp8"
                plain_places = last in ("a", "b", "embed", "head") or name == "mtp.fc"
                assert entry.format == ("f32" if plain_places else expected)
            if entry.format == "nvfp4":
                assert b.planes(name).tensor.input_scale == 99.5


def test_recipes_know_every_matrix_of_the_family(plain: Path, tmp_path: Path) -> None:
    report = convert(plain, tmp_path / "a.ninfer", recipe="nvfp4")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        matrices = [name for name, entry in artifact.tensors.items() if len(entry.shape) == 2]
        wanted = formats_of(find_recipe("nvfp4"), matrices)
        assert {name: artifact.tensors[name].format for name in matrices} == wanted
    assert set(wanted.values()) == {"nvfp4", "fp8", "bf16", "q8g32"}
    assert report.recipe == "nvfp4"
