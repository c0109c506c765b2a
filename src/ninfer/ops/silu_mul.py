"""Gated activation: `silu(gate) * up` of two halves of a row.

`y = g / (1 + e^-g) * u` with `g = x[:, :I]` and `u = x[:, I:]`. For g far below zero the result is 0 within the
profile's row term. Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def silu_mul(g: Graph, x: Value) -> Value:
    """Record the activation of `x [rows, 2 I]`; returns `[rows, I]`."""
    if x.width % 2:
        raise InvariantError(f"silu_mul of an odd width {x.width}")
    y = g.new_value(x.width // 2, x.rows)
    g.add("silu_mul", (x,), output=y)
    return y


def oracle(x: F64Array) -> F64Array:
    """`[rows, I]` from `[rows, 2 I]`."""
    gate, up = np.split(x, 2, axis=-1)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def _record(g: Graph, width: int) -> Value:
    return silu_mul(g, g.new_input(2 * width))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, rows, size in ((1, 1, 1.0), (15, 3, 1.0), (33, 2, 5.0), (160, 5, 0.1), (48, 4, 200.0)):
        x = (rng.standard_normal((rows, 2 * width)) * size).astype(np.float32)
        x[0, 0] = 0
        yield Case(
            f"I{width}-rows{rows}-size{size:g}",
            partial(_record, width=width),
            [Step([Rows(0, 0, rows)], [x])],
        )


SPEC = OpSpec(
    name="silu_mul",
    inputs={"x": ("T|R", "2*I")},
    output=("T|R", "I"),
    profile=ELEMENTWISE,
    oracle=oracle,
    cases=cases,
)
