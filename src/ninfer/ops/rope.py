"""Rotary embedding: rotate pairs of a head's dims by the row's angles.

Half pairing: inside the first r dims of a head, dim i goes with dim i + r/2:

    y[i]       = x[i] cos[i] - x[i + r/2] sin[i]
    y[i + r/2] = x[i + r/2] cos[i] + x[i] sin[i]

The dims behind r pass through. r is the width of `angles` (see `rope_angles`). Adjacent pairing (2i, 2i+1), as in
some files, is undone by permuting weight rows at conversion; there is one pairing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def rope(g: Graph, x: Value, angles: Value, num_heads: int, head_dim: int) -> Value:
    """Record the rotation of `x [T, num_heads * head_dim]`; returns a value of the same shape."""
    if x.width != num_heads * head_dim or angles.width > head_dim:
        raise InvariantError(f"rope of {x} with {angles} as {num_heads} heads of {head_dim}")
    y = g.new_value(x.width, x.rows)
    g.add("rope", (x, angles), output=y, num_heads=num_heads, head_dim=head_dim)
    return y


def oracle(x: F64Array, angles: F64Array, num_heads: int, head_dim: int) -> F64Array:
    """`[T, H * D]` from `x` of that shape and `angles [T, r]`."""
    half = angles.shape[-1] // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    y = x.reshape(-1, num_heads, head_dim).copy()
    first, second = y[..., :half].copy(), y[..., half : 2 * half].copy()
    y[..., :half] = first * cos - second * sin
    y[..., half : 2 * half] = second * cos + first * sin
    return y.reshape(x.shape)


def _record(g: Graph, heads: int, head_dim: int, rotary_dim: int) -> Value:
    return rope(g, g.new_input(heads * head_dim), g.new_input(rotary_dim), heads, head_dim)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((1, 2, 2, 1), (3, 20, 20, 5), (9, 64, 64, 7), (2, 80, 34, 3), (5, 36, 16, 2))
    for heads, head_dim, rotary_dim, rows in shapes:
        x = rng.standard_normal((rows, heads * head_dim)).astype(np.float32)
        phase = rng.uniform(0, 7, (rows, rotary_dim // 2))
        angles = np.concatenate([np.cos(phase), np.sin(phase)], axis=1).astype(np.float32)
        yield Case(
            f"H{heads}-D{head_dim}-r{rotary_dim}-T{rows}",
            partial(_record, heads=heads, head_dim=head_dim, rotary_dim=rotary_dim),
            [Step([Rows(0, 0, rows)], [x, angles])],
        )


SPEC = OpSpec(
    name="rope",
    inputs={"x": ("T", "H*D"), "angles": ("T", "r")},
    output=("T", "H*D"),
    params=("num_heads", "head_dim"),
    where=("r % 2 == 0", "r <= D"),
    profile=ELEMENTWISE,
    oracle=oracle,
    cases=cases,
)
