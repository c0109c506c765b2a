"""Embedding: whole rows, in the order of the ids, at their stored values."""

from __future__ import annotations

import numpy as np
import pytest

from make.op_runs import BACKEND_FORMATS, run_case
from ninfer import formats
from ninfer.ops.embedding import cases, oracle


def test_rows_are_picked_by_id() -> None:
    table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_array_equal(oracle(np.array([2, 0, 2], np.int32), table), [[5, 6], [1, 2], [5, 6]])


@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
def test_values_are_those_of_the_format(weight_format: str, backend: str) -> None:
    """Decoded by the format's own `unpack`, through the n16 layout, rounded once."""
    fmt = formats.get(weight_format)
    for case in cases(np.random.default_rng(1)):
        (got,) = run_case(backend, case, weight_format)
        table = fmt.unpack(fmt.pack(case.weights["table"])).astype(np.float32)
        np.testing.assert_array_equal(got, table[case.steps[0].token_ids])
