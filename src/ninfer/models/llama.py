"""The Llama family: rotary grouped-query attention and a gated MLP between RMS norms, without biases.

    h = embed[ids]
    per layer:  h += Wo attention(rope(Wq a), rope(Wk a), Wv a)   with a = rms_norm(h, attn_norm)
                h += Wdown(silu(Wgate m) * (Wup m))               with m = rms_norm(h, mlp_norm)
    logits = Whead rms_norm(h, norm)                              Whead = embed when the head is tied

Source: the Llama papers (Touvron et al. 2023) and the `LlamaForCausalLM` of their checkpoints. All activations are
float32 here; that code casts the normalised row to the checkpoint's type before it multiplies by the norm weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ninfer.models.blocks import AttentionHeads, attention_shapes, gated_mlp, gated_mlp_shapes, plain_attention
from ninfer.models.config_fields import MAX_LAYERS, ConfigFields
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.graph import Feature, Graph
from ninfer.ops.linear import linear
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows


@dataclass(frozen=True)
class LlamaConfig:
    """The facts of one checkpoint. `max_position` is its trained context; `stop_token_ids` are all ids that end a
    text."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position: int
    tied_head: bool
    bos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def heads(self) -> AttentionHeads:
        return AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def num_decodable(self) -> int:
        return self.vocab_size

    @property
    def head_name(self) -> str:
        return "embed" if self.tied_head else "head"

    @classmethod
    def read(cls, config: Mapping[str, Any], *, file: object = None) -> LlamaConfig:
        """Check an artifact's configuration; ArtifactError names the first field that is missing, wrong or unknown."""
        read = ConfigFields(config, [field.name for field in fields(cls)], file=file)
        vocab_size = read.size("vocab_size")
        result = cls(
            vocab_size=vocab_size,
            hidden_size=read.size("hidden_size"),
            intermediate_size=read.size("intermediate_size"),
            num_layers=read.size("num_layers", most=MAX_LAYERS),
            num_heads=read.size("num_heads"),
            num_kv_heads=read.size("num_kv_heads"),
            head_dim=read.size("head_dim"),
            rope_theta=read.positive("rope_theta", above=1),
            rms_norm_eps=read.positive("rms_norm_eps"),
            max_position=read.size("max_position"),
            tied_head=read.flag("tied_head"),
            bos_token_id=read.token_id("bos_token_id", vocab_size),
            stop_token_ids=read.token_ids("stop_token_ids", vocab_size),
            pad_token_id=read.token_id("pad_token_id", vocab_size),
        )
        if result.num_heads % result.num_kv_heads:
            raise read.error("num_kv_heads", f"{result.num_kv_heads} do not divide {result.num_heads} heads")
        if result.head_dim % 2:
            raise read.error("head_dim", f"{result.head_dim} is odd; rotary embedding pairs dims")
        return result

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices `[N, K]`, norm vectors `[W]`."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, hidden)}
        for i in range(self.num_layers):
            shapes[f"layers.{i}.attn_norm"] = (hidden,)
            shapes |= attention_shapes(f"layers.{i}", hidden, self.heads, gated=False)
            shapes |= gated_mlp_shapes(f"layers.{i}", hidden, self.intermediate_size)
        shapes["norm"] = (hidden,)
        if not self.tied_head:
            shapes["head"] = (self.vocab_size, hidden)
        return shapes

    def record(self, g: Graph, features: Collection[Feature] = ()) -> None:
        """Record the whole forward with the wanted features; the graph's logits are `[R, V]`."""
        every_row = "final" in features or self.num_layers - 1 in features
        h = embedding(g, "embed", self.hidden_size)
        angles = rope_angles(g, rope_frequencies(self.head_dim, self.rope_theta))
        for i in range(self.num_layers):
            a = rms_norm(g, h, f"layers.{i}.attn_norm", self.rms_norm_eps)
            attended = plain_attention(g, f"layers.{i}", a, self.heads, angles)
            # Nothing after this point mixes rows, so only rows with logits go on.
            if i == self.num_layers - 1 and not every_row:
                attended, h = select_rows(g, attended), select_rows(g, h)
            h = linear(g, attended, [(f"layers.{i}.o", self.hidden_size)], residual=h)
            h = gated_mlp(g, f"layers.{i}", h, self.intermediate_size, self.rms_norm_eps)
            if i in features:
                g.mark_feature(i, h)
        last = rms_norm(g, h, "norm", self.rms_norm_eps)
        if "final" in features:
            g.mark_feature("final", last)
        if every_row:
            last = select_rows(g, last)
        g.mark_logits(linear(g, last, [(self.head_name, self.vocab_size)]))
