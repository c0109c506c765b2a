"""RMS norm: hand-made values, its laws, and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.rms_norm import cases, oracle


def test_hand_made_values() -> None:
    x, w = np.array([[3.0, -4.0], [0.0, 0.0]]), np.array([2.0, 10.0])
    root = (12.5 + 0.5) ** 0.5  # mean square 12.5, eps 0.5
    np.testing.assert_allclose(oracle(x, w, 0.5), [[6 / root, -40 / root], [0, 0]], rtol=1e-15)


def test_heads_are_normalised_alone_and_share_the_weight() -> None:
    x, w = np.array([[3.0, -4.0, 0.0, 6.0]]), np.array([2.0, 10.0])  # two heads of 2
    first, second = 13**0.5, 18.5**0.5
    np.testing.assert_allclose(oracle(x, w, 0.5), [[6 / first, -40 / first, 0, 60 / second]], rtol=1e-15)


def test_the_weight_is_plain_and_rows_are_scaled_alike() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((4, 33)), rng.standard_normal(33)
    y = oracle(x, w, 1e-30)
    np.testing.assert_allclose(oracle(1000 * x, w, 1e-30), y, rtol=1e-12)
    np.testing.assert_allclose(np.mean(np.square(y / w), axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(oracle(x, np.zeros(33), 1e-5), np.zeros_like(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend: str) -> None:
    for case in cases(np.random.default_rng(3)):
        (got,) = run_case(backend, case)
        x, w = (torch.from_numpy(a).double() for a in (case.steps[0].inputs[0], case.weights["w"]))
        want = torch.nn.functional.rms_norm(x.unflatten(1, (-1, len(w))), (len(w),), w, 1e-5).flatten(1).numpy()
        assert ROW_REDUCTION.excess(got, want) <= 1
