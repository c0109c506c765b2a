"""A GGUF file as a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ninfer.convert import frontend
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.fields import Fields, naming
from ninfer.convert.gguf.blocks import IMPORTED_TYPES
from ninfer.convert.gguf.reader import GGUFFile
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.names.families import GGUF, GGUF_EMBEDDING
from ninfer.convert.names.rules import assign, listed
from ninfer.convert.names.source_model import MAX_VOCAB
from ninfer.errors import ArtifactError, ConversionError
from ninfer.text.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_json_from_gguf

_SPLIT_NAME: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf")
_TOKENIZER: Final = "tokenizer.ggml."
_NO_TOKENIZER: Final = ("none", "no_vocab")
_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_TEMPLATE: Final = "tokenizer.chat_template"


def open_gguf(path: Path) -> Checkpoint:
    """Open and understand a GGUF file; raises ArtifactError or ConversionError, with nothing left open."""
    file = GGUFFile(path)
    try:
        return _understand(file)
    except BaseException:
        file.close()
        raise


def _understand(file: GGUFFile) -> Checkpoint:
    fields = Fields(file.metadata, file.path)
    _refuse_split(fields)
    architecture = fields.text("general.architecture")
    if architecture not in GGUF:
        fields.refuse("general.architecture", f"supported are {', '.join(GGUF)}")
    if fields.text("general.type", default="model") != "model":
        fields.refuse("general.type", "only whole models are supported")
    tensors = {name: SourceTensor(file, info) for name, info in file.tensors.items()}
    _refuse_types(tensors, file.path)
    weights, scales, notes = _separate_scales(tensors, file.path)
    vocab_size = _vocab_size(weights, file.path)
    model = GGUF[architecture](fields, weights, vocab_size)
    config = dict(model.config)
    resources = _resources(fields, vocab_size)
    tokenizer = frontend.check_frontend(resources, vocab_size, file.path)
    ends = [i for key in _END_KEYS for i in frontend.token_ids(fields, _TOKENIZER + key, vocab_size)]
    config["bos_token_id"] = fields.find_integer(_TOKENIZER + "bos_token_id", 0, vocab_size - 1)
    config["stop_token_ids"] = frontend.stop_token_ids(ends, tokenizer)
    config["pad_token_id"] = fields.find_integer(_TOKENIZER + "padding_token_id", 0, vocab_size - 1)
    config |= frontend.decodable(model, tokenizer)
    assignments = assign(model.rules(config), weights, file.path, scales=scales)
    return Checkpoint("gguf", file.path, model.architecture, config, assignments, resources, [file.path], [file], notes)


def _refuse_split(fields: Fields) -> None:
    """A shard of a split model is a complete GGUF file of its own, with a part of the tensors."""
    count = fields.integer("split.count", 0, 1 << 16, default=0)
    match = _SPLIT_NAME.search(fields.file.name)
    if match and count == 0:
        count = int(match[1])
    if count > 1:
        raise ConversionError(
            f"{fields.file}: this is one of {count} shards of a split model; split files are not supported: "
            "merge them first (`llama-gguf-split --merge FIRST-SHARD OUTPUT`)"
        )


def _refuse_types(tensors: Mapping[str, SourceTensor], path: Path) -> None:
    bad = [
        f"{name} is {tensor.info.type.name}"
        for name, tensor in tensors.items()
        if tensor.info.type.name not in IMPORTED_TYPES
    ]
    if bad:
        raise ConversionError(
            f"{path}: tensor types that are not imported: {listed(bad)}; imported types: {', '.join(IMPORTED_TYPES)}"
        )


def _separate_scales(
    tensors: Mapping[str, SourceTensor], path: Path
) -> tuple[dict[str, SourceTensor], dict[str, float], list[str]]:
    """(weights, factor by weight name, notes): NVFP4 weights keep their per-tensor factor in a tensor `<base>.scale`.

    `<base>.input_scale` is for activations and not needed: weights are used with activations of their own rounding.
    """
    weights, scales, dropped = dict(tensors), {}, 0
    for name, tensor in tensors.items():
        if tensor.info.type.name != "NVFP4":
            continue
        base = name.removesuffix(".weight")
        dropped += weights.pop(f"{base}.input_scale", None) is not None
        companion = weights.pop(f"{base}.scale", None)
        if companion is None:
            continue
        if companion.info.type.name != "F32" or companion.info.shape != (1,):
            shape = f"{companion.info.type.name} {list(companion.info.shape)}"
            raise ArtifactError(f"must be F32 [1], not {shape}", file=path, field=f"tensor {base + '.scale'!r}")
        scales[name] = float(companion.rows().view(np.float32)[0, 0])
        if not np.isfinite(scales[name]):
            raise ArtifactError(f"is {scales[name]}", file=path, field=f"tensor {base + '.scale'!r}")
    notes = [f"{dropped} activation scales of NVFP4 tensors are not needed and left out"] if dropped else []
    return weights, scales, notes


def _vocab_size(weights: Mapping[str, SourceTensor], path: Path) -> int:
    """Rows of the embedding; its width is checked with all other shapes."""
    embedding = weights.get(GGUF_EMBEDDING)
    if embedding is None:
        raise ArtifactError(f"missing tensors: {GGUF_EMBEDDING}", file=path)
    rows = embedding.info.shape[0]
    if rows > MAX_VOCAB:
        field = f"tensor {GGUF_EMBEDDING!r}"
        raise ArtifactError(f"has {rows} rows; at most {MAX_VOCAB} are supported", file=path, field=field)
    return rows


def _resources(fields: Fields, vocab_size: int) -> dict[str, bytes]:
    if fields.text(_TOKENIZER + "model", default="none") in _NO_TOKENIZER:
        return {}
    tokens = fields.values.get(_TOKENIZER + "tokens")
    if isinstance(tokens, list) and len(tokens) != vocab_size:
        fields.fail(_TOKENIZER + "tokens", f"has {len(tokens)} tokens, the embedding has {vocab_size} rows")
    with naming(fields.file):
        resources = {
            frontend.TOKENIZER: tokenizer_json_from_gguf(fields.values),
            frontend.TOKENIZER_CONFIG: tokenizer_config_from_gguf(fields.values),
        }
    template = fields.text(_TEMPLATE, default="")
    if template:
        resources[frontend.CHAT_TEMPLATE] = template.encode("utf-8")
    return resources
