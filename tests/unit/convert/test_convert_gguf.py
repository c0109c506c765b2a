"""Whole conversions of tiny GGUF files: values, formats, order of rows, bytes, what travels along."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
from test_gguf_blocks import random_rows

from make.make_gguf import TEMPLATE, TINY, decode, encode, side_by_side, write_gguf
from make.model_runs import logits_of
from make.tiny_llama import hf_logits, hf_model, random_weights
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.convert import convert as convert_module
from ninfer.convert import encode as encode_module
from ninfer.convert.convert import convert
from ninfer.convert.names.orders import HalfSplit
from ninfer.convert.recipe import RECIPE_VERSION
from ninfer.errors import ArtifactError, ConfigError, ConversionError
from ninfer.formats import TensorScale
from ninfer.models import RuntimeOptions, load_model
from ninfer.text.frontend import load_frontend

WIDE = replace(TINY, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=64, num_layers=1)
IMAGES = {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4g32m"}


def values_of(artifact: Artifact, name: str) -> np.ndarray:
    """Stored values as float64, in the shape of the tensor."""
    entry = artifact.tensors[name]
    return formats.get(entry.format).unpack(artifact.planes(name)).reshape(entry.shape)


def test_every_tensor_of_a_float_file_arrives_exactly_and_in_half_split_order(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    report = convert(write_gguf(tmp_path / "a.gguf", TINY, weights), tmp_path / "a.ninfer")
    assert report.exact
    assert not verify(tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert list(artifact.tensors) == list(weights)
        for name, expected in weights.items():
            entry = artifact.tensors[name]
            assert (entry.format, entry.layout) == ("f32", "row" if expected.ndim == 1 else "n16")
            np.testing.assert_array_equal(values_of(artifact, name), expected)
        config = artifact.config
    assert config == {
        "vocab_size": TINY.vocab_size, "hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 24, "rope_theta": 5000.0, "rms_norm_eps": float(np.float32(1e-5)),
        "max_position": 128, "tied_head": True, "bos_token_id": 1, "stop_token_ids": [2, 0], "pad_token_id": None,
    }  # fmt: skip


def test_logits_of_a_converted_model_are_those_of_transformers_and_depend_on_the_row_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, tied_head=False)
    weights = random_weights(config)
    source = write_gguf(tmp_path / "a.gguf", config, weights)
    ids = np.array([1, 50, 77, 3, 260, 9, 12], np.int32)
    expected = hf_logits(hf_model(config, weights), ids, "bf16")

    def logits() -> np.ndarray:
        convert(source, tmp_path / "a.ninfer")
        options = RuntimeOptions(numerics="f32", kv_format="bf16", backend="reference", num_pages=2)
        with Artifact.open(tmp_path / "a.ninfer") as artifact:
            return logits_of(load_model(artifact, options), ids, [len(ids)])

    np.testing.assert_allclose(logits(), expected, rtol=2e-4, atol=2e-4)
    monkeypatch.setattr(HalfSplit, "indices", lambda order: np.arange(order.num_heads * order.head_dim))
    assert np.abs(logits() - expected).max() > 0.1


@pytest.mark.parametrize("kind", IMAGES)
def test_codes_and_scales_of_blocks_we_have_a_format_for_are_moved_unchanged(kind: str, tmp_path: Path) -> None:
    weights = random_weights(TINY)
    source = write_gguf(tmp_path / "a.gguf", TINY, weights, kind=kind)
    report = convert(source, tmp_path / "a.ninfer")
    assert report.exact
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        for name, values in weights.items():
            if values.ndim == 1:
                continue
            assert artifact.tensors[name].format == IMAGES[kind]
            planes = artifact.planes(name)
            for row, stored in enumerate(encode(values, kind)):
                blocks = stored.reshape(-1, {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind])
                assert planes.scales[row].tobytes() == blocks[:, :2].tobytes()
                codes = planes.codes[row].reshape(-1, 32)
                if kind == "Q8_0":
                    assert codes.tobytes() == blocks[:, 2:].tobytes()
                else:
                    start = 4 if kind == "Q4_1" else 2
                    assert (codes[:, :16] | codes[:, 16:] << 4).tobytes() == blocks[:, start:].tobytes()
                if kind == "Q4_1":
                    assert planes.mins[row].tobytes() == blocks[:, 2:4].tobytes()


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4"])
def test_other_blocks_are_stored_as_q8g32_with_the_error_reported(kind: str, tmp_path: Path) -> None:
    weights = random_weights(WIDE)
    blocks = {"Q5_0": 8, "Q5_1": 8, "MXFP4": 8}.get(kind, 1)
    rows = random_rows(kind, WIDE.num_heads * WIDE.head_dim, blocks, seed=5)
    rows = tame(kind, rows)
    report = convert(
        write_gguf(tmp_path / "a.gguf", WIDE, weights, stored={"layers.0.q": (kind, rows)}), tmp_path / "a.ninfer"
    )
    (entry,) = report.inexact
    assert (entry.name, entry.source_type, entry.format) == ("layers.0.q", kind, "q8g32")
    order = HalfSplit(WIDE.num_heads, WIDE.head_dim).indices()
    source = decode(rows, kind)[order].astype(np.float64)
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        stored = values_of(artifact, "layers.0.q")
        written = artifact.quantization["tensors"]["layers.0.q"]
    difference = stored - source
    assert entry.max_error == np.abs(difference).max()
    assert entry.relative_rms_error == pytest.approx(np.sqrt((difference**2).sum() / (source**2).sum()))
    assert 0 < entry.relative_rms_error < 0.03
    assert written == {
        "source_type": kind, "format": "q8g32", "exact": False,
        "max_error": pytest.approx(entry.max_error, rel=1e-5),
        "relative_rms_error": pytest.approx(entry.relative_rms_error, rel=1e-5),
    }  # fmt: skip


def tame(kind: str, rows: np.ndarray) -> np.ndarray:
    """Scales near one, so that values fit every target format."""
    size = {"Q5_0": 22, "Q5_1": 24, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "MXFP4": 17, "NVFP4": 36}[kind]
    blocks = rows.reshape(len(rows), -1, size).copy()
    if kind == "MXFP4":
        blocks[..., 0] = 120 + blocks[..., 0] % 8
    elif kind == "NVFP4":
        blocks[..., :4] = 0x30 + blocks[..., :4] % 16
    else:
        for at in {"Q5_0": (0,), "Q6_K": (208,)}.get(kind, (0, 2)):
            blocks[..., at + 1] = 0x24 | blocks[..., at + 1] & 0x83  # exponent near 2**-6, sign kept
    return blocks.reshape(rows.shape)


@pytest.mark.parametrize("factor", [None, 0.125, 3.1e-5])
@pytest.mark.parametrize("inputs", [None, 0.037])
def test_nvfp4_is_moved_with_its_numbers(factor: float | None, inputs: float | None, tmp_path: Path) -> None:
    """gguf decodes without the factor; the codes and scales that it saw are ours, in another order."""
    rows = random_rows("NVFP4", WIDE.intermediate_size, WIDE.hidden_size // 64, seed=7)
    rows[rows == 0xFF] = 0xFE
    rows.reshape(-1, 36)[0, :4] = (0x00, 0x7F, 0x80, 0xFE)  # GGUF's scales ignore their top bit, and 0x7F means 0
    numbers = {"scale": factor, "input_scale": inputs}
    source = write_gguf(
        tmp_path / "a.gguf",
        WIDE,
        random_weights(WIDE),
        stored={"layers.0.gate": ("NVFP4", rows)},
        extra={f"blk.0.ffn_gate.{name}": np.array([x], np.float32) for name, x in numbers.items() if x is not None},
    )
    report = convert(source, tmp_path / "a.ninfer")
    assert report.exact
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.tensors["layers.0.gate"].format == "nvfp4"
        planes = artifact.planes("layers.0.gate")
    fmt = formats.get("nvfp4")
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.NVFP4)
    np.testing.assert_array_equal(fmt.unpack(replace(planes, tensor=TensorScale(1.0))), expected)
    assert planes.tensor.factor == np.float32(1.0 if factor is None else factor)
    assert planes.tensor.input_scale == (None if inputs is None else np.float32(1) / np.float32(inputs))
    exact = expected.astype(np.float64) * planes.tensor.factor
    np.testing.assert_allclose(fmt.unpack(planes), exact, rtol=2.0**-24)


@pytest.mark.parametrize(
    ("scale_byte", "extra", "pattern"),
    [
        (0xFF, {}, "'blk.0.ffn_gate.weight': a scale is no E4M3 number"),
        (0x38, {"scale": [0.0]}, r"'blk.0.ffn_gate.scale'.*is 0.0"),
        (0x38, {"scale": [np.nan]}, r"'blk.0.ffn_gate.scale'.*is nan"),
        (0x38, {"scale": [1.0, 1.0]}, r"'blk.0.ffn_gate.scale'.*must be F32 \[1\]"),
        (0x38, {"input_scale": [-1.0]}, r"'blk.0.ffn_gate.input_scale'.*is -1.0"),
    ],
)
def test_nvfp4_with_bad_numbers_is_refused(
    scale_byte: int, extra: dict[str, list[float]], pattern: str, tmp_path: Path
) -> None:
    rows = tame("NVFP4", random_rows("NVFP4", WIDE.intermediate_size, WIDE.hidden_size // 64, seed=8))
    rows[3, 1] = scale_byte
    source = write_gguf(
        tmp_path / "a.gguf",
        WIDE,
        random_weights(WIDE),
        stored={"layers.0.gate": ("NVFP4", rows)},
        extra={f"blk.0.ffn_gate.{name}": np.array(values, np.float32) for name, values in extra.items()},
    )
    with pytest.raises((ArtifactError, ConversionError), match=pattern):
        convert(source, tmp_path / "a.ninfer")
    assert not (tmp_path / "a.ninfer").exists()


def test_nvfp4_factor_outside_the_blocks_is_applied(tmp_path: Path) -> None:
    weights = random_weights(WIDE)
    rows = tame("NVFP4", random_rows("NVFP4", 512, 4, seed=6))
    factor = np.array([0.125], np.float32)
    source = write_gguf(
        tmp_path / "a.gguf",
        WIDE,
        weights,
        stored={"layers.0.gate": ("NVFP4", rows)},
        extra={"blk.0.ffn_gate.scale": factor, "blk.0.ffn_gate.input_scale": factor},
    )
    report = convert(source, tmp_path / "a.ninfer", weights="f32")
    assert report.exact
    assert not report.notes
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        np.testing.assert_array_equal(values_of(artifact, "layers.0.gate"), decode(rows, "NVFP4") * factor)


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_floats_become_bf16_where_that_loses_nothing(kind: str, tmp_path: Path) -> None:
    weights = random_weights(TINY)
    coarse = {name: (values.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, values in weights.items()}
    for name in ("layers.0.up", "layers.1.up"):
        coarse[name] = coarse[name].clip(-1, 1).round(2).astype(np.float16).astype(np.float32)
    report = convert(write_gguf(tmp_path / "a.gguf", TINY, coarse, kind=kind), tmp_path / "a.ninfer")
    assert report.exact
    found = {entry.name: entry.format for entry in report.tensors}
    assert found["layers.0.q"] == "bf16"
    assert found["layers.0.up"] == ("bf16" if kind == "BF16" else "f32")
    assert found["norm"] == "f32"


@pytest.mark.parametrize("target", formats.NAMES)
def test_all_matrices_take_the_format_asked_for(target: str, tmp_path: Path) -> None:
    weights = random_weights(TINY)
    source = write_gguf(tmp_path / "a.gguf", TINY, weights, kind="Q8_0")
    report = convert(source, tmp_path / "a.ninfer", weights=target)
    fmt = formats.get(target)
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert {entry.format for entry in artifact.tensors.values() if len(entry.shape) == 2} == {target}
        stored = decode(encode(weights["layers.0.down"], "Q8_0"), "Q8_0")
        expected = stored.astype(np.float64) if target == "q8g32" else fmt.unpack(fmt.pack(stored))
        np.testing.assert_allclose(values_of(artifact, "layers.0.down"), expected, rtol=1e-6)
        assert artifact.provenance["recipe"] == {"version": RECIPE_VERSION, "weights": target}
    assert report.exact == (target in ("q8g32", "f32"))
    assert all(entry.relative_rms_error < 0.12 for entry in report.tensors)


def test_unknown_weight_format_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'q3'.*q8g32"):
        convert(tmp_path / "a.gguf", tmp_path / "a.ninfer", weights="q3")


def test_block_borders_do_not_show_in_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY), kind="Q5_0")
    first = convert(source, tmp_path / "a.ninfer")
    monkeypatch.setattr(encode_module, "_BLOCK_ELEMENTS", 17 * 64)
    second = convert(source, tmp_path / "b.ninfer")
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()
    assert first.digest == second.digest


def test_same_content_gives_same_bytes_whatever_the_file_is_called(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY), kind="Q4_1")
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "copy.gguf"
    copy.write_bytes(source.read_bytes())
    convert(source, tmp_path / "a.ninfer")
    convert(copy, tmp_path / "b.ninfer")
    content = (tmp_path / "a.ninfer").read_bytes()
    assert content == (tmp_path / "b.ninfer").read_bytes()
    assert str(tmp_path).encode() not in content


def test_provenance_names_digests_recipe_and_version(tmp_path: Path) -> None:
    import hashlib

    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY))
    convert(source, tmp_path / "a.ninfer")
    content = source.read_bytes()
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        provenance = artifact.provenance
    assert set(provenance) == {"ninfer_version", "source", "recipe"}
    assert provenance["source"] == {
        "kind": "gguf",
        "files": [
            {
                "nbytes": len(content),
                "blake2b": hashlib.blake2b(content, digest_size=32).hexdigest(),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        ],
    }


def test_tokenizer_and_template_travel_along(tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY)), tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.resource("frontend/chat_template.jinja").decode() == TEMPLATE
        assert json.loads(artifact.resource("frontend/tokenizer_config.json"))["eos_token"] == "<|im_end|>"
        tokenizer, template = load_frontend(artifact.find_resource)
    assert template is not None
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("hello \u00e9")) == "hello \u00e9"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"tokenizer__ggml__eos_token_id": 2}, [2, 0]),
        ({"tokenizer__ggml__eos_token_id": 5, "tokenizer__ggml__eot_token_id": 2}, [5, 2, 0]),
        ({"tokenizer__ggml__eos_token_id": 5, "tokenizer__ggml__eom_token_id": 7}, [5, 7, 0, 2]),
        ({"tokenizer__ggml__eos_token_id": None}, [0, 2]),
    ],
)
def test_all_end_tokens_count_not_only_the_declared_one(changed: dict, expected: list[int], tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY), **changed), tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.config["stop_token_ids"] == expected


def test_a_file_without_tokenizer_converts_for_use_with_ids(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY), tokenizer__ggml__model=None)
    report = convert(source, tmp_path / "a.ninfer")
    assert report.resources == []


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY))
    convert(source, tmp_path / "a.ninfer", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1] > 0


def test_nothing_is_left_behind_by_a_conversion_that_fails(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    weights["layers.1.down"][3, 5] = np.nan
    source = write_gguf(tmp_path / "a.gguf", TINY, weights)
    with pytest.raises(ConversionError, match=r"blk\.1\.ffn_down\.weight.*NaN or infinity"):
        convert(source, tmp_path / "a.ninfer")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf"]


def test_infinite_scales_and_values_beyond_a_format_are_refused(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    rows = encode(weights["layers.0.up"], "Q8_0").copy()
    rows[7, :2] = np.array([np.inf], np.float16).view(np.uint8)
    source = write_gguf(tmp_path / "a.gguf", TINY, weights, stored={"layers.0.up": ("Q8_0", rows)})
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_up\.weight.*scale"):
        convert(source, tmp_path / "a.ninfer")
    weights["layers.0.up"][7, 1] = 3e38
    source = write_gguf(tmp_path / "a.gguf", TINY, weights)
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_up\.weight.*cannot be stored as q8g32"):
        convert(source, tmp_path / "a.ninfer", weights="q8g32")
    weights["layers.0.up"][7, 1] = np.finfo(np.float32).max
    source = write_gguf(tmp_path / "a.gguf", TINY, weights)
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_up\.weight.*beyond the range of bf16"):
        convert(source, tmp_path / "a.ninfer", weights="bf16")


def test_arguments_that_cannot_work_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY))
    before = source.read_bytes()
    for out, word in ((source, "part of the source"), (tmp_path, "directory"), (tmp_path / "no" / "a", "must exist")):
        with pytest.raises(ConfigError, match=word):
            convert(source, out)
    assert source.read_bytes() == before
    convert(source, tmp_path / "a.ninfer")
    with pytest.raises(ConfigError, match=r"already a \.ninfer file"):
        convert(tmp_path / "a.ninfer", tmp_path / "b.ninfer")


def test_row_order_is_the_inverse_of_the_exporters() -> None:
    rows = np.arange(3 * 10)[:, None]
    np.testing.assert_array_equal(side_by_side(rows, 3)[HalfSplit(3, 10).indices()], rows)
    assert HalfSplit(2, 4).indices().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_gguf(tmp_path / "a.gguf", TINY, random_weights(TINY))
    real = convert_module.encode

    def encode_and_touch(*arguments: Any) -> Any:
        os.utime(source, ns=(1, 1))
        return real(*arguments)

    monkeypatch.setattr(convert_module, "encode", encode_and_touch)
    with pytest.raises(ConversionError, match=r"a\.gguf: changed while it was converted"):
        convert(source, tmp_path / "a.ninfer")
    assert not (tmp_path / "a.ninfer").exists()
