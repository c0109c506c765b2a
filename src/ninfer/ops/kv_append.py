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

import numpy as np

from ninfer.errors import InvariantError
from ninfer.formats import kv_bf16, kv_int8
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import EXACT
from ninfer.ops.spec import Case, F32Array, OpSpec


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
    """What was written shows only through attention, whose cases write over several steps, pages and sequences."""
    from ninfer.ops.paged_attention import cases as histories  # here, because they record this op

    return histories(rng)


SPEC = OpSpec(
    name="kv_append",
    inputs={"k": ("T", "Hk*D"), "v": ("T", "Hk*D")},
    output=None,
    params=("layer",),
    reads=("positions",),
    writes_kv=True,
    profile=EXACT,
    oracle=oracle,
    cases=cases,
)
