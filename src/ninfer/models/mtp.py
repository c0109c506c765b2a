"""Multi-token prediction: one decoder layer that drafts, fed with what the target made of the text so far.

Column p joins the target's row h_p after its last norm with the token that follows it:

    e, h = rms_norm(embed[x_{p+1}], embed_norm), rms_norm(h_p, hidden_norm)
    x    = fc [e | h]                                      the embedding half first
    x   += Wo attention(a)                                 a = rms_norm(x, mix_norm), plain or gated (`blocks`)
    x   += Wdown(silu(Wgate m) * (Wup m))                  m = rms_norm(x, mlp_norm)
    m_p  = rms_norm(x, norm)
    logits = Whead m_p                                     predict x_{p+2}

The rotary position of column p is p, its keys and values lie in slot p of a KV layer of its own, and it sees the
columns up to p. Column p + 1 of a longer draft takes m_p for the row that the target has not computed. Embedding and
head are the target's. Source: the DeepSeek-V3 report (2024), and `mtp.*` of Qwen3.5 checkpoints as vLLM runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ninfer.models.blocks import (
    AttentionHeads,
    attention_shapes,
    gated_attention,
    gated_mlp,
    gated_mlp_shapes,
    plain_attention,
)
from ninfer.models.companion import DraftHead, DraftTarget, read_heads, read_shortlist, shortlist_shapes
from ninfer.models.config_fields import ConfigFields
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.graph import Feature, Graph
from ninfer.ops.linear import linear
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows

LAYER = "mtp.layers.0"
ATTENTION = ("plain", "gated")


@dataclass(frozen=True)
class MTPModule:
    """One module, part of a checkpoint or attached. frequencies, magnitude: as `ops.rope_angles` takes them."""

    hidden_size: int
    intermediate_size: int
    heads: AttentionHeads
    gated: bool
    frequencies: tuple[float, ...]
    magnitude: float
    rms_norm_eps: float

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {
            "mtp.embed_norm": (hidden,),
            "mtp.hidden_norm": (hidden,),
            "mtp.fc": (hidden, 2 * hidden),
            f"{LAYER}.mix_norm": (hidden,),
            **attention_shapes(LAYER, hidden, self.heads, gated=self.gated),
            **gated_mlp_shapes(LAYER, hidden, self.intermediate_size),
            "mtp.norm": (hidden,),
        }

    def record(self, g: Graph, head: DraftHead) -> None:
        """Record one pass. Its input `[T, hidden]` takes the rows h_p.

        Token ids of a step are x_{p+1}, positions p. Logits `[R, num_logits]` and feature `final`, the rows m_p
        `[R, hidden]`, are there for the wanted rows only: the others just leave keys and values.
        """
        hidden, eps = self.hidden_size, self.rms_norm_eps
        given = g.new_input(hidden)
        joined = g.new_value(2 * hidden, "T")
        rms_norm(g, embedding(g, "embed", hidden), "mtp.embed_norm", eps, into=joined.columns(0, hidden))
        rms_norm(g, given, "mtp.hidden_norm", eps, into=joined.columns(hidden, 2 * hidden))
        x = linear(g, joined, [("mtp.fc", hidden)])
        a = rms_norm(g, x, f"{LAYER}.mix_norm", eps)
        angles = rope_angles(g, self.frequencies, self.magnitude)
        if self.gated:
            attended = gated_attention(g, LAYER, a, self.heads, angles, eps)
        else:
            attended = plain_attention(g, LAYER, a, self.heads, angles)
        x = linear(g, select_rows(g, attended), [(f"{LAYER}.o", hidden)], residual=select_rows(g, x))
        last = rms_norm(g, gated_mlp(g, LAYER, x, self.intermediate_size, eps), "mtp.norm", eps)
        g.mark_feature("final", last)
        g.mark_logits(linear(g, last, [(head.weight, head.num_rows)]).columns(0, head.num_logits))


@dataclass(frozen=True)
class MTPConfig:
    """An attached module (`docs/formats.md`, "Draft companions"). attention: `plain`, or `gated` with norms of queries
    and keys."""

    target: DraftTarget
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    attention: str
    shortlist_size: int | None

    @property
    def module(self) -> MTPModule:
        return MTPModule(
            hidden_size=self.target.hidden_size,
            intermediate_size=self.intermediate_size,
            heads=AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim),
            gated=self.attention == "gated",
            frequencies=rope_frequencies(self.rotary_dim, self.rope_theta),
            magnitude=1.0,
            rms_norm_eps=self.rms_norm_eps,
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        return ("final",)

    @classmethod
    def read(cls, config: Mapping[str, Any], *, file: object = None) -> MTPConfig:
        """Check a companion's configuration; ArtifactError names the first field that is missing, wrong or unknown."""
        read = ConfigFields(config, [field.name for field in fields(cls)], file=file)
        target = DraftTarget.read(read)
        heads = read_heads(read)
        rotary_dim = read.size("rotary_dim")
        if rotary_dim % 2 or rotary_dim > heads.head_dim:
            message = f"must be even and at most the {heads.head_dim} dims of a head, got {rotary_dim}"
            raise read.error("rotary_dim", message)
        return cls(
            target=target,
            intermediate_size=read.size("intermediate_size"),
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            rotary_dim=rotary_dim,
            rope_theta=read.positive("rope_theta", above=1),
            rms_norm_eps=read.positive("rms_norm_eps"),
            attention=read.word("attention", ATTENTION),
            shortlist_size=read_shortlist(read, target),
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices `[N, K]`, vectors `[W]`."""
        return self.module.tensor_shapes() | shortlist_shapes(self.target, self.shortlist_size)
