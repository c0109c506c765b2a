"""RMS norm: every head of a row divided by its root mean square, times a weight that all heads share.

`y = x * rsqrt(mean(x^2) + eps) * w`, with the plain weight `w` (not `1 + w`). Zeros give zeros. One head is the norm of
the whole row. Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def rms_norm(
    g: Graph, x: Value, weight_name: str, eps: float, *, num_heads: int = 1, into: Value | None = None
) -> Value:
    """Record the norm of every head of `x [rows, num_heads * D]` with the weight vector `[D]`; shaped like `x`.

    `into` takes the result instead of a new value: columns of a value that several nodes fill side by side.
    """
    if x.width % num_heads:
        raise InvariantError(f"rms_norm of {x} as {num_heads} heads")
    if into is not None and (into.width, into.rows) != (x.width, x.rows):
        raise InvariantError(f"rms_norm of {x} into {into}")
    y = g.new_value(x.width, x.rows) if into is None else into
    g.add("rms_norm", (x,), weights=(weight_name,), output=y, eps=eps, num_heads=num_heads)
    return y


def oracle(x: F64Array, w: F64Array, eps: float) -> F64Array:
    """`[rows, H * D]` from `x` of that shape and `w [D]`."""
    heads = x.reshape(len(x), x.shape[1] // len(w), len(w))
    mean = np.mean(np.square(heads), axis=-1, keepdims=True)
    return (heads / np.sqrt(mean + eps) * w).reshape(x.shape)


def _record(g: Graph, width: int, heads: int) -> Value:
    return rms_norm(g, g.new_input(width), "w", 1e-5, num_heads=heads)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = (
        (1, 1, 1, 1.0),
        (15, 1, 3, 1e-3),
        (16, 1, 2, 1.0),
        (17, 1, 5, 30.0),
        (96, 1, 7, 1.0),
        (577, 1, 2, 1e4),
        (60, 3, 4, 1.0),
        (256, 8, 3, 1.0),
        (21, 7, 2, 5.0),
    )
    for width, heads, rows, size in shapes:
        x = (rng.standard_normal((rows, width)) * size).astype(np.float32)
        x[-1, : width // 2] = 0
        if rows > 1:
            x[0] = 0
        yield Case(
            f"W{width}-H{heads}-rows{rows}-size{size:g}",
            partial(_record, width=width, heads=heads),
            [Step([Rows(0, 0, rows)], [x])],
            {"w": rng.standard_normal(width // heads).astype(np.float32)},
        )


SPEC = OpSpec(
    name="rms_norm",
    inputs={"x": ("T|R", "H*D")},
    weights={"w": ("D",)},
    output=("T|R", "H*D"),
    params=("eps", "num_heads"),
    where=("eps > 0",),
    profile=ROW_REDUCTION,
    oracle=oracle,
    cases=cases,
)
