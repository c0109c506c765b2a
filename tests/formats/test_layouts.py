"""Byte layouts: goldens built from the definition one byte at a time, round trips on odd shapes, sizes, refusals."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from make.fuzz import limited_memory
from ninfer import formats
from ninfer.errors import FormatError, UnsupportedError
from ninfer.formats import Planes, TensorScale, layouts

SHAPES = [(1, 1), (1, 32), (15, 31), (16, 32), (17, 33), (33, 64), (40, 95), (100, 160)]


def random_planes(name: str, shape: tuple[int, int], seed: int = 0) -> Planes:
    """Planes of random bits, illegal scales and NaN values included: a layout must not care."""
    rng = np.random.default_rng(seed)
    fmt = formats.get(name)
    n, k = shape
    width = -(-k // fmt.pad) * fmt.pad
    codes = rng.integers(0, 256, (n, width * fmt.codes_dtype.itemsize), dtype=np.uint8).view(fmt.codes_dtype)
    if fmt.code_bits < 8:
        codes >>= np.uint8(8 - fmt.code_bits)
    scales = [
        np.frombuffer(rng.bytes(n * fmt.num_scales(k) * fmt.scales_dtype.itemsize), fmt.scales_dtype).reshape(n, -1)
        for _ in range(1 + fmt.has_mins)
        if fmt.scales_dtype is not None
    ]
    tensor = TensorScale(0.1 + seed, float(np.float32(1.1))) if fmt.has_tensor_scale else None
    return Planes(shape, codes, *scales, tensor=tensor)


def by_definition(name: str, planes: Planes) -> bytes:
    """The n16 image written out byte by byte from the table in `layouts`."""
    n, k = planes.shape
    out = bytearray()

    def align() -> None:
        out.extend(bytes(-len(out) % 64))

    def code(row: int, column: int) -> int:
        if row < n:
            return int(planes.codes[row, column])
        return {"q4g32": 8, "q4g64": 8, "q5g64": 16, "q6g64": 32}.get(name, 0)

    lanes = [(row, b) for row in range(16) for b in range(4)]
    for first in range(0, n, 16):
        rows = range(first, first + 16)
        for plane in (planes.scales, planes.mins):
            if plane is not None:
                for g in range(plane.shape[1]):
                    for row in rows:
                        out += plane[row, g].tobytes() if row < n else bytes(plane.itemsize)
                align()
        if name in ("f32", "bf16"):
            for column in range(k):
                for row in rows:
                    out += planes.codes[row, column].tobytes() if row < n else bytes(planes.codes.itemsize)
        elif name in ("q8g32", "fp8"):
            for j in range(planes.codes.shape[1] // 4):
                out += bytes(code(first + row, 4 * j + b) + 128 * (name == "q8g32") for row, b in lanes)
        else:
            blocks = planes.codes.shape[1] // 32
            for c in range(blocks):
                for j in range(4):
                    for row, b in lanes:
                        pair = (code(first + row, 32 * c + 4 * j + b + 16 * half) & 15 for half in (0, 1))
                        out.append(next(pair) | next(pair) << 4)
            align()
            for c in range(blocks if name == "q5g64" else 0):
                for row, b in lanes:
                    high = [code(first + row, 32 * c + 4 * j + b) >> 4 for j in range(8)]
                    out.append(sum(bit << j for j, bit in enumerate(high)))
            for c in range(blocks if name == "q6g64" else 0):
                for h in range(2):
                    for row, b in lanes:
                        high = [code(first + row, 32 * c + 16 * h + 4 * j + b) >> 4 for j in range(4)]
                        out.append(sum(bits << 2 * j for j, bits in enumerate(high)))
        align()
    if planes.tensor is not None:
        out += struct.pack("<df52x", planes.tensor.factor, planes.tensor.input_scale)
    return bytes(out)


def assert_same(a: Planes, b: Planes) -> None:
    assert a.shape == b.shape
    assert a.tensor == b.tensor
    for x, y in ((a.codes, b.codes), (a.scales, b.scales), (a.mins, b.mins)):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            np.testing.assert_array_equal(
                np.ascontiguousarray(x).view(np.uint8), np.ascontiguousarray(y).view(np.uint8)
            )


@pytest.mark.parametrize("name", formats.NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_n16_is_its_definition_and_comes_back(name: str, shape: tuple[int, int]) -> None:
    planes = random_planes(name, shape)
    image = layouts.to_n16(planes, name)
    assert image.dtype == np.uint8
    assert image.size == layouts.nbytes(name, shape, "n16")
    assert image.size % 64 == 0
    assert image.tobytes() == by_definition(name, planes)
    assert_same(layouts.from_n16(image, shape, name), planes)


@pytest.mark.parametrize("name", formats.NAMES)
def test_n16_of_a_matrix_larger_than_one_block(name: str) -> None:
    planes = random_planes(name, (1000, 600))
    image = layouts.to_n16(planes, name)
    assert_same(layouts.from_n16(image, planes.shape, name), planes)
    parts = (None if p is None else p[992:] for p in (planes.codes, planes.scales, planes.mins))
    last = layouts.to_n16(Planes((8, 600), *parts, tensor=planes.tensor), name)
    assert image[-len(last) :].tobytes() == last.tobytes()


@pytest.mark.parametrize("name", formats.NAMES)
def test_rows_behind_the_last_decode_to_zero(name: str) -> None:
    fmt = formats.get(name)
    x = np.random.default_rng(0).standard_normal((17, 40), dtype=np.float32)
    image = layouts.to_n16(fmt.pack(x), name)
    whole = layouts.from_n16(image, (32, 40), name)
    np.testing.assert_array_equal(fmt.unpack(whole)[17:], 0)


def test_n16_nibbles_are_a_transposition_of_gguf_blocks() -> None:
    planes = random_planes("q4g32", (16, 64))
    qs = planes.codes.reshape(16, 2, 2, 16)
    blocks = qs[:, :, 0] | qs[:, :, 1] << 4  # uint8 [row, block, 16], GGUF's qs
    image = layouts.to_n16(planes, "q4g32")
    dwords = image[64:].view(np.uint32).reshape(2, 4, 16)
    for row in range(16):
        np.testing.assert_array_equal(dwords[:, :, row], blocks[row].copy().view(np.uint32).reshape(2, 4))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("q8g32", (16, 32), 64 + 512),
        ("q8g32", (17, 96), 2 * (128 + 1536)),
        ("q4g32", (16, 32), 64 + 256),
        ("q4g32m", (16, 32), 128 + 256),
        ("q4g32m", (49152, 576), 3072 * (576 + 576 + 18 * 256)),
        ("q4g64", (16, 64), 64 + 512),
        ("q5g64", (17, 65), 2 * (64 + 1024 + 256)),
        ("q6g64", (16, 128), 64 + 1024 + 512),
        ("nvfp4", (16, 64), 64 + 512 + 64),
        ("nvfp4", (33, 33), 3 * (64 + 512) + 64),
        ("fp8", (16, 5), 64 + 128),
        ("fp8", (17, 64), 2 * (64 + 1024)),
        ("bf16", (1, 1), 64),
        ("bf16", (16, 3), 128),
        ("f32", (16, 3), 192),
    ],
)
def test_nbytes_n16(name: str, shape: tuple[int, int], expected: int) -> None:
    assert layouts.nbytes(name, shape, "n16") == expected


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8])
def test_row_layout_comes_back_as_a_view(dtype: type) -> None:
    name = {np.float32: "f32", np.uint16: "bf16", np.uint8: "u8"}[dtype]
    values = np.arange(2 * 3 * 5).astype(dtype).reshape(2, 3, 5)
    image = layouts.to_row(values.transpose(2, 0, 1))
    assert image.size == layouts.nbytes(name, (5, 2, 3), "row")
    assert image.tobytes() == values.transpose(2, 0, 1).tobytes()
    back = layouts.from_row(image, (5, 2, 3), name)
    np.testing.assert_array_equal(back, values.transpose(2, 0, 1))
    assert np.shares_memory(back, image)


def test_buffers_may_be_read_only_memory() -> None:
    planes = random_planes("q4g32m", (20, 64))
    image = layouts.to_n16(planes, "q4g32m").tobytes()
    assert_same(layouts.from_n16(memoryview(image), (20, 64), "q4g32m"), planes)


def test_refusals() -> None:
    planes = random_planes("q8g32", (4, 32))
    with pytest.raises(UnsupportedError, match="'row' holds f32, bf16, u8"):
        layouts.nbytes("q8g32", (4, 32), "row")
    with pytest.raises(UnsupportedError, match=r"matrices \[N, K\]"):
        layouts.nbytes("f32", (4,), "n16")
    with pytest.raises(UnsupportedError, match="layout 'n32'"):
        layouts.nbytes("f32", (4,), "n32")
    with pytest.raises(FormatError, match="codes"):
        layouts.to_n16(planes, "q4g32")
    with pytest.raises(FormatError, match="float64"):
        layouts.to_row(np.zeros(3))
    with pytest.raises(FormatError, match="expected 576 bytes, got 575"):
        layouts.from_n16(layouts.to_n16(planes, "q8g32")[:-1], (4, 32), "q8g32")
    with pytest.raises(FormatError, match="expected 12 bytes, got 3 of float32"):
        layouts.from_row(np.zeros(3, np.float32), (3,), "f32")


def test_a_tensor_scale_that_cannot_be_one_is_refused() -> None:
    image = layouts.to_n16(random_planes("nvfp4", (4, 32)), "nvfp4")
    for factor, scale in ((0.0, 1.0), (-1.0, 1.0), (np.nan, 1.0), (np.inf, 1.0), (1.0, -1.0), (1.0, np.nan)):
        image[-64:] = np.frombuffer(struct.pack("<df52x", factor, scale), np.uint8)
        with pytest.raises(FormatError, match=r"2\^-100 to 2\^100"):
            layouts.from_n16(image, (4, 32), "nvfp4")
    image[-64:] = np.frombuffer(struct.pack("<df51xB", 1.0, 0.0, 1), np.uint8)
    with pytest.raises(FormatError, match="behind the tensor scale"):
        layouts.find_tensor_scale(image, "nvfp4")


def test_formats_are_cheap_to_describe_at_any_size() -> None:
    """Sizes of shapes far beyond memory are plain integers: the reader relies on it to check hostile headers."""
    assert layouts.nbytes("q4g32", (1 << 40, 1 << 40), "n16") > 1 << 70


@pytest.mark.parametrize("name", formats.NAMES[1:])
def test_temporaries_are_small_against_the_tensor(name: str) -> None:
    """64 MiB of float32 become codes and an image while only three times the image and 16 MiB may be mapped."""
    x = np.ones((4096, 4096), np.float32)
    with limited_memory(3 * layouts.nbytes(name, x.shape, "n16") + (16 << 20)):
        planes = formats.get(name).pack(x)
        assert layouts.to_n16(planes, name).size == layouts.nbytes(name, x.shape, "n16")
