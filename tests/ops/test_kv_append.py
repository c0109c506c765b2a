"""KV append: what was written to a position is what attention to that position alone gives back."""

from __future__ import annotations

import numpy as np
import pytest

from make.op_runs import BACKENDS, batch_of, compile_on, pages_of, run_case, sizes_of
from ninfer.formats import kv_bf16, kv_int8
from ninfer.ops.graph import Graph, KVShape
from ninfer.ops.kv_append import cases, kv_append, oracle
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.profiles import ATTENTION_CODES, EXACT
from ninfer.ops.spec import Case, F32Array, Rows, Step

ALL_CASES = list(cases(np.random.default_rng(13)))


def test_hand_made_values() -> None:
    x = np.array([[127.0, -63.5, 0.4, 1.0]], np.float32)
    np.testing.assert_array_equal(oracle(x, kv_int8.NAME), [[127, -64, 0, 1]])
    x = np.array([[1.0, 1.00390625, -3.0]], np.float32)  # the middle one lies between two bf16 numbers: tie to even
    np.testing.assert_array_equal(oracle(x, kv_bf16.NAME), [[1, 1, -3]])


def expected(case: Case, kv_format: str) -> list[F32Array]:
    """Every head's stored value at the position whose binary digits its query spells, from plain dictionaries."""
    keywords = sizes_of(case)
    shape = (-1, keywords["heads"], keywords["head_dim"])
    values: dict[tuple[int, int], F32Array] = {}
    results = []
    for step in case.steps:
        q, _, v = (x.reshape(shape) for x in step.inputs)
        owners = [(r.sequence, r.position + i) for r in step.rows for i in range(r.count)]
        values |= dict(zip(owners, oracle(v, kv_format), strict=True))
        rows = []
        for (sequence, _), row in zip(owners, q, strict=True):
            targets = ((row[:, :12] > 0) << np.arange(12)).sum(axis=1)
            rows.append([values[sequence, int(target)][head] for head, target in enumerate(targets)])
        results.append(np.array(rows, np.float32).reshape(len(owners), -1))
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numerics", ["f32", "a8"])
@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_every_position_gives_back_what_was_stored(case: Case, kv_format: str, numerics: str, backend: str) -> None:
    got = run_case(backend, case, numerics=numerics, kv_format=kv_format)
    profile = ATTENTION_CODES if (numerics, kv_format) == ("a8", "int8") else EXACT  # there the weight of one is a code
    for a, b in zip(got, expected(case, kv_format), strict=True):
        assert profile.excess(a, b.astype(np.float64)) <= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_layers_do_not_touch_each_other(kv_format: str, backend: str) -> None:
    """Two layers of different shapes; one position each, so attention gives the stored value itself."""
    g = Graph()
    outputs, inputs = [], []
    for shape in (KVShape(2, 20), KVShape(3, 8)):
        layer = g.new_kv_layer(shape)
        x = g.new_input(shape.num_kv_heads * shape.head_dim)
        kv_append(g, layer, x, x)
        inputs.append((x, shape))
    for layer, (x, shape) in enumerate(inputs):
        outputs.append(paged_attention(g, layer, x, shape.num_kv_heads, shape.num_kv_heads, shape.head_dim, 1.0))
    executable = compile_on(backend, g, weights={}, num_pages=2, max_rows=2, numerics="f32", kv_format=kv_format)
    rng = np.random.default_rng(14)
    stored = [rng.standard_normal((2, x.width)).astype(np.float32) for x, _ in inputs]
    for (x, _), array in zip(inputs, stored, strict=True):
        executable.set_input(x, array)
    step = Step([Rows(0, 0, 1), Rows(1, 0, 1)], [])
    executable.forward(batch_of(step, pages_of(Case("", lambda g: outputs[0], [step]))))
    for value, array, (_, shape) in zip(outputs, stored, inputs, strict=True):
        want = oracle(array.reshape(2, shape.num_kv_heads, shape.head_dim), kv_format).reshape(2, -1)
        np.testing.assert_array_equal(executable.read_value(value), want)
    executable.close()
