"""Op cases count what an op must move and compute; every op has one; shares follow from the run's own ceilings."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from ninfer import formats
from ninfer.backends.cpu import available_isas
from ninfer.bench import ceilings, op_cases, ops, rendering
from ninfer.bench.machine import Machine
from ninfer.bench.measurements import Measurement, Run, Work
from ninfer.errors import ConfigError, UnsupportedError
from ninfer.ops import SPECS

MACHINE = Machine("Chip 9", "x86_64", 2, 3 << 30, "6.1", "madvise", (), ())


def test_every_op_has_a_case() -> None:
    cases = op_cases.cases(rows=[2], depths=[5], weight_formats=["q8g32"], numerics="a8")
    assert {case.op for case in cases} == set(SPECS)


def test_a_product_counts_weights_rows_and_multiply_adds() -> None:
    case = op_cases.product("x", 48, 64, 3, "q4g32m", exact=False)
    assert formats.get("q4g32m").nbytes((48, 64)) == 48 * 2 * 20  # two groups of 16 code bytes, a scale and a minimum
    assert case.num_bytes == 48 * 2 * 20 + 4 * 3 * (48 + 64)
    assert case.num_ops == 2 * 3 * 48 * 64
    assert not case.exact
    assert op_cases.product("x", 48, 64, 3, "bf16", exact=False).exact


def test_copies_of_a_product_fill_more_than_a_private_cache() -> None:
    n, k = op_cases.PRODUCTS["o"]
    case = op_cases.product("o", n, k, 1, "q4g32m", exact=False)
    assert case.copies * formats.get("q4g32m").nbytes((n, k)) >= op_cases.WEIGHT_BYTES
    assert len(case.matrices) == case.copies


def test_attention_counts_every_visible_pair_twice_over() -> None:
    case = op_cases.attention(2, 10)
    # Rows see 11 and 12 tokens; per pair and head one dot product and one weighted sum of 64.
    assert case.num_ops == (11 + 12) * 9 * 64 * 2 * 2


@pytest.mark.parametrize("isa", available_isas())
def test_light_ops_and_attention_run_and_are_recorded(isa: str) -> None:
    run = ops.measure(
        threads=1, rows=(1, 3), depths=(70,), isa=isa, ops=("rms_norm", "kv_append", "paged_attention", "select_rows")
    )
    taken = [m for m in run.measurements if m.name == ops.OP]
    assert len(taken) == 2 * 4
    assert all(len(m.values) == ops.REPEATS and len(m.warmups) == ops.WARMUPS for m in taken)
    attention = run.find(ops.OP, op="paged_attention", rows=3)
    assert attention is not None
    # int8 KV: 64 codes and one float16 scale for each of 3 heads, keys and values, 73 tokens; rows in and out.
    assert attention.number("num_bytes") == 73 * 2 * 3 * (64 + 2) + 4 * 3 * 2 * 576
    json.dumps(run.to_json())
    shares = ops.shares(run)
    assert all(share.memory_share is not None and share.memory_share > 0 for share in shares)
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(rendering.ops_tables(run))
    assert "paged_attention" in console.export_text()


def test_shares_are_rates_over_the_ceilings_of_the_same_run() -> None:
    case = {"op": "linear", "shape": "s", "rows": 1, "num_bytes": 1000.0, "num_ops": 800.0, "working_bytes": 1000.0}
    read = {"buffer_bytes": ceilings.MIB, "threads": 1}
    run = Run(
        "ops",
        MACHINE,
        {},
        (
            Measurement(ops.OP, "s", (0.5,), inputs={**case, "exact": False}, work=Work(1000, "byte")),
            Measurement(ops.OP, "s", (0.5,), inputs={**case, "exact": True, "num_ops": 0.0}, work=Work(1000, "byte")),
            Measurement(ceilings.MEMORY_READ, "s", (1.0,), inputs=read, work=Work(4000, "byte")),
            Measurement(ceilings.PEAK, "s", (1.0,), inputs={"loop": "int8_avx2_maddubs"}, work=Work(3200, "operation")),
        ),
        conditions={"threads": 1, "isa": "avx2"},
    )
    product, light = ops.shares(run)
    assert (product.bytes_per_s, product.ops_per_s) == (2000, 1600)
    assert (product.memory_share, product.arithmetic_share) == (0.5, 0.5)
    assert (light.ops_per_s, light.arithmetic_share) == (None, None)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="no op is called fft"):
        ops.measure(threads=1, ops=("fft",))
    with pytest.raises(ConfigError, match="weight format q3"):
        ops.measure(threads=1, weight_formats=("q3",))
    with pytest.raises(UnsupportedError, match="sse9"):
        ops.measure(threads=1, rows=(1,), isa="sse9", ops=("rms_norm",))
