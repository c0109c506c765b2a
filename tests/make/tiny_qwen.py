"""Tiny random models of the Qwen3.5 family, made and saved by transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from make.gguf_qwen35 import write_gguf_qwen35
from make.make_hf import change_json
from make.tiny_llama import hf_logits
from make.tiny_tokenizer import tiny_metadata
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% if reasoning_effort is defined %}effort {{ reasoning_effort }}\n{% endif %}"
    "{% if preserve_thinking is defined %}preserve {{ preserve_thinking }}\n{% endif %}{% endif %}"
)
FULL, LINEAR = "full_attention", "linear_attention"

_COMMON: dict[str, Any] = {
    "vocab_size": 288,  # more rows than the tiny tokenizer has ids
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "equal heads, tied": {**_COMMON, "num_hidden_layers": 4, "tie_word_embeddings": True},
    "three value heads": {**_COMMON, "num_hidden_layers": 4, "linear_num_value_heads": 6},
    "odd layers": {
        **_COMMON,
        "num_hidden_layers": 5,
        "layer_types": [LINEAR, FULL, LINEAR, LINEAR, LINEAR],
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 9,
        "tie_word_embeddings": True,
    },
    "unequal widths": {
        **_COMMON,
        "num_hidden_layers": 3,
        "layer_types": [FULL, LINEAR, FULL],
        "hidden_size": 56,
        "intermediate_size": 72,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 40,
        "linear_num_value_heads": 4,
    },
    "first layers only": {**_COMMON, "num_hidden_layers": 2, "linear_num_value_heads": 6, "num_key_value_heads": 4},
    "yarn": {
        **_COMMON,
        "num_hidden_layers": 4,
        "head_dim": 64,
        "linear_num_value_heads": 4,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
}
MTP_CONFIG = "three value heads"


def text_config(name: str) -> dict[str, Any]:
    """The settings of a text model, complete."""
    config = dict(CONFIGS[name])
    pairs = config["head_dim"] // 8
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": sections}
    return {"rope_parameters": rope, "full_attention_interval": 4, **config}


def random_parameter(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A weight that keeps activations near 1 and makes every part of the model matter."""
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 4, shape)).astype(np.float32)
    if name.endswith("dt_bias"):
        return rng.uniform(-3, 1, shape).astype(np.float32)
    if name.endswith("linear_attn.norm.weight"):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if len(shape) == 1:
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32)
    if name.endswith("conv1d.weight"):
        return rng.uniform(-1, 1, shape).astype(np.float32)
    gain = 1.5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
    return (rng.standard_normal(shape) * gain / shape[-1] ** 0.5).astype(np.float32)


def hf_model(name: str, *, multimodal: bool = False, seed: int = 7) -> Any:
    """transformers' model in float32, text only or with a tiny vision tower; the text weights are the same."""
    import torch
    from transformers import Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig

    if multimodal:
        vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "num_position_embeddings": 16}
        text = text_config(name)
        config = Qwen3_5Config(
            text_config=text,
            vision_config={**vision, "out_hidden_size": text["hidden_size"]},
            tie_word_embeddings=text["tie_word_embeddings"],
        )
        model = Qwen3_5ForConditionalGeneration(config)
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_config(name), attn_implementation="eager"))
    torch.set_num_threads(1)  # tiny products; waiting threads only disturb whoever else computes
    model = model.eval().float()
    with torch.no_grad():
        for full_name, parameter in model.named_parameters():
            text_name = full_name.replace("model.language_model.", "model.")
            rng = np.random.default_rng([seed, *text_name.encode()])
            parameter.copy_(torch.from_numpy(random_parameter(text_name, tuple(parameter.shape), rng)))
    return model


def mtp_tensors(name: str, seed: int = 8) -> dict[str, np.ndarray]:
    """The fifteen tensors of the MTP module, which transformers neither makes nor saves."""
    c = text_config(name)
    hidden, inner, head_dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q_rows, kv_rows = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    shapes = {
        "fc": (hidden, 2 * hidden),
        "pre_fc_norm_embedding": (hidden,),
        "pre_fc_norm_hidden": (hidden,),
        "norm": (hidden,),
        "layers.0.input_layernorm": (hidden,),
        "layers.0.post_attention_layernorm": (hidden,),
        "layers.0.self_attn.q_proj": (2 * q_rows, hidden),
        "layers.0.self_attn.k_proj": (kv_rows, hidden),
        "layers.0.self_attn.v_proj": (kv_rows, hidden),
        "layers.0.self_attn.o_proj": (hidden, q_rows),
        "layers.0.self_attn.q_norm": (head_dim,),
        "layers.0.self_attn.k_norm": (head_dim,),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    rng = np.random.default_rng(seed)
    return {f"mtp.{part}.weight": random_parameter(part, shape, rng) for part, shape in shapes.items()}


def write_qwen(path: Path, model: Any, *, dtype: str = "float32", shard_size: str = "1GB", **changed: Any) -> Path:
    """A checkpoint directory with tokenizer and template; `changed` replaces (None: removes) fields of config.json."""
    import torch

    if dtype != "float32":
        model = model.to(getattr(torch, dtype))
    model.save_pretrained(path, max_shard_size=shard_size)
    (path / "tokenizer.json").write_bytes(tokenizer_json_from_gguf(tiny_metadata(pre="qwen35")))
    tokens = {"eos_token": "<|im_end|>", "add_bos_token": False, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(tokens))
    change_json(path / "config.json", **changed)
    return path


def add_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Put further tensors into a checkpoint of one file."""
    from safetensors.numpy import load_file, save_file

    save_file({**load_file(path / "model.safetensors"), **tensors}, path / "model.safetensors", {"format": "pt"})


def qwen_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Logits float32 `[T, V]` of one whole forward; keys and values, where there are any, stored as bf16."""
    import torch

    if FULL in model.config.layer_types:
        return hf_logits(model, ids, "bf16")
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()


def text_tensors(model: Any) -> dict[str, np.ndarray]:
    """The weights of a text model by the names that its checkpoint has."""
    tied = model.config.tie_word_embeddings
    return {
        name: parameter.detach().float().numpy()
        for name, parameter in model.named_parameters()
        if not (tied and name == "lm_head.weight")
    }


def write_qwen_gguf(path: Path, name: str, model: Any, *, kind: str = "F32", mtp: bool = False, **changed: Any) -> Path:
    """The text model as a GGUF file with the tiny tokenizer, padded to its rows."""
    tensors = {**text_tensors(model), **(mtp_tensors(name) if mtp else {})}
    config = text_config(name)
    shapes = {tensor: values.shape for tensor, values in tensors.items()}
    tokenizer = {**padded_metadata(config["vocab_size"]), "tokenizer.chat_template": TEMPLATE}
    return write_gguf_qwen35(path, config, shapes, tensors.__getitem__, kind=kind, tokenizer=tokenizer, **changed)


def padded_metadata(vocab_size: int) -> dict[str, Any]:
    """The tiny tokenizer with unused tokens up to the rows of the embedding."""
    metadata = tiny_metadata(pre="qwen35", bos_token_id=None, eos_token_id=0)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    padding = range(len(tokens), vocab_size)
    metadata["tokenizer.ggml.tokens"] = [*tokens, *[f"[PAD{i}]" for i in padding]]
    metadata["tokenizer.ggml.token_type"] = [*types, *[5] * len(padding)]
    return metadata
