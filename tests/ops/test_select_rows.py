"""Select rows: any list of rows, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from make.op_runs import BACKENDS, run_case
from ninfer.ops.select_rows import cases, oracle


def test_hand_made_values() -> None:
    x = np.array([[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(oracle(x, np.array([2, 0, 2], np.int32)), [[3], [1], [3]])
    assert oracle(x, np.array([], np.int32)).shape == (0, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_copied(backend: str) -> None:
    for case in cases(np.random.default_rng(12)):
        (got,) = run_case(backend, case)
        step = case.steps[0]
        np.testing.assert_array_equal(got, step.inputs[0][list(step.logit_rows)])
