"""Tiny random draft companions for any model file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from make.artifacts import Arrays, document, write_weights
from ninfer.artifact import Artifact
from ninfer.models.companion import SHORTLIST_IDS, DraftHeadConfig, DraftTarget
from ninfer.models.dflash import DFlashConfig, DynamicConv, Selector
from ninfer.models.drafts import CompanionConfig, target_of
from ninfer.models.mtp import MTPConfig

ARCHITECTURES = {MTPConfig: "mtp", DFlashConfig: "dflash", DraftHeadConfig: "draft_head"}


def target_in(path: Path) -> DraftTarget:
    with Artifact.open(path) as artifact:
        return target_of(artifact)


def mtp_config(target: DraftTarget, attention: str = "plain", shortlist_size: int | None = None) -> MTPConfig:
    """Unequal heads of an odd number of groups."""
    return MTPConfig(
        target=target,
        intermediate_size=56,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        rotary_dim=24 if attention == "plain" else 8,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        attention=attention,
        shortlist_size=shortlist_size,
    )


def dflash_config(target: DraftTarget, **changes: Any) -> DFlashConfig:
    """A DFlash2 draft of two layers, one with a window and causal, one without either."""
    values: dict[str, Any] = {
        "target": target,
        "feature_layers": (0, target.num_layers - 1),
        "block_size": 5,
        "mask_token_id": 3,
        "windows": (None, 7),
        "causal": (False, True),
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 24,
        "intermediate_size": 56,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5,
        "output_multiplier": 1.0,
        "softcap": None,
        "conv": DynamicConv(2, target.hidden_size // 4),
        "selector": Selector(6, 4),
        "shortlist_size": None,
    }
    return DFlashConfig(**{**values, **changes})


def random_weights(config: CompanionConfig, seed: int = 8) -> Arrays:
    """float32 weights by name, of a size that keeps activations near 1; the shortlist takes every third id or so."""
    rng = np.random.default_rng(seed)
    weights: Arrays = {}
    for name, shape in config.tensor_shapes().items():
        if name == SHORTLIST_IDS:
            values = np.sort(rng.permutation(config.target.vocab_size)[: shape[0]])
        elif name.endswith("_conv"):
            values = rng.uniform(-0.5, 1, shape)
        elif len(shape) == 1:
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.standard_normal(shape) / shape[1] ** 0.5
        weights[name] = values.astype(np.float32)
    return weights


def write_companion(
    path: Path, config: CompanionConfig, weights: Mapping[str, np.ndarray], format: str = "f32", **changed: Any
) -> Path:
    """A companion with all matrices in `format`; `changed` replaces fields of the written configuration."""
    architecture = ARCHITECTURES[type(config)]
    return write_weights(path, architecture, {**document(config), **changed}, weights, format)
