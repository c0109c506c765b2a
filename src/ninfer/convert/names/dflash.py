"""DFlash and DFlash2 drafts as their authors publish them: settings and tensor names of a checkpoint directory.

A value in `dflash_config` stands before one of the same name outside. A key that is not known here is refused: a draft
that is run otherwise than it was trained only drafts badly, and nobody would see why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ninfer.convert.fields import Fields
from ninfer.convert.names.rules import TensorRule
from ninfer.errors import ConversionError
from ninfer.models.companion import DraftTarget
from ninfer.models.config_fields import MAX_LAYERS
from ninfer.models.dflash import MAX_BLOCK, MAX_CANDIDATES, MAX_TAPS, PREDECESSOR, SUCCESSOR, DFlashConfig

DFLASH, DFLASH2 = "DFlashDraftModel", "DFlash2DraftModel"
HF_CLASSES: Final = (DFLASH, DFLASH2)
ARCHITECTURE: Final = "dflash"
DEFAULT_BLOCK: Final = 16
FULL, SLIDING = "full_attention", "sliding_attention"

_READ_KEYS: Final = {
    "architectures",
    "attention_bias",
    "block_size",
    "conv_group_size",
    "conv_kernel_size",
    "dflash_config",
    "final_logit_softcapping",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "input_embedding_scale",
    "intermediate_size",
    "is_causal",
    "layer_types",
    "mask_token_id",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_target_layers",
    "output_multiplier",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "selector_rank",
    "selector_top_k",
    "sliding_window",
    "target_layer_ids",
    "vocab_size",
}
_KEYS_WITHOUT_MEANING: Final = {
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "max_position_embeddings",
    "max_window_layers",
    "model_type",
    "pad_token_id",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_sliding_window",
}
"""What the authors' code does not use, or what does not touch the computation of a draft."""

_LAYER_TENSORS: Final = {
    "mix_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "mix_conv": "attention_conv.base_kernel",
    "mix_kernels": "attention_conv.kernel_projection.weight",
    "mlp_conv": "mlp_conv.base_kernel",
    "mlp_kernels": "mlp_conv.kernel_projection.weight",
}
_OTHER_TENSORS: Final = {
    "dflash.fc": "fc.weight",
    "dflash.hidden_norm": "hidden_norm.weight",
    "dflash.norm": "norm.weight",
    PREDECESSOR: "candidate_selector.predecessor_codebook",
    SUCCESSOR: "candidate_selector.successor_codebook",
    "dflash.selector.hidden": "candidate_selector.hidden_projection.weight",
}


@dataclass(frozen=True)
class SourceDraft:
    """A draft checkpoint in our terms: our configuration, and every tensor that is imported."""

    config: Mapping[str, Any]
    rules: list[TensorRule]


def read_huggingface(fields: Fields, tensors: Collection[str], target: DraftTarget) -> SourceDraft:
    """From config.json and the names of all tensors; ArtifactError or ConversionError by key, also for a draft that
    does not fit the target."""
    draft = _Settings(fields)
    is_second = fields.values.get("architectures") == [DFLASH2]
    _check_keys(fields, draft.inner)
    _check_target(fields, target)
    num_layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    windows, causal = _sight(fields, num_layers)
    config: dict[str, Any] = {
        "target": asdict(target),
        "feature_layers": _feature_layers(draft, target, num_layers),
        "block_size": draft.of("block_size").integer("block_size", 2, MAX_BLOCK, default=DEFAULT_BLOCK),
        "mask_token_id": draft.of("mask_token_id").integer("mask_token_id", 0, target.vocab_size - 1),
        "windows": windows,
        "causal": causal,
        "num_heads": fields.integer("num_attention_heads", 1, 1 << 10),
        "num_kv_heads": fields.integer("num_key_value_heads", 1, 1 << 10),
        "intermediate_size": fields.integer("intermediate_size", 1, 1 << 19),
        "rope_theta": _rope_theta(fields),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "output_multiplier": draft.of("output_multiplier").number("output_multiplier", default=1.0),
        "softcap": _softcap(draft),
        "conv": None,
        "selector": None,
        "shortlist_size": None,
    }
    default_dim = target.hidden_size // config["num_heads"]
    config["head_dim"] = fields.integer("head_dim", 2, 1 << 12, default=default_dim)
    if is_second:
        config["conv"] = {
            "taps": draft.of("conv_kernel_size").integer("conv_kernel_size", 1, MAX_TAPS),
            "group_size": draft.of("conv_group_size").integer("conv_group_size", 1, target.hidden_size),
        }
        config["selector"] = {
            "rank": draft.of("selector_rank").integer("selector_rank", 1, 1 << 16),
            "candidates": draft.of("selector_top_k").integer("selector_top_k", 1, MAX_CANDIDATES),
        }
    ours = DFlashConfig.read(config, file=fields.file)
    return SourceDraft(config, _rules(ours, tensors))


class _Settings:
    """config.json and the table in it that stands before it."""

    def __init__(self, fields: Fields) -> None:
        self._outer = fields
        self.inner = fields.table("dflash_config")

    def of(self, key: str) -> Fields:
        """Where a key is to be read."""
        return self.inner if self.inner.has(key) else self._outer


def _check_keys(fields: Fields, inner: Fields) -> None:
    for table in (fields, inner):
        known = _READ_KEYS | _KEYS_WITHOUT_MEANING
        unknown = sorted(key for key, value in table.values.items() if key not in known and value is not None)
        if unknown:
            table.refuse(unknown[0], "what it means for a draft is not known")
    if fields.flag("attention_bias", default=False):
        fields.refuse("attention_bias", "biases are not supported")
    if fields.text("hidden_act", default="silu") != "silu":
        fields.refuse("hidden_act", "silu is supported")
    for table in (fields, inner):
        if table.number("input_embedding_scale", default=1.0) != 1:
            table.refuse("input_embedding_scale", "embeddings are taken as they are")


def _check_target(fields: Fields, target: DraftTarget) -> None:
    """The sizes that a draft shares with its target."""
    wanted = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    if fields.has("num_target_layers"):
        wanted["num_target_layers"] = target.num_layers
    for key, size in wanted.items():
        if fields.integer(key, 1, 1 << 24) != size:
            fields.refuse(key, f"the target has {size}")


def _feature_layers(draft: _Settings, target: DraftTarget, num_layers: int) -> list[int]:
    """The listed layers, or those that the authors' code takes where none are."""
    fields = draft.of("target_layer_ids")
    value = fields.values.get("target_layer_ids")
    if value is None:
        if num_layers == 1:
            return [target.num_layers // 2]
        span = target.num_layers - 4
        return [round(1 + i * span / (num_layers - 1)) for i in range(num_layers)]
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        fields.fail("target_layer_ids", f"must be a list of layers, not {value!r:.60}")
    return value


def _sight(fields: Fields, num_layers: int) -> tuple[list[int | None], list[bool]]:
    """Window and direction of every layer. Without `is_causal`, layers with a window look back only."""
    types = fields.values.get("layer_types") or [FULL] * num_layers
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in (FULL, SLIDING) for kind in types):
        fields.fail("layer_types", f"must be {num_layers} of {FULL} and {SLIDING}, not {types!r:.60}")
    window = fields.integer("sliding_window", 1, 1 << 24) if SLIDING in types else None
    windows = [window if kind == SLIDING else None for kind in types]
    if fields.has("is_causal"):
        return windows, [fields.flag("is_causal", default=False)] * num_layers
    return windows, [kind == SLIDING for kind in types]


def _rope_theta(fields: Fields) -> float:
    if fields.values.get("rope_scaling"):
        fields.refuse("rope_scaling", "scaled positions are not supported for drafts")
    table = fields.table("rope_parameters")
    if table.text("rope_type", default="default") != "default":
        table.refuse("rope_type", "scaled positions are not supported for drafts")
    unknown = sorted(set(table.values) - {"rope_type", "rope_theta"})
    if unknown:
        table.refuse(unknown[0], "what it means for a draft is not known")
    return (table if table.has("rope_theta") else fields).number("rope_theta", above=1)


def _softcap(draft: _Settings) -> float | None:
    """Zero means none, too."""
    fields = draft.of("final_logit_softcapping")
    if not fields.has("final_logit_softcapping"):
        return None
    return fields.number_in("final_logit_softcapping", 0, 1e6) or None


def _rules(config: DFlashConfig, tensors: Collection[str]) -> list[TensorRule]:
    rules = []
    for name, shape in config.tensor_shapes().items():
        source_shape = None
        if name in _OTHER_TENSORS:
            source = _OTHER_TENSORS[name]
        else:
            _, _, layer, part = name.split(".")
            source = f"layers.{layer}.{_LAYER_TENSORS[part]}"
            if part.endswith("_conv") and config.conv is not None:
                source_shape = (2, config.conv.taps, config.target.hidden_size)
        if source not in tensors and f"{source}.weight" in tensors:  # as torch names an embedding
            source = f"{source}.weight"
        rules.append(TensorRule(name, source, shape, source_shape=source_shape))
    return rules


def refuse_without_target(fields: Fields) -> None:
    """ConversionError for a draft of which nobody says whose it is."""
    architectures = fields.values.get("architectures")
    if isinstance(architectures, list) and any(name in HF_CLASSES for name in architectures):
        raise ConversionError(f"{fields.file}: this is a draft; name the model it drafts for (--target MODEL)")
