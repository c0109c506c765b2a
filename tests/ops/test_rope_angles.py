"""Rotary angles: exact positions, frequencies from the definition, no float32 in the angle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from make.op_runs import BACKENDS, run_case, sizes_of
from ninfer.ops.rope_angles import cases, oracle


def test_hand_made_values() -> None:
    got = oracle(np.array([0, 3]), [1.0, 0.1], 1.0)
    want = np.array([[1, 1, 0, 0], [math.cos(3), math.cos(0.3), math.sin(3), math.sin(0.3)]])
    np.testing.assert_allclose(got, want, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(oracle(np.array([0, 3]), [1.0, 0.1], 1.5), 1.5 * want, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_element_is_the_nearest_float32(backend: str) -> None:
    for case in cases(np.random.default_rng(20240607)):
        (got,) = run_case(backend, case)
        positions = [r.position + i for r in case.steps[0].rows for i in range(r.count)]
        keywords = sizes_of(case)
        frequencies, magnitude = keywords["frequencies"], keywords["magnitude"]
        half = len(frequencies)
        for row, position in zip(got, positions, strict=True):
            for i, frequency in enumerate(frequencies):
                angle = position * frequency
                assert row[i] == pytest.approx(magnitude * math.cos(angle), rel=1e-6, abs=1e-9)
                assert row[half + i] == pytest.approx(magnitude * math.sin(angle), rel=1e-6, abs=1e-9)
