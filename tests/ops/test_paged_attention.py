"""Paged attention: hand-made values, and torch's attention over histories kept as plain lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, CPU_ISAS, run_case, sizes_of
from ninfer.ops.kv_append import oracle as stored
from ninfer.ops.paged_attention import cases, oracle
from ninfer.ops.profiles import ATTENTION
from ninfer.ops.spec import Case, F64Array, Rows, Step

ALL_CASES = list(cases(np.random.default_rng(15)))


def test_hand_made_values() -> None:
    keys = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]])  # three positions, one head
    values = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[9.0, 9.0]]])
    q = np.array([[[2 * math.log(3), 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])  # rows at positions 1 and 2
    got = oracle(q, keys, values, 1, 0.5, quantized=False)
    # Row 0, head 0: weights 3/4 and 1/4, the last position lies ahead. Row 0, head 1: even. Row 1: even over three.
    np.testing.assert_allclose(got, [[0.75, 0.25, 0.5, 0.5], [10 / 3] * 4], rtol=1e-7)


def test_heads_share_kv_heads_in_runs() -> None:
    """Four query heads over two KV heads: heads 0, 1 read the first, heads 2, 3 the second."""
    keys = np.zeros((1, 2, 1))
    values = np.array([[[5.0], [7.0]]])
    np.testing.assert_array_equal(oracle(np.ones((1, 4, 1)), keys, values, 0, 1.0, quantized=False), [[5, 5, 7, 7]])


def torch_attention(case: Case, kv_format: str) -> list[F64Array]:
    """What the case gives after every step, in float64, with keys and values as the cache stores them."""
    shape = sizes_of(case)
    histories: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    results = []
    for step in case.steps:
        q, k, v = (torch.from_numpy(x).double().unflatten(1, (-1, shape["head_dim"])) for x in step.inputs)
        k, v = (torch.from_numpy(stored(x.float().numpy(), kv_format)).double() for x in (k, v))
        outputs, start = [], 0
        for rows in step.rows:
            history = histories.setdefault(rows.sequence, [])
            del history[rows.position :]
            mine = slice(start, start + rows.count)
            history += list(zip(k[mine], v[mine], strict=True))
            keys, values = (torch.stack(x, dim=1) for x in zip(*history, strict=True))
            mask = torch.ones(rows.count, len(history), dtype=torch.bool)
            if shape["causal"]:
                mask = mask.tril(rows.position)
            if shape["window"] is not None:
                mask = mask.triu(rows.position - shape["window"] + 1)
            y = torch.nn.functional.scaled_dot_product_attention(
                q[mine].transpose(0, 1), keys, values, attn_mask=mask, enable_gqa=True
            )
            outputs.append(y.transpose(0, 1).flatten(1))
            start += rows.count
        results.append(torch.cat(outputs).numpy())
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("numerics", "kv_format"), [("f32", "bf16"), ("f32", "int8"), ("a8", "bf16")])
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.label)
def test_torch_agrees_where_queries_stay_float(case: Case, numerics: str, kv_format: str, backend: str) -> None:
    got = run_case(backend, case, numerics=numerics, kv_format=kv_format)
    for a, b in zip(got, torch_attention(case, kv_format), strict=True):
        assert ATTENTION.excess(a, b) <= 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_integer_scores_are_close_but_not_the_same(backend: str) -> None:
    """Under a8 with int8 KV queries are 16-bit codes: an error of up to 1/65024 of a head's largest element."""
    case = next(case for case in ALL_CASES if case.label.startswith("two-sequences"))
    got = run_case(backend, case, numerics="a8", kv_format="int8")
    for a, b in zip(got, torch_attention(case, "int8"), strict=True):
        assert ATTENTION.excess(a, b) > 1
        assert np.abs(a - b).max() < 5e-4 * np.abs(b).max()


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize(("numerics", "kv_format"), [("f32", "bf16"), ("f32", "int8"), ("a8", "int8")])
def test_other_pages_do_not_matter(numerics: str, kv_format: str, isa: str) -> None:
    """More pages in the pool put every sequence elsewhere in memory; the bits stay."""
    for case in ALL_CASES:
        small = run_case(isa, case, numerics=numerics, kv_format=kv_format)
        large = run_case(isa, case, numerics=numerics, kv_format=kv_format, num_pages=40, seed=99)
        for a, b in zip(small, large, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("isa", CPU_ISAS)
@pytest.mark.parametrize(("numerics", "kv_format"), [("f32", "bf16"), ("f32", "int8"), ("a8", "bf16"), ("a8", "int8")])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_a_row_does_not_see_cannot_spoil_it(bad: float, numerics: str, kv_format: str, isa: str) -> None:
    """Key and value of a later token of the same step, and what a rewound history left behind in the same pages."""
    case = next(case for case in ALL_CASES if case.label.startswith("whole-tile"))
    rng = np.random.default_rng(8)
    spoiled = [rng.standard_normal((14, x.shape[1])).astype(np.float32) for x in case.steps[1].inputs]
    for x in spoiled[1:]:
        x[13] = bad
    steps = [case.steps[0], Step([Rows(0, 61, 14)], spoiled), case.steps[1]]
    clean = run_case(isa, case, numerics=numerics, kv_format=kv_format)
    first, middle, last = run_case(isa, Case(case.label, case.record, steps), numerics=numerics, kv_format=kv_format)
    np.testing.assert_array_equal(first, clean[0])
    np.testing.assert_array_equal(last, clean[1])
    assert np.isfinite(middle[:13]).all()
    assert np.isnan(middle[13]).any()
    without = [*spoiled[:1], *(np.where(np.isfinite(x), x, np.float32(0.5)) for x in spoiled[1:])]
    want = run_case(
        isa,
        Case(case.label, case.record, [case.steps[0], Step([Rows(0, 61, 14)], without)]),
        numerics=numerics,
        kv_format=kv_format,
    )[1]
    np.testing.assert_array_equal(middle[:13], want[:13])
