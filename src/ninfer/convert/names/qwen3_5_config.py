"""The settings of the Qwen3.5 family in Hugging Face and GGUF files, as our configuration.

Whatever would change the computation of text and is not computed here is refused by its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ninfer.convert.fields import Fields
from ninfer.convert.names.source_model import MAX_VOCAB
from ninfer.models.config_fields import MAX_LAYERS
from ninfer.models.qwen3_5 import FULL, LINEAR, MAX_CONV_TAPS, YARN_BETAS, YARN_FACTORS, YARN_MAGNITUDES

DEFAULT_ROTARY_PART: Final = 0.25
"""The rotated part of a head where a config.json does not say."""
DEFAULT_FULL_INTERVAL: Final = 4
"""Every fourth layer is full attention where a file does not say."""
DEFAULT_BETA_FAST, DEFAULT_BETA_SLOW = 32.0, 1.0
"""YaRN's borders where a file does not say."""

# Our name -> largest value; far above any model of this family, so that sizes stay sizes.
_LIMITS: Final = {
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 19,
    "num_heads": 1 << 10,
    "num_kv_heads": 1 << 10,
    "head_dim": 1 << 12,
    "delta_num_k_heads": 1 << 10,
    "delta_num_v_heads": 1 << 10,
    "delta_key_dim": 1 << 12,
    "delta_value_dim": 1 << 12,
    "conv_taps": MAX_CONV_TAPS,
    "max_position": 1 << 24,
}
_HF_KEYS: Final = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "delta_num_k_heads": "linear_num_key_heads",
    "delta_num_v_heads": "linear_num_value_heads",
    "delta_key_dim": "linear_key_head_dim",
    "delta_value_dim": "linear_value_head_dim",
    "conv_taps": "linear_conv_kernel_dim",
    "max_position": "max_position_embeddings",
}
_GGUF_KEYS: Final = {
    "hidden_size": "qwen35.embedding_length",
    "intermediate_size": "qwen35.feed_forward_length",
    "num_heads": "qwen35.attention.head_count",
    "num_kv_heads": "qwen35.attention.head_count_kv",
    "head_dim": "qwen35.attention.key_length",
    "delta_num_k_heads": "qwen35.ssm.group_count",
    "delta_num_v_heads": "qwen35.ssm.time_step_rank",
    "delta_key_dim": "qwen35.ssm.state_size",
    "conv_taps": "qwen35.ssm.conv_kernel",
    "max_position": "qwen35.context_length",
}
# Further keys under `qwen35.`: those read below, and those that do not touch the computation of text.
_GGUF_OTHER_KEYS: Final = {
    "qwen35.attention.layer_norm_rms_epsilon",
    "qwen35.attention.recurrent_layers",
    "qwen35.attention.value_length",
    "qwen35.block_count",
    "qwen35.full_attention_interval",
    "qwen35.nextn_predict_layers",
    "qwen35.rope.dimension_count",
    "qwen35.rope.dimension_sections",
    "qwen35.rope.freq_base",
    "qwen35.rope.scaling.factor",
    "qwen35.rope.scaling.finetuned",
    "qwen35.rope.scaling.original_context_length",
    "qwen35.rope.scaling.type",
    "qwen35.ssm.inner_size",
    "qwen35.vocab_size",
}
# What the tables of a config.json may say about RoPE. The mrope settings place images; for text they change nothing.
_HF_ROPE_KEYS: Final = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_interleaved",
    "mrope_section",
}
_HF_YARN_KEYS: Final = {
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
}
# Key -> (the one value that is computed here, why no other is). All are its default, too.
_HF_ONLY: Final[Mapping[str, tuple[str, str]]] = {
    "hidden_act": ("silu", "only silu is supported"),
    "mamba_ssm_dtype": ("float32", "recurrent state is float32"),
}
_SILU_WORDS: Final = ("silu", "swish")


def from_huggingface(
    fields: Fields, text: Fields, *, has_head: bool, has_mtp: bool
) -> tuple[dict[str, Any], list[str]]:
    """(our configuration without what the tokenizer says, notes).

    `fields`: config.json; `text`: the settings of the text model, a table of it or the same. Raises ArtifactError for
    values that are missing or do not fit together, ConversionError for what we do not compute.
    """
    _refuse_other_models(fields, text)
    sizes = _sizes(text, _HF_KEYS)
    layer_types, notes = _hf_layer_types(text)
    num_mtp_layers = text.integer("mtp_num_hidden_layers", 0, MAX_LAYERS, default=int(has_mtp))
    if num_mtp_layers and not has_mtp:
        notes.append(f"mtp_num_hidden_layers is {num_mtp_layers}, but there are no mtp tensors; drafts cannot use MTP")
        num_mtp_layers = 0
    if num_mtp_layers > 1:
        text.refuse("mtp_num_hidden_layers", "one MTP layer is supported")
    if num_mtp_layers and text.flag("mtp_use_dedicated_embeddings", default=False):
        text.refuse("mtp_use_dedicated_embeddings", "MTP with an embedding of its own is not supported")
    # The outer word counts where files disagree, but only an inner one may explain why there is no output matrix.
    inner_tied = text.flag("tie_word_embeddings", default=False)
    outer_tied = fields.flag("tie_word_embeddings", default=inner_tied)
    config = {
        "vocab_size": text.integer("vocab_size", 1, MAX_VOCAB),
        **sizes,
        "layer_types": layer_types,
        **_hf_rope(text, sizes["head_dim"]),
        "rms_norm_eps": text.number("rms_norm_eps"),
        "num_mtp_layers": num_mtp_layers,
        "tied_head": outer_tied or (inner_tied and not has_head),
    }
    return config, notes


def from_gguf(fields: Fields, *, vocab_size: int, tied_head: bool) -> dict[str, Any]:
    """Our configuration without what the tokenizer says; raises as `from_huggingface`."""
    known = {*_GGUF_KEYS.values(), *_GGUF_OTHER_KEYS}
    for key in fields.values:
        if key.startswith("qwen35.") and key not in known:
            fields.refuse(key, "this key has no rule, and it may change the computation")
    inner_size = fields.integer("qwen35.ssm.inner_size", 1, 1 << 22)
    v_heads = fields.integer(_GGUF_KEYS["delta_num_v_heads"], 1, _LIMITS["delta_num_v_heads"])
    if inner_size % v_heads:
        fields.fail("qwen35.ssm.inner_size", f"is {inner_size}, which does not divide into {v_heads} value heads")
    sizes = {**_sizes(fields, _GGUF_KEYS), "delta_value_dim": inner_size // v_heads}
    head_dim = sizes["head_dim"]
    if fields.integer("qwen35.attention.value_length", 1, 1 << 12, default=head_dim) != head_dim:
        fields.refuse("qwen35.attention.value_length", f"a value width other than the key width {head_dim}")
    if fields.integer("qwen35.vocab_size", 1, MAX_VOCAB, default=vocab_size) != vocab_size:
        fields.fail(
            "qwen35.vocab_size", f"is {fields.values['qwen35.vocab_size']}, the embedding has {vocab_size} rows"
        )
    num_mtp_layers = fields.integer("qwen35.nextn_predict_layers", 0, MAX_LAYERS, default=0)
    if num_mtp_layers > 1:
        fields.refuse("qwen35.nextn_predict_layers", "one MTP layer is supported")
    blocks = fields.integer("qwen35.block_count", 1 + num_mtp_layers, MAX_LAYERS)
    rotary_dim = fields.integer("qwen35.rope.dimension_count", 1, 1 << 12, default=head_dim)
    _check_rotary_dim(fields, "qwen35.rope.dimension_count", rotary_dim, head_dim)
    return {
        "vocab_size": vocab_size,
        **sizes,
        "layer_types": _gguf_layer_types(fields, blocks, num_mtp_layers),
        "rotary_dim": rotary_dim,
        "rope_theta": fields.number("qwen35.rope.freq_base", above=1),
        "yarn": _gguf_yarn(fields),
        "rms_norm_eps": fields.number("qwen35.attention.layer_norm_rms_epsilon"),
        "num_mtp_layers": num_mtp_layers,
        "tied_head": tied_head,
    }


def _refuse_other_models(fields: Fields, text: Fields) -> None:
    if text.flag("attention_bias", default=False):
        text.refuse("attention_bias", "biases are not supported")
    if not text.flag("attn_output_gate", default=True):
        text.refuse("attn_output_gate", "attention without an output gate is not supported")
    for key, (value, why) in _HF_ONLY.items():
        if text.text(key, default=value) != value:
            text.refuse(key, why)
    if text.text("output_gate_type", default="silu") not in _SILU_WORDS:
        text.refuse("output_gate_type", f"only {' and '.join(_SILU_WORDS)} (the same) are supported")
    if any(key.startswith("AutoModel") for key in fields.table("auto_map").values):
        fields.refuse("auto_map", "the model comes with code of its own, which may compute something else")


def _sizes(fields: Fields, keys: Mapping[str, str]) -> dict[str, int]:
    """All sizes, in bounds and consistent with each other."""
    sizes = {name: fields.integer(key, 1, _LIMITS[name]) for name, key in keys.items()}
    for name, of in (("num_kv_heads", "num_heads"), ("delta_num_k_heads", "delta_num_v_heads")):
        if sizes[of] % sizes[name]:
            fields.fail(keys[name], f"is {sizes[name]}, which does not divide {keys[of]}, {sizes[of]}")
    return sizes


def _layer_types(num_layers: int, interval: int) -> list[str]:
    return [LINEAR if (i + 1) % interval else FULL for i in range(num_layers)]


def _hf_layer_types(text: Fields) -> tuple[list[str], list[str]]:
    """(kind of every layer, notes). The list counts, as in transformers; without it every n-th layer is full."""
    num_layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    interval = text.integer("full_attention_interval", 1, MAX_LAYERS, default=DEFAULT_FULL_INTERVAL)
    regular = _layer_types(num_layers, interval)
    given = text.values.get("layer_types")
    if given is None:
        return regular, []
    if not isinstance(given, list) or len(given) != num_layers:
        seen = f"has {len(given)} entries" if isinstance(given, list) else f"is {given!r:.60}"
        text.fail("layer_types", f"{seen}; num_hidden_layers is {num_layers}, and every layer needs one")
    for index, kind in enumerate(given):
        if kind not in (FULL, LINEAR):
            text.fail("layer_types", f"has {kind!r:.60} for layer {index}; known are {FULL} and {LINEAR}")
    if text.has("full_attention_interval") and given != regular:
        return given, [f"layer_types is used; full_attention_interval {interval} says otherwise"]
    return given, []


def _gguf_layer_types(fields: Fields, blocks: int, num_mtp_layers: int) -> list[str]:
    """Kind of every layer: from the list that newer files have, which counts the MTP layer, or every n-th is full."""
    key = "qwen35.attention.recurrent_layers"
    interval = fields.integer("qwen35.full_attention_interval", 1, MAX_LAYERS, default=DEFAULT_FULL_INTERVAL)
    if not fields.has(key):
        return _layer_types(blocks - num_mtp_layers, interval)
    given = fields.values[key]
    if not isinstance(given, list) or len(given) != blocks or any(item not in (0, 1) for item in given):
        fields.fail(key, f"must be {blocks} flags, one for every block")
    if any(given[blocks - num_mtp_layers :]):
        fields.refuse(key, "an MTP layer that is recurrent is not supported")
    return [LINEAR if flag else FULL for flag in given[: blocks - num_mtp_layers]]


def _check_rotary_dim(fields: Fields, key: str, rotary_dim: int, head_dim: int) -> None:
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        fields.fail(key, f"rotates {rotary_dim} of the {head_dim} head dimensions; pairs need an even number of them")


def _hf_rope(text: Fields, head_dim: int) -> dict[str, Any]:
    """Base, rotated dims and YaRN, from `rope_parameters` (newer) or flat fields and `rope_scaling` (older)."""
    tables = [table for name in ("rope_parameters", "rope_scaling") if (table := text.table(name)).values]
    scaled = next((table for table in tables if _rope_type(table) == "yarn"), None)
    for table in tables:
        for key in table.values:
            if key not in _HF_ROPE_KEYS | (_HF_YARN_KEYS if table is scaled else set()):
                table.refuse(key, "this setting has no rule, and it may change the computation")
    theta_place = _one_place(text, tables, "rope_theta")
    part_place = _one_place(text, tables, "partial_rotary_factor")
    rotary_dim = int(head_dim * part_place.number_in("partial_rotary_factor", 0, 1, default=DEFAULT_ROTARY_PART))
    _check_rotary_dim(part_place, "partial_rotary_factor", rotary_dim, head_dim)
    yarn = None
    if scaled is not None:
        yarn = _hf_yarn(scaled)
    return {"rotary_dim": rotary_dim, "rope_theta": theta_place.number("rope_theta", above=1), "yarn": yarn}


def _hf_yarn(table: Fields) -> dict[str, Any]:
    fast = table.number_in("beta_fast", *YARN_BETAS, default=DEFAULT_BETA_FAST)
    slow = table.number_in("beta_slow", *YARN_BETAS, default=DEFAULT_BETA_SLOW)
    if fast < slow:
        table.fail("beta_fast" if table.has("beta_fast") else "beta_slow", f"fast {fast} is below slow {slow}")
    magnitude = "attention_factor"
    return {
        "factor": table.number_in("factor", *YARN_FACTORS),
        "original_length": table.integer("original_max_position_embeddings", 1, _LIMITS["max_position"]),
        "beta_fast": fast,
        "beta_slow": slow,
        "magnitude": table.number_in(magnitude, *YARN_MAGNITUDES) if table.has(magnitude) else None,
    }


def _rope_type(table: Fields) -> str:
    """`default` or `yarn`; refuses any other."""
    kind = "default"
    for key in ("rope_type", "type"):
        kind = table.text(key, default=kind)
        if kind not in ("default", "yarn"):
            table.refuse(key, "only default and yarn are supported")
    return kind


def _one_place(text: Fields, tables: list[Fields], key: str) -> Fields:
    """Where a setting stands; places that name it must agree. The flat one if none does."""
    places = [place for place in (*tables, text) if place.has(key)]
    for place in places[1:]:
        if place.values[key] != places[0].values[key]:
            place.fail(
                key, f"is {place.values[key]!r:.60}, but {places[0].place}{key} is {places[0].values[key]!r:.60}"
            )
    return places[0] if places else text


def _gguf_yarn(fields: Fields) -> dict[str, Any] | None:
    key = "qwen35.rope.scaling.type"
    kind = fields.text(key, default="none")
    if kind not in ("none", "yarn"):
        fields.refuse(key, "only none and yarn are supported")
    if kind == "none":
        if fields.number("qwen35.rope.scaling.factor", default=1.0) != 1.0:
            fields.refuse("qwen35.rope.scaling.factor", "only yarn scales rotary positions")
        return None
    return {
        "factor": fields.number_in("qwen35.rope.scaling.factor", *YARN_FACTORS),
        "original_length": fields.integer("qwen35.rope.scaling.original_context_length", 1, _LIMITS["max_position"]),
        "beta_fast": DEFAULT_BETA_FAST,
        "beta_slow": DEFAULT_BETA_SLOW,
        "magnitude": None,
    }
