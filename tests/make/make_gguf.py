"""Tiny Llama checkpoints as GGUF files, written with the gguf package as llama.cpp's converter would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.gguf_writer import GGUFValue
from gguf.quants import dequantize, quantize

from make.tiny_tokenizer import tiny_metadata
from ninfer.models.llama import LlamaConfig

LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
MODEL_NAMES = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

VOCAB_SIZE = len(tiny_metadata()["tokenizer.ggml.tokens"])
"""Rows of an embedding that fits the tiny vocabulary."""

TINY = LlamaConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    rope_theta=5000.0,
    rms_norm_eps=1e-5,
    max_position=128,
    tied_head=True,
    bos_token_id=1,
    stop_token_ids=(2, 0),
    pad_token_id=None,
)


def gguf_name(name: str) -> str:
    """llama.cpp's name of our tensor."""
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows with rotary pairs half a head apart to rows with pairs side by side, head by head."""
    half = rows.shape[0] // heads // 2
    ours = rows.reshape(heads, 2, half, *rows.shape[1:])
    return np.stack([ours[:, 0], ours[:, 1]], axis=2).reshape(rows.shape)


def metadata(config: LlamaConfig) -> dict[str, Any]:
    """What llama.cpp's converter writes for this model; the tiny tokenizer and a template included."""
    return {
        "llama.block_count": config.num_layers,
        "llama.context_length": config.max_position,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_kv_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_theta,
        "llama.rope.dimension_count": config.head_dim,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.chat_template": TEMPLATE,
        **tiny_metadata(),
    }


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """float32 rows in a GGUF type that the package can write."""
    return values if kind == "F32" else quantize(values, gguf.GGMLQuantizationType[kind])


def decode(stored: np.ndarray, kind: str) -> np.ndarray:
    """What the package says stored rows are worth, float32."""
    return stored if kind == "F32" else dequantize(stored, gguf.GGMLQuantizationType[kind])


def write_gguf(
    path: Path,
    config: LlamaConfig,
    weights: Mapping[str, np.ndarray],
    *,
    kind: str = "F32",
    stored: Mapping[str, tuple[str, np.ndarray]] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    without: tuple[str, ...] = (),
    **changed: Any,
) -> Path:
    """A GGUF file with all matrices in type `kind`, vectors in F32.

    weights: by our names, rotary pairs half a head apart. stored: our name -> (type, rows as they are to be stored).
    extra: further F32 tensors by GGUF name. without: GGUF names to leave out. changed: metadata, `__` for a dot, None
    to leave a key out; an int becomes UINT32, a negative one INT32.
    """
    writer = gguf.GGUFWriter(path, "llama")
    overrides = {key.replace("__", "."): value for key, value in changed.items()}
    architecture = overrides.pop("general.architecture", "llama")
    writer.kv_data[0]["general.architecture"] = GGUFValue(architecture, _value_type(architecture))
    for key, value in {**metadata(config), **overrides}.items():
        if value is not None:
            writer.add_key_value(key, value, _value_type(value))
    heads = {"q": config.num_heads, "k": config.num_kv_heads}
    for name, values in weights.items():
        part = name.rpartition(".")[2]
        rows = side_by_side(values, heads[part]) if part in heads else values
        tensor_kind = kind if values.ndim == 2 else "F32"
        data = encode(rows, tensor_kind)
        if stored and name in stored:
            tensor_kind, data = stored[name]
        if gguf_name(name) not in without:
            writer.add_tensor(gguf_name(name), data, raw_dtype=gguf.GGMLQuantizationType[tensor_kind])
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _value_type(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, int) and not isinstance(value, bool):
        return gguf.GGUFValueType.INT32 if value < 0 else gguf.GGUFValueType.UINT32
    return gguf.GGUFValueType.get_type(value)
