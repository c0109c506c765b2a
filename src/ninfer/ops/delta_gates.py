"""Gates of the delta rule: how much of the state stays, and how strongly a row writes.

    y[:, :Hv] = exp(-decay * softplus(a + dt_bias))     the factor that the state keeps, in 0 .. 1
    y[:, Hv:] = 1 / (1 + e^-b)                          the strength of the correction, in 0 .. 1

`softplus(x)` is x for x > 20, else `log(1 + e^x)`; `decay` is positive (`exp(A_log)` in the terms of the checkpoints).
Source: Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def delta_gates(g: Graph, a: Value, b: Value, decay_name: str, dt_bias_name: str) -> Value:
    """Record the gates from `a` and `b` `[T, Hv]` and two vectors `[Hv]`; returns `[T, 2 Hv]`, factors first."""
    if (a.width, a.rows) != (b.width, b.rows):
        raise InvariantError(f"delta_gates of {a} and {b}")
    y = g.new_value(2 * a.width, a.rows)
    g.add("delta_gates", (a, b), weights=(decay_name, dt_bias_name), output=y)
    return y


def oracle(a: F64Array, b: F64Array, decay: F64Array, dt_bias: F64Array) -> F64Array:
    """`[T, 2 Hv]` from `a` and `b` `[T, Hv]`, `decay` and `dt_bias` `[Hv]`."""
    x = a + dt_bias
    softplus = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))
    with np.errstate(over="ignore"):
        return np.concatenate([np.exp(-decay * softplus), 1 / (1 + np.exp(-b))], axis=-1)


def _record(g: Graph, heads: int) -> Value:
    return delta_gates(g, g.new_input(heads), g.new_input(heads), "decay", "dt_bias")


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Ordinary sizes, and arguments at both ends: softplus around 20 and far below 0, decays of 1e-3 and of 300."""
    for heads, rows, size, decays in ((1, 1, 1.0, 1.0), (19, 5, 3.0, 16.0), (48, 3, 15.0, 1e-3), (16, 4, 8.0, 300.0)):
        a, b = ((rng.standard_normal((rows, heads)) * size).astype(np.float32) for _ in range(2))
        a[0, 0] = 20
        yield Case(
            f"Hv{heads}-T{rows}-size{size:g}-decay{decays:g}",
            partial(_record, heads=heads),
            [Step([Rows(0, 0, rows)], [a, b])],
            {
                "decay": (decays * rng.uniform(0.1, 1, heads)).astype(np.float32),
                "dt_bias": rng.standard_normal(heads).astype(np.float32),
            },
        )


SPEC = OpSpec(
    name="delta_gates",
    inputs={"a": ("T|R", "Hv"), "b": ("T|R", "Hv")},
    weights={"decay": ("Hv",), "dt_bias": ("Hv",)},
    output=("T|R", "2*Hv"),
    where=("decay > 0",),
    profile=ROW_REDUCTION,
    oracle=oracle,
    cases=cases,
)
