"""Select rows: from all rows of the step to those whose logits are wanted.

`y[r] = x[logit_rows[r]]`, bit for bit; the list may be empty, unordered and may name a row twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import EXACT
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def select_rows(g: Graph, x: Value) -> Value:
    """Record the selection from `x [T, W]`; returns `[R, W]`."""
    if x.rows != "T":
        raise InvariantError("select_rows of rows that are already selected")
    y = g.new_value(x.width, "R")
    g.add("select_rows", (x,), output=y)
    return y


def oracle(x: F64Array, logit_rows: npt.NDArray[np.int32]) -> F64Array:
    """`[R, W]` from `[T, W]`."""
    return x[logit_rows]


def _record(g: Graph, width: int) -> Value:
    return select_rows(g, g.new_input(width))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for width, rows, wanted in ((1, 1, (0,)), (20, 7, (6,)), (33, 5, (4, 0, 0, 2)), (16, 3, ()), (96, 4, (0, 1, 2, 3))):
        yield Case(
            f"W{width}-T{rows}-R{len(wanted)}",
            partial(_record, width=width),
            [Step([Rows(0, 0, rows)], [rng.standard_normal((rows, width)).astype(np.float32)], logit_rows=wanted)],
        )


SPEC = OpSpec(
    name="select_rows",
    inputs={"x": ("T", "W")},
    output=("R", "W"),
    reads=("logit_rows",),
    profile=EXACT,
    oracle=oracle,
    cases=cases,
)
