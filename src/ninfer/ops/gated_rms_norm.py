"""Gated RMS norm: every head normalised, weighted, and passed through a gate.

`y = x * rsqrt(mean(x^2) + eps) * w * silu(z)` over each head, with the plain weight `w [D]` that all heads share and
`silu(z) = z / (1 + e^-z)`. The norm comes before the gate. Source: Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.rms_norm import oracle as normalised
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def gated_rms_norm(g: Graph, x: Value, z: Value, weight_name: str, eps: float, num_heads: int) -> Value:
    """Record the norm of the heads of `x [rows, num_heads * D]` with gates `z` of its shape and the weight `[D]`."""
    if x.width % num_heads or (z.width, z.rows) != (x.width, x.rows):
        raise InvariantError(f"gated_rms_norm of {x} and {z} as {num_heads} heads")
    y = g.new_value(x.width, x.rows)
    g.add("gated_rms_norm", (x, z), weights=(weight_name,), output=y, eps=eps, num_heads=num_heads)
    return y


def oracle(x: F64Array, z: F64Array, w: F64Array, eps: float) -> F64Array:
    """`[rows, H * D]` from `x` and `z` of that shape and `w [D]`."""
    with np.errstate(over="ignore"):
        return normalised(x, w, eps) * z / (1 + np.exp(-z))


def _record(g: Graph, width: int, heads: int) -> Value:
    return gated_rms_norm(g, g.new_input(width), g.new_input(width), "w", 1e-6, heads)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, heads, rows, size in ((1, 1, 1, 1.0), (60, 3, 4, 1e-3), (256, 2, 3, 1.0), (119, 7, 2, 30.0)):
        x, z = ((rng.standard_normal((rows, width)) * size).astype(np.float32) for _ in range(2))
        x[-1, : width // heads] = 0
        yield Case(
            f"W{width}-H{heads}-rows{rows}-size{size:g}",
            partial(_record, width=width, heads=heads),
            [Step([Rows(0, 0, rows)], [x, z])],
            {"w": rng.standard_normal(width // heads).astype(np.float32)},
        )


SPEC = OpSpec(
    name="gated_rms_norm",
    inputs={"x": ("T|R", "H*D"), "z": ("T|R", "H*D")},
    weights={"w": ("D",)},
    output=("T|R", "H*D"),
    params=("eps", "num_heads"),
    where=("eps > 0",),
    profile=ROW_REDUCTION,
    oracle=oracle,
    cases=cases,
)
