"""Linear: one input times several weights, the results side by side.

`y = [x W0^T | x W1^T | ...] (+ residual)` with `Wi [Ni, K]`, no bias. One call for the weights that read the same input
lets a backend prepare that input once.

Numerics. With the `f32` profile, and for f32, bf16 and fp8 weights under every profile, products are those of the
float32 input and the exact stored weight; fp8 applies its row scale to the sum over `x * E4M3`.

Under `a8` all other weights meet an input row in 16-bit fixed point (`two_digits`): codes qx and a row scale. Sums of
the codes' products are exact integers inside a weight group (32, 64 or, for nvfp4, 16 columns); they become float32,
and groups are combined in float32 in ascending order, one fused multiply-add each. With sums over a group:

    q8g32, q4g32, q4g64, q5g64, q6g64:  acc = fma(float(sum qx qw), scale, acc)             y = acc * row_scale
    q4g32m:                             as above, then acc = fma(float(sum qx), min, acc)
    nvfp4, qw = 2 * E2M1:               acc = fma(float(sum qx qw), E4M3 scale, acc)        y = acc * (row_scale * f)
                                        f = float32(factor / 2), divided in float64

Under `a8g32` the same weights meet inputs in one int8 code per value with a scale sx per 32 columns (`one_digit`):

    all formats:                        acc = fma(float(sum qx qw), sx * scale, acc)        y = acc * f, f as above or 1
    q4g32m:                             then acc = fma(min, sx * float(sum qx), acc)

with sums over the 32 columns of a scale sx (16 for nvfp4), and `sx * scale` rounded.

Under `w4a4` an nvfp4 weight that has an input scale ga meets inputs in NVFP4 (`nvfp4_rows`): qx = 2 * E2M1 and an E4M3
scale sx per 16 columns. Everything else is as under `a8`.

    nvfp4, qw = 2 * E2M1:               acc = fma(float(sum qx qw), sx * E4M3 scale, acc)   y = acc * f
                                        f = float32(factor / (4 * ga)), in float64; sx * scale is exact

An nvfp4 or fp8 scale that is NaN makes the outputs of its weight row NaN (one of padding may do so). fp8 codes that are
NaN are not legal, and a backend may take them for +-480 here: import refuses them, `verify` finds them.

A row's result depends on that row alone. The residual is added last, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step

InputCodec = Callable[[F64Array], F64Array]
"""What a product sees of its input: `exact`, `two_digits.as_seen_by_a8`, `one_digit.as_seen_by_a8g32`, or
`nvfp4_rows.as_seen_by_w4a4` with an input scale."""


def exact(x: F64Array) -> F64Array:
    """The input as it is."""
    return x


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
    x: F64Array, weights: Sequence[F64Array], residual: F64Array | None, *, codecs: Sequence[InputCodec]
) -> F64Array:
    """`[rows, sum of N]`; `weights` are exact values `[N, K]`, `codecs` say what each of them sees of the input."""
    parts = [codec(x) @ w.T for w, codec in zip(weights, codecs, strict=True)]
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
