"""The published shapes of the Qwen3.5 family, as the settings that a checkpoint directory has.

Source: the config.json files of the published checkpoints; the totals they give are tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NUM_TOKEN_IDS: Final = 248077
"""Ids that the published tokenizers have; the embedding has 248,320 rows."""


@dataclass(frozen=True)
class Shape:
    """What differs between the published models. Every fourth layer is full attention."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    delta_num_v_heads: int
    tied_head: bool


SHAPES: Final[Mapping[str, Shape]] = {
    "0.8b": Shape(1024, 3584, 24, 8, 2, 16, tied_head=True),
    "2b": Shape(2048, 6144, 24, 8, 2, 16, tied_head=True),
    "4b": Shape(2560, 9216, 32, 16, 4, 32, tied_head=True),
    "9b": Shape(4096, 12288, 32, 16, 4, 32, tied_head=False),
    "27b": Shape(5120, 17408, 64, 24, 4, 48, tied_head=False),
}


def published_config(name: str) -> dict[str, Any]:
    """The text settings of a published shape, by the names of a config.json."""
    shape = SHAPES[name]
    return {
        "vocab_size": 248320,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": shape.delta_num_v_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(shape.num_layers)],
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": shape.tied_head,
    }
