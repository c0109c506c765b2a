"""Paged attention: softmax attention over a sequence's own keys and values, read from its pages.

For row t of a sequence at absolute position p, query head h and its key/value head `h // (Hq / Hk)`:

    s[j] = scale * q . K[j]        for positions j = first .. last
    y    = sum_j softmax(s)[j] V[j]

`last` is p where attention is causal; else it is the position of the sequence's last row in the step, so that the rows
of a step see each other both ways. `first` is 0, or p - window + 1 where there is a window and that is above 0.

K and V are what the pages hold, in the KV format of the run; `kv_append` of the same layer has written the rows of this
step before. Rows of other sequences are never seen. A row's result depends on that row and what it sees alone, and sums
over positions have one order that is aligned to absolute positions, however the history came about.

Numerics. Softmax is float. With int8 KV under every profile but `f32`, `scale * q` (a float32 product) of each
head is taken as 16-bit fixed point (`two_digits`) and the products with the key codes are exact integers inside a
group. The weights, against the largest score of an aligned segment of 256 positions, may be taken so too, times the
value scales: codes of one segment and group are then multiples of 1/32512 of the largest value scale of the positions
that the row sees there, and their products with the value codes are exact integers.
The tolerance `ATTENTION_CODES` allows for that; the oracle does not round weights. With bf16 KV, and under `f32`, all
of this stays float32. Weights below e^-64 of the largest may be taken as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ninfer.errors import InvariantError
from ninfer.ops.graph import Graph, KVShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.profiles import ATTENTION, ATTENTION_CODES
from ninfer.ops.spec import Case, F64Array, OpSpec, Rows, Step
from ninfer.ops.two_digits import as_seen_by_a8


def paged_attention(
    g: Graph,
    layer: int,
    q: Value,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    *,
    causal: bool = True,
    window: int | None = None,
) -> Value:
    """Record the attention of `q [T, num_heads * head_dim]` on KV layer `layer`; returns a value shaped like `q`."""
    if window is not None and window < 1:
        raise InvariantError(f"attention with a window of {window}")
    if q.width != num_heads * head_dim or q.rows != "T" or num_heads % num_kv_heads:
        raise InvariantError(f"attention of {q} as {num_heads} heads of {head_dim} over {num_kv_heads} KV heads")
    if g.kv_layers[layer] != KVShape(num_kv_heads, head_dim):
        raise InvariantError(f"attention over {num_kv_heads} heads of {head_dim}; the layer has {g.kv_layers[layer]}")
    y = g.new_value(q.width, "T")
    g.add(
        "paged_attention",
        (q,),
        output=y,
        layer=layer,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=scale,
        causal=int(causal),
        window=window or 0,
    )
    return y


def oracle(
    q: F64Array,
    keys: F64Array,
    values: F64Array,
    position: int,
    scale: float,
    *,
    quantized: bool,
    causal: bool = True,
    window: int | None = None,
) -> F64Array:
    """`[count, Hq * D]` of one sequence.

    q `[count, Hq, D]` are its rows at positions `position ..`; keys and values `[position + count, Hk, D]` are the
    decoded contents of its pages. `quantized` says that queries meet integer keys.
    """
    count, num_heads, head_dim = q.shape
    per_kv_head = num_heads // keys.shape[1]
    scaled = (q.astype(np.float32) * np.float32(scale)).astype(np.float64)
    if quantized:
        scaled = as_seen_by_a8(scaled)
    y = np.empty_like(q)
    for row in range(count):
        for head in range(num_heads):
            first = 0 if window is None else max(0, position + row - window + 1)
            seen = slice(first, position + (row if causal else count - 1) + 1)
            scores = keys[seen, head // per_kv_head] @ scaled[row, head]
            weights = np.exp(scores - scores.max())
            y[row, head] = weights @ values[seen, head // per_kv_head] / weights.sum()
    return y.reshape(count, num_heads * head_dim)


def _record(
    g: Graph, num_heads: int, num_kv_heads: int, head_dim: int, causal: bool = True, window: int | None = None
) -> Value:
    layer = g.new_kv_layer(KVShape(num_kv_heads, head_dim))
    q, k, v = (g.new_input(heads * head_dim) for heads in (num_heads, num_kv_heads, num_kv_heads))
    kv_append(g, layer, k, v)
    return paged_attention(g, layer, q, num_heads, num_kv_heads, head_dim, head_dim**-0.5, causal=causal, window=window)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Histories around page and segment borders, several sequences per step, odd heads and head widths; blocks that
    see all of themselves, windows that begin anywhere."""
    plans: tuple[tuple[str, int, int, int, list[list[Rows]]], ...] = (
        ("one-token", 1, 1, 16, [[Rows(0, 0, 1)]]),
        ("page-border", 6, 2, 20, [[Rows(0, 0, 63)], [Rows(0, 63, 1)], [Rows(0, 64, 1)], [Rows(0, 65, 5)]]),
        (
            "two-sequences",
            9,
            3,
            64,
            [[Rows(0, 0, 40), Rows(1, 0, 7)], [Rows(1, 7, 30), Rows(0, 40, 1)], [Rows(1, 37, 1)]],
        ),
        ("segment-border", 4, 1, 36, [[Rows(0, 0, 250)], [Rows(0, 250, 9)], [Rows(0, 259, 1)]]),
        ("partial-groups", 5, 5, 80, [[Rows(0, 0, 13)], [Rows(0, 13, 1), Rows(1, 0, 2)]]),
        ("wide-heads", 4, 2, 128, [[Rows(0, 0, 30)], [Rows(0, 30, 3)]]),
        ("widest-heads", 12, 2, 256, [[Rows(0, 0, 9), Rows(1, 0, 1)], [Rows(0, 9, 1), Rows(1, 1, 4)]]),
        ("whole-tile", 8, 1, 256, [[Rows(0, 0, 61)], [Rows(0, 61, 6)]]),
        ("rewound", 3, 3, 48, [[Rows(0, 0, 20)], [Rows(0, 12, 5)], [Rows(0, 17, 1)]]),
        ("many-rows", 7, 1, 24, [[Rows(i, 0, 3 + i) for i in range(6)], [Rows(i, 3 + i, 1) for i in range(6)]]),
    )
    blocks = [[Rows(0, 0, 250), Rows(1, 0, 5)], [Rows(0, 250, 8), Rows(1, 5, 3)], [Rows(0, 252, 16)], [Rows(1, 6, 1)]]
    sights: tuple[tuple[str, bool, int | None], ...] = (
        ("block", False, None),
        ("window", True, 70),
        ("block-window", False, 100),
        ("narrow", True, 1),
    )
    sighted = [(plan, True, None) for plan in plans]
    sighted += [((label, 6, 2, 36, blocks), causal, window) for label, causal, window in sights]  # type: ignore[misc]
    for (label, num_heads, num_kv_heads, head_dim, plan), causal, window in sighted:
        widths = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
        steps = []
        for rows in plan:
            inputs = [rng.standard_normal((sum(r.count for r in rows), width)).astype(np.float32) for width in widths]
            inputs[0] *= 3
            inputs[2][0] = 0
            steps.append(Step(rows, inputs))
        record = partial(
            _record,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            causal=causal,
            window=window,
        )
        yield Case(f"{label}-H{num_heads}/{num_kv_heads}-D{head_dim}", record, steps)


SPEC = OpSpec(
    name="paged_attention",
    inputs={"q": ("T", "Hq*D")},
    output=("T", "Hq*D"),
    params=("layer", "num_heads", "num_kv_heads", "head_dim", "scale", "causal", "window"),
    reads=("positions", "kv"),
    where=("Hq % Hk == 0",),
    profile=ATTENTION,
    profile_of_codes=ATTENTION_CODES,
    oracle=oracle,
    cases=cases,
)
