"""Linear: hand-made values, torch, integer arithmetic spelled out, and what each profile may and may not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, CPU_ISAS, StoredWeights, compile_on, run_case, run_step
from ninfer import formats
from ninfer.formats.base import Planes
from ninfer.ops.graph import Graph
from ninfer.ops.linear import cases, linear, oracle
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array, Rows, Step
from ninfer.ops.two_digits import to_codes

PACKED = ("q8g32", "q4g32", "q4g32m")
ALL_CASES = list(cases(np.random.default_rng(6)))


def stored(case: Case, weight_format: str) -> list[F64Array]:
    fmt = formats.get(weight_format)
    return [fmt.unpack(fmt.pack(array)) for array in case.weights.values()]


def test_hand_made_values() -> None:
    x = np.array([[1.0, 2.0], [0.0, -1.0]])
    weights = [np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), np.array([[-1.0, 2.0]])]
    residual = np.array([[100.0, 0, 0, 0], [0, 0, 0, 1000.0]])
    want = [[101, 3, 6, 3], [0, -1, -3, 998]]
    np.testing.assert_array_equal(oracle(x, weights, residual, quantized=[False, False]), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_format", formats.NAMES)
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_torch_agrees_on_exact_products(case: Case, weight_format: str, backend: str) -> None:
    (got,) = run_case(backend, case, weight_format, numerics="f32")
    x, *residual = (torch.from_numpy(a).double() for a in case.steps[0].inputs)
    parts = [torch.nn.functional.linear(x, torch.from_numpy(w)) for w in stored(case, weight_format)]
    want = torch.cat(parts, dim=1) + sum(residual)
    assert PRODUCT.excess(got, want.numpy()) <= 1


def integer_product(x: np.ndarray, planes: Planes, weight_format: str) -> np.ndarray:
    """`x W^T` under a8, group by group from codes, as a kernel would: exact integer sums, then scales and minima."""
    codes, row_scales = to_codes(x)
    offset = 8 if weight_format == "q4g32" else 0
    w = planes.codes.astype(np.int64).reshape(planes.shape[0], -1, 32) - offset
    padded = np.pad(codes.astype(np.int64), [(0, 0), (0, -codes.shape[1] % 32)]).reshape(len(x), -1, 32)
    y = np.zeros((len(x), planes.shape[0]))
    for g in range(padded.shape[1]):
        y += planes.scales[:, g].astype(np.float64) * (padded[:, g] @ w[:, g].T)
        if planes.mins is not None:
            y += np.outer(padded[:, g].sum(axis=1), planes.mins[:, g].astype(np.float64))
    return y * row_scales[:, None].astype(np.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_format", PACKED)
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_quantised_products_are_integer_products(case: Case, weight_format: str, backend: str) -> None:
    (got,) = run_case(backend, case, weight_format, numerics="a8")
    x, *residual = case.steps[0].inputs
    fmt = formats.get(weight_format)
    parts = [integer_product(x, fmt.pack(array), weight_format) for array in case.weights.values()]
    want = np.concatenate(parts, axis=1) + sum(residual)
    assert PRODUCT.excess(got, want) <= 1


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_the_most_negative_codes_meet_the_most_negative_digits(isa: str) -> None:
    """GGUF files may hold the q8g32 code -128, and low digits reach -128: neither has a byte that is its negative."""
    rng = np.random.default_rng(8)
    codes = rng.choice(np.array([-128, 127], np.int8), (35, 64))
    x = rng.choice(np.array([-128.0, -32640 + 128, 32512.0, 127.0], np.float32), (19, 64))
    x[:, 0] = 32512  # makes the scale of every row 1, so that values are their own codes
    planes = Planes((35, 64), codes, np.ones((35, 2), np.float16))
    graph = Graph()
    value = linear(graph, graph.new_input(64), [("w", 35)])
    weights = StoredWeights({}, "q8g32")
    weights.add("w", planes)
    step = Step([Rows(0, 0, 19)], [x])
    executable = compile_on(isa, graph, weights, num_pages=1, max_rows=19, max_logit_rows=1)
    got = run_step(executable, graph, value, step, {0: np.zeros(1, np.int32)})
    executable.close()
    assert PRODUCT.excess(got, x.astype(np.float64) @ codes.T.astype(np.float64)) <= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weight_format", formats.NAMES)
def test_only_packed_weights_meet_quantised_inputs(weight_format: str, backend: str) -> None:
    case = ALL_CASES[1]
    exact, a8 = (run_case(backend, case, weight_format, numerics=numerics)[0] for numerics in ("f32", "a8"))
    if weight_format in PACKED:
        assert PRODUCT.excess(a8, exact) > 2
    else:
        np.testing.assert_array_equal(a8, exact)


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize("numerics", ["f32", "a8"])
@pytest.mark.parametrize("weight_format", formats.NAMES)
def test_a_row_does_not_depend_on_the_others(weight_format: str, numerics: str, isa: str) -> None:
    """The same row alone, and at every place of a step of any size: bit for bit."""
    for case in ALL_CASES[2:5]:
        (whole,) = run_case(isa, case, weight_format, numerics=numerics)
        inputs = case.steps[0].inputs
        for rows in range(1, len(whole)):
            last = Step([Rows(0, 0, rows)], [x[-rows:] for x in inputs])
            (got,) = run_case(isa, replace(case, steps=[last]), weight_format, numerics=numerics)
            np.testing.assert_array_equal(got, whole[-rows:])
