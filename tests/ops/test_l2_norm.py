"""L2 norm: hand-made values, its laws, and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case, sizes_of
from ninfer.ops.l2_norm import cases, oracle
from ninfer.ops.profiles import ROW_REDUCTION


def test_hand_made_values() -> None:
    x = np.array([[3.0, -4.0, 0.0, 0.0], [0.0, 2.0, 6.0, 8.0]])  # two heads of 2
    got = oracle(x, 2, 10.0, 0.0625)
    first, second, third = 25.0625**0.5, 4.0625**0.5, 100.0625**0.5
    np.testing.assert_allclose(got, [[30 / first, -40 / first, 0, 0], [0, 20 / second, 60 / third, 80 / third]])


def test_lengths_are_the_scale() -> None:
    x = np.random.default_rng(2).standard_normal((4, 33))
    lengths = np.linalg.norm(oracle(x, 3, 0.25, 1e-30).reshape(4, 3, 11), axis=-1)
    np.testing.assert_allclose(lengths, 0.25, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformers_agrees(backend: str) -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import l2norm

    for case in cases(np.random.default_rng(3)):
        (got,) = run_case(backend, case)
        shape = sizes_of(case)
        x = torch.from_numpy(case.steps[0].inputs[0]).double().unflatten(1, (shape["heads"], -1))
        want = (l2norm(x) * shape["scale"]).flatten(1).numpy()
        assert ROW_REDUCTION.excess(got, want) <= 1
