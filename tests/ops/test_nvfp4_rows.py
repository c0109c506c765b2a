"""The NVFP4 activation codec: hand-made blocks, the casts of ml_dtypes, bad numbers, partial blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer.ops.nvfp4_rows import as_seen_by_w4a4, to_codes


def test_hand_made_blocks() -> None:
    x = np.zeros((1, 48), np.float32)
    x[0, :4] = 6, -3, 0.5, 0.2  # ga * 6 / 6 = 1: values are their own codes
    x[0, 16:20] = 600, 300, -150, 23  # beyond 448: cut to 6 * 448 / 448
    codes, scales = to_codes(x, 1.0)
    assert scales.tolist() == [[0x38, 0x6C, 0]]
    assert codes[0, 0, :4].tolist() == [7, 13, 1, 0]
    assert np.float32(96) == np.uint8(0x6C).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert codes[0, 1, :4].tolist() == [7, 5, 8 + 3, 0]
    np.testing.assert_array_equal(as_seen_by_w4a4(x[:, :20], 1.0)[0, 16:], [576, 288, -144, 0])


@pytest.mark.parametrize("k", [1, 15, 16, 17, 80])
@pytest.mark.parametrize("ga", [3.7, 541.25, 1e-9, 1e9])
def test_equals_its_definition(k: int, ga: float) -> None:
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((300, k)) * np.exp(rng.uniform(-12, 9, (300, 1)))).astype(np.float32)
    x[5] = 0
    codes, scales = to_codes(x, ga)
    padded = np.pad(x, [(0, 0), (0, -k % 16)]).reshape(300, -1, 16)
    amax = np.abs(padded).max(axis=-1)
    s = np.minimum(np.float32(ga) * amax / np.float32(6), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(scales, s.view(np.uint8))
    wide = s.astype(np.float32)[..., None]
    scaled = np.divide(padded * np.float32(ga), wide, out=np.zeros_like(padded), where=wide > 0)
    q = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(codes, np.where(wide > 0, q.view(np.uint8), 0))
    seen = (q.astype(np.float64) * wide / ga).reshape(300, -1)[:, :k]
    np.testing.assert_allclose(as_seen_by_w4a4(x.astype(np.float64), ga), seen, rtol=1e-15)


def test_error_on_normal_rows_with_a_fitting_scale() -> None:
    x = np.random.default_rng(2).standard_normal((64, 512))
    x = x.astype(np.float32).astype(np.float64)
    seen = as_seen_by_w4a4(x, float(np.float32(2688 / np.abs(x).max())))
    assert np.sqrt(np.mean((seen - x) ** 2)) == pytest.approx(0.095, rel=0.03)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_spoil_their_block_and_no_other(bad: float) -> None:
    x = np.ones((2, 40))
    x[1, 20] = bad
    seen = as_seen_by_w4a4(x, 100.0)
    assert np.isnan(seen[1, 16:32]).all()
    assert np.isfinite(seen[0]).all()
    assert np.isfinite(seen[1, [0, 15, 32, 39]]).all()
