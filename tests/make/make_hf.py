"""Tiny Llama checkpoints as Hugging Face directories, written by transformers and tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.make_gguf import TEMPLATE
from make.tiny_llama import hf_model
from make.tiny_tokenizer import tiny_metadata
from ninfer.convert.convert import convert
from ninfer.errors import NInferError
from ninfer.models.llama import LlamaConfig
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf


def write_hf(
    path: Path,
    config: LlamaConfig,
    weights: Mapping[str, np.ndarray],
    *,
    dtype: str = "float32",
    shard_size: str = "1GB",
    **changed: Any,
) -> Path:
    """A checkpoint directory with tokenizer and template; `changed` replaces (None: removes) fields of config.json."""
    import torch

    model = hf_model(config, weights).to(getattr(torch, dtype))
    model.save_pretrained(path, max_shard_size=shard_size)
    (path / "tokenizer.json").write_bytes(tokenizer_json_from_gguf(tiny_metadata()))
    tokens = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(tokens))
    change_json(path / "config.json", **changed)
    return path


def change_json(file: Path, **changed: Any) -> None:
    """Replace fields of a JSON file; None removes one."""
    document = {**json.loads(file.read_text()), **changed}
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def assert_config_refused(source: Path, changed: Mapping[str, Any], kind: type[NInferError], pattern: str) -> None:
    """A directory whose config.json has these changes is refused by name, and nothing is left beside it."""
    change_json(source / "config.json", **changed)
    with pytest.raises(kind, match=pattern) as caught:
        convert(source, source.parent / "a.ninfer")
    assert str(source) in str(caught.value)
    assert list(source.parent.iterdir()) == [source]
