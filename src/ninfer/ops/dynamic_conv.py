"""Dynamic convolution: every channel filtered along a block of rows by taps that are its own plus some of the row's.

    y[t][c] = sum over o = 0 .. taps-1 of (w[o][c] + d[t][o][c // (C / G)]) * z[t - o][c]     (+ residual[t][c])

Tap 0 multiplies the row itself. The `C` channels fall into `G` groups of neighbours, and a row's own taps
`d [taps * G]`, tap by tap, hold for a group. A block is what a sequence has in one step: rows before it are zero, and
nothing is kept.
Source: the grouped dynamic causal convolution of DFlash2 (z-lab).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step


def dynamic_conv(
    g: Graph, z: Value, d: Value, weight_name: str, taps: int, first: int = 0, residual: Value | None = None
) -> Value:
    """Record the convolution of `z [T, C]` with the rows' own taps `d [T, taps * G]`; shaped like `z`.

    The weight vector holds `w` tap by tap from value `first` on.
    """
    if z.rows != "T" or d.rows != "T" or taps < 1 or d.width % taps or z.width % (d.width // taps):
        raise InvariantError(f"dynamic_conv of {z} with {d} as {taps} taps")
    if residual is not None and (residual.width, residual.rows) != (z.width, "T"):
        raise InvariantError(f"a residual {residual} of a dynamic_conv of {z}")
    y = g.new_value(z.width, "T")
    inputs = (z, d) if residual is None else (z, d, residual)
    g.add("dynamic_conv", inputs, weights=(weight_name,), output=y, taps=taps, first=first)
    return y


def oracle(z: F64Array, d: F64Array, w: F64Array, residual: F64Array | None) -> F64Array:
    """`[count, C]` of one sequence's rows: `z [count, C]`, `d [count, taps, G]` and `w [taps, C]`."""
    y = np.zeros_like(z) if residual is None else residual.copy()
    for tap in range(len(w)):
        own = np.repeat(d[:, tap], z.shape[1] // d.shape[2], axis=1)
        y[tap:] += ((w[tap] + own)[tap:]) * z[: len(z) - tap]
    return y


def _record(g: Graph, channels: int, groups: int, taps: int, first: int, residual: bool) -> Value:
    z, d = g.new_input(channels), g.new_input(taps * groups)
    return dynamic_conv(g, z, d, "w", taps, first, g.new_input(channels) if residual else None)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Blocks shorter and longer than the taps, groups below, at and above a vector, sequences side by side."""
    plans: tuple[tuple[int, int, int, int, list[list[Rows]]], ...] = (
        (1, 1, 1, 0, [[Rows(0, 0, 1)]]),
        (48, 3, 2, 0, [[Rows(0, 5, 8)], [Rows(0, 9, 1)]]),
        (40, 8, 2, 80, [[Rows(0, 0, 3), Rows(1, 70, 1), Rows(2, 0, 2)]]),
        (96, 2, 4, 7, [[Rows(0, 0, 2), Rows(1, 3, 7)]]),
        (34, 1, 3, 102, [[Rows(1, 0, 16), Rows(0, 0, 16)]]),
        (33, 33, 2, 0, [[Rows(0, 60, 9)]]),
    )
    for channels, groups, taps, first, plan in plans:
        steps = []
        for rows in plan:
            count = sum(r.count for r in rows)
            widths = (channels, taps * groups, *([channels] if first else []))
            steps.append(Step(rows, [rng.standard_normal((count, width)).astype(np.float32) for width in widths]))
        yield Case(
            f"C{channels}-G{groups}-taps{taps}-first{first}",
            partial(_record, channels=channels, groups=groups, taps=taps, first=first, residual=first > 0),
            steps,
            {"w": rng.standard_normal(first + taps * channels + 5).astype(np.float32)},
        )


SPEC = OpSpec(
    name="dynamic_conv",
    inputs={"z": ("T", "C"), "d": ("T", "taps*G"), "residual": ("T", "C")},
    weights={"w": ("W",)},
    output=("T", "C"),
    params=("taps", "first"),
    where=("residual is optional", "C % G == 0", "first + taps * C <= W"),
    profile=PRODUCT,
    oracle=oracle,
    cases=cases,
)
