"""Rotary angles: cosines and sines of every row's position, computed once for all layers.

Columns `0 .. r/2` are `m * cos(p * f[i])` for the inverse frequencies f of the model (`frequencies`), columns
`r/2 .. r` the sines, with p the row's absolute position and r twice the number of frequencies. m is a magnitude that
scaled rotary embeddings ask for, else 1. Angles and functions are float64 (a float32 angle is off by 2^-11 at position
8192); the result is rounded once to float32. Source: Su et al. 2021, "RoFormer".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def rope_angles(g: Graph, frequencies: Sequence[float], magnitude: float = 1.0) -> Value:
    """Record the angles of the step's positions; returns `[T, 2 * len(frequencies)]`."""
    y = g.new_value(2 * len(frequencies), "T")
    g.add("rope_angles", output=y, frequencies=tuple(frequencies), magnitude=magnitude)
    return y


def oracle(positions: npt.NDArray[np.int64], frequencies: Sequence[float], magnitude: float) -> F64Array:
    """`[T, r]` for positions `[T]`."""
    angle = positions.astype(np.float64)[:, None] * np.array(frequencies)
    return magnitude * np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes = ((2, 10.0, 1.0, 0, 1), (20, 1e5, 1.0, 0, 7), (64, 1e7, 1.125, 8000, 192), (34, 1e6, 1.0, 63, 2))
    for rotary_dim, theta, magnitude, position, count in shapes:
        rows = [Rows(0, position, count), Rows(1, int(rng.integers(0, 200)), 3)]
        yield Case(
            f"r{rotary_dim}-theta{theta:g}-p{position}-T{count}",
            partial(rope_angles, frequencies=rope_frequencies(rotary_dim, theta), magnitude=magnitude),
            [Step(rows, [])],
        )


SPEC = OpSpec(
    name="rope_angles",
    inputs={},
    output=("T", "r"),
    params=("frequencies", "magnitude"),
    reads=("positions",),
    profile=ELEMENTWISE,
    oracle=oracle,
    cases=cases,
)
