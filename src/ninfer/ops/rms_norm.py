"""RMS norm: a row divided by its root mean square, times a weight.

`y = x * rsqrt(mean(x^2) + eps) * w`, with the plain weight `w` (not `1 + w`). A row of zeros gives zeros. Source: Zhang
& Sennrich 2019, "Root Mean Square Layer Normalization".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def rms_norm(g: Graph, x: Value, weight_name: str, eps: float) -> Value:
    """Record the norm of every row of `x` with the weight vector `[W]`; returns a value shaped like `x`."""
    y = g.new_value(x.width, x.rows)
    g.add("rms_norm", (x,), weights=(weight_name,), output=y, eps=eps)
    return y


def oracle(x: F64Array, w: F64Array, eps: float) -> F64Array:
    """`[rows, W]` from `x [rows, W]` and `w [W]`."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(mean + eps) * w


def _record(g: Graph, width: int) -> Value:
    return rms_norm(g, g.new_input(width), "w", 1e-5)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, rows, size in ((1, 1, 1.0), (15, 3, 1e-3), (16, 2, 1.0), (17, 5, 30.0), (96, 7, 1.0), (577, 2, 1e4)):
        x = (rng.standard_normal((rows, width)) * size).astype(np.float32)
        x[-1, : width // 2] = 0
        if rows > 1:
            x[0] = 0
        yield Case(
            f"W{width}-rows{rows}-size{size:g}",
            partial(_record, width=width),
            [Step([Rows(0, 0, rows)], [x])],
            {"w": rng.standard_normal(width).astype(np.float32)},
        )


SPEC = OpSpec(
    name="rms_norm",
    inputs={"x": ("T|R", "W")},
    weights={"w": ("W",)},
    output=("T|R", "W"),
    params=("eps",),
    where=("eps > 0",),
    profile=ROW_REDUCTION,
    oracle=oracle,
    cases=cases,
)
