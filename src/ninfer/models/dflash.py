"""DFlash: a small transformer that fills a block of masked tokens in one pass, seeing the past through its target.

A block at position `start` is the anchor token and B - 1 mask tokens. Context row t < start is made of the target's
residuals s_t after the layers `feature_layers`, side by side:

    c_t = rms_norm(fc s_t, hidden_norm)               keys and values of every layer come from it, without a norm
    X   = embed[anchor, mask, ..., mask]              the target's rows
    per layer:  a  = conv_0(rms_norm(X, mix_norm))
                Q, K = rope(rms_norm(Wq a)), rope(rms_norm(Wk [c | a])) per head
                X += conv_1(Wo attention(Q, K, Wv [c | a]))       a block row sees all context rows (those nearer than
                                                                  `window` where there is one), and its block: all of
                                                                  it, or the rows up to itself where `causal`
                X += conv_1(mlp(conv_0(rms_norm(X, mlp_norm))))
    Y = rms_norm(X, norm);  logits = Whead Y                      row j predicts the token at start + j

DFlash2 adds the two convolutions (without them conv is nothing) and a selector that couples neighbouring slots. Source:
the DFlash paper and the `dflash` package of its authors. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ninfer.models.blocks import AttentionHeads, attention_shapes, gated_mlp_shapes
from ninfer.models.companion import DraftHead, DraftTarget, read_heads, read_shortlist, shortlist_shapes
from ninfer.models.config_fields import MAX_LAYERS, ConfigFields
from ninfer.ops.dynamic_conv import dynamic_conv
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.graph import Feature, Graph, KVShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope import rope
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows
from ninfer.ops.silu_mul import silu_mul

PREDECESSOR, SUCCESSOR = "dflash.selector.predecessor", "dflash.selector.successor"
MAX_BLOCK = 16
MAX_TAPS = 8
MAX_CANDIDATES = 64


@dataclass(frozen=True)
class DynamicConv:
    """A convolution over the rows of a block: `taps` rows, the row itself first, with weights that `group_size`
    neighbouring channels share on top of their own."""

    taps: int
    group_size: int

    @classmethod
    def read(cls, read: ConfigFields) -> DynamicConv:
        return cls(read.size("taps", most=MAX_TAPS), read.size("group_size"))


@dataclass(frozen=True)
class Selector:
    """Scores of neighbouring tokens: codebooks of `rank` columns, over the `candidates` best tokens of a slot."""

    rank: int
    candidates: int

    @classmethod
    def read(cls, read: ConfigFields) -> Selector:
        return cls(read.size("rank"), read.size("candidates", most=MAX_CANDIDATES))


@dataclass(frozen=True)
class DFlashConfig:
    """One draft (`docs/formats.md`, "Draft companions").

    block_size: rows of a block, the anchor included. windows, causal: by layer, no window where None. conv, selector:
    both for DFlash2, neither for DFlash. output_multiplier: factor of the logits. softcap: logits z become
    `softcap * tanh(z / softcap)`, after the factor.
    """

    target: DraftTarget
    feature_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    output_multiplier: float
    softcap: float | None
    conv: DynamicConv | None
    selector: Selector | None
    shortlist_size: int | None

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def heads(self) -> AttentionHeads:
        return AttentionHeads(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def features(self) -> tuple[Feature, ...]:
        return self.feature_layers

    @classmethod
    def read(cls, config: Mapping[str, Any], *, file: object = None) -> DFlashConfig:
        """Check a companion's configuration; ArtifactError names the first field that is missing, wrong or unknown."""
        read = ConfigFields(config, [field.name for field in fields(cls)], file=file)
        target, heads = DraftTarget.read(read), read_heads(read)
        if heads.head_dim % 2:
            raise read.error("head_dim", f"{heads.head_dim} is odd; rotary embedding pairs dims")
        layers = read.sizes("feature_layers", least=0, most=target.num_layers - 1, count=target.num_layers)
        if list(layers) != sorted(set(layers)):
            raise read.error("feature_layers", f"must ascend, got {list(layers)}")
        conv = read.find_table("conv", [field.name for field in fields(DynamicConv)])
        selector = read.find_table("selector", [field.name for field in fields(Selector)])
        result = cls(
            target=target,
            feature_layers=layers,
            block_size=read.size("block_size", least=2, most=MAX_BLOCK),
            mask_token_id=read.size("mask_token_id", least=0, most=target.vocab_size - 1),
            windows=read.sizes_or_null("windows", count=MAX_LAYERS),
            causal=read.flags("causal", count=MAX_LAYERS),
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            intermediate_size=read.size("intermediate_size"),
            rope_theta=read.positive("rope_theta", above=1),
            rms_norm_eps=read.positive("rms_norm_eps"),
            output_multiplier=read.positive("output_multiplier"),
            softcap=read.find_number("softcap", 1e-3, 1e6),
            conv=None if conv is None else DynamicConv.read(conv),
            selector=None if selector is None else Selector.read(selector),
            shortlist_size=read_shortlist(read, target),
        )
        if len(result.causal) != result.num_layers:
            raise read.error("causal", f"{len(result.causal)} values for {result.num_layers} layers of windows")
        narrow = [window for window in result.windows if window is not None and window < result.block_size]
        if narrow:
            raise read.error("windows", f"a window of {narrow[0]} is shorter than a block of {result.block_size}")
        if result.conv is not None and target.hidden_size % result.conv.group_size:
            raise read.error("conv.group_size", f"{result.conv.group_size} does not divide {target.hidden_size}")
        return result

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices `[N, K]`, vectors `[W]`."""
        hidden, vocab = self.target.hidden_size, self.target.vocab_size
        shapes: dict[str, tuple[int, ...]] = {
            "dflash.fc": (hidden, len(self.feature_layers) * hidden),
            "dflash.hidden_norm": (hidden,),
        }
        for i in range(self.num_layers):
            layer = f"dflash.layers.{i}"
            shapes[f"{layer}.mix_norm"] = (hidden,)
            shapes |= attention_shapes(layer, hidden, self.heads, gated=False)
            shapes |= {f"{layer}.q_norm": (self.head_dim,), f"{layer}.k_norm": (self.head_dim,)}
            shapes |= gated_mlp_shapes(layer, hidden, self.intermediate_size)
            if self.conv is not None:
                taps, groups = self.conv.taps, hidden // self.conv.group_size
                for part in ("mix", "mlp"):
                    shapes[f"{layer}.{part}_conv"] = (2 * taps * hidden,)
                    shapes[f"{layer}.{part}_kernels"] = (2 * taps * groups, hidden)
        shapes["dflash.norm"] = (hidden,)
        if self.selector is not None:
            rank = self.selector.rank
            shapes |= {
                PREDECESSOR: (vocab, rank),
                SUCCESSOR: (vocab, rank),
                "dflash.selector.hidden": (rank, hidden),
            }
        return shapes | shortlist_shapes(self.target, self.shortlist_size)

    def record_context(self, g: Graph) -> None:
        """Record the pass that leaves keys and values of context rows. Its input `[T, F * hidden]` takes the rows s_t
        at the step's positions; token ids mean nothing."""
        heads, eps = self.heads, self.rms_norm_eps
        s = g.new_input(len(self.feature_layers) * self.target.hidden_size)
        c = rms_norm(g, linear(g, s, [("dflash.fc", self.target.hidden_size)]), "dflash.hidden_norm", eps)
        angles = self._angles(g)
        parts = [f"dflash.layers.{i}.{part}" for i in range(self.num_layers) for part in ("k", "v")]
        y = linear(g, c, [(name, heads.kv_width) for name in parts])
        for i in range(self.num_layers):
            start = 2 * i * heads.kv_width
            k = y.columns(start, start + heads.kv_width)
            v = y.columns(start + heads.kv_width, start + 2 * heads.kv_width)
            k = rms_norm(g, k, f"dflash.layers.{i}.k_norm", eps, num_heads=heads.num_kv_heads)
            k = rope(g, k, angles, heads.num_kv_heads, heads.head_dim)
            kv_append(g, g.new_kv_layer(self._kv_shape), k, v)

    def record_block(self, g: Graph, head: DraftHead) -> None:
        """Record the pass over blocks, whose token ids a step has at their positions.

        Logits `[R, num_logits]`, before multiplier and cap, are there for the wanted rows; with a selector the feature
        `final` `[R, rank]` too, which are its rows of hidden factors.
        """
        hidden, eps = self.target.hidden_size, self.rms_norm_eps
        x = embedding(g, "embed", hidden)
        angles = self._angles(g)
        for i in range(self.num_layers):
            layer = f"dflash.layers.{i}"
            x = self._sublayer(g, layer, "mix", x, partial(self._attention, g, i, angles), "o")
            x = self._sublayer(g, layer, "mlp", x, partial(self._mlp, g, layer), "down")
        last = rms_norm(g, select_rows(g, x), "dflash.norm", eps)
        if self.selector is not None:
            g.mark_feature("final", linear(g, last, [("dflash.selector.hidden", self.selector.rank)]))
        g.mark_logits(linear(g, last, [(head.weight, head.num_rows)]).columns(0, head.num_logits))

    def _sublayer(
        self, g: Graph, layer: str, part: str, x: Value, inner: Callable[[Value], Value], output: str
    ) -> Value:
        """`x` plus what comes out of attention or MLP, between the two convolutions if there are any."""
        a = rms_norm(g, x, f"{layer}.{part}_norm", self.rms_norm_eps)
        if self.conv is None:
            return linear(g, inner(a), [(f"{layer}.{output}", x.width)], residual=x)
        taps = self.conv.taps
        num_kernels = taps * x.width // self.conv.group_size
        kernels = linear(g, a, [(f"{layer}.{part}_kernels", 2 * num_kernels)])
        before, after = kernels.columns(0, num_kernels), kernels.columns(num_kernels, 2 * num_kernels)
        a = dynamic_conv(g, a, before, f"{layer}.{part}_conv", taps)
        y = linear(g, inner(a), [(f"{layer}.{output}", x.width)])
        return dynamic_conv(g, y, after, f"{layer}.{part}_conv", taps, first=taps * x.width, residual=x)

    def _attention(self, g: Graph, index: int, angles: Value, a: Value) -> Value:
        """`[T, hidden]` to the heads side by side; the rows' keys and values lie behind the context until it grows."""
        heads, layer = self.heads, f"dflash.layers.{index}"
        q_width, kv_width = heads.q_width, heads.kv_width
        k_end = q_width + kv_width
        y = linear(g, a, [(f"{layer}.q", q_width), (f"{layer}.k", kv_width), (f"{layer}.v", kv_width)])
        q = rms_norm(g, y.columns(0, q_width), f"{layer}.q_norm", self.rms_norm_eps, num_heads=heads.num_heads)
        k = rms_norm(g, y.columns(q_width, k_end), f"{layer}.k_norm", self.rms_norm_eps, num_heads=heads.num_kv_heads)
        q = rope(g, q, angles, heads.num_heads, heads.head_dim)
        k = rope(g, k, angles, heads.num_kv_heads, heads.head_dim)
        kv_layer = g.new_kv_layer(self._kv_shape)
        kv_append(g, kv_layer, k, y.columns(k_end, y.width))
        return paged_attention(
            g,
            kv_layer,
            q,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.head_dim**-0.5,
            causal=self.causal[index],
            window=self.windows[index],
        )

    def _mlp(self, g: Graph, layer: str, m: Value) -> Value:
        width = self.intermediate_size
        return silu_mul(g, linear(g, m, [(f"{layer}.gate", width), (f"{layer}.up", width)]))

    def _angles(self, g: Graph) -> Value:
        return rope_angles(g, rope_frequencies(self.head_dim, self.rope_theta))

    @property
    def _kv_shape(self) -> KVShape:
        return KVShape(self.num_kv_heads, self.head_dim)
