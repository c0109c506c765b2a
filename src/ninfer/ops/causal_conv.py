"""Causal convolution: every channel filtered along the sequence by taps of its own, then SiLU.

    c[t] = sum over j = 0 .. taps-1 of w[j] * u[t - (taps-1) + j]        channel by channel, no bias
    y[t] = c[t] / (1 + e^-c[t])

The last tap multiplies the row itself. Rows before the first of the sequence are zero; rows of earlier steps are the
state, the last `taps - 1` inputs as they came. The weight vector is `[taps * C]`, tap by tap. Source: Gu & Dao 2023,
"Mamba" (short convolution); transformers' `causal_conv1d_fn` has the taps in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.batch import StateAccess
from ninfer.ops.graph import Graph, StateShape, Value
from ninfer.ops.profiles import PRODUCT
from ninfer.ops.spec import Case, F32Array, F64Array, OpSpec, Rows, Step, rows_in_slot


def causal_conv(g: Graph, layer: int, u: Value, weight_name: str) -> Value:
    """Record the convolution of `u [T, C]` on recurrent layer `layer` with the weight `[taps * C]`; shaped like `u`."""
    shape = g.state_layers[layer]
    if (u.width, u.rows) != (shape.conv_channels, "T") or g.state_node("causal_conv", layer):
        raise InvariantError(f"causal_conv of {u} on layer {layer}, which has {shape} and can be used once")
    y = g.new_value(u.width, "T")
    g.add("causal_conv", (u,), weights=(weight_name,), output=y, layer=layer)
    return y


def oracle(u: F64Array, window: F64Array, w: F64Array) -> F64Array:
    """`[T, C]` from the rows `u [T, C]`, the `window [taps-1, C]` before them and `w [taps * C]`."""
    taps = len(window) + 1
    seen = np.concatenate([window, u])
    c = sum(tap * seen[j : j + len(u)] for j, tap in enumerate(w.reshape(taps, -1)))
    with np.errstate(over="ignore"):
        return np.asarray(c / (1 + np.exp(-c)))


def window_after(window: F64Array, u: F64Array) -> F64Array:
    """The state `[taps-1, C]` after the rows `u` that followed `window`."""
    return np.concatenate([window, u])[len(u) :]


def _record(g: Graph, channels: int, taps: int) -> Value:
    layer = g.new_state_layer(StateShape(channels, taps, 0, 1, 1))
    return causal_conv(g, layer, g.new_input(channels), "w")


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Steps shorter and longer than the window, sequences side by side, a fork, a rollback by slots and by replay."""
    plans: tuple[tuple[str, int, int, list[list[Rows]]], ...] = (
        ("one-row", 1, 4, [[rows_in_slot(0, 0, 1)]]),
        ("short-steps", 33, 4, [[rows_in_slot(0, 0, 2)], *([rows_in_slot(0, 2 + i, 1)] for i in range(4))]),
        ("long-steps", 80, 4, [[rows_in_slot(0, 0, 37)], [rows_in_slot(0, 37, 5)], [rows_in_slot(0, 42, 1)]]),
        ("sequences", 50, 3, [[rows_in_slot(1, 0, 3), rows_in_slot(0, 0, 1)], [rows_in_slot(0, 1, 2)]]),
        ("no-window", 20, 1, [[rows_in_slot(0, 0, 3)]]),
        ("rollbacks", 48, 4, rollback_plan()),
    )
    for label, channels, taps, plan in plans:
        yield Case(
            f"{label}-C{channels}-taps{taps}",
            partial(_record, channels=channels, taps=taps),
            [Step(rows, [_inputs(rng, rows, channels)]) for rows in plan],
            {"w": rng.standard_normal(taps * channels).astype(np.float32)},
        )


def _inputs(rng: np.random.Generator, rows: list[Rows], channels: int) -> F32Array:
    return rng.standard_normal((sum(r.count for r in rows), channels)).astype(np.float32)


def rollback_plan() -> list[list[Rows]]:
    """Steps of two sequences that use every way to keep, fork, drop and replay state."""
    return [
        [Rows(0, 0, 6, StateAccess(None, saves=((4, 2), (6, 0))))],  # slot 2: a snapshot at 4
        [Rows(1, 4, 3, StateAccess(2, saves=((3, 1),))), Rows(0, 6, 1, StateAccess(0, saves=((1, 0),)))],
        [Rows(0, 7, 3, StateAccess(0, saves=((1, 3), (2, 4), (3, 5)))), Rows(1, 7, 4, StateAccess(1, journal=0))],
        [
            Rows(1, 9, 3, StateAccess(1, replay=(0, 2), saves=((0, 1),), journal=1)),
            Rows(0, 9, 2, StateAccess(4, saves=((2, 0),))),
        ],
        [Rows(1, 12, 1, StateAccess(1, replay=(1, 3), saves=((0, 1), (1, 3)), journal=0))],
        [Rows(0, 11, 2, StateAccess(0, saves=((2, 0),))), Rows(1, 13, 2, StateAccess(3, saves=((0, 2), (2, 1))))],
    ]


SPEC = OpSpec(
    name="causal_conv",
    inputs={"u": ("T", "C")},
    weights={"w": ("taps*C",)},
    output=("T", "C"),
    params=("layer",),
    state={"window": ("taps-1", "C")},
    profile=PRODUCT,
    oracle=oracle,
    cases=cases,
)
