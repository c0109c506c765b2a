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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ninfer.models.blocks import AttentionHeads, attention_shapes, gated_mlp_shapes
from ninfer.models.companion import DraftTarget, read_heads, read_shortlist, shortlist_shapes
from ninfer.models.config_fields import MAX_LAYERS, ConfigFields
from ninfer.ops.graph import Feature

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
    both for DFlash2, neither for DFlash. embedding_scale, output_multiplier: factors of embeddings and logits.
    softcap: logits z become `softcap * tanh(z / softcap)`.
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
    embedding_scale: float
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
            embedding_scale=read.positive("embedding_scale"),
            output_multiplier=read.positive("output_multiplier"),
            softcap=read.find_number("softcap", 1e-3, 1e6),
            conv=None if conv is None else DynamicConv.read(conv),
            selector=None if selector is None else Selector.read(selector),
            shortlist_size=read_shortlist(read, target),
        )
        if len(result.causal) != result.num_layers:
            raise read.error("causal", f"{len(result.causal)} values for {result.num_layers} layers of windows")
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
                "dflash.selector.predecessor": (vocab, rank),
                "dflash.selector.successor": (vocab, rank),
                "dflash.selector.hidden": (rank, hidden),
            }
        return shapes | shortlist_shapes(self.target, self.shortlist_size)
