"""The activation codec of one digit: hand-made groups, ties, padding, small and bad values, a scalar re-statement."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.ops.one_digit import GROUP, as_seen_by_a8g32, to_codes
from ninfer.ops.two_digits import SMALLEST_ROW_MAX


def test_hand_made_group_is_completed_with_zeros() -> None:
    codes, scales = to_codes(np.array([[127, -127, 63.5, 64.5, -0.5, 0.49, 0, 1]], np.float32))
    assert scales.tolist() == [[1.0]]
    assert codes[0, 0].tolist() == [127, -127, 64, 64, 0, 0, 0, 1] + [0] * 24  # ties go to even


def test_every_code_is_that_of_the_scalar_rule_and_groups_are_independent() -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((7, 77)) * 10.0 ** rng.integers(-20, 20, (7, 77))).astype(np.float32)
    codes, scales = to_codes(x)
    for r in range(7):
        for g in range(3):
            values = x[r, GROUP * g : GROUP * (g + 1)]
            amax = max(abs(v) for v in values)
            assert scales[r, g] == amax / np.float32(127)
            inverse = np.float32(127) / amax
            assert codes[r, g, : len(values)].tolist() == [round(float(np.float32(v * inverse))) for v in values]


def test_errors_stay_within_half_a_step_of_their_group() -> None:
    x = np.random.default_rng(5).standard_normal((50, 96)).astype(np.float32)
    error = np.abs(as_seen_by_a8g32(x.astype(np.float64)) - x).reshape(50, 3, GROUP)
    assert (error <= 0.502 * to_codes(x)[1][..., None]).all()


@pytest.mark.parametrize("factor", [0.999, 1.0])
def test_groups_near_nothing_become_zero(factor: float) -> None:
    codes, scales = to_codes(np.full((1, GROUP), float(SMALLEST_ROW_MAX) * factor, np.float32))
    assert (scales[0, 0] > 0) == (factor == 1.0)
    assert (codes != 0).all() == (factor == 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_spoil_their_group_and_no_other(bad: float) -> None:
    x = np.ones((1, 2 * GROUP), np.float32)
    x[0, 3] = bad
    with np.errstate(invalid="ignore"):
        seen = as_seen_by_a8g32(x.astype(np.float64))
    assert not np.isfinite(seen[0, :GROUP]).all()
    np.testing.assert_allclose(seen[0, GROUP:], 1.0)
