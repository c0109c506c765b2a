"""Rotary angles: cosines and sines of every row's position, computed once for all layers.

Columns `0 .. r/2` are `cos(p * theta^(-2i/r))` for i = 0, 1, ..., columns `r/2 .. r` the sines, with p the row's
absolute position and r the rotary dims. Angles and functions are float64 (a float32 angle is off by 2^-11 at position
8192); the result is rounded once to float32. Source: Su et al. 2021, "RoFormer".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def rope_angles(g: Graph, rotary_dim: int, theta: float) -> Value:
    """Record the angles of the step's positions; returns `[T, rotary_dim]`."""
    if rotary_dim % 2:
        raise InvariantError(f"rotary_dim {rotary_dim} is odd")
    y = g.new_value(rotary_dim, "T")
    g.add("rope_angles", output=y, rotary_dim=rotary_dim, theta=theta)
    return y


def oracle(positions: npt.NDArray[np.int64], rotary_dim: int, theta: float) -> F64Array:
    """`[T, rotary_dim]` for positions `[T]`."""
    frequency = float(theta) ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    angle = positions.astype(np.float64)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((2, 10.0, 0, 1), (20, 1e5, 0, 7), (64, 1e5, 8000, 192), (34, 1e6, 63, 2))
    for rotary_dim, theta, position, count in shapes:
        rows = [Rows(0, position, count), Rows(1, int(rng.integers(0, 200)), 3)]
        yield Case(
            f"r{rotary_dim}-theta{theta:g}-p{position}-T{count}",
            partial(rope_angles, rotary_dim=rotary_dim, theta=theta),
            [Step(rows, [])],
        )


SPEC = OpSpec(
    name="rope_angles",
    inputs={},
    output=("T", "r"),
    params=("rotary_dim", "theta"),
    reads=("positions",),
    where=("r % 2 == 0",),
    profile=ELEMENTWISE,
    oracle=oracle,
    cases=cases,
)
