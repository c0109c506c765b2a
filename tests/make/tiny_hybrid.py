"""Tiny random hybrid models written straight to an artifact, in the sizes that tests of state need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from make.artifacts import Arrays, document, write_weights
from ninfer.models.qwen3_5 import FULL, LINEAR, Qwen35Config

CONFIG = Qwen35Config(
    vocab_size=72,
    num_decodable=70,
    hidden_size=32,
    intermediate_size=40,
    layer_types=(LINEAR, FULL, LINEAR),
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rotary_dim=4,
    rope_theta=10000.0,
    yarn=None,
    delta_num_k_heads=2,
    delta_num_v_heads=6,
    delta_key_dim=8,
    delta_value_dim=16,
    conv_taps=4,
    rms_norm_eps=1e-6,
    max_position=16384,
    num_mtp_layers=0,
    tied_head=True,
    bos_token_id=None,
    stop_token_ids=(0,),
    pad_token_id=None,
)
"""Small enough for thousands of steps a second, with unequal widths and heads that share keys."""


def random_weights(config: Qwen35Config, seed: int = 5) -> Arrays:
    """float32 weights by our names. Decays run from short to very long memory, so that old tokens still count."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        if name.endswith(".decay"):
            values = np.exp(rng.uniform(-6, 0, shape))
        elif name.endswith(".dt_bias"):
            values = rng.uniform(-3, 1, shape)
        elif name.endswith(".conv"):
            values = rng.uniform(-1, 1, shape)
        elif len(shape) == 1:
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.standard_normal(shape) / shape[1] ** 0.5
        weights[name] = values.astype(np.float32)
    return weights


def write_artifact(path: Path, config: Qwen35Config, weights: Mapping[str, np.ndarray], format: str) -> Path:
    """An artifact with all matrices in `format`."""
    return write_weights(path, "qwen3_5", document(config), weights, format)
