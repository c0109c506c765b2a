"""Linear: hand-made values, torch, integer arithmetic spelled out, and what each profile may and may not do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from make.op_runs import (
    BACKEND_FORMATS,
    BACKENDS,
    CPU_ISAS,
    NATIVE_FORMATS,
    StoredWeights,
    aligned,
    compile_on,
    formats_on,
    numerics_on,
    run_case,
    run_step,
)
from ninfer import formats
from ninfer.backends.base import Matrix
from ninfer.backends.cpu import _native
from ninfer.backends.cpu.executable import WEIGHT_FORMATS
from ninfer.errors import UnsupportedError
from ninfer.formats import TensorScale
from ninfer.formats.base import Planes
from ninfer.formats.layouts import to_n16
from ninfer.ops import nvfp4_rows
from ninfer.ops.graph import Graph
from ninfer.ops.linear import cases, exact, linear, oracle
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F32Array, F64Array, Rows, Step
from ninfer.ops.two_digits import to_codes

FLOAT = ("f32", "bf16", "fp8")
PACKED = tuple(name for name in formats.NAMES if name not in FLOAT)
PACKED_RUNS = tuple(run for run in BACKEND_FORMATS if run[1] in PACKED)
ALL_CASES = list(cases(np.random.default_rng(6)))


def stored(case: Case, weight_format: str) -> list[F64Array]:
    fmt = formats.get(weight_format)
    return [fmt.unpack(fmt.pack(array)) for array in case.weights.values()]


def test_hand_made_values() -> None:
    x = np.array([[1.0, 2.0], [0.0, -1.0]])
    weights = [np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), np.array([[-1.0, 2.0]])]
    residual = np.array([[100.0, 0, 0, 0], [0, 0, 0, 1000.0]])
    want = [[101, 3, 6, 3], [0, -1, -3, 998]]
    np.testing.assert_array_equal(oracle(x, weights, residual, codecs=[exact, exact]), want)


@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
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
    w, scales, factor = integers_of(planes, weight_format)
    padded = np.pad(codes.astype(np.int64), [(0, 0), (0, planes.codes.shape[1] - codes.shape[1])])
    padded = padded.reshape(len(x), *w.shape[1:])
    y = np.zeros((len(x), planes.shape[0]))
    for g in range(padded.shape[1]):
        y += scales[:, g] * (padded[:, g] @ w[:, g].T)
        if planes.mins is not None:
            y += np.outer(padded[:, g].sum(axis=1), planes.mins[:, g].astype(np.float64))
    return y * row_scales[:, None].astype(np.float64) * factor


def integers_of(planes: Planes, weight_format: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Integer weights `[N, G, group]`, group scales `[N, G]` and what multiplies their products."""
    group = formats.get(weight_format).group
    codes = planes.codes.astype(np.int64).reshape(planes.shape[0], -1, group)
    if weight_format == "nvfp4":
        doubled = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
        return doubled[codes], planes.scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64), planes.tensor.factor / 2
    offset = {"q4g32": 8, "q4g64": 8, "q5g64": 16, "q6g64": 32}.get(weight_format, 0)
    return codes - offset, planes.scales.astype(np.float64), 1.0


@pytest.mark.parametrize("backend", [b for b in BACKENDS if "w4a4" in numerics_on(b)])
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_w4a4_products_are_integer_products_of_two_nvfp4_matrices(case: Case, backend: str) -> None:
    x, *residual = case.steps[0].inputs
    ga = float(np.float32(2688 / (0.7 * np.abs(x).max())))  # the largest values are cut
    (got,) = run_case(backend, case, "nvfp4", numerics="w4a4", input_scale=ga)
    qx, sx = nvfp4_rows.to_codes(x, ga)
    parts = []
    for array in case.weights.values():
        planes = formats.get("nvfp4").pack(array)
        w, scales, factor = integers_of(planes, "nvfp4")
        inputs = integers_of(replace(planes, shape=x.shape, codes=qx, scales=sx), "nvfp4")[:2]
        y = np.zeros((len(x), len(array)))
        for g in range(qx.shape[1]):
            y += np.outer(inputs[1][:, g], scales[:, g]) * (inputs[0][:, g] @ w[:, g].T)
        parts.append(y * factor / 2 / ga)
    assert PRODUCT.excess(got, np.concatenate(parts, axis=1) + sum(residual)) <= 1


def one_product(weight_format: str) -> tuple[Graph, StoredWeights]:
    """A graph with one product, and its weight."""
    graph = Graph()
    linear(graph, graph.new_input(64), [("w", 16)])
    return graph, StoredWeights({"w": np.ones((16, 64), np.float32)}, weight_format)


@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
def test_w4a4_is_a8_for_all_but_nvfp4_weights_with_an_input_scale(weight_format: str, backend: str) -> None:
    if "w4a4" not in numerics_on(backend):
        with pytest.raises(UnsupportedError, match="numerics 'w4a4'"):
            compile_on(backend, *one_product(weight_format), numerics="w4a4")
        return
    a8, w4a4 = (run_case(backend, ALL_CASES[1], weight_format, numerics=numerics)[0] for numerics in ("a8", "w4a4"))
    np.testing.assert_array_equal(a8, w4a4)
    (scaled,) = run_case(backend, ALL_CASES[1], weight_format, numerics="w4a4", input_scale=10.0)
    assert (scaled == a8).all() == (weight_format != "nvfp4")


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize("weight_format", formats.NAMES)
def test_formats_without_a_kernel_are_refused_by_name(weight_format: str, isa: str) -> None:
    if weight_format in formats_on(isa):
        compile_on(isa, *one_product(weight_format)).close()
    else:
        with pytest.raises(UnsupportedError, match=f"weight w has format '{weight_format}'"):
            compile_on(isa, *one_product(weight_format))


@pytest.mark.parametrize(("backend", "weight_format"), PACKED_RUNS)
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_quantised_products_are_integer_products(case: Case, weight_format: str, backend: str) -> None:
    (got,) = run_case(backend, case, weight_format, numerics="a8")
    x, *residual = case.steps[0].inputs
    fmt = formats.get(weight_format)
    parts = [integer_product(x, fmt.pack(array), weight_format) for array in case.weights.values()]
    want = np.concatenate(parts, axis=1) + sum(residual)
    assert PRODUCT.excess(got, want) <= 1


def extreme_planes(weight_format: str, rng: np.random.Generator) -> Planes:
    """A matrix [35, 64] of the largest and smallest codes, all scales 1 or a half. GGUF files may hold the q8g32 code
    -128."""
    fmt = formats.get(weight_format)
    largest = (1 << fmt.code_bits) - 1
    ends = {"q8g32": [-128, 127], "nvfp4": [7, 15]}.get(weight_format, [0, largest])
    planes = fmt.pack(np.ones((35, 64), np.float32))
    codes = rng.choice(np.array(ends, fmt.codes_dtype), (35, 64))
    if weight_format == "nvfp4":
        return replace(planes, codes=codes, scales=np.full_like(planes.scales, 0x30), tensor=TensorScale(1.0))
    mins = None if planes.mins is None else np.full_like(planes.mins, -8)
    return replace(planes, codes=codes, scales=np.ones_like(planes.scales), mins=mins)


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize("weight_format", PACKED)
def test_the_most_extreme_codes_meet_the_most_extreme_digits(weight_format: str, isa: str) -> None:
    """Low digits reach -128, whose negative is no byte; sums of products of bytes may leave 16 bits."""
    rng = np.random.default_rng(8)
    x = rng.choice(np.array([-128.0, -32640 + 128, 32512.0, 127.0], np.float32), (19, 64))
    x[:4] = np.array([[32512], [-32512], [-128], [127]])  # one digit in all columns
    x[:, 0] = 32512  # makes the scale of every row 1, so that values are their own codes
    planes = extreme_planes(weight_format, rng)
    graph = Graph()
    value = linear(graph, graph.new_input(64), [("w", 35)])
    weights = StoredWeights({}, weight_format)
    weights.add("w", planes)
    step = Step([Rows(0, 0, 19)], [x])
    executable = compile_on(isa, graph, weights, num_pages=1, max_rows=19, max_logit_rows=1)
    got = run_step(executable, graph, value, step, {0: np.zeros(1, np.int32)})
    executable.close()
    want = x.astype(np.float64) @ formats.get(weight_format).unpack(planes).T
    # All of a sum's products have one magnitude: what is left of the sum may be smaller than the roundings on the way.
    scale = np.abs(x).astype(np.float64) @ np.abs(formats.get(weight_format).unpack(planes)).T
    assert (np.abs(got - want) <= 4e-7 * scale).all()


def with_nan(planes: Planes) -> Planes:
    """Scales that are NaN in some rows; of E4M3 both kinds."""
    assert planes.scales is not None
    scales = planes.scales.copy()
    if scales.dtype == np.float32:
        scales[[0, 7, 16, 34]] = np.nan
    else:
        scales[0, 6], scales[7, 0], scales[16, 1], scales[34, 6] = 0x7F, 0xFF, 0xFF, 0x7F
    return replace(planes, scales=scales)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numerics", numerics_on(CPU_ISAS[-1]))
@pytest.mark.parametrize("weight_format", ["fp8", "nvfp4"])
def test_a_scale_that_is_nan_is_never_lost(weight_format: str, numerics: str, backend: str) -> None:
    rng = np.random.default_rng(10)
    good = formats.get(weight_format).pack(rng.standard_normal((77, 99)).astype(np.float32))
    if good.tensor is not None:
        good = replace(good, tensor=replace(good.tensor, input_scale=100.0))
    graph = Graph()
    value = linear(graph, graph.new_input(99), [("w", 77)])
    for rows in (1, 3, 31):
        x = rng.standard_normal((rows, 99)).astype(np.float32)
        x[0] = 0  # nothing hides NaN
        results = []
        for planes in (good, with_nan(good)):
            weights = StoredWeights({}, weight_format)
            weights.add("w", planes)
            executable = compile_on(
                backend, graph, weights, numerics=numerics, num_pages=1, max_rows=rows, max_logit_rows=1
            )
            results.append(
                run_step(executable, graph, value, Step([Rows(0, 0, rows)], [x]), {0: np.zeros(1, np.int32)})
            )
            executable.close()
        want = results[0].copy()
        want[:, [0, 7, 16, 34]] = np.nan
        np.testing.assert_array_equal(results[1], want)


class WeightsOfFormats:
    """Each of several `StoredWeights` by a name of its own."""

    def __init__(self, weights: Mapping[str, StoredWeights]) -> None:
        self._weights = weights

    def matrix(self, name: str) -> Matrix:
        return self._weights[name].matrix("w")

    def vector(self, name: str) -> F32Array:
        raise KeyError(name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [3, 31])
def test_weights_of_all_formats_side_by_side_are_as_if_alone(rows: int, backend: str) -> None:
    rng = np.random.default_rng(12)
    x = rng.standard_normal((rows, 77)).astype(np.float32)
    stored = {name: StoredWeights({"w": weight(rng)}, name, 500.0) for name in formats_on(backend)}
    stored["other input scale"] = StoredWeights({"w": weight(rng)}, "nvfp4", 300.0)
    stored["no input scale"] = StoredWeights({"w": weight(rng)}, "nvfp4")

    def product(names: Sequence[str]) -> F32Array:
        graph = Graph()
        value = linear(graph, graph.new_input(77), [(name, 18) for name in names])
        options = {"numerics": "w4a4", "num_pages": 1, "max_rows": rows, "max_logit_rows": 1, "threads": 2}
        if backend == "reference":
            del options["threads"]
        executable = compile_on(backend, graph, WeightsOfFormats(stored), **options)
        try:
            return run_step(executable, graph, value, Step([Rows(0, 0, rows)], [x]), {0: np.zeros(1, np.int32)})
        finally:
            executable.close()

    together = product(list(stored))
    np.testing.assert_array_equal(together, np.concatenate([product([name]) for name in stored], axis=1))


def weight(rng: np.random.Generator) -> F32Array:
    return rng.standard_normal((18, 77)).astype(np.float32)


@pytest.mark.parametrize("weight_format", formats_on(CPU_ISAS[-1]))
@pytest.mark.parametrize("numerics", numerics_on(CPU_ISAS[-1]))
def test_instruction_sets_give_the_same_bits(numerics: str, weight_format: str) -> None:
    for case in ALL_CASES:
        results = [run_case(isa, case, weight_format, numerics=numerics, input_scale=500.0)[0] for isa in CPU_ISAS]
        for isa, got in zip(CPU_ISAS[1:], results[1:], strict=True):
            np.testing.assert_array_equal(got, results[0], err_msg=f"{isa} and {CPU_ISAS[0]}")


@pytest.mark.parametrize("weight_format", formats_on(CPU_ISAS[-1]))
def test_matrices_of_another_size_are_refused(weight_format: str) -> None:
    program = _native.Program(1, CPU_ISAS[-1], 0, 1, 1)
    data = aligned(to_n16(formats.get(weight_format).pack(np.ones((20, 77), np.float32)), weight_format))
    number = WEIGHT_FORMATS[weight_format]
    program.add_weight(data, number, 20, 77)
    for wrong in (data[:-1], data[:-64], np.concatenate([data, data[:64]])):
        with pytest.raises(ValueError, match=f"a weight of {wrong.size} bytes; its format and shape take {data.size}"):
            program.add_weight(wrong, number, 20, 77)


@pytest.mark.parametrize(("backend", "weight_format"), BACKEND_FORMATS)
def test_only_packed_weights_meet_quantised_inputs(weight_format: str, backend: str) -> None:
    case = ALL_CASES[1]
    exact, a8 = (run_case(backend, case, weight_format, numerics=numerics)[0] for numerics in ("f32", "a8"))
    if weight_format in PACKED:
        assert PRODUCT.excess(a8, exact) > 2
    else:
        np.testing.assert_array_equal(a8, exact)


@pytest.mark.parametrize(("isa", "weight_format"), NATIVE_FORMATS)
@pytest.mark.parametrize("numerics", numerics_on(CPU_ISAS[-1]))
def test_a_row_does_not_depend_on_the_others(weight_format: str, numerics: str, isa: str) -> None:
    """The same row alone, and at every place of a step of any size: bit for bit."""
    for case in ALL_CASES[2:5]:
        (whole,) = run_case(isa, case, weight_format, numerics=numerics)
        inputs = case.steps[0].inputs
        for rows in range(1, len(whole)):
            last = Step([Rows(0, 0, rows)], [x[-rows:] for x in inputs])
            (got,) = run_case(isa, replace(case, steps=[last]), weight_format, numerics=numerics)
            np.testing.assert_array_equal(got, whole[-rows:])
