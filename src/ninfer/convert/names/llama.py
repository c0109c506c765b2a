"""The Llama family: settings and tensor names of GGUF (`general.architecture` = llama) and Hugging Face checkpoints.

Whatever would change the computation and is not computed here (scaled RoPE, biases, experts, ...) is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ninfer.convert.fields import Fields
from ninfer.convert.names.orders import HalfSplit
from ninfer.convert.names.rules import TensorRule
from ninfer.convert.names.source_model import MAX_VOCAB, SourceModel
from ninfer.errors import ConversionError
from ninfer.models.config_fields import MAX_LAYERS
from ninfer.models.llama import LlamaConfig

ARCHITECTURE: Final = "llama"
HF_CLASS: Final = "LlamaForCausalLM"
GGUF_ARCHITECTURE: Final = "llama"

# Our name -> smallest and largest value; far above any model of this family, so that sizes stay sizes.
_LIMITS: Final = {
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 19),
    "num_layers": (1, MAX_LAYERS),
    "num_heads": (1, 1 << 10),
    "num_kv_heads": (1, 1 << 10),
    "head_dim": (2, 1 << 12),
    "max_position": (1, 1 << 24),
}
_GGUF_KEYS: Final = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_layers": "llama.block_count",
    "num_heads": "llama.attention.head_count",
    "num_kv_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.attention.key_length",
    "max_position": "llama.context_length",
}
_HF_KEYS: Final = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_position": "max_position_embeddings",
}
DEFAULT_ROPE_THETA: Final = 10000.0
"""What both formats mean by an absent base."""

# Further keys under `llama.`: those read below, and those that do not touch the computation.
_GGUF_OTHER_KEYS: Final = {
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.causal",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.finetuned",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.vocab_size",
    "llama.tensor_data_layout",
}

# What the two tables of a config.json may say about RoPE.
_HF_ROPE_KEYS: Final = {
    "rope_parameters": {"rope_type", "type", "rope_theta", "partial_rotary_factor"},
    "rope_scaling": {"rope_type", "type"},
}

# Our suffix -> (GGUF name, Hugging Face name) of a layer's tensors.
_LAYER_NAMES: Final = {
    "attn_norm": ("attn_norm", "input_layernorm"),
    "q": ("attn_q", "self_attn.q_proj"),
    "k": ("attn_k", "self_attn.k_proj"),
    "v": ("attn_v", "self_attn.v_proj"),
    "o": ("attn_output", "self_attn.o_proj"),
    "mlp_norm": ("ffn_norm", "post_attention_layernorm"),
    "gate": ("ffn_gate", "mlp.gate_proj"),
    "up": ("ffn_up", "mlp.up_proj"),
    "down": ("ffn_down", "mlp.down_proj"),
}
_MODEL_NAMES: Final = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
}


def read_huggingface(fields: Fields, names: Collection[str]) -> SourceModel:
    """The model of a config.json and the tensors beside it."""
    _refuse_known_extras(names, fields)
    return _source_model(fields, _config_from_hf(fields), source=1)


def read_gguf(fields: Fields, names: Collection[str], vocab_size: int) -> SourceModel:
    """The model of GGUF metadata; `vocab_size`: rows of the embedding."""
    _refuse_known_extras(names, fields)
    tied_head = _MODEL_NAMES["head"][0] not in names
    return _source_model(fields, _config_from_gguf(fields, vocab_size=vocab_size, tied_head=tied_head), source=0)


def _source_model(fields: Fields, config: dict[str, Any], *, source: int) -> SourceModel:
    """`source`: 0 for GGUF, 1 for Hugging Face."""

    def rules(complete: Mapping[str, Any]) -> list[TensorRule]:
        known = LlamaConfig.read(complete, file=fields.file)
        return _hf_rules(known) if source else _gguf_rules(known)

    embedding, head = _MODEL_NAMES["embed"][source], _MODEL_NAMES["head"][source]
    return SourceModel(ARCHITECTURE, config, rules, embedding, head, id_fields=fields)


def _config_from_gguf(fields: Fields, *, vocab_size: int, tied_head: bool) -> dict[str, Any]:
    """Our configuration, token ids apart. `tied_head`: there is no output matrix.

    Raises ArtifactError for values that are missing or do not fit together, ConversionError for what we do not compute.
    """
    known = {*_GGUF_KEYS.values(), *_GGUF_OTHER_KEYS}
    for key in fields.values:
        if key.startswith("llama.") and key not in known:
            fields.refuse(key, "this key has no rule, and it may change the computation")
    config = _sizes(fields, _GGUF_KEYS)
    if fields.integer("llama.attention.value_length", 1, 1 << 12, default=config["head_dim"]) != config["head_dim"]:
        fields.refuse("llama.attention.value_length", f"a value width other than the key width {config['head_dim']}")
    rotated = fields.integer("llama.rope.dimension_count", 1, 1 << 12, default=config["head_dim"])
    if rotated % 2:
        fields.fail("llama.rope.dimension_count", f"is {rotated}; pairs need an even number")
    if rotated != config["head_dim"]:
        fields.refuse("llama.rope.dimension_count", f"rotating only a part of the {config['head_dim']} head dimensions")
    scaling = fields.text("llama.rope.scaling.type", default="none")
    if scaling != "none":
        fields.refuse("llama.rope.scaling.type", "scaled rotary positions are not supported")
    for key in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        if fields.number(key, default=1.0) != 1.0:
            fields.refuse(key, "scaled rotary positions are not supported")
    for key in ("llama.expert_count", "llama.expert_used_count"):
        if fields.integer(key, 0, 1 << 16, default=0) != 0:
            fields.refuse(key, "mixtures of experts are not supported")
    if not fields.flag("llama.attention.causal", default=True):
        fields.refuse("llama.attention.causal", "attention that is not causal is not supported")
    if fields.integer("llama.vocab_size", 1, MAX_VOCAB, default=vocab_size) != vocab_size:
        fields.fail("llama.vocab_size", f"is {fields.values['llama.vocab_size']}, the embedding has {vocab_size} rows")
    return {
        "vocab_size": vocab_size,
        **config,
        "rope_theta": fields.number("llama.rope.freq_base", above=1, default=DEFAULT_ROPE_THETA),
        "rms_norm_eps": fields.number("llama.attention.layer_norm_rms_epsilon"),
        "tied_head": tied_head,
    }


def _config_from_hf(fields: Fields) -> dict[str, Any]:
    """Our configuration, token ids apart, from a config.json; raises as `_config_from_gguf`."""
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key, default=False):
            fields.refuse(key, "biases are not supported")
    if fields.text("hidden_act", default="silu") != "silu":
        fields.refuse("hidden_act", "only silu is supported")
    if fields.flag("rope_interleaved", default=False):
        fields.refuse("rope_interleaved", "rows must be in the half-split order that this format normally has")
    if fields.table("auto_map").has("AutoModelForCausalLM"):
        fields.refuse("auto_map", "the model comes with code of its own, which may compute something else")
    return {
        "vocab_size": fields.integer("vocab_size", 1, MAX_VOCAB),
        **_sizes(fields, _HF_KEYS),
        "rope_theta": _hf_rope_theta(fields),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "tied_head": fields.flag("tie_word_embeddings", default=False),
    }


def _gguf_rules(config: LlamaConfig) -> list[TensorRule]:
    """Every tensor of a GGUF file of this family; its q and k rows have their rotary pairs side by side."""
    orders = {
        "q": HalfSplit(config.num_heads, config.head_dim),
        "k": HalfSplit(config.num_kv_heads, config.head_dim),
    }
    return [
        TensorRule(name, _source_name(name, 0), shape, orders.get(name.rpartition(".")[2]))
        for name, shape in config.tensor_shapes().items()
    ]


def _hf_rules(config: LlamaConfig) -> list[TensorRule]:
    """Every tensor of a Hugging Face checkpoint of this family."""
    return [TensorRule(name, _source_name(name, 1), shape) for name, shape in config.tensor_shapes().items()]


def _refuse_known_extras(names: Collection[str], fields: Fields) -> None:
    """ConversionError that explains tensors of variants we do not compute."""
    file = fields.file
    for name in names:
        if name == "rope_freqs.weight":
            raise ConversionError(f"{file}: tensor {name!r}: scaled rotary frequencies are not supported")
        if name.endswith(".bias"):
            raise ConversionError(f"{file}: tensor {name!r}: biases are not supported")
        if "_exps." in name or "ffn_gate_inp" in name:
            raise ConversionError(f"{file}: tensor {name!r}: mixtures of experts are not supported")


def _sizes(fields: Fields, keys: Mapping[str, str]) -> dict[str, int]:
    """All sizes, in bounds and consistent with each other."""
    low_high = _LIMITS
    sizes = {
        name: fields.integer(keys[name], *low_high[name])
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "max_position")
    }
    heads, hidden = sizes["num_heads"], sizes["hidden_size"]
    kv_heads = fields.integer(keys["num_kv_heads"], *low_high["num_kv_heads"], default=heads)
    if heads % kv_heads:
        fields.fail(keys["num_kv_heads"], f"is {kv_heads}, which does not divide the {heads} heads")
    if not fields.has(keys["head_dim"]) and hidden % heads:
        fields.fail(keys["num_heads"], f"is {heads}, which does not divide the width {hidden}")
    head_dim = fields.integer(keys["head_dim"], *low_high["head_dim"], default=hidden // heads)
    if head_dim % 2 or head_dim < 2:
        key = "head_dim" if fields.has(keys["head_dim"]) else "num_heads"
        fields.fail(keys[key], f"gives heads of width {head_dim}; rotary pairs need an even one")
    return {**sizes, "num_kv_heads": kv_heads, "head_dim": head_dim}


def _hf_rope_theta(fields: Fields) -> float:
    """The base of an unscaled RoPE, from `rope_parameters` (newer) or `rope_theta` and `rope_scaling` (older)."""
    for table_name, known in _HF_ROPE_KEYS.items():
        table = fields.table(table_name)
        for kind in ("rope_type", "type"):
            if table.text(kind, default="default") != "default":
                table.refuse(kind, "scaled rotary positions are not supported")
        for key in table.values:
            if key not in known:
                table.refuse(key, "this setting has no rule, and it may change the computation")
    parameters = fields.table("rope_parameters")
    for place in (parameters, fields):
        if place.number("partial_rotary_factor", default=1.0) != 1.0:
            place.refuse("partial_rotary_factor", "rotating only a part of a head is not supported")
    inner = parameters.number("rope_theta", above=1, default=DEFAULT_ROPE_THETA)
    if not fields.has("rope_theta"):
        return inner
    outer = fields.number("rope_theta", above=1)
    if parameters.has("rope_theta") and outer != inner:
        fields.fail("rope_theta", f"is {outer}, but rope_parameters.rope_theta is {inner}")
    return outer


def _source_name(name: str, source: int) -> str:
    """What a file calls our tensor `name`; `source`: 0 for GGUF, 1 for Hugging Face."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name][source]
    _, layer, part = name.split(".")
    return f"{('blk', 'model.layers')[source]}.{layer}.{_LAYER_NAMES[part][source]}.weight"
