"""DFlash drafts by their authors' torch code: random checkpoints as they are published, and what that code computes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from safetensors.torch import save_file
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


def config(second: bool, *, hidden: int, vocab: int, target_layers: int, **changes: Any) -> dict[str, Any]:
    """config.json of a small draft: two layers, the second one with a window."""
    draft: dict[str, Any] = {"mask_token_id": 3, "target_layer_ids": [0, target_layers - 1], "block_size": 6}
    if second:
        draft |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 5}
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "num_target_layers": target_layers,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 20,
        "use_sliding_window": True,
        "dflash_config": draft,
        **changes,
    }


def random_model(settings: dict[str, Any], seed: int = 1) -> Any:
    """Float32, with norms and convolutions that are not the identity."""
    torch.manual_seed(seed)
    kind = DFlash2DraftModel if settings["architectures"] == ["DFlash2DraftModel"] else DFlashDraftModel
    known = {key: value for key, value in settings.items() if key != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": settings["rope_theta"]}
    model = kind(Qwen3Config(**known, rope_parameters=rope)).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            elif "base_kernel" in name:
                weight.uniform_(-0.5, 1.0)
            elif "codebook" in name:
                weight.normal_(0, 1)
            else:
                weight.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
    return model


def publish(model: Any, settings: dict[str, Any], directory: Path) -> Path:
    """The directory as the authors publish it: codebooks have no `.weight`."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(settings))
    state = {
        name.removesuffix(".weight") if name.startswith(CODEBOOKS) else name: weight.contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(state, directory / "model.safetensors")
    return directory


class _StoredKV:
    """Stands in for a cache: keeps nothing, rounds keys and values as our pages do."""

    def update(self, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return k.bfloat16().float(), v.bfloat16().float()


@dataclass(frozen=True)
class TorchDraft:
    """A model over a target's embedding `[V, H]` and head `[V, H]`."""

    model: Any
    embed: np.ndarray
    head: np.ndarray

    def hidden(self, features: np.ndarray, anchor: int) -> torch.Tensor:
        """Rows behind the anchor's slot, `[1, B - 1, H]`, from the features `[start, F * H]` of the text before it."""
        start, size = len(features), self.model.block_size
        ids = [anchor, *[self.model.mask_token_id] * (size - 1)]
        with torch.no_grad():
            return self.model(
                target_hidden=torch.from_numpy(features)[None],
                noise_embedding=torch.from_numpy(self.embed[ids])[None],
                position_ids=torch.arange(start + size)[None],
                past_key_values=_StoredKV(),
            )[:, 1:]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """After multiplier and cap, `[B - 1, V]`."""
        with torch.no_grad():
            return self.model.compute_logits(hidden, lambda rows: rows @ torch.from_numpy(self.head).T)[0]

    def select(self, hidden: torch.Tensor, anchor: int) -> list[int]:
        """DFlash2's greedy path."""
        with torch.no_grad():
            path, _, _ = self.model.propose(
                hidden, torch.tensor([anchor]), lambda rows: rows @ torch.from_numpy(self.head).T, 0.0
            )
        return path[0].tolist()
