"""Parts of a layer that families share: attention over a sequence's own history, and the gated MLP.

plain attention  q, k = rope(Wq x), rope(Wk x);            attention(q, k, Wv x)
gated attention  q, k = rope(norm(Wq x)), rope(norm(Wk x)) per head;  attention(q, k, Wv x) * sigmoid(Wq_gate x)
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.ops.graph import Graph, KVShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope import rope
from ninfer.ops.sigmoid_mul import sigmoid_mul
from ninfer.ops.silu_mul import silu_mul


@dataclass(frozen=True)
class AttentionHeads:
    """Grouped-query attention: `num_heads / num_kv_heads` query heads share a key and value head, all of `head_dim`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_width(self) -> int:
        """Columns of queries side by side, and of what attention gives."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of keys side by side, and of values."""
        return self.num_kv_heads * self.head_dim


def causal_attention(g: Graph, heads: AttentionHeads, q: Value, k: Value, v: Value) -> Value:
    """Attention of `q [T, q_width]` over a KV layer of its own, to which `k` and `v` `[T, kv_width]` are appended."""
    num_kv_heads, head_dim = heads.num_kv_heads, heads.head_dim
    layer = g.new_kv_layer(KVShape(num_kv_heads, head_dim))
    kv_append(g, layer, k, v)
    return paged_attention(g, layer, q, heads.num_heads, num_kv_heads, head_dim, head_dim**-0.5)


def plain_attention(g: Graph, layer: str, x: Value, heads: AttentionHeads, angles: Value) -> Value:
    """`x [T, hidden]` to the heads side by side, `[T, q_width]`."""
    q_width, kv_width, k_end = heads.q_width, heads.kv_width, heads.q_width + heads.kv_width
    qkv = linear(g, x, [(f"{layer}.q", q_width), (f"{layer}.k", kv_width), (f"{layer}.v", kv_width)])
    qk = rope(g, qkv.columns(0, k_end), angles, heads.num_heads + heads.num_kv_heads, heads.head_dim)
    q, k, v = qk.columns(0, q_width), qk.columns(q_width, k_end), qkv.columns(k_end, qkv.width)
    return causal_attention(g, heads, q, k, v)


def gated_attention(g: Graph, layer: str, x: Value, heads: AttentionHeads, angles: Value, eps: float) -> Value:
    """`x [T, hidden]` to the gated heads side by side, `[T, q_width]`."""
    q_width, kv_width = heads.q_width, heads.kv_width
    ends = (q_width, 2 * q_width, 2 * q_width + kv_width)
    weights = (("q", q_width), ("q_gate", q_width), ("k", kv_width), ("v", kv_width))
    y = linear(g, x, [(f"{layer}.{part}", width) for part, width in weights])
    q = rms_norm(g, y.columns(0, ends[0]), f"{layer}.q_norm", eps, num_heads=heads.num_heads)
    k = rms_norm(g, y.columns(ends[1], ends[2]), f"{layer}.k_norm", eps, num_heads=heads.num_kv_heads)
    q = rope(g, q, angles, heads.num_heads, heads.head_dim)
    k = rope(g, k, angles, heads.num_kv_heads, heads.head_dim)
    attended = causal_attention(g, heads, q, k, y.columns(ends[2], y.width))
    return sigmoid_mul(g, attended, y.columns(ends[0], ends[1]))


def attention_shapes(layer: str, hidden_size: int, heads: AttentionHeads, *, gated: bool) -> dict[str, tuple[int, ...]]:
    """The weights of an attention layer by name, those of its output included."""
    q, kv = (heads.q_width, hidden_size), (heads.kv_width, hidden_size)
    shapes: dict[str, tuple[int, ...]] = {f"{layer}.q": q}
    if gated:
        shapes[f"{layer}.q_gate"] = q
    shapes |= {f"{layer}.k": kv, f"{layer}.v": kv}
    if gated:
        shapes |= {f"{layer}.q_norm": (heads.head_dim,), f"{layer}.k_norm": (heads.head_dim,)}
    return shapes | {f"{layer}.o": (hidden_size, heads.q_width)}


def gated_mlp(g: Graph, layer: str, h: Value, intermediate_size: int, eps: float) -> Value:
    """`h + Wdown(silu(Wgate m) * (Wup m))` with `m = rms_norm(h, mlp_norm)`, shaped like `h [rows, hidden]`."""
    m = rms_norm(g, h, f"{layer}.mlp_norm", eps)
    gate_up = linear(g, m, [(f"{layer}.gate", intermediate_size), (f"{layer}.up", intermediate_size)])
    return linear(g, silu_mul(g, gate_up), [(f"{layer}.down", h.width)], residual=h)


def gated_mlp_shapes(layer: str, hidden_size: int, intermediate_size: int) -> dict[str, tuple[int, ...]]:
    """The weights of `gated_mlp` by name."""
    return {
        f"{layer}.mlp_norm": (hidden_size,),
        f"{layer}.gate": (intermediate_size, hidden_size),
        f"{layer}.up": (intermediate_size, hidden_size),
        f"{layer}.down": (hidden_size, intermediate_size),
    }
