"""Quantised Hugging Face checkpoints: what other tools decode is what our artifacts hold, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from make.make_gguf import TINY
from make.make_hf import write_hf
from make.make_quantized import INPUT_GLOBAL_SCALE, Tensors, rewrite, shard, write_compressed_tensors
from make.tiny_llama import random_weights
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.convert.convert import convert
from ninfer.errors import ArtifactError, ConversionError
from ninfer.formats.small_floats import E4M3

CONFIG = replace(TINY, tied_head=False)
WEIGHTS = random_weights(CONFIG)
MODULES = {
    f"model.layers.{i}.{theirs}": f"layers.{i}.{ours}"
    for i in range(CONFIG.num_layers)
    for theirs, ours in {
        "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
        "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
    }.items()
}  # fmt: skip
Q = "model.layers.0.self_attn.q_proj"


def values_of(artifact: Artifact, name: str) -> np.ndarray:
    return formats.get(artifact.tensors[name].format).unpack(artifact.planes(name))


EXACT = {
    ("NVFP4A16", None): ("nvfp4", "NVFP4"),
    ("NVFP4", None): ("nvfp4", "NVFP4 with input scale"),
    ("FP8_DYNAMIC", None): ("fp8", "FP8 row"),
    ("FP8", None): ("fp8", "FP8 tensor"),
}


@pytest.mark.parametrize(("preset", "group_size"), EXACT)
def test_what_compressed_tensors_decodes_is_what_we_hold(preset: str, group_size: int | None, tmp_path: Path) -> None:
    decoded = write_compressed_tensors(tmp_path / "hf", CONFIG, WEIGHTS, preset, group_size)
    report = convert(tmp_path / "hf", tmp_path / "a.ninfer")
    format, kind = EXACT[preset, group_size]
    assert report.exact
    assert not verify(tmp_path / "a.ninfer")
    assert decoded.keys() == MODULES.keys()
    types = {tensor.name: tensor.source_type for tensor in report.tensors}
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            assert artifact.tensors[ours].format == format
            assert types[ours] == kind
            np.testing.assert_array_equal(values_of(artifact, ours).astype(np.float32), decoded[theirs])
            tensor = artifact.planes(ours).tensor
            assert (tensor and tensor.input_scale) == (INPUT_GLOBAL_SCALE if preset == "NVFP4" else None)
        assert artifact.tensors["head"].format == "f32"
        np.testing.assert_array_equal(artifact.planes("head").codes, WEIGHTS["head"])
    assert report.notes == (["14 activation scales are not needed and left out"] if preset == "FP8" else [])


@pytest.mark.parametrize(("preset", "group_size"), [("MXFP4A16", None), ("W8A16", 32), ("W4A16", 32), ("W8A8", None)])
def test_what_has_no_format_is_stored_by_value_with_its_error(
    preset: str, group_size: int | None, tmp_path: Path
) -> None:
    """Float32 scales of integers are no float16 numbers."""
    decoded = write_compressed_tensors(tmp_path / "hf", CONFIG, WEIGHTS, preset, group_size)
    report = convert(tmp_path / "hf", tmp_path / "f32.ninfer", weights="f32")
    assert report.exact
    with Artifact.open(tmp_path / "f32.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            np.testing.assert_array_equal(values_of(artifact, ours), decoded[theirs])
    report = convert(tmp_path / "hf", tmp_path / "a.ninfer")
    found = {tensor.name: tensor for tensor in report.inexact}
    assert found.keys() == set(MODULES.values())
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            assert found[ours].format == "q8g32"
            difference = values_of(artifact, ours) - decoded[theirs]
            assert found[ours].max_error == np.abs(difference).max()
            assert 0 < found[ours].relative_rms_error < 0.01


HALVES = {
    ("W4A16", 32): "q4g32",
    ("W4A16", 64): "q4g64",
    ("W8A16", 32): "q8g32",
    ("W8A16", 64): "q8g32",
    ("W8A8", None): "q8g32",
}


@pytest.mark.parametrize(("preset", "group_size"), HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_integers_whose_scales_are_float16_numbers_keep_their_codes(
    preset: str, group_size: int | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    config = replace(CONFIG, intermediate_size=128, head_dim=128 // CONFIG.num_heads)
    weights = random_weights(config)
    write_compressed_tensors(tmp_path / "hf", config, weights, preset, group_size)

    def halve(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("weight_scale")]:
            tensors[name] = tensors[name].to(dtype)

    rewrite(tmp_path / "hf", halve)
    report = convert(tmp_path / "hf", tmp_path / "a.ninfer")
    convert(tmp_path / "hf", tmp_path / "f32.ninfer", weights="f32")
    assert report.exact
    with Artifact.open(tmp_path / "a.ninfer") as artifact, Artifact.open(tmp_path / "f32.ninfer") as values:
        for ours in MODULES.values():
            assert artifact.tensors[ours].format == HALVES[preset, group_size]
            np.testing.assert_array_equal(values_of(artifact, ours), values_of(values, ours))


def test_a_cut_off_last_group_is_not_taken_for_smaller_groups(tmp_path: Path) -> None:
    write_compressed_tensors(tmp_path / "hf", CONFIG, WEIGHTS, "W8A16", 32)

    def damage(tensors: Tensors) -> None:  # 96 columns, as if 64 and 32 shared a scale
        scales = tensors["model.layers.0.mlp.down_proj.weight_scale"]
        assert scales.shape[1] == 3
        tensors["model.layers.0.mlp.down_proj.weight_scale"] = scales[:, :2].contiguous()

    with pytest.raises(ArtifactError, match=r"down_proj.weight_scale'.*a power of two"):
        convert(rewrite(tmp_path / "hf", damage), tmp_path / "a.ninfer")


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("k", [64, 100])
def test_packed_integers_of_every_width(bits: int, k: int) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    from ninfer.convert.quantized.integers import unpacked

    codes = torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), (5, k), dtype=torch.int8)
    stored = pack_to_int32(codes, bits).numpy().view(np.uint8)
    np.testing.assert_array_equal(unpacked(stored, bits)[:, :k] - float(1 << (bits - 1)), codes.numpy())


def modelopt(tensors: Tensors, *, input_scale: float | None = None) -> None:
    """Names and scales as ModelOpt writes them, from the NVFP4 of compressed-tensors: same codes, other directions."""
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        base = name.removesuffix(".weight_packed")
        tensors[f"{base}.weight"] = tensors.pop(name)
        divisor = tensors.pop(f"{base}.weight_global_scale")
        tensors[f"{base}.weight_scale_2"] = (1 / divisor).reshape(())
        if input_scale is not None:
            tensors[f"{base}.input_scale"] = torch.tensor(input_scale)


@pytest.mark.parametrize("input_scale", [None, 0.0031])
def test_modelopt_nvfp4_multiplies(input_scale: float | None, tmp_path: Path) -> None:
    write_compressed_tensors(tmp_path / "hf", CONFIG, WEIGHTS, "NVFP4A16")
    source = rewrite(
        tmp_path / "hf",
        lambda tensors: modelopt(tensors, input_scale=input_scale),
        quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"},
    )
    stored: Tensors = {}
    rewrite(source, stored.update)
    assert convert(source, tmp_path / "a.ninfer").exact
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            packed = stored[f"{theirs}.weight"]
            codes = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(len(packed), -1).long()
            values = magnitudes[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
            scales = stored[f"{theirs}.weight_scale"].float() * stored[f"{theirs}.weight_scale_2"]
            expected = values * scales.repeat_interleave(16, dim=1)
            np.testing.assert_array_equal(values_of(artifact, ours).astype(np.float32), expected.numpy())
            tensor = artifact.planes(ours).tensor
            assert tensor.factor == stored[f"{theirs}.weight_scale_2"].item()
            assert tensor.input_scale == (None if input_scale is None else np.float32(1) / np.float32(input_scale))


def fp8_checkpoint(path: Path, scales: Callable[[torch.Tensor], Tensors], **config: Any) -> tuple[Path, Tensors]:
    """A checkpoint with E4M3 codes of random bytes for every Linear of the layers; also its tensors."""
    write_hf(path, CONFIG, WEIGHTS)
    generator = torch.Generator().manual_seed(3)
    kept: Tensors = {}

    def quantise(tensors: Tensors) -> None:
        for name in MODULES:
            shape = tensors[f"{name}.weight"].shape
            codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            codes[(codes & 0x7F) == 0x7F] = 0
            tensors[f"{name}.weight"] = codes.view(torch.float8_e4m3fn)
            tensors |= {f"{name}.{leaf}": tensor for leaf, tensor in scales(tensors[f"{name}.weight"]).items()}
        kept.update(tensors)

    return rewrite(path, quantise, **config), kept


def test_modelopt_fp8_is_one_scale_for_all_rows(tmp_path: Path) -> None:
    source, tensors = fp8_checkpoint(
        tmp_path / "hf",
        lambda _: {
            "weight_scale": torch.tensor(0.0123),
            "input_scale": torch.tensor(0.5),
            "k_scale": torch.tensor(1.0),
        },
        quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"},
    )
    report = convert(source, tmp_path / "a.ninfer")
    assert report.exact
    assert report.notes == [
        "14 activation scales are not needed and left out",
        "14 KV cache scales are not needed and left out",
    ]
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            assert artifact.tensors[ours].format == "fp8"
            expected = tensors[f"{theirs}.weight"].float().double() * torch.tensor(0.0123).double()
            np.testing.assert_array_equal(values_of(artifact, ours), expected.numpy())


@pytest.mark.parametrize(("leaf", "method"), [("weight_scale_inv", "fp8"), ("weight_scale", "compressed-tensors")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_blocks_are_decoded_and_stored_with_their_error(
    leaf: str, method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(4)

    def scales(codes: torch.Tensor) -> Tensors:
        blocks = [-(-size // 32) for size in codes.shape]
        return {leaf: (torch.rand(blocks, generator=generator) + 0.1).to(dtype)}

    config = {"quantization_config": {"quant_method": method, "weight_block_size": [32, 32]}}
    source, tensors = fp8_checkpoint(tmp_path / "hf", scales, **config)
    assert convert(source, tmp_path / "f32.ninfer", weights="f32").exact
    report = convert(source, tmp_path / "a.ninfer")
    assert {tensor.name for tensor in report.inexact} == set(MODULES.values())
    assert {tensor.source_type for tensor in report.inexact} == {"FP8 block 32x32"}
    assert all(tensor.format == "q8g32" and tensor.relative_rms_error < 0.01 for tensor in report.inexact)
    with Artifact.open(tmp_path / "f32.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            codes, scale = tensors[f"{theirs}.weight"].float(), tensors[f"{theirs}.{leaf}"].float()
            wide = scale.repeat_interleave(32, 0)[: len(codes)].repeat_interleave(32, 1)[:, : codes.shape[1]]
            np.testing.assert_array_equal(values_of(artifact, ours), (codes * wide).numpy())


def test_every_scale_and_code_of_fp8_rows(tmp_path: Path) -> None:
    """bfloat16 scales are widened, not rounded."""
    source, tensors = fp8_checkpoint(
        tmp_path / "hf", lambda codes: {"weight_scale": (torch.rand(len(codes), 1) + 0.01).to(torch.bfloat16)}
    )
    assert convert(source, tmp_path / "a.ninfer").exact
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for theirs, ours in MODULES.items():
            scale = tensors[f"{theirs}.weight_scale"].double().numpy()
            codes = tensors[f"{theirs}.weight"].view(torch.uint8).numpy()
            np.testing.assert_array_equal(values_of(artifact, ours), E4M3[codes].astype(np.float64) * scale)


def test_shards_that_tear_weights_and_scales_apart_give_the_same_artifact(tmp_path: Path) -> None:
    write_compressed_tensors(tmp_path / "one", CONFIG, WEIGHTS, "NVFP4")
    shutil.copytree(tmp_path / "one", tmp_path / "many")
    shard(tmp_path / "many", 5)
    convert(tmp_path / "one", tmp_path / "a.ninfer")
    convert(tmp_path / "many", tmp_path / "b.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        assert {name: e.blake2b for name, e in a.tensors.items()} == {name: e.blake2b for name, e in b.tensors.items()}


def test_other_formats_are_made_from_what_the_source_decodes_to(tmp_path: Path) -> None:
    decoded = write_compressed_tensors(tmp_path / "hf", CONFIG, WEIGHTS, "NVFP4")
    report = convert(tmp_path / "hf", tmp_path / "a.ninfer", recipe="nvfp4")
    found = {tensor.name: (tensor.format, tensor.exact) for tensor in report.tensors}
    assert found["layers.0.up"] == ("nvfp4", True)  # kept, not encoded again
    assert found["layers.1.up"] == ("fp8", False)
    fmt = formats.get("fp8")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        expected = fmt.unpack(fmt.pack(decoded["model.layers.1.mlp.up_proj"]))
        np.testing.assert_array_equal(values_of(artifact, "layers.1.up"), expected)
        assert artifact.planes("layers.0.up").tensor.input_scale == INPUT_GLOBAL_SCALE


@pytest.mark.parametrize("change", ["nothing", "weight_scale", "weight_global_scale"])
def test_a_tied_head_is_the_embedding_only_if_its_scales_are(change: str, tmp_path: Path) -> None:
    """Two weights of equal codes differ if any of their scales does."""
    source = write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    fmt = formats.get("nvfp4")

    def quantise(tensors: Tensors) -> None:
        planes = fmt.pack(tensors.pop("model.embed_tokens.weight").numpy())
        tensors.pop("lm_head.weight", None)
        codes = torch.from_numpy(planes.codes)
        for base in ("model.embed_tokens", "lm_head"):
            tensors[f"{base}.weight_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
            tensors[f"{base}.weight_scale"] = torch.from_numpy(planes.scales).view(torch.float8_e4m3fn).clone()
            tensors[f"{base}.weight_global_scale"] = torch.tensor([1 / planes.tensor.factor], dtype=torch.float32)
        if change == "weight_scale":
            tensors["lm_head.weight_scale"].view(torch.uint8)[0, 0] ^= 1
        elif change == "weight_global_scale":
            tensors["lm_head.weight_global_scale"] *= 2

    rewrite(source, quantise)
    if change == "nothing":
        assert "lm_head.weight equals the embedding" in convert(source, tmp_path / "a.ninfer").notes[0]
    else:
        with pytest.raises(ConversionError, match=r"lm_head.weight differs"):
            convert(source, tmp_path / "a.ninfer")


@pytest.fixture(scope="module")
def nvfp4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvfp4") / "hf"
    write_compressed_tensors(path, CONFIG, WEIGHTS, "NVFP4")
    return path


def replaced(leaf: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"{Q}.{leaf}"] = make(tensors[f"{Q}.{leaf}"]).contiguous()

    return change


def removed(leaf: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[f"{Q}.{leaf}"]

    return change


def added(leaf: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"{Q}.{leaf}": tensor})


def with_byte(value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(scales: torch.Tensor) -> torch.Tensor:
        raw = scales.view(torch.uint8).clone()
        raw[7, 1] = value
        return raw.view(torch.float8_e4m3fn)

    return change


DAMAGES: dict[str, tuple[Callable[[Tensors], None], type[Exception], str]] = {
    "scales missing": (removed("weight_scale"), ArtifactError, r"weight_scale'.*is missing; NVFP4 needs it as F8_E4M3"),
    "tensor scale missing": (
        removed("weight_global_scale"), ArtifactError, r"weight_global_scale'.*is missing.*F32 or BF16"),
    "codes missing": (removed("weight_packed"), ConversionError, r"scale'.*weight that it belongs to is missing"),
    "scales of floats": (
        replaced("weight_scale", lambda t: t.float()), ArtifactError, r"weight_scale'.*is F32 \[\d+, \d+\]; .*F8_E4M3"),
    "scales too few": (
        replaced("weight_scale", lambda t: t[:, :-1]), ArtifactError, r"weight_scale'.*\[\d+, 3\]; NVFP4 needs.*, 4\]"),
    "odd width": (
        replaced("weight_packed", lambda t: t[:, :-1]), ArtifactError, r"weight_packed'.*31 bytes.*multiple of 8"),
    "NaN scale": (replaced("weight_scale", with_byte(0x7F)), ArtifactError, r"weight_scale'.*NaN or a negative"),
    "negative scale": (replaced("weight_scale", with_byte(0x80)), ArtifactError, r"weight_scale'.*NaN or a negative"),
    "NaN tensor scale": (
        replaced("weight_global_scale", lambda t: t * float("nan")), ArtifactError, r"weight_global_scale'.*is nan"),
    "tensor scale of zero": (
        replaced("weight_global_scale", lambda t: t * 0), ArtifactError, r"weight_global_scale'.*is 0.0"),
    "two tensor scales": (
        replaced("weight_global_scale", lambda t: t.repeat(2)), ArtifactError, r"weight_global_scale'.*\[2\]"),
    "inverse tensor scale": (
        replaced("weight_global_scale", lambda t: 1 / t), ArtifactError, r"weight_global_scale'.*the inverse"),
    "input scale infinite": (
        replaced("input_global_scale", lambda t: t / 0), ArtifactError, r"input_global_scale'.*is inf"),
    "input scale too large": (
        replaced("input_global_scale", lambda t: t * 1e36), ArtifactError, r"input scale.*2\^-100 to 2\^100"),
    "order of activations": (
        added("weight_g_idx", torch.arange(64)), ConversionError, r"q_proj.weight_g_idx'.*order of activations"),
    "zero points": (added("weight_zero_point", torch.zeros(3)), ConversionError, r"weight_zero_point'.*zero points"),
    "AWQ scales": (added("pre_quant_scale", torch.ones(64)), ConversionError, r"pre_quant_scale'.*AWQ"),
    "both directions": (added("weight_scale_2", torch.ones(1)), ConversionError, r"weight_scale_2'.*no meaning"),
    "two weights": (added("weight", torch.zeros(96, 64)), ArtifactError, r"weight_packed'.*next to a weight"),
    "unknown companion": (added("output_scale", torch.ones(1)), ConversionError, r"without a rule: .*output_scale"),
    "codes of another type": (
        replaced("weight_packed", lambda t: t.to(torch.int8)), ArtifactError, r"weight_packed'.*is I8.*needs U8"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_wrong_tensor_is_one_error_that_names_it(name: str, nvfp4: Path, tmp_path: Path) -> None:
    change, kind, pattern = DAMAGES[name]
    source = rewrite(Path(shutil.copytree(nvfp4, tmp_path / "hf")), change)
    with pytest.raises(kind, match=pattern) as caught:
        convert(source, tmp_path / "a.ninfer")
    assert str(source) in str(caught.value)
    assert "q_proj" in str(caught.value)
    assert not (tmp_path / "a.ninfer").exists()


FP8_DAMAGES: dict[str, tuple[Callable[[torch.Tensor], Tensors], str]] = {
    "no scale": (lambda _: {}, r"weight_scale'.*is missing; FP8 needs it as F32 or BF16 or F16"),
    "wrong shape": (lambda _: {"weight_scale": torch.ones(7)}, r"weight_scale'.*\[7\]; FP8 \[\d+, \d+\] needs"),
    "wrong blocks": (lambda _: {"weight_scale_inv": torch.ones(3, 3)}, r"weight_scale_inv'.*blocks of 128 x 128"),
    "NaN": (lambda codes: {"weight_scale": torch.full((len(codes), 1), torch.nan)}, r"weight_scale'.*NaN or infinity"),
    "wrong type": (lambda _: {"weight_scale": torch.ones(1, dtype=torch.int32)}, r"weight_scale'.*is I32"),
    "two scales": (lambda _: {"weight_scale": torch.ones(1), "weight_scale_inv": torch.ones(1, 1)}, r"weight_scale'"),
}


@pytest.mark.parametrize("name", FP8_DAMAGES)
def test_fp8_without_proper_scales_is_refused(name: str, tmp_path: Path) -> None:
    scales, pattern = FP8_DAMAGES[name]
    source, _ = fp8_checkpoint(tmp_path / "hf", scales)
    with pytest.raises((ArtifactError, ConversionError), match=pattern):
        convert(source, tmp_path / "a.ninfer")


def test_a_code_that_is_no_number_is_refused(tmp_path: Path) -> None:
    source, _ = fp8_checkpoint(tmp_path / "hf", lambda _: {"weight_scale": torch.ones(1)})

    def damage(tensors: Tensors) -> None:
        tensors[f"{Q}.weight"].view(torch.uint8)[5, 3] = 0xFF

    with pytest.raises(ConversionError, match=r"q_proj.weight': holds NaN"):
        convert(rewrite(source, damage), tmp_path / "a.ninfer")


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ({"quant_method": "awq"}, r"quant_method' is 'awq'.*compressed-tensors, modelopt, fp8"),
        ({"quant_method": "bitsandbytes"}, r"quant_method' is 'bitsandbytes'"),
        ({"quant_method": "gptq", "bits": 4}, r"quant_method' is 'gptq'"),
        ({"quant_method": "compressed-tensors", "transform_config": {"r": 1}}, r"transform_config'.*transformed"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size'.*two sizes"),
    ],
)
def test_methods_that_mean_something_else_are_refused(config: dict[str, Any], pattern: str, tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", CONFIG, WEIGHTS, quantization_config=config)
    with pytest.raises((ArtifactError, ConversionError), match=pattern):
        convert(source, tmp_path / "a.ninfer")
