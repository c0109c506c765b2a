"""Output gate: values times the sigmoid of their gates.

`y = x / (1 + e^-g)` for `x` and `g` of one shape. For g far below zero the result is 0 within the profile's row term.
Source: Qiu et al. 2025, "Gated Attention for Large Language Models".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def sigmoid_mul(g: Graph, x: Value, gate: Value) -> Value:
    """Record the gating of `x [rows, W]` by `gate` of its shape; returns a value of that shape."""
    if (gate.width, gate.rows) != (x.width, x.rows):
        raise InvariantError(f"sigmoid_mul of {x} and {gate}")
    y = g.new_value(x.width, x.rows)
    g.add("sigmoid_mul", (x, gate), output=y)
    return y


def oracle(x: F64Array, gate: F64Array) -> F64Array:
    """`[rows, W]` from two arrays of that shape."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-gate))


def _record(g: Graph, width: int) -> Value:
    return sigmoid_mul(g, g.new_input(width), g.new_input(width))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, rows, size in ((1, 1, 1.0), (15, 3, 1.0), (33, 2, 5.0), (160, 5, 0.1), (48, 4, 200.0)):
        x, gate = (rng.standard_normal((rows, width)).astype(np.float32) for _ in range(2))
        gate[0, 0] = 0
        yield Case(
            f"W{width}-rows{rows}-size{size:g}",
            partial(_record, width=width),
            [Step([Rows(0, 0, rows)], [x, np.float32(size) * gate])],
        )


SPEC = OpSpec(
    name="sigmoid_mul",
    inputs={"x": ("T|R", "W"), "gate": ("T|R", "W")},
    output=("T|R", "W"),
    profile=ELEMENTWISE,
    oracle=oracle,
    cases=cases,
)
