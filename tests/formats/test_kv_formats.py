"""The two KV cache formats: golden vector, definition element by element, partial groups, refusals, sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer.errors import FormatError
from ninfer.formats import kv_bf16, kv_int8


def test_golden_vector() -> None:
    x = (((37 * np.arange(64)) % 64 - 31.5) / 10).astype(np.float32)
    codes, scales = kv_int8.encode(x)
    assert scales.view(np.uint16).tolist() == [0x2659]
    assert codes[:8].tolist() == [-127, 22, -87, 63, -46, 103, -6, -115]


@pytest.mark.parametrize("head_dim", [1, 63, 64, 65, 96, 128, 200])
def test_equals_its_definition_element_by_element(head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    x = (rng.standard_normal((3, 2, head_dim)) * np.exp(rng.uniform(-9, 9, (3, 2, 1)))).astype(np.float32)
    x[1, 1] = 0
    codes, scales = kv_int8.encode(x)
    assert codes.shape == x.shape
    assert codes.dtype == np.int8
    assert scales.shape == (3, 2, -(-head_dim // 64))
    assert scales.dtype == np.float16
    for t, h, group in np.ndindex(scales.shape):
        values = x[t, h, 64 * group : 64 * group + 64]
        scale = np.float16(np.max(np.abs(values)) / np.float32(127))
        inverse = np.float32(1) / np.float32(scale) if scale else np.float32(0)
        wanted = [int(min(max(round(float(np.float32(v * inverse))), -127), 127)) for v in values]
        assert scales[t, h, group] == scale
        assert codes[t, h, 64 * group : 64 * group + 64].tolist() == wanted
        exact = codes[t, h, 64 * group : 64 * group + 64].astype(np.float64) * float(scale)
        np.testing.assert_array_equal(kv_int8.decode(codes, scales)[t, h, 64 * group : 64 * group + 64], exact)


def test_a_scale_that_underflows_gives_zeros() -> None:
    codes, scales = kv_int8.encode(np.full(64, 127 * 2.0**-26, np.float32))
    assert scales.tolist() == [0.0]
    assert not codes.any()


def test_every_code_decodes_exactly() -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    scales = np.array([1, 2.0**-24, 65504, 0.333], np.float16)
    wanted = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 64)
    np.testing.assert_array_equal(kv_int8.decode(codes, scales), wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 127 * 65504.0, -1e30])
def test_values_beyond_the_format_are_refused(bad: float) -> None:
    x = np.zeros((2, 100), np.float32)
    x[1, 70] = bad
    with pytest.raises(FormatError, match="KV value"):
        kv_int8.encode(x)


def test_largest_value_is_accepted() -> None:
    _, scales = kv_int8.encode(np.nextafter(np.float32([127 * 65504.0]), np.float32(0)))
    assert scales.tolist() == [65504.0]


def test_kv_bf16_is_bf16() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 17)).astype(np.float32)
    codes = kv_bf16.encode(x)
    np.testing.assert_array_equal(codes, x.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(kv_bf16.decode(codes), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_sizes() -> None:
    assert [kv_int8.nbytes(d) for d in (64, 65, 128, 256)] == [66, 69, 132, 264]
    assert kv_bf16.nbytes(64) == 128
    codes, scales = kv_int8.encode(np.ones(200, np.float32))
    assert codes.nbytes + scales.nbytes == kv_int8.nbytes(200)
