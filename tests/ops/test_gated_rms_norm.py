"""Gated RMS norm: hand-made values, the order of norm and gate, and transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.gated_rms_norm import cases, oracle
from ninfer.ops.profiles import ROW_REDUCTION


def test_hand_made_values() -> None:
    x, z = np.array([[3.0, -4.0, 1.0, 1.0]]), np.array([[1.0, 0.0, -1.0, 900.0]])  # two heads of 2
    root = 13**0.5  # mean square 12.5, eps 0.5
    sigmoid = 1 / (1 + math.exp(-1))
    one = 1 / 1.5**0.5
    want = [[3 / root * 2 * sigmoid, 0, one * 2 * -(1 - sigmoid), one * 10 * 900]]
    np.testing.assert_allclose(oracle(x, z, np.array([2.0, 10.0]), 0.5), want, rtol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformers_agrees(backend: str) -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    for case in cases(np.random.default_rng(3)):
        (got,) = run_case(backend, case)
        w = torch.from_numpy(case.weights["w"])
        x, z = (torch.from_numpy(a).unflatten(1, (-1, len(w))) for a in case.steps[0].inputs)
        norm = Qwen3_5RMSNormGated(len(w), eps=1e-6)
        norm.weight.data = w
        want = norm(x, z).detach().flatten(1).numpy()  # float32 inside
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees_in_float64(backend: str) -> None:
    for case in cases(np.random.default_rng(4)):
        (got,) = run_case(backend, case)
        w = torch.from_numpy(case.weights["w"]).double()
        x, z = (torch.from_numpy(a).double().unflatten(1, (-1, len(w))) for a in case.steps[0].inputs)
        want = torch.nn.functional.rms_norm(x, (len(w),), w, 1e-6) * torch.nn.functional.silu(z)
        assert ROW_REDUCTION.excess(got, want.flatten(1).numpy()) <= 1
