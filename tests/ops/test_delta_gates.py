"""Gates of the delta rule: hand-made values, both ends of softplus, and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.delta_gates import cases, oracle
from ninfer.ops.profiles import ROW_REDUCTION


def test_hand_made_values() -> None:
    a, b = np.array([[1.0, 25.0, -800.0]]), np.array([[0.0, 1.0, -800.0]])
    got = oracle(a, b, np.array([2.0, 0.5, 3.0]), np.array([-1.0, 5.0, 0.0]))
    # softplus(0) = ln 2, softplus(30) = 30, softplus(-800) = 0
    np.testing.assert_allclose(got, [[0.25, math.exp(-15), 1, 0.5, 1 / (1 + math.exp(-1)), 0]], rtol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend: str) -> None:
    for case in cases(np.random.default_rng(12)):
        (got,) = run_case(backend, case)
        a, b = (torch.from_numpy(x).double() for x in case.steps[0].inputs)
        decay, bias = (torch.from_numpy(case.weights[name]).double() for name in ("decay", "dt_bias"))
        factor = (-decay * torch.nn.functional.softplus(a + bias)).exp()
        want = torch.cat([factor, b.sigmoid()], dim=1).numpy()
        assert ROW_REDUCTION.excess(got, want) <= 1
