"""Parts of a layer that families share: attention over a sequence's own history, and the gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.ops.graph import Graph, KVShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
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
