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
from ninfer.convert.weight import StoredWeight, Weight
from ninfer.errors import ArtifactError, ConversionError
from ninfer.formats import TensorScale
from ninfer.formats.base import LARGEST_FACTOR
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
    weights = _weights(tensors, file.path)
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
    assignments = assign(model.rules(config), weights, file.path)
    return Checkpoint("gguf", file.path, model.architecture, config, assignments, resources, [file.path], [file])


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


def _weights(tensors: Mapping[str, SourceTensor], path: Path) -> dict[str, Weight]:
    """Weights by name. NVFP4 has tensors of one number besides: `<base>.scale` multiplies the weight (missing: 1), and
    `<base>.input_scale` divides activations; our input scale is the float32 next to its inverse."""
    rest = dict(tensors)
    scales: dict[str, TensorScale] = {}
    for name, tensor in tensors.items():
        if tensor.info.type.name == "NVFP4":
            base = name.removesuffix(".weight")
            factor, inputs = _number(rest, f"{base}.scale", path), _number(rest, f"{base}.input_scale", path)
            inverse = None if inputs is None else float(np.float32(1) / np.float32(inputs))
            scales[name] = TensorScale(1.0 if factor is None else factor, inverse)
    return {name: StoredWeight(tensor, scales.get(name)) for name, tensor in rest.items()}


def _number(tensors: dict[str, SourceTensor], name: str, path: Path) -> float | None:
    """Take a tensor of one float32 out; None if there is none."""
    tensor = tensors.pop(name, None)
    if tensor is None:
        return None
    info, field = tensor.info, f"tensor {name!r}"
    if info.type.name != "F32" or info.shape != (1,):
        raise ArtifactError(f"must be F32 [1], not {info.type.name} {list(info.shape)}", file=path, field=field)
    value = float(tensor.rows().view(np.float32)[0, 0])
    if not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
        raise ArtifactError(f"is {value}; it must be from 2^-100 to 2^100", file=path, field=field)
    return value


def _vocab_size(weights: Mapping[str, Weight], path: Path) -> int:
    """Rows of the embedding; its width is checked with all other shapes."""
    embedding = weights.get(GGUF_EMBEDDING)
    if embedding is None:
        raise ArtifactError(f"missing tensors: {GGUF_EMBEDDING}", file=path)
    rows = embedding.shape[0]
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
