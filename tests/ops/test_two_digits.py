"""The activation codec: hand-made rows, ties, small and bad values, and a scalar re-statement of the rule."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.ops.two_digits import LARGEST_CODE, SMALLEST_ROW_MAX, as_seen_by_a8, to_codes


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_hand_made_row() -> None:
    codes, scales = to_codes(row(127 * 256, -127 * 256, 63.5, 64.5, -0.5, 0.49, 0, 1))
    assert scales.tolist() == [1.0]
    assert codes.tolist() == [[32512, -32512, 64, 64, 0, 0, 0, 1]]  # ties go to even


def test_rows_are_independent() -> None:
    codes, scales = to_codes(np.array([[1, 2, 4], [0, 0, 0], [-65024, 2, 0]], np.float32))
    assert codes.tolist() == [[8128, 16256, 32512], [0, 0, 0], [-32512, 1, 0]]
    np.testing.assert_array_equal(scales, [np.float32(4) / np.float32(32512), 0, 2])


def test_every_code_is_that_of_the_scalar_rule() -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((7, 77)) * 10.0 ** rng.integers(-20, 20, (7, 77))).astype(np.float32)
    codes, scales = to_codes(x)
    for r in range(7):
        amax = max(abs(v) for v in x[r])
        assert scales[r] == amax / np.float32(32512)
        inverse = np.float32(32512) / amax
        assert codes[r].tolist() == [round(float(np.float32(v * inverse))) for v in x[r]]


def test_codes_split_into_two_int8_digits_and_errors_stay_within_half_a_step() -> None:
    x = np.random.default_rng(5).standard_normal((50, 96)).astype(np.float32)
    codes, scales = to_codes(x)
    assert np.abs(codes).max() == LARGEST_CODE
    high = (codes + 128) >> 8
    low = codes - 256 * high
    assert np.abs(high).max() <= 127
    assert low.min() >= -128
    assert low.max() <= 127
    error = np.abs(as_seen_by_a8(x.astype(np.float64)) - x)
    assert (error <= 0.502 * scales[:, None]).all()


@pytest.mark.parametrize("factor", [0.999, 1.0])
def test_rows_near_nothing_become_zero(factor: float) -> None:
    codes, scales = to_codes(row(*[float(SMALLEST_ROW_MAX) * factor] * 4))
    assert (scales[0] > 0) == (factor == 1.0)
    assert (codes != 0).all() == (factor == 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_spoil_their_row_and_no_other(bad: float) -> None:
    with np.errstate(invalid="ignore"):
        seen = as_seen_by_a8(np.array([[1.0, bad, 2.0], [3.0, 5.0, 6.0]]))
    assert not np.isfinite(seen[0, 1])
    np.testing.assert_allclose(seen[1], [3, 5, 6], rtol=1e-4)
