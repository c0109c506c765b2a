"""Causal convolution: the order of taps, what is seen across steps and sequences, and torch's convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from make.state_runs import whole_histories
from ninfer.ops.causal_conv import cases, oracle, window_after
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_an_impulse_gives_the_taps_from_last_to_first() -> None:
    u, w = np.zeros((5, 1)), np.array([1.0, 2.0, 3.0, 4.0])
    u[0] = 1
    np.testing.assert_allclose(oracle(u, np.zeros((3, 1)), w), silu(np.array([[4.0], [3], [2], [1], [0]])))


def test_channels_are_apart_and_the_window_is_seen_first() -> None:
    window, u = np.array([[1.0, 10], [2, 20]]), np.array([[3.0, 30]])  # three taps, two channels
    w = np.array([0.5, 0, 0.25, 0, 0, 1])  # tap by tap: channel 0 has taps .5, .25, 0, channel 1 has 0, 0, 1
    np.testing.assert_allclose(oracle(u, window, w), silu(np.array([[1.0, 30]])))
    np.testing.assert_array_equal(window_after(window, u), [[2, 20], [3, 30]])
    np.testing.assert_array_equal(window_after(window, u[:0]), window)
    np.testing.assert_array_equal(window_after(window, np.repeat(u, 4, axis=0)), [[3, 30], [3, 30]])


def torch_outputs(case: Case) -> list[F64Array]:
    """What the case gives after every step: the convolution of whole histories, of which the last rows are wanted."""
    results = []
    for sequences in whole_histories(case.steps):
        parts = []
        for before, (u,) in sequences:
            w = torch.from_numpy(case.weights["w"]).double().unflatten(0, (-1, u.shape[1]))
            x = torch.nn.functional.pad(torch.from_numpy(u).double().T[None], (len(w) - 1, 0))
            c = torch.nn.functional.conv1d(x, w.T[:, None], groups=u.shape[1])[0].T
            parts.append(torch.nn.functional.silu(c)[before:])
        results.append(torch.cat(parts).numpy())
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", list(cases(np.random.default_rng(16))), ids=lambda case: case.label)
def test_torch_agrees(case: Case, backend: str) -> None:
    for got, want in zip(run_case(backend, case), torch_outputs(case), strict=True):
        assert PRODUCT.excess(got, want) <= 1
