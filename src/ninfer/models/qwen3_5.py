"""The Qwen3.5 family (3.5, 3.6 and 3.8, dense): gated delta-rule layers with gated full attention in between.

    h = embed[ids]
    per layer:  h += mixer(x)                        with x = rms_norm(h, mix_norm)
                h += Wdown(silu(Wgate m) * (Wup m))  with m = rms_norm(h, mlp_norm)
    logits = Whead rms_norm(h, norm)                 Whead = embed when the head is tied

    full attention    q, k = rope(rms_norm(Wq x)), rope(rms_norm(Wk x)) per head
                      mixer(x) = Wo (attention(q, k, Wv x) * sigmoid(Wq_gate x))
    linear attention  q, k, v = silu(causal_conv(Wqkv x)), then q and k l2-normalised per head
                      mixer(x) = Wout (rms_norm(gated_delta_rule(q, k, v, gates)) * silu(Wz x)), the norm per head

Norm weights are stored as they are multiplied; files of this family hold w where 1 + w is meant, except in `out_norm`.
Rows of the vocabulary that no token has never become logits. Source: transformers `models/qwen3_5`. All activations
are float32 here; that code casts normalised rows, convolved rows and the output of the rule to the model's type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ninfer.models.blocks import AttentionHeads, attention_shapes, gated_attention, gated_mlp, gated_mlp_shapes
from ninfer.models.config_fields import MAX_LAYERS, MAX_SIZE, ConfigFields
from ninfer.models.mtp import MTPModule
from ninfer.ops.causal_conv import causal_conv
from ninfer.ops.delta_gates import delta_gates
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies, yarn_frequencies
from ninfer.ops.gated_delta_rule import gated_delta_rule
from ninfer.ops.gated_rms_norm import gated_rms_norm
from ninfer.ops.graph import Feature, Graph, StateShape, Value
from ninfer.ops.l2_norm import l2_norm
from ninfer.ops.linear import linear
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows

MAX_CONV_TAPS = 64
FULL, LINEAR = "full_attention", "linear_attention"
YARN_FACTORS, YARN_BETAS, YARN_MAGNITUDES = (1, MAX_SIZE), (0.001, 1000), (0.01, 100)
"""Smallest and largest numbers of a `Yarn`: far beyond any model, and all frequencies are finite."""


@dataclass(frozen=True)
class Yarn:
    """A context of `factor` times `original_length` positions (`ops.frequencies`). `magnitude`: of cosines and sines,
    None for the method's own."""

    factor: float
    original_length: int
    beta_fast: float
    beta_slow: float
    magnitude: float | None

    @classmethod
    def read(cls, read: ConfigFields) -> Yarn:
        result = cls(
            factor=read.number("factor", *YARN_FACTORS),
            original_length=read.size("original_length"),
            beta_fast=read.number("beta_fast", *YARN_BETAS),
            beta_slow=read.number("beta_slow", *YARN_BETAS),
            magnitude=read.find_number("magnitude", *YARN_MAGNITUDES),
        )
        if result.beta_fast < result.beta_slow:
            raise read.error("beta_fast", f"must not be below beta_slow {result.beta_slow}, got {result.beta_fast}")
        return result


@dataclass(frozen=True)
class Qwen35Config:
    """The facts of one checkpoint.

    layer_types: `full_attention` or `linear_attention` for every layer. delta_*: heads of the delta rule; a key head
    serves the value heads next to each other. rotary_dim: the first dims of a head that turn. max_position: the trained
    context. num_mtp_layers: layers that predict the token after the next, whose tensors are loaded beside the model's.
    num_decodable: ids from 0 that the tokenizer can decode; further rows of the vocabulary are padding. stop_token_ids:
    all ids that end a text.
    """

    vocab_size: int
    num_decodable: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    yarn: Yarn | None
    delta_num_k_heads: int
    delta_num_v_heads: int
    delta_key_dim: int
    delta_value_dim: int
    conv_taps: int
    rms_norm_eps: float
    max_position: int
    num_mtp_layers: int
    tied_head: bool
    bos_token_id: int | None
    stop_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def head_name(self) -> str:
        return "embed" if self.tied_head else "head"

    @property
    def heads(self) -> AttentionHeads:
        """Of the full attention layers."""
        return AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def delta_k_width(self) -> int:
        return self.delta_num_k_heads * self.delta_key_dim

    @property
    def delta_v_width(self) -> int:
        return self.delta_num_v_heads * self.delta_value_dim

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values of a linear layer, in this order."""
        return 2 * self.delta_k_width + self.delta_v_width

    @classmethod
    def read(cls, config: Mapping[str, Any], *, file: object = None) -> Qwen35Config:
        """Check an artifact's configuration; ArtifactError names the first field that is missing, wrong or unknown."""
        read = ConfigFields(config, [field.name for field in fields(cls)], file=file)
        vocab_size = read.size("vocab_size")
        yarn = read.find_table("yarn", [field.name for field in fields(Yarn)])
        result = cls(
            vocab_size=vocab_size,
            num_decodable=read.size("num_decodable", most=vocab_size),
            hidden_size=read.size("hidden_size"),
            intermediate_size=read.size("intermediate_size"),
            layer_types=read.words("layer_types", (FULL, LINEAR), most=MAX_LAYERS),
            num_heads=read.size("num_heads"),
            num_kv_heads=read.size("num_kv_heads"),
            head_dim=read.size("head_dim"),
            rotary_dim=read.size("rotary_dim"),
            rope_theta=read.positive("rope_theta", above=1),
            yarn=None if yarn is None else Yarn.read(yarn),
            delta_num_k_heads=read.size("delta_num_k_heads"),
            delta_num_v_heads=read.size("delta_num_v_heads"),
            delta_key_dim=read.size("delta_key_dim"),
            delta_value_dim=read.size("delta_value_dim"),
            conv_taps=read.size("conv_taps", most=MAX_CONV_TAPS),
            rms_norm_eps=read.positive("rms_norm_eps"),
            max_position=read.size("max_position"),
            num_mtp_layers=read.size("num_mtp_layers", least=0, most=1),
            tied_head=read.flag("tied_head"),
            bos_token_id=read.token_id("bos_token_id", vocab_size),
            stop_token_ids=read.token_ids("stop_token_ids", vocab_size),
            pad_token_id=read.token_id("pad_token_id", vocab_size),
        )
        if result.num_heads % result.num_kv_heads:
            raise read.error("num_kv_heads", f"{result.num_kv_heads} do not divide {result.num_heads} heads")
        if result.delta_num_v_heads % result.delta_num_k_heads:
            message = f"{result.delta_num_k_heads} key heads do not divide {result.delta_num_v_heads} value heads"
            raise read.error("delta_num_k_heads", message)
        if result.rotary_dim % 2 or result.rotary_dim > result.head_dim:
            message = f"must be even and at most the {result.head_dim} dims of a head, got {result.rotary_dim}"
            raise read.error("rotary_dim", message)
        return result

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices `[N, K]`, vectors `[W]`; `conv` is `[taps * channels]`, tap by tap."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, hidden)}
        for i, kind in enumerate(self.layer_types):
            layer = f"layers.{i}"
            shapes[f"{layer}.mix_norm"] = (hidden,)
            shapes |= (
                attention_shapes(layer, hidden, self.heads, gated=True) if kind == FULL else self._delta_shapes(layer)
            )
            shapes |= gated_mlp_shapes(layer, hidden, self.intermediate_size)
        shapes["norm"] = (hidden,)
        if not self.tied_head:
            shapes["head"] = (self.vocab_size, hidden)
        mtp = self.find_mtp()
        return shapes if mtp is None else shapes | mtp.tensor_shapes()

    def find_mtp(self) -> MTPModule | None:
        """The module that drafts, if the checkpoint has one."""
        if not self.num_mtp_layers:
            return None
        frequencies, magnitude = self._frequencies()
        return MTPModule(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            heads=self.heads,
            gated=True,
            frequencies=frequencies,
            magnitude=magnitude,
            rms_norm_eps=self.rms_norm_eps,
        )

    def _delta_shapes(self, layer: str) -> dict[str, tuple[int, ...]]:
        return {
            f"{layer}.qkv": (self.conv_channels, self.hidden_size),
            f"{layer}.z": (self.delta_v_width, self.hidden_size),
            f"{layer}.a": (self.delta_num_v_heads, self.hidden_size),
            f"{layer}.b": (self.delta_num_v_heads, self.hidden_size),
            f"{layer}.conv": (self.conv_taps * self.conv_channels,),
            f"{layer}.decay": (self.delta_num_v_heads,),
            f"{layer}.dt_bias": (self.delta_num_v_heads,),
            f"{layer}.out_norm": (self.delta_value_dim,),
            f"{layer}.out": (self.hidden_size, self.delta_v_width),
        }

    def record(self, g: Graph, features: Collection[Feature] = ()) -> None:
        """Record the whole forward with the wanted features; the graph's logits are `[R, num_decodable]`."""
        every_row = "final" in features or self.num_layers - 1 in features
        h = embedding(g, "embed", self.hidden_size)
        angles = rope_angles(g, *self._frequencies())
        for i, kind in enumerate(self.layer_types):
            layer = f"layers.{i}"
            x = rms_norm(g, h, f"{layer}.mix_norm", self.rms_norm_eps)
            if kind == FULL:
                mixed = gated_attention(g, layer, x, self.heads, angles, self.rms_norm_eps)
            else:
                mixed = self._delta(g, layer, x)
            # Nothing after this point mixes rows, so only rows with logits go on.
            if i == self.num_layers - 1 and not every_row:
                mixed, h = select_rows(g, mixed), select_rows(g, h)
            h = linear(g, mixed, [(f"{layer}.{'o' if kind == FULL else 'out'}", self.hidden_size)], residual=h)
            h = gated_mlp(g, layer, h, self.intermediate_size, self.rms_norm_eps)
            if i in features:
                g.mark_feature(i, h)
        last = rms_norm(g, h, "norm", self.rms_norm_eps)
        if "final" in features:
            g.mark_feature("final", last)
        if every_row:
            last = select_rows(g, last)
        logits = linear(g, last, [(self.head_name, self.vocab_size)])
        g.mark_logits(logits.columns(0, self.num_decodable))

    def _frequencies(self) -> tuple[tuple[float, ...], float]:
        """Inverse frequencies of the rotated pairs and the magnitude of their cosines and sines."""
        if self.yarn is None:
            return rope_frequencies(self.rotary_dim, self.rope_theta), 1.0
        frequencies, magnitude = yarn_frequencies(
            self.rotary_dim,
            self.rope_theta,
            self.yarn.factor,
            self.yarn.original_length,
            beta_fast=self.yarn.beta_fast,
            beta_slow=self.yarn.beta_slow,
        )
        return frequencies, magnitude if self.yarn.magnitude is None else self.yarn.magnitude

    def _delta(self, g: Graph, layer: str, x: Value) -> Value:
        """`[T, hidden]` to the gated value heads side by side, `[T, delta_v_width]`."""
        channels, k_width, v_heads = self.conv_channels, self.delta_k_width, self.delta_num_v_heads
        z_end = channels + self.delta_v_width
        weights = (("qkv", channels), ("z", self.delta_v_width), ("a", v_heads), ("b", v_heads))
        y = linear(g, x, [(f"{layer}.{part}", width) for part, width in weights])
        state_layer = g.new_state_layer(
            StateShape(channels, self.conv_taps, v_heads, self.delta_key_dim, self.delta_value_dim)
        )
        u = causal_conv(g, state_layer, y.columns(0, channels), f"{layer}.conv")
        q = l2_norm(g, u.columns(0, k_width), self.delta_num_k_heads, self.delta_key_dim**-0.5)
        k = l2_norm(g, u.columns(k_width, 2 * k_width), self.delta_num_k_heads, 1.0)
        gates = delta_gates(
            g,
            y.columns(z_end, z_end + v_heads),
            y.columns(z_end + v_heads, y.width),
            f"{layer}.decay",
            f"{layer}.dt_bias",
        )
        o = gated_delta_rule(
            g, state_layer, q, k, u.columns(2 * k_width, channels), gates, self.delta_num_k_heads, v_heads
        )
        return gated_rms_norm(g, o, y.columns(channels, z_end), f"{layer}.out_norm", self.rms_norm_eps, v_heads)
