"""Linear: one input times several weights, the results side by side.

`y = [x W0^T | x W1^T | ...] (+ residual)` with `Wi [Ni, K]`, no bias. One call for the weights that read the same input
lets a backend prepare that input once.

Numerics. With the `f32` profile, and for f32 and bf16 weights under either profile, products are those of the float32
input and the exact stored weight. Under `a8` a packed weight (q8g32, q4g32, q4g32m) meets an input row in 16-bit fixed
point (`two_digits`): the codes' products are exact integers inside a weight group of 32 columns; groups are combined in
float32 in ascending order as `scale_w * sum(qx qw) + min_w * sum(qx)`, and the row's scale is applied last. A row's
result depends on that row alone. The residual is added after that, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step
from ninfer.ops.two_digits import as_seen_by_a8


def linear(g: Graph, x: Value, weights: Sequence[tuple[str, int]], residual: Value | None = None) -> Value:
    """Record the product of `x [rows, K]` with weights `(name, N)`; returns `[rows, sum of N]`."""
    width = sum(n for _, n in weights)
    if residual is not None and (residual.width != width or residual.rows != x.rows):
        raise InvariantError(f"a residual {residual} of a product that has {x.rows} rows and {width} columns")
    y = g.new_value(width, x.rows)
    inputs = (x,) if residual is None else (x, residual)
    g.add("linear", inputs, weights=tuple(name for name, _ in weights), output=y)
    return y


def oracle(
    x: F64Array, weights: Sequence[F64Array], residual: F64Array | None, *, quantized: Sequence[bool]
) -> F64Array:
    """`[rows, sum of N]`; `weights` are exact values `[N, K]`, `quantized` says which of them meet quantised inputs."""
    parts = [(as_seen_by_a8(x) if a8 else x) @ w.T for w, a8 in zip(weights, quantized, strict=True)]
    y = np.concatenate(parts, axis=-1)
    return y if residual is None else y + residual


def cases(rng: np.random.Generator) -> Iterator[Case]:
    shapes: tuple[tuple[int, tuple[int, ...], int, bool], ...] = (
        (32, (16,), 1, False),
        (96, (33,), 5, True),
        (64, (48, 20, 16), 13, False),
        (160, (7, 31), 12, True),
        (224, (65,), 25, True),
        (20, (9, 24), 3, False),
        (77, (18,), 11, True),
    )
    for k, ns, rows, with_residual in shapes:
        x = rng.standard_normal((rows, k)).astype(np.float32)
        x[0, : k // 2] *= 50
        if rows > 2:
            x[1] = 0
        residual = rng.standard_normal((rows, sum(ns))).astype(np.float32)

        def record(g: Graph, k: int = k, ns: tuple[int, ...] = ns, with_residual: bool = with_residual) -> Value:
            inputs = g.new_input(k), g.new_input(sum(ns)) if with_residual else None
            return linear(g, inputs[0], [(f"w{i}", n) for i, n in enumerate(ns)], inputs[1])

        yield Case(
            f"K{k}-N{'+'.join(map(str, ns))}-rows{rows}{'-residual' if with_residual else ''}",
            record,
            [Step([Rows(0, 0, rows)], [x, residual] if with_residual else [x])],
            {f"w{i}": rng.standard_normal((n, k)).astype(np.float32) / k**0.5 for i, n in enumerate(ns)},
        )


SPEC = OpSpec(
    name="linear",
    inputs={"x": ("T|R", "K"), "residual": ("T|R", "N")},
    weights={"w": ("N", "K")},
    output=("T|R", "N"),
    where=("residual is optional", "N of the output is the sum over the weights"),
    profile=PRODUCT,
    oracle=oracle,
    cases=cases,
)
