"""A random model before it is written: its settings, its small files, and what its tensors are called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from ninfer.artifact import strict_json
from ninfer.convert.checkpoint import RANDOM_KEY
from ninfer.convert.fields import Fields
from ninfer.convert.names import qwen3_5
from ninfer.convert.random_model import values
from ninfer.convert.random_model.shapes import NUM_TOKEN_IDS, SHAPES, published_config
from ninfer.convert.random_model.tokenizer import LEAST_IDS, tokenizer_files
from ninfer.convert.random_model.values import RandomTensor
from ninfer.errors import ArtifactError, ConfigError

CUSTOM: Final = "custom"
SHAPE_NAMES: Final = (*SHAPES, CUSTOM)
MAX_SEED: Final = (1 << 63) - 1

_PADDING_ROWS: Final = 8
"""Rows of a custom vocabulary that no token has."""
_MAX_CONFIG_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class RandomModel:
    """config: content of config.json. files: further small files by name. shapes: of all tensors by Hugging Face name,
    in the order in which they are written. seed, shape: what was asked for."""

    config: Mapping[str, Any]
    files: Mapping[str, bytes]
    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    shape: str

    @property
    def num_parameters(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    def tensor(self, name: str) -> RandomTensor:
        return RandomTensor(name, self.shapes[name], self.seed)

    def small_files(self) -> dict[str, bytes]:
        """All files of a checkpoint directory but the weights."""
        text = json.dumps(self.config, indent=2) + "\n"
        return {"config.json": text.encode(), **self.files}


def random_model(shape: str, *, config_file: Path | None = None, seed: int = 0) -> RandomModel:
    """Describe a model of a published shape, or of the settings in a config.json (`shape` = custom).

    Nothing large is allocated. Raises ConfigError for bad arguments, ArtifactError and ConversionError for settings
    that are wrong or not supported, by their key.
    """
    if shape not in SHAPE_NAMES:
        raise ConfigError(f"shape {shape!r} is not known; choose one of {', '.join(SHAPE_NAMES)}")
    if (shape == CUSTOM) != (config_file is not None):
        raise ConfigError("the custom shape comes from a config file, and a config file goes with the custom shape")
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"seed {seed} must be from 0 to {MAX_SEED}")
    place = Path("config.json") if config_file is None else config_file
    text = published_config(shape) if config_file is None else _read_text_config(config_file)
    fields = Fields(text, place)
    vocab_size = fields.integer("vocab_size", LEAST_IDS + _PADDING_ROWS, 1 << 22)
    num_ids = NUM_TOKEN_IDS if config_file is None else vocab_size - _PADDING_ROWS
    files = tokenizer_files(num_ids)
    ids = json.loads(files["generation_config.json"])
    config = {
        **text,
        "architectures": [qwen3_5.HF_CLASSES[0]],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "bos_token_id": None,
        **ids,
        RANDOM_KEY: {"shape": shape, "seed": seed, "version": values.VERSION},
    }
    return RandomModel(config, files, _shapes(Fields(config, place), num_ids), seed, shape)


def _read_text_config(file: Path) -> dict[str, Any]:
    """The text settings in a config.json, the inner ones of a multimodal file."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > _MAX_CONFIG_BYTES:
        raise ArtifactError(f"is longer than {_MAX_CONFIG_BYTES} bytes", file=file)
    document = strict_json.parse_object(content, file=file, field=None)
    text = document.get("text_config", document)
    if not isinstance(text, dict):
        raise ArtifactError("must be an object", file=file, field="'text_config'")
    if "tie_word_embeddings" in document:
        text = {**text, "tie_word_embeddings": document["tie_word_embeddings"]}
    return dict(text)


def _shapes(fields: Fields, num_ids: int) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint with these settings has."""
    has_mtp = fields.integer("mtp_num_hidden_layers", 0, 1, default=0) == 1
    model = qwen3_5.read_huggingface(fields, ["mtp.fc.weight"] if has_mtp else [])
    complete = {
        **model.config,
        "num_decodable": num_ids,
        "bos_token_id": None,
        "stop_token_ids": fields.values["eos_token_id"],
        "pad_token_id": fields.values["pad_token_id"],
    }
    return {rule.source: rule.needed_shape for rule in model.rules(complete)}
