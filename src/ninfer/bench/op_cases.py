"""What `bench ops` runs: every op in the shapes of a small model, with the bytes it must move and what it must compute.

The shapes are those of SmolLM2-135M, and for the ops of recurrent layers those of Qwen3.5-0.8B. Products read weights
that lie beyond the private caches, as they do in a model: a graph holds as many copies of a weight as fill
WEIGHT_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ninfer import formats
from ninfer.ops.causal_conv import causal_conv
from ninfer.ops.delta_gates import delta_gates
from ninfer.ops.dynamic_conv import dynamic_conv
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.gated_delta_rule import gated_delta_rule
from ninfer.ops.gated_rms_norm import gated_rms_norm
from ninfer.ops.graph import Graph, KVShape, StateShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.l2_norm import l2_norm
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope import rope
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows
from ninfer.ops.sigmoid_mul import sigmoid_mul
from ninfer.ops.silu_mul import silu_mul

HIDDEN, INTERMEDIATE, VOCABULARY = 576, 1536, 49152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
STATE = StateShape(conv_channels=6144, conv_taps=4, num_v_heads=16, key_dim=128, value_dim=128)
STATE_WIDTH = STATE.num_v_heads * STATE.key_dim
"""Width of all heads, which is the same for queries, keys and values of this shape."""

PRODUCTS: Mapping[str, tuple[int, int]] = {
    "q, k, v": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate, up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCABULARY, HIDDEN),
}
"""Weight shapes [N, K] by their place in a layer."""

TAPS, GROUP = 2, 16
"""Of a block draft with dynamic convolutions."""

WEIGHT_BYTES = 64 << 20
LIGHT_COPIES = 16
F32_BYTES = 4


@dataclass(frozen=True)
class OpCase:
    """One op in one shape, recorded `copies` times into one graph so that a step is long enough to time.

    record(graph, copies) appends them all; `separate` says whether every copy has memory of its own.
    matrices: names -> ([N, K], format); vectors: names -> width. rows: of the step; depth: tokens already in the KV.
    num_bytes and num_ops are what one copy must move and compute at least; a multiply and an add are two. `exact`
    products do float32 arithmetic, others int8.
    """

    op: str
    shape: str
    rows: int
    record: Callable[[Graph, int], None]
    num_bytes: float
    num_ops: float = 0.0
    copies: int = LIGHT_COPIES
    depth: int = 0
    logit_rows: int = 0
    matrices: Mapping[str, tuple[tuple[int, int], str]] = field(default_factory=dict)
    vectors: Mapping[str, int] = field(default_factory=dict)
    exact: bool = True
    separate: bool = True


def cases(
    *, rows: Sequence[int], depths: Sequence[int], weight_formats: Sequence[str], numerics: str
) -> Iterator[OpCase]:
    """All cases; `rows` are rows of a step, `depths` KV lengths for attention."""
    for count in rows:
        for weight_format in weight_formats:
            for place, (n, k) in PRODUCTS.items():
                yield product(place, n, k, count, weight_format, exact=numerics == "f32")
        yield from _elementwise(count)
        yield from _recurrent(count)
        for depth in depths:
            yield attention(count, depth)


def product(place: str, n: int, k: int, rows: int, weight_format: str, *, exact: bool) -> OpCase:
    """`linear` of one weight [n, k], in as many copies as are needed to fill WEIGHT_BYTES."""
    weight_bytes = formats.get(weight_format).nbytes((n, k))
    copies = -(-WEIGHT_BYTES // weight_bytes)

    def record(g: Graph, copies: int) -> None:
        x = g.new_input(k)
        for index in range(copies):
            linear(g, x, [(f"w{index}", n)])

    return OpCase(
        "linear",
        f"{place} {k} to {n} {weight_format}",
        rows,
        record,
        num_bytes=weight_bytes + F32_BYTES * rows * (n + k),
        num_ops=2.0 * rows * n * k,
        copies=copies,
        matrices={f"w{index}": ((n, k), weight_format) for index in range(copies)},
        exact=exact or weight_format in ("f32", "bf16", "fp8"),
    )


def attention(rows: int, depth: int) -> OpCase:
    """`paged_attention` of `rows` queries of one sequence after `depth` tokens; the KV is read once for all of them.

    num_bytes counts the rows only; the bytes of a KV token are added when the KV format is known.
    """

    def record(g: Graph, copies: int) -> None:
        q = g.new_input(HEADS * HEAD_DIM)
        for _ in range(copies):
            layer = g.new_kv_layer(KVShape(KV_HEADS, HEAD_DIM))
            paged_attention(g, layer, q, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)

    pairs = sum(depth + index + 1 for index in range(rows))
    return OpCase(
        "paged_attention",
        f"{HEADS} heads of {HEAD_DIM} over {KV_HEADS}, depth {depth}",
        rows,
        record,
        num_bytes=F32_BYTES * rows * 2.0 * HEADS * HEAD_DIM,
        num_ops=4.0 * pairs * HEADS * HEAD_DIM,
        depth=depth,
    )


def _recurrent(rows: int) -> Iterator[OpCase]:
    """The ops that keep state, every copy with a layer of its own; the state is read and written once."""
    window = 2 * (STATE.conv_taps - 1) * STATE.conv_channels

    def conv(g: Graph, copies: int) -> None:
        u = g.new_input(STATE.conv_channels)
        for _ in range(copies):
            causal_conv(g, g.new_state_layer(STATE), u, "taps")

    yield OpCase(
        "causal_conv",
        f"{STATE.conv_taps} taps of {STATE.conv_channels}",
        rows,
        conv,
        num_bytes=F32_BYTES * (window + (2 * rows + STATE.conv_taps) * STATE.conv_channels),
        num_ops=2.0 * rows * STATE.conv_taps * STATE.conv_channels,
        depth=1,
        vectors={"taps": STATE.conv_taps * STATE.conv_channels},
        separate=False,
    )

    def rule(g: Graph, copies: int) -> None:
        q, k, v = (g.new_input(STATE_WIDTH) for _ in range(3))
        gates = g.new_input(2 * STATE.num_v_heads)
        for _ in range(copies):
            gated_delta_rule(g, g.new_state_layer(STATE), q, k, v, gates, STATE.num_v_heads, STATE.num_v_heads)

    state = STATE.num_v_heads * STATE.key_dim * STATE.value_dim
    yield OpCase(
        "gated_delta_rule",
        f"{STATE.num_v_heads} heads of {STATE.key_dim} x {STATE.value_dim}",
        rows,
        rule,
        num_bytes=F32_BYTES * (2.0 * state + rows * (4 * STATE_WIDTH + 2 * STATE.num_v_heads)),
        num_ops=7.0 * rows * state,  # a decay, and three products of a multiply and an add
        depth=1,
    )


def _elementwise(rows: int) -> Iterator[OpCase]:
    """The ops that only move and touch rows; `widths` counts the values read and written per row."""
    q_width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

    def light(op: str, shape: str, widths: float, record_one: Callable[[Graph, tuple[Value, ...]], object]) -> OpCase:
        def record(g: Graph, copies: int) -> None:
            inputs = tuple(g.new_input(width) for width in INPUT_WIDTHS[op])
            for _ in range(copies):
                record_one(g, inputs)

        return OpCase(
            op,
            shape,
            rows,
            record,
            num_bytes=F32_BYTES * rows * widths,
            logit_rows=rows if op == "select_rows" else 0,
            matrices={"table": ((VOCABULARY, HIDDEN), "q8g32")} if op == "embedding" else {},
            vectors=VECTORS.get(op, {}),
            separate=False,
        )

    def append(g: Graph, inputs: tuple[Value, ...]) -> None:
        kv_append(g, g.new_kv_layer(KVShape(KV_HEADS, HEAD_DIM)), *inputs)

    heads = f"heads of {HEAD_DIM}"
    stored_row = HIDDEN * 34 / 32 / F32_BYTES  # one q8g32 row of the table, in float32 values
    yield light(
        "embedding",
        f"{VOCABULARY} x {HIDDEN} q8g32",
        HIDDEN + stored_row,
        lambda g, _: embedding(g, "table", HIDDEN),
    )
    yield light("rms_norm", str(HIDDEN), 2 * HIDDEN, lambda g, x: rms_norm(g, x[0], "norm", 1e-5))
    yield light("rope_angles", str(HEAD_DIM), HEAD_DIM, lambda g, _: rope_angles(g, rope_frequencies(HEAD_DIM, 1e5)))
    yield light("rope", f"{HEADS} {heads}", 2 * q_width + HEAD_DIM, lambda g, x: rope(g, x[0], x[1], HEADS, HEAD_DIM))
    yield light("kv_append", f"{KV_HEADS} {heads}", 2 * kv_width, append)
    yield light(
        "dynamic_conv",
        f"{TAPS} taps of {HIDDEN} in groups of {GROUP}",
        2 * HIDDEN + TAPS * (HIDDEN + HIDDEN // GROUP),
        lambda g, x: dynamic_conv(g, x[0], x[1], "taps", TAPS),
    )
    yield light("silu_mul", str(INTERMEDIATE), 3 * INTERMEDIATE, lambda g, x: silu_mul(g, x[0]))
    heads = f"{STATE.num_v_heads} heads of {STATE.value_dim}"
    yield light("sigmoid_mul", str(STATE_WIDTH), 3 * STATE_WIDTH, lambda g, x: sigmoid_mul(g, x[0], x[1]))
    yield light("l2_norm", heads, 2 * STATE_WIDTH, lambda g, x: l2_norm(g, x[0], STATE.num_v_heads, 1.0))
    yield light(
        "delta_gates",
        f"{STATE.num_v_heads} heads",
        4 * STATE.num_v_heads,
        lambda g, x: delta_gates(g, x[0], x[1], "decay", "dt_bias"),
    )
    yield light(
        "gated_rms_norm",
        heads,
        3 * STATE_WIDTH,
        lambda g, x: gated_rms_norm(g, x[0], x[1], "head_norm", 1e-6, STATE.num_v_heads),
    )
    yield light("select_rows", str(HIDDEN), 2 * HIDDEN, lambda g, x: select_rows(g, x[0]))


INPUT_WIDTHS: Mapping[str, tuple[int, ...]] = {
    "embedding": (),
    "rms_norm": (HIDDEN,),
    "rope_angles": (),
    "rope": (HEADS * HEAD_DIM, HEAD_DIM),
    "kv_append": (KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM),
    "dynamic_conv": (HIDDEN, TAPS * HIDDEN // GROUP),
    "silu_mul": (2 * INTERMEDIATE,),
    "sigmoid_mul": (STATE_WIDTH, STATE_WIDTH),
    "l2_norm": (STATE_WIDTH,),
    "delta_gates": (STATE.num_v_heads, STATE.num_v_heads),
    "gated_rms_norm": (STATE_WIDTH, STATE_WIDTH),
    "select_rows": (HIDDEN,),
}
"""Widths of the inputs of the light ops."""

VECTORS: Mapping[str, Mapping[str, int]] = {
    "rms_norm": {"norm": HIDDEN},
    "dynamic_conv": {"taps": TAPS * HIDDEN},
    "delta_gates": {"decay": STATE.num_v_heads, "dt_bias": STATE.num_v_heads},
    "gated_rms_norm": {"head_norm": STATE.value_dim},
}
"""Names and widths of the weight vectors of the light ops."""
