"""Embedding: whole rows, in the order of the ids, at their stored values."""

from __future__ import annotations

import numpy as np
import pytest

from make.op_runs import BACKEND_FORMATS, BACKENDS, StoredWeights, compile_on, run_case, run_step
from ninfer import formats
from ninfer.ops.embedding import cases, embedding, oracle
from ninfer.ops.graph import Graph
from ninfer.ops.spec import Rows, Step


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_format", ["fp8", "nvfp4"])
def test_nan_in_a_row_is_never_lost(weight_format: str, backend: str) -> None:
    planes = formats.get(weight_format).pack(np.ones((3, 32), np.float32))
    plane = planes.codes if weight_format == "fp8" else planes.scales
    assert plane is not None
    plane[1, 0], plane[2, 1] = 0x7F, 0xFF
    graph = Graph()
    value = embedding(graph, "table", 32)
    weights = StoredWeights({}, weight_format)
    weights.add("table", planes)
    executable = compile_on(backend, graph, weights, num_pages=1, max_rows=3, max_logit_rows=1)
    got = run_step(executable, graph, value, Step([Rows(0, 0, 3)], [], np.arange(3)), {0: np.zeros(1, np.int32)})
    executable.close()
    assert np.isnan(got).tolist() == np.isnan(formats.get(weight_format).unpack(planes)).tolist()
    assert np.isnan(got).sum(axis=1).tolist() == ([0, 1, 1] if weight_format == "fp8" else [0, 16, 16])
