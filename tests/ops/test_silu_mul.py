"""Gated activation: hand-made values, far ends, and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.silu_mul import cases, oracle


def test_hand_made_values() -> None:
    got = oracle(np.array([[0.0, 1.0, -2.0, 7.0, 10.0, 3.0]]))  # gates 0, 1, -2; ups 7, 10, 3
    want = [[0, 10 / (1 + math.exp(-1)), -6 / (1 + math.exp(2))]]
    np.testing.assert_allclose(got, want, rtol=1e-15)


def test_far_ends_are_the_gate_and_zero() -> None:
    np.testing.assert_array_equal(oracle(np.array([[800.0, -800.0, 2.0, 2.0]])), [[1600, 0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend: str) -> None:
    for case in cases(np.random.default_rng(11)):
        (got,) = run_case(backend, case)
        gate, up = torch.from_numpy(case.steps[0].inputs[0]).double().chunk(2, dim=1)
        want = (torch.nn.functional.silu(gate) * up).numpy()
        assert ELEMENTWISE.excess(got, want) <= 1
