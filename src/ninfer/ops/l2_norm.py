"""L2 norm: every head of a row brought to one length.

`y = x * rsqrt(sum(x^2) + eps) * scale` over each head; a sum, not a mean, and no weight. Zeros give zeros. Source: the
normalised queries and keys of Yang et al. 2024, "Gated Delta Networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ROW_REDUCTION
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def l2_norm(g: Graph, x: Value, num_heads: int, scale: float, eps: float = 1e-6) -> Value:
    """Record the norm of every head of `x [rows, num_heads * D]`; returns a value shaped like `x`."""
    if x.width % num_heads:
        raise InvariantError(f"l2_norm of {x} as {num_heads} heads")
    y = g.new_value(x.width, x.rows)
    g.add("l2_norm", (x,), output=y, num_heads=num_heads, scale=scale, eps=eps)
    return y


def oracle(x: F64Array, num_heads: int, scale: float, eps: float) -> F64Array:
    """`[rows, H * D]` from `x` of that shape."""
    heads = x.reshape(len(x), num_heads, -1)
    squares = np.sum(np.square(heads), axis=-1, keepdims=True)
    return (heads / np.sqrt(squares + eps) * scale).reshape(x.shape)


def _record(g: Graph, width: int, heads: int, scale: float) -> Value:
    return l2_norm(g, g.new_input(width), heads, scale)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((1, 1, 1, 1.0, 1.0), (60, 3, 4, 0.25, 1e-3), (256, 2, 3, 128**-0.5, 1.0), (119, 7, 2, 2.0, 1e4))
    for width, heads, rows, scale, size in shapes:
        x = (rng.standard_normal((rows, width)) * size).astype(np.float32)
        x[-1, : width // heads] = 0
        yield Case(
            f"W{width}-H{heads}-rows{rows}-size{size:g}",
            partial(_record, width=width, heads=heads, scale=scale),
            [Step([Rows(0, 0, rows)], [x])],
        )


SPEC = OpSpec(
    name="l2_norm",
    inputs={"x": ("T|R", "H*D")},
    output=("T|R", "H*D"),
    params=("num_heads", "scale", "eps"),
    where=("eps > 0",),
    profile=ROW_REDUCTION,
    oracle=oracle,
    cases=cases,
)
