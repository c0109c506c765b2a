"""The activation codec: hand-made groups, ties, small and bad values, and a scalar re-statement of the rule."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.ops.quantize_a8 import SMALLEST_GROUP_MAX, as_seen_by_a8, dequantize_a8, quantize_a8


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_hand_made_group() -> None:
    codes, scales = quantize_a8(row(127, -127, 63.5, 64.5, -0.5, 0.49, 0, 1), 8)
    assert scales.tolist() == [[1.0]]
    assert codes.tolist() == [[[127, -127, 64, 64, 0, 0, 0, 1]]]  # ties go to even


def test_groups_are_independent_and_the_last_one_is_padded() -> None:
    codes, scales = quantize_a8(row(1, 2, 4, 0, 0, 0, 0, 0, 254, -2), 4)
    assert codes.tolist() == [[[32, 64, 127, 0], [0, 0, 0, 0], [127, -1, 0, 0]]]
    np.testing.assert_array_equal(scales, [[np.float32(4) / np.float32(127), 0, 2]])
    back = dequantize_a8(codes, scales, 10)
    assert back.shape == (1, 10)
    assert back[0, 8:].tolist() == [254, -2]


def test_every_code_is_that_of_the_scalar_rule() -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((7, 77)) * 10.0 ** rng.integers(-20, 20, (7, 77))).astype(np.float32)
    codes, scales = quantize_a8(x, 32)
    for r in range(7):
        for g in range(3):
            part = x[r, 32 * g : 32 * g + 32]
            amax = max(abs(v) for v in part)
            assert scales[r, g] == amax / np.float32(127)
            inverse = np.float32(127) / amax
            assert codes[r, g, : len(part)].tolist() == [round(float(np.float32(v * inverse))) for v in part]


def test_codes_stay_in_range_and_errors_within_half_a_step() -> None:
    x = np.random.default_rng(5).standard_normal((50, 96)).astype(np.float32)
    codes, scales = quantize_a8(x, 32)
    assert np.abs(codes.astype(int)).max() == 127
    error = np.abs(as_seen_by_a8(x.astype(np.float64), 32) - x).reshape(50, 3, 32)
    assert (error <= 0.5001 * scales[..., None]).all()


@pytest.mark.parametrize("factor", [0.999, 1.0])
def test_groups_near_nothing_become_zero(factor: float) -> None:
    codes, scales = quantize_a8(row(*[float(SMALLEST_GROUP_MAX) * factor] * 4), 4)
    assert (scales[0, 0] > 0) == (factor == 1.0)
    assert (codes != 0).all() == (factor == 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_spoil_their_group_and_no_other(bad: float) -> None:
    with np.errstate(invalid="ignore"):
        seen = as_seen_by_a8(np.array([[1.0, bad, 2.0, 3.0, 5.0, 6.0]]), 3)
    assert not np.isfinite(seen[0, 1])
    np.testing.assert_allclose(seen[0, 3:], [3, 5, 6], rtol=1e-2)
