"""Dynamic convolution: hand-made values, torch's convolution channel by channel, blocks that do not see each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case
from ninfer.ops.dynamic_conv import cases, oracle
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array, Step


def test_hand_made_values() -> None:
    z = np.array([[1.0, 10, 100, 1000], [2, 20, 200, 2000]])
    d = np.array([[[1.0, 2], [9, 9]], [[3, 4], [5, 6]]])  # two rows, two taps, two groups of two channels
    w = np.array([[0.5, 0, 0, 0], [0, 0, 0, 0.5]])
    want = [[1.5, 10, 200, 2000], [3.5 * 2 + 5, 3 * 20 + 50, 4 * 200 + 600, 4 * 2000 + 6500]]
    np.testing.assert_allclose(oracle(z, d, w, None), want)
    np.testing.assert_allclose(oracle(z, d, w, np.ones((2, 4))), np.array(want) + 1)


def torch_outputs(case: Case) -> list[F64Array]:
    """Every output by torch's convolution of one channel with the taps of one row."""
    shape = case.record.keywords  # type: ignore[attr-defined]
    channels, groups, taps, first = (shape[name] for name in ("channels", "groups", "taps", "first"))
    w = torch.from_numpy(case.weights["w"]).double()[first : first + taps * channels].view(taps, channels)
    results = []
    for step in case.steps:
        z, d, *residual = (torch.from_numpy(x).double() for x in step.inputs)
        y, start = torch.zeros_like(z), 0
        for rows in step.rows:
            block = torch.nn.functional.pad(z[start : start + rows.count].T, (taps - 1, 0))  # [C, taps - 1 + count]
            for t in range(rows.count):
                own = d[start + t].view(taps, groups).repeat_interleave(channels // groups, dim=1)
                kernel = (w + own).flip(0).T[:, None]  # torch has the tap of the row itself last
                seen = block[None, :, t : t + taps]
                y[start + t] = torch.nn.functional.conv1d(seen, kernel, groups=channels)[0, :, 0]
            start += rows.count
        results.append((y + residual[0] if residual else y).numpy())
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", list(cases(np.random.default_rng(4))), ids=lambda case: case.label)
def test_torch_agrees(case: Case, backend: str) -> None:
    for got, want in zip(run_case(backend, case), torch_outputs(case), strict=True):
        assert PRODUCT.excess(got, want) <= 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_alone_gives_the_same_bits(backend: str, threads: int) -> None:
    case = next(case for case in cases(np.random.default_rng(5)) if case.label.startswith("C40"))
    (step,) = case.steps
    together = run_case(backend, case, threads=threads)[0]
    start = 0
    for rows in step.rows:
        mine = slice(start, start + rows.count)
        alone = replace(case, steps=[Step([rows], [x[mine] for x in step.inputs])])
        np.testing.assert_array_equal(run_case(backend, alone)[0], together[mine])
        start += rows.count
