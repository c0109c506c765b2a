"""KV append: write the step's keys and values into the pages of their sequences.

Row t of `k` and `v` (`[T, Hk * D]`) belongs to the sequence that owns row t, at its absolute position p: page
`pages[p // 64]`, slot `p % 64` of the layer. Keys and values are stored in the KV format of the run (`formats.kv_bf16`,
`formats.kv_int8`), encoded from the float32 rows, keys after the rotary embedding. A slot is overwritten as a whole and
never re-encoded; nothing else of the page changes. No two rows of a step write to the same slot. Values that the format
cannot hold (NaN, infinity, int8 magnitudes of 127 * 65504 and more) must not be written as finite ones: the reference
raises FormatError, a kernel may store a non-finite scale, which every logit that sees it then shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.formats import kv_bf16, kv_int8
from ninfer.ops.graph import Graph, KVShape, Value
from ninfer.ops.profiles import ATTENTION_CODES, EXACT
from ninfer.ops.spec import Case, F32Array, OpSpec, Rows, Step


def kv_append(g: Graph, layer: int, k: Value, v: Value) -> None:
    """Record the writing of `k` and `v` to KV layer `layer` (`Graph.new_kv_layer`)."""
    shape = g.kv_layers[layer]
    if {k.width, v.width} != {shape.num_kv_heads * shape.head_dim} or (k.rows, v.rows) != ("T", "T"):
        raise InvariantError(f"kv_append of {k} and {v} to a layer of {shape}")
    g.add("kv_append", (k, v), layer=layer)


def oracle(x: F32Array, kv_format: str) -> F32Array:
    """What the cache gives back for keys or values float32 `[..., D]`; exact, of the same shape."""
    if kv_format == kv_bf16.NAME:
        return kv_bf16.decode(kv_bf16.encode(x))
    return kv_int8.decode(*kv_int8.encode(x))


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Queries that see one position only give back exactly what was stored there.

    Keys spell their position in binary, and queries are long enough that every other position has weight 0. Steps cross
    page borders, change places with other sequences and overwrite what was written before.
    """
    plans: tuple[tuple[str, int, int, list[list[Rows]]], ...] = (
        ("one", 1, 12, [[Rows(0, 0, 1)]]),
        ("page-border", 3, 20, [[Rows(0, 0, 63)], [Rows(0, 63, 2)], [Rows(0, 65, 70)], [Rows(0, 135, 1)]]),
        ("sequences", 2, 64, [[Rows(0, 0, 5), Rows(1, 0, 66)], [Rows(1, 66, 1), Rows(0, 5, 1), Rows(2, 0, 3)]]),
        ("overwrite", 1, 80, [[Rows(0, 0, 90)], [Rows(0, 40, 30)], [Rows(0, 70, 1)]]),
        ("far", 2, 130, [[Rows(0, 0, 250)], [Rows(0, 250, 20)]]),
    )
    for label, heads, head_dim, plan in plans:
        record = partial(_record, heads=heads, head_dim=head_dim)
        steps = [Step(rows, _one_hot_inputs(rng, rows, heads, head_dim)) for rows in plan]
        yield Case(f"{label}-H{heads}-D{head_dim}", record, steps)


def _record(g: Graph, heads: int, head_dim: int) -> Value:
    from ninfer.ops.paged_attention import paged_attention  # here, because its cases record this op

    layer = g.new_kv_layer(KVShape(heads, head_dim))
    q, k, v = (g.new_input(heads * head_dim) for _ in range(3))
    kv_append(g, layer, k, v)
    return paged_attention(g, layer, q, heads, heads, head_dim, 1.0)


def _one_hot_inputs(rng: np.random.Generator, rows: list[Rows], heads: int, head_dim: int) -> list[F32Array]:
    """q, k and v `[T, heads * head_dim]`; every row's heads look at positions of their own."""
    positions = np.concatenate([np.arange(r.position, r.position + r.count) for r in rows])
    targets = rng.integers(0, positions[:, None] + 1, (len(positions), heads))
    v = rng.standard_normal((len(positions), heads * head_dim)).astype(np.float32)
    k = np.repeat(_spelled(positions, head_dim), heads, axis=0).reshape(v.shape)
    return [1000 * _spelled(targets.reshape(-1), head_dim).reshape(v.shape), k, v]


def _spelled(positions: npt.NDArray[np.int64], head_dim: int) -> F32Array:
    """Positions below 2^12 as their binary digits -1 and 1, repeated to `[..., head_dim]`."""
    digits = positions[:, None] >> (np.arange(head_dim) % 12) & 1
    return (2 * digits - 1).astype(np.float32)


SPEC = OpSpec(
    name="kv_append",
    inputs={"k": ("T", "Hk*D"), "v": ("T", "Hk*D")},
    output=None,
    params=("layer",),
    reads=("positions",),
    writes_kv=True,
    profile=EXACT,
    profile_of_codes=ATTENTION_CODES,  # the cases look at a value by a weight of one, which is then a code
    oracle=oracle,
    cases=cases,
)
