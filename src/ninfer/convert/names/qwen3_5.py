"""The Qwen3.5 family: tensor names and head layouts of Hugging Face and GGUF (`qwen35`) checkpoints.

Besides names the files differ from us, and from each other, in silent ways that the rules below undo:

| tensor | Hugging Face | GGUF | ours |
|---|---|---|---|
| norm weights but `out_norm` | w | 1 + w | 1 + w |
| `decay` | A_log | -exp(A_log) | exp(A_log) |
| `q`, `q_gate` | query and gate rows of a head follow each other | same | two tensors |
| `conv` | [channels, 1, taps] | [channels, taps] | [taps][channels] |
| value heads of a linear layer | those of a key head together | round the key heads | together |

Source: the Hugging Face classes, and llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ninfer.convert.fields import Fields
from ninfer.convert.names import qwen3_5_config
from ninfer.convert.names.orders import Grouped, HeadPart, Order
from ninfer.convert.names.rules import TensorRule
from ninfer.convert.names.source_model import SourceModel
from ninfer.errors import ConversionError
from ninfer.models.qwen3_5 import Qwen35Config

ARCHITECTURE: Final = "qwen3_5"
HF_MULTIMODAL_CLASS: Final = "Qwen3_5ForConditionalGeneration"
HF_CLASSES: Final = ("Qwen3_5ForCausalLM", HF_MULTIMODAL_CLASS)
GGUF_ARCHITECTURE: Final = "qwen35"

_MULTIMODAL_PREFIX: Final = "model.language_model."
_VISION_PREFIX: Final = "model.visual."

# Our part of a layer -> (GGUF name, Hugging Face name).
_LAYER_NAMES: Final = {
    "mix_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "mlp_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "down": ("ffn_down.weight", "mlp.down_proj.weight"),
    "q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "q_gate": ("attn_q.weight", "self_attn.q_proj.weight"),
    "k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "o": ("attn_output.weight", "self_attn.o_proj.weight"),
    "qkv": ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    "z": ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    "a": ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    "b": ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    "conv": ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    "decay": ("ssm_a", "linear_attn.A_log"),
    "dt_bias": ("ssm_dt.bias", "linear_attn.dt_bias"),
    "out_norm": ("ssm_norm.weight", "linear_attn.norm.weight"),
    "out": ("ssm_out.weight", "linear_attn.out_proj.weight"),
}
# Our name -> (GGUF name, Hugging Face name behind the prefix).
_MODEL_NAMES: Final = {
    "embed": ("token_embd.weight", "embed_tokens.weight"),
    "norm": ("output_norm.weight", "norm.weight"),
}
_HEAD: Final = ("output.weight", "lm_head.weight")
# Our part of the MTP module -> (GGUF name in its layer, Hugging Face name).
_MTP_NAMES: Final = {
    "fc": ("nextn.eh_proj.weight", "mtp.fc.weight"),
    "embed_norm": ("nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
    "hidden_norm": ("nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"),
    "norm": ("nextn.shared_head_norm.weight", "mtp.norm.weight"),
}
_PLUS_ONE_NORMS: Final = {"mix_norm", "mlp_norm", "q_norm", "k_norm", "norm", "embed_norm", "hidden_norm"}


def read_huggingface(fields: Fields, names: Collection[str]) -> SourceModel:
    """The model of a config.json and the tensors beside it; the text part of multimodal files."""
    text = fields
    if fields.values.get("architectures") == [HF_MULTIMODAL_CLASS]:
        if not fields.has("text_config"):
            fields.fail("text_config", "is missing")
        text = fields.table("text_config")
    _refuse_biases(names, fields)
    prefix = _MULTIMODAL_PREFIX if any(name.startswith(_MULTIMODAL_PREFIX) for name in names) else "model."
    vision = [name for name in names if name.startswith(_VISION_PREFIX)]
    has_mtp = any(name.startswith("mtp.") for name in names)
    config, notes = qwen3_5_config.from_huggingface(fields, text, has_head=_HEAD[1] in names, has_mtp=has_mtp)
    if vision:
        notes.append(f"{len(vision)} vision tensors ({_VISION_PREFIX}*) are left out: images are not supported")

    def rules(complete: Mapping[str, Any]) -> list[TensorRule]:
        known = Qwen35Config.read(complete, file=fields.file)
        return [_huggingface_rule(known, name, shape, prefix) for name, shape in known.tensor_shapes().items()]

    return SourceModel(
        ARCHITECTURE,
        config,
        rules,
        embedding=prefix + _MODEL_NAMES["embed"][1],
        head=_HEAD[1],
        id_fields=text,
        counts_decodable=True,
        left_out=vision,
        notes=notes,
    )


def read_gguf(fields: Fields, names: Collection[str], vocab_size: int) -> SourceModel:
    """The model of GGUF metadata; the layer of the MTP module, where there is one, counts among the file's blocks."""
    _refuse_biases([name for name in names if not name.endswith(_LAYER_NAMES["dt_bias"][0])], fields)
    for name in names:
        if name.endswith(("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")):
            raise ConversionError(f"{fields.file}: tensor {name!r}: MTP with an embedding or head of its own")
    config = qwen3_5_config.from_gguf(fields, vocab_size=vocab_size, tied_head=_HEAD[0] not in names)

    def rules(complete: Mapping[str, Any]) -> list[TensorRule]:
        known = Qwen35Config.read(complete, file=fields.file)
        return [_gguf_rule(known, name, shape) for name, shape in known.tensor_shapes().items()]

    return SourceModel(
        ARCHITECTURE,
        config,
        rules,
        embedding=_MODEL_NAMES["embed"][0],
        head=_HEAD[0],
        id_fields=fields,
        counts_decodable=True,
    )


def huggingface_name(name: str, prefix: str) -> str:
    """What a Hugging Face checkpoint calls the source of our tensor; `prefix` is that of the text model."""
    place, _, part = name.rpartition(".")
    if name in _MODEL_NAMES:
        return prefix + _MODEL_NAMES[name][1]
    if name == "head":
        return _HEAD[1]
    if place == "mtp":
        return _MTP_NAMES[part][1]
    return f"{place if place.startswith('mtp.') else prefix + place}.{_LAYER_NAMES[part][1]}"


def gguf_name(name: str, num_layers: int) -> str:
    """What a GGUF file calls the source of our tensor; the MTP module is its layer `num_layers`."""
    place, _, part = name.rpartition(".")
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name][0]
    if name == "head":
        return _HEAD[0]
    if place == "mtp":
        return f"blk.{num_layers}.{_MTP_NAMES[part][0]}"
    layer = num_layers if place.startswith("mtp.") else int(place.removeprefix("layers."))
    return f"blk.{layer}.{_LAYER_NAMES[part][0]}"


def _huggingface_rule(config: Qwen35Config, name: str, shape: tuple[int, ...], prefix: str) -> TensorRule:
    source, part = huggingface_name(name, prefix), name.rpartition(".")[2]
    if part in _PLUS_ONE_NORMS:
        return TensorRule(name, source, shape, change="one_plus")
    match part:
        case "q" | "q_gate":
            return _query_rule(config, name, source, shape)
        case "conv":
            source_shape = (config.conv_channels, 1, config.conv_taps)
            return TensorRule(name, source, shape, change="columns_first", source_shape=source_shape)
        case "decay":
            return TensorRule(name, source, shape, change="exp")
    return TensorRule(name, source, shape)


def _gguf_rule(config: Qwen35Config, name: str, shape: tuple[int, ...]) -> TensorRule:
    source, part = gguf_name(name, config.num_layers), name.rpartition(".")[2]
    heads, width, first = (config.delta_num_k_heads, config.delta_num_v_heads), config.delta_value_dim, 0
    if part in ("qkv", "conv"):
        first = 2 * config.delta_k_width
    if part in ("a", "b", "decay", "dt_bias"):
        width = 1
    order: Order | None = Grouped(*heads, width, first) if heads[0] != heads[1] else None
    match part:
        case "q" | "q_gate":
            return _query_rule(config, name, source, shape)
        case "qkv" | "z" | "a" | "b":
            return TensorRule(name, source, shape, rows=order)
        case "conv":
            source_shape = (config.conv_channels, config.conv_taps)
            return TensorRule(name, source, shape, rows=order, change="columns_first", source_shape=source_shape)
        case "decay":
            return TensorRule(name, source, shape, columns=order, change="minus")
        case "dt_bias" | "out":
            return TensorRule(name, source, shape, columns=order)
    return TensorRule(name, source, shape)


def _query_rule(config: Qwen35Config, name: str, source: str, shape: tuple[int, ...]) -> TensorRule:
    """Queries and their gates come from one tensor, head by head."""
    half = HeadPart(config.num_heads, config.head_dim, part=int(name.endswith(".q_gate")), num_parts=2)
    return TensorRule(name, source, shape, rows=half, source_shape=(2 * shape[0], shape[1]))


def _refuse_biases(names: Collection[str], fields: Fields) -> None:
    """ConversionError for a tensor that would add a bias to a product of the text model."""
    for name in names:
        if name.endswith(".bias") and not name.startswith(_VISION_PREFIX):
            raise ConversionError(f"{fields.file}: tensor {name!r}: biases are not supported")
