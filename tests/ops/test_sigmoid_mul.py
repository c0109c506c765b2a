"""Output gate: hand-made values, far ends, and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.sigmoid_mul import cases, oracle


def test_hand_made_values_and_far_ends() -> None:
    x, gate = np.array([[7.0, 10.0, 3.0, 3.0]]), np.array([[0.0, 1.0, 800.0, -800.0]])
    np.testing.assert_allclose(oracle(x, gate), [[3.5, 10 / (1 + math.exp(-1)), 3, 0]], rtol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend: str) -> None:
    for case in cases(np.random.default_rng(11)):
        (got,) = run_case(backend, case)
        x, gate = (torch.from_numpy(a).double() for a in case.steps[0].inputs)
        assert ELEMENTWISE.excess(got, (x * torch.sigmoid(gate)).numpy()) <= 1
