"""Gated delta rule: decay, read, correct, write, query; one recurrent matrix `S [Dk, Dv]` per value head.

For every row in order, with the factor `decay` and the strength `beta` of the head (`delta_gates`):

    S = decay * S
    m = k^T S                   what the decayed state holds for this key
    S = S + k (x) beta (v - m)
    o = q^T S                   read after the write

Value head j uses query and key head `j // (Hv / Hk)`. S is zero before the first row of a sequence and float32 in the
state; the result of a row, and S after it, do not depend on how rows were spread over steps. Source: Yang et al. 2024,
"Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.causal_conv import rollback_plan
from ninfer.ops.graph import Graph, StateShape, Value
from ninfer.ops.profiles import RECURRENCE
from ninfer.ops.spec import Case, F32Array, F64Array, OpSpec, Rows, Step, rows_in_slot


def gated_delta_rule(
    g: Graph, layer: int, q: Value, k: Value, v: Value, gates: Value, num_k_heads: int, num_v_heads: int
) -> Value:
    """Record the rule on recurrent layer `layer` for `q` and `k` `[T, Hk * Dk]`, `v [T, Hv * Dv]` and the `gates`
    `[T, 2 Hv]` of `delta_gates`; returns `[T, Hv * Dv]`."""
    shape = g.state_layers[layer]
    widths = (num_k_heads * shape.key_dim, num_k_heads * shape.key_dim, num_v_heads * shape.value_dim, 2 * num_v_heads)
    fits = (q.width, k.width, v.width, gates.width) == widths and shape.num_v_heads == num_v_heads
    if not fits or num_v_heads % num_k_heads or {q.rows, k.rows, v.rows, gates.rows} != {"T"}:
        raise InvariantError(f"gated_delta_rule of {q}, {k}, {v}, {gates} with {num_k_heads} key heads on {shape}")
    if g.state_node("gated_delta_rule", layer):
        raise InvariantError(f"recurrent layer {layer} is used by another gated_delta_rule")
    y = g.new_value(v.width, "T")
    g.add("gated_delta_rule", (q, k, v, gates), output=y, layer=layer, num_k_heads=num_k_heads)
    return y


def oracle(
    q: F64Array, k: F64Array, v: F64Array, decay: F64Array, beta: F64Array, s: F64Array
) -> tuple[F64Array, F64Array]:
    """Outputs `[T, Hv, Dv]` and the state after the last row.

    q and k `[T, Hk, Dk]`, v `[T, Hv, Dv]`, decay and beta `[T, Hv]`, s `[Hv, Dk, Dv]` before the first row.
    """
    per_key_head = v.shape[1] // k.shape[1]
    q, k = (np.repeat(x, per_key_head, axis=1) for x in (q, k))
    s, o = s.copy(), np.empty_like(v)
    for t in range(len(v)):
        for j in range(v.shape[1]):
            s[j] *= decay[t, j]
            held = k[t, j] @ s[j]
            s[j] += np.outer(k[t, j], beta[t, j] * (v[t, j] - held))
            o[t, j] = q[t, j] @ s[j]
    return o, s


def _record(g: Graph, k_heads: int, v_heads: int, key_dim: int, value_dim: int) -> Value:
    layer = g.new_state_layer(StateShape(0, 1, v_heads, key_dim, value_dim))
    widths = (k_heads * key_dim, k_heads * key_dim, v_heads * value_dim, 2 * v_heads)
    q, k, v, gates = (g.new_input(width) for width in widths)
    return gated_delta_rule(g, layer, q, k, v, gates, k_heads, v_heads)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Odd widths with Dk != Dv, shared key heads, long memories, and every way to use slots and journals."""
    plans: tuple[tuple[str, tuple[int, int, int, int], list[list[Rows]]], ...] = (
        ("one-row", (1, 1, 1, 1), [[rows_in_slot(0, 0, 1)]]),
        ("narrow", (1, 3, 5, 20), [[rows_in_slot(0, 0, 7)], [rows_in_slot(0, 7, 1)], [rows_in_slot(0, 8, 2)]]),
        ("shared-keys", (2, 6, 24, 40), [[rows_in_slot(0, 0, 1), rows_in_slot(1, 0, 9)], [rows_in_slot(1, 9, 2)]]),
        ("full-size", (1, 2, 128, 128), [[rows_in_slot(0, 0, 67)], [rows_in_slot(0, 67, 1)]]),
        ("long", (2, 2, 16, 33), [[rows_in_slot(0, 0, 300)], [rows_in_slot(0, 300, 1)]]),
        ("rollbacks", (2, 4, 12, 72), rollback_plan()),
    )
    for label, shape, plan in plans:
        k_heads, v_heads, key_dim, value_dim = shape
        record = partial(_record, k_heads=k_heads, v_heads=v_heads, key_dim=key_dim, value_dim=value_dim)
        steps = [Step(rows, _inputs(rng, sum(r.count for r in rows), shape)) for rows in plan]
        yield Case(f"{label}-H{k_heads}/{v_heads}-D{key_dim}x{value_dim}", record, steps)


def _inputs(rng: np.random.Generator, rows: int, shape: tuple[int, int, int, int]) -> list[F32Array]:
    """q and k of length 1 per head as after `l2_norm`, v, and gates; the first head forgets least."""
    k_heads, v_heads, key_dim, value_dim = shape
    q, k = (rng.standard_normal((rows, k_heads, key_dim)) for _ in range(2))
    q, k = (x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    v = rng.standard_normal((rows, v_heads * value_dim))
    decay = np.exp(-rng.uniform(0, 1, (rows, v_heads)) * np.geomspace(1e-3, 2, v_heads))
    gates = np.concatenate([decay, rng.uniform(0, 1, (rows, v_heads))], axis=1)
    return [x.reshape(rows, -1).astype(np.float32) for x in (q, k, v, gates)]


SPEC = OpSpec(
    name="gated_delta_rule",
    inputs={"q": ("T", "Hk*Dk"), "k": ("T", "Hk*Dk"), "v": ("T", "Hv*Dv"), "gates": ("T", "2*Hv")},
    output=("T", "Hv*Dv"),
    params=("layer", "num_k_heads"),
    state={"s": ("Hv", "Dk", "Dv")},
    where=("Hv % Hk == 0",),
    profile=RECURRENCE,
    oracle=oracle,
    cases=cases,
)
