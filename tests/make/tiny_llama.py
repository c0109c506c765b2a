"""Tiny random Llama checkpoints: as a transformers model, and as an artifact in any weight format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from make.artifacts import Arrays, document, write_weights
from ninfer import formats
from ninfer.formats import kv_int8
from ninfer.models.llama import LlamaConfig

CONFIGS: dict[str, LlamaConfig] = {
    "uneven": LlamaConfig(
        vocab_size=211,
        hidden_size=96,
        intermediate_size=160,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=20,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        max_position=512,
        tied_head=True,
        bos_token_id=1,
        stop_token_ids=(2,),
        pad_token_id=None,
    ),
    "ragged": LlamaConfig(  # no width is a multiple of 32 or of 16
        vocab_size=67,
        hidden_size=45,
        intermediate_size=77,
        num_layers=2,
        num_heads=3,
        num_kv_heads=3,
        head_dim=34,
        rope_theta=500.0,
        rms_norm_eps=1e-3,
        max_position=300,
        tied_head=False,
        bos_token_id=None,
        stop_token_ids=(0, 66),
        pad_token_id=0,
    ),
    "wide": LlamaConfig(  # two KV groups per head, one KV head
        vocab_size=130,
        hidden_size=70,
        intermediate_size=96,
        num_layers=2,
        num_heads=5,
        num_kv_heads=1,
        head_dim=80,
        rope_theta=100000.0,
        rms_norm_eps=1e-6,
        max_position=1024,
        tied_head=False,
        bos_token_id=1,
        stop_token_ids=(2,),
        pad_token_id=2,
    ),
}

HF_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def random_weights(config: LlamaConfig, seed: int = 3) -> Arrays:
    """float32 weights by our names, of a size that keeps activations near 1 and attention far from uniform."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        if len(shape) == 1:
            weights[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            gain = 1.5 if name.endswith((".q", ".k")) else 1.0
            weights[name] = (rng.standard_normal(shape) * gain / shape[1] ** 0.5).astype(np.float32)
    return weights


def stored_values(weights: Mapping[str, np.ndarray], format: str) -> Arrays:
    """What the weights are worth after storage of all matrices in `format`, rounded to float32."""
    fmt = formats.get(format)
    return {
        name: array if array.ndim == 1 else fmt.unpack(fmt.pack(array)).astype(np.float32)
        for name, array in weights.items()
    }


def write_artifact(
    path: Path, config: LlamaConfig, weights: Mapping[str, np.ndarray], format: str, **changed_config: Any
) -> Path:
    """An artifact with all matrices in `format`; `changed_config` replaces fields of the written configuration."""
    return write_weights(path, "llama", {**document(config), **changed_config}, weights, format)


def hf_model(config: LlamaConfig, weights: Mapping[str, np.ndarray]) -> Any:
    """transformers' LlamaForCausalLM in float32 with these weights."""
    import torch
    from transformers import LlamaConfig as HFConfig
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(
        HFConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position,
            tie_word_embeddings=config.tied_head,
            bos_token_id=config.bos_token_id,
            eos_token_id=list(config.stop_token_ids),
            pad_token_id=config.pad_token_id,
            attn_implementation="eager",
        )
    ).eval()
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(array) for name, array in hf_weights(weights)}, strict=False
    )
    expected_missing = ["lm_head.weight"] if config.tied_head else []
    if list(missing) != expected_missing or unexpected:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.float()


def hf_weights(weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The weights by the names of the checkpoint's authors."""
    plain = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
    for name, array in weights.items():
        if name in plain:
            yield plain[name], array
        else:
            _, layer, part = name.split(".")
            yield f"model.layers.{layer}.{HF_NAMES[part]}.weight", array


def hf_logits(model: Any, ids: np.ndarray, kv_format: str) -> np.ndarray:
    """Logits float32 `[T, V]` of one whole forward over `ids`, with keys and values stored as our cache stores them."""
    import torch
    from transformers import DynamicCache

    def stored(x: Any) -> Any:
        if kv_format == "bf16":
            return x.to(torch.bfloat16).to(torch.float32)
        return torch.from_numpy(kv_int8.decode(*kv_int8.encode(x.numpy())))

    class StoringCache(DynamicCache):
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            return super().update(stored(key_states), stored(value_states), *args, **kwargs)

    parameter = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        return model(batch, **{parameter: StoringCache(config=model.config)}, use_cache=True).logits[0].numpy()
