"""E2M1 and E4M3: every code, every border, and many numbers, against ml_dtypes and against a list of conditions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer.formats.small_floats import E2M1, E4M3, to_e2m1, to_e4m3

RNG = np.random.default_rng(11)
NUMBERS = np.concatenate(
    [
        RNG.integers(0, 1 << 32, 300_000, dtype=np.uint32).view(np.float32),
        RNG.standard_normal(300_000).astype(np.float32) * np.float32(3),
        np.exp(RNG.uniform(-9, 7, 300_000)).astype(np.float32),
    ]
)
NUMBERS = NUMBERS[np.isfinite(NUMBERS)]


def around_borders(values: np.ndarray) -> np.ndarray:
    """All values, all middles between neighbours, and the float32 numbers next to them, of both signs."""
    ascending = np.unique(np.abs(values[np.isfinite(values)]))
    points = np.concatenate([ascending, (ascending[1:] + ascending[:-1]) / 2]).astype(np.float32)
    near = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return np.concatenate([*near, *(-part for part in near)])


def test_every_code_has_the_value_of_ml_dtypes() -> None:
    np.testing.assert_array_equal(E2M1, np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    np.testing.assert_array_equal(E4M3, np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert np.signbit(E2M1[8:]).all()
    assert np.isnan(E4M3[[0x7F, 0xFF]]).all()
    assert np.isfinite(np.delete(E4M3, [0x7F, 0xFF])).all()


@pytest.mark.parametrize("x", [NUMBERS, around_borders(E2M1), around_borders(E4M3)], ids=["many", "e2m1", "e4m3"])
def test_rounding_is_that_of_ml_dtypes(x: np.ndarray) -> None:
    np.testing.assert_array_equal(to_e2m1(x), np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    np.testing.assert_array_equal(to_e4m3(x), np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_e2m1_codes_count_the_borders_below() -> None:
    x = np.concatenate([around_borders(E2M1), NUMBERS[:10_000]])
    a = np.abs(x)
    borders = [a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5]
    np.testing.assert_array_equal(to_e2m1(x), np.sum(borders, axis=0) + 8 * np.signbit(x))


def test_what_is_too_large_becomes_the_largest_and_nan_stays() -> None:
    x = np.array([np.inf, -np.inf, 3e38, np.nan], np.float32)
    assert to_e4m3(x).tolist() == [0x7E, 0xFE, 0x7E, 0x7F]
    assert to_e2m1(x[:3]).tolist() == [7, 15, 7]


def test_any_shape_and_order_of_axes() -> None:
    x = NUMBERS[:60].reshape(3, 4, 5)
    np.testing.assert_array_equal(to_e4m3(x.T), to_e4m3(x).T)
    assert to_e2m1(x[:0]).shape == (0, 4, 5)
