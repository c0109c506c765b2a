"""Embedding: the rows of a table that the token ids of the step name.

`y[t] = E[token_ids[t]]`, decoded from the stored bits and rounded once to float32; no scaling. Ids are in `0 .. N`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import EXACT
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def embedding(g: Graph, weight_name: str, width: int) -> Value:
    """Record a look-up in the table `[N, width]`; returns `[T, width]`."""
    y = g.new_value(width, "T")
    g.add("embedding", weights=(weight_name,), output=y)
    return y


def oracle(token_ids: npt.NDArray[np.int32], table: F64Array) -> F64Array:
    """`[T, W]` from the exact table `[N, W]`."""
    return table[token_ids]


def cases(rng: np.random.Generator) -> Iterator[Case]:
    for n, width, count in ((7, 1, 1), (33, 20, 5), (50, 64, 17), (19, 45, 3)):
        ids = [0, n - 1, *rng.integers(0, n, count)][-count:]
        yield Case(
            f"N{n}-W{width}-T{count}",
            partial(embedding, weight_name="table", width=width),
            [Step([Rows(0, 0, count)], [], token_ids=[int(i) for i in ids])],
            {"table": rng.standard_normal((n, width)).astype(np.float32)},
        )


SPEC = OpSpec(
    name="embedding",
    inputs={},
    weights={"table": ("N", "W")},
    output=("T", "W"),
    reads=("token_ids",),
    where=("0 <= token_ids < N",),
    profile=EXACT,
    oracle=oracle,
    cases=cases,
)
