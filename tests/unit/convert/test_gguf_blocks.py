"""Dequantisation of GGUF blocks against the gguf package and against hand-made blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as package_dequantize

from ninfer.convert.gguf.blocks import IMPORTED_TYPES, dequantise
from ninfer.convert.gguf.types import REMOVED_TYPE_IDS, TENSOR_TYPES

# Byte positions of fp16 fields in a block, which random bytes must not make infinite or NaN.
HALF_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
TYPE_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


def random_rows(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Random stored rows with finite scales of every size, subnormals and both signs included."""
    rng = np.random.default_rng(seed)
    size = TYPE_BY_NAME[name].block_bytes
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in HALF_FIELDS.get(name, ()):
        bits = rng.integers(0, 0x7C00, (rows, blocks), dtype=np.uint16)
        bits |= rng.integers(0, 2, (rows, blocks), dtype=np.uint16) << 15
        data[..., at : at + 2] = bits[..., None].view(np.uint8)
    if name == "MXFP4":
        data[..., 0] = rng.integers(0, 255, (rows, blocks))
        data[0, :5, 0] = (0, 1, 2, 127, 254)
    if name == "NVFP4":
        data[0, :4, 0] = (0x00, 0x01, 0x7E, 0x7F)
    return data.reshape(rows, blocks * size)


@pytest.mark.parametrize("name", [name for name in IMPORTED_TYPES if name not in ("F32", "F16", "BF16")])
def test_bit_equal_with_the_gguf_package_on_random_blocks(name: str) -> None:
    rows = random_rows(name, 7, 65, seed=len(name))
    with np.errstate(over="ignore"):
        expected = package_dequantize(rows, gguf.GGMLQuantizationType[name])
    result = dequantise(name, rows)
    assert result.dtype == np.float32
    assert result.shape == (7, 65 * TYPE_BY_NAME[name].block_elems)
    np.testing.assert_array_equal(result.view(np.uint32), expected.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize(("name", "dtype"), [("F32", np.float32), ("F16", np.float16)])
def test_plain_floats_are_exact(name: str, dtype: type) -> None:
    values = np.array([[0.0, -0.0, 1.5, -3e-6, 60000.0], [1e-7, 2.0, -1.0, 0.25, 5.0]], dtype)
    np.testing.assert_array_equal(dequantise(name, values.view(np.uint8)), values.astype(np.float32))


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    bits = np.array([[0x3F80, 0xC049, 0x0001, 0x8000]], np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(dequantise("BF16", bits.view(np.uint8)), expected)


def test_low_nibbles_are_the_first_half_of_a_q4_block() -> None:
    block = np.concatenate((np.array([1.0], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8) * 16 + 3))
    values = dequantise("Q4_0", block[None])[0]
    np.testing.assert_array_equal(values[:16], np.full(16, 3 - 8))
    np.testing.assert_array_equal(values[16:], np.arange(16) - 8)


def test_q8_0_codes_are_signed_and_in_order() -> None:
    codes = np.arange(-128, -96, dtype=np.int8)
    block = np.concatenate((np.array([-0.5], np.float16).view(np.uint8), codes.view(np.uint8)))
    np.testing.assert_array_equal(dequantise("Q8_0", block[None])[0], codes * -0.5)


def test_q4_k_late_sub_blocks_have_their_own_scales() -> None:
    """All 64 values of a six-bit scale in sub-block 5 while sub-block 1 keeps its own."""
    for scale in range(64):
        packed = np.zeros(12, np.uint8)
        packed[1] = 7 | ((scale >> 4) << 6)  # low six bits: scale 1; top two: high bits of scale 5
        packed[9] = scale & 15
        head = np.array([1.0, 0.0], np.float16).view(np.uint8)
        block = np.concatenate((head, packed, np.full(128, 0x11, np.uint8)))
        values = dequantise("Q4_K", block[None])[0].reshape(8, 32)
        assert (values[1] == 7).all()
        assert (values[5] == scale).all()


def test_q6_k_negative_scales_flip_the_sign() -> None:
    block = np.zeros(210, np.uint8)
    block[:128] = 0x22  # every code 2 -> 2 - 32
    block[192:208] = np.array([-1] * 8 + [3] * 8, np.int8).view(np.uint8)
    block[208:210] = np.array([0.5], np.float16).view(np.uint8)
    values = dequantise("Q6_K", block[None])[0]
    np.testing.assert_array_equal(values, np.repeat([15.0, -45.0], 128))


def test_mxfp4_scale_255_is_nan_not_a_number() -> None:
    block = np.full((1, 17), 0x11, np.uint8)
    block[0, 0] = 255
    assert np.isnan(dequantise("MXFP4", block)).all()


def test_damaged_scales_come_through_without_a_warning() -> None:
    block = np.full((1, 34), 1, np.uint8)
    block[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    assert np.isinf(dequantise("Q8_0", block)).all()


def test_type_table_agrees_with_the_gguf_package() -> None:
    for kind in TENSOR_TYPES.values():
        member = gguf.GGMLQuantizationType(kind.id)
        assert member.name == kind.name
        if kind.name != "Q8_1":  # the package's table still has an older, larger layout for this activation type
            assert gguf.GGML_QUANT_SIZES[member] == (kind.block_elems, kind.block_bytes)
    known = {int(member) for member in gguf.GGMLQuantizationType}
    assert known == set(TENSOR_TYPES)
    assert not known & REMOVED_TYPE_IDS
