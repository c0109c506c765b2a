"""A random model as a Hugging Face directory: shards of bf16 safetensors, written block by block."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Final

from ninfer.convert.random_model.model import RandomModel
from ninfer.errors import ConfigError

SHARD_BYTES: Final = 5_000_000_000
"""Weights of one file at most, unless one tensor is larger."""
_ROWS_ELEMENTS: Final = 1 << 22
_ITEM_BYTES: Final = 2

ProgressCallback = Callable[[int, int], None]
"""Called with (weight bytes done, weight bytes in total)."""


def write_directory(
    model: RandomModel, path: Path, *, shard_bytes: int = SHARD_BYTES, progress: ProgressCallback | None = None
) -> None:
    """Write a directory that readers of Hugging Face checkpoints open; config.json comes last.

    ConfigError if `path` is a file or holds anything, or cannot be written. Memory is a few MiB whatever the model.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists; the output must be a new or empty directory")
    try:
        path.mkdir(exist_ok=True)
        shards = _shards(model, shard_bytes)
        total, done = sum(_nbytes(shape) for shape in model.shapes.values()), 0
        for file_name, names in shards.items():
            with open(path / file_name, "wb") as file:
                file.write(_header(model, names))
                for name in names:
                    tensor = model.tensor(name)
                    step = max(_ROWS_ELEMENTS // tensor.width, 1)
                    for start in range(0, tensor.num_rows, step):
                        bits = tensor.bits(slice(start, min(start + step, tensor.num_rows)))
                        file.write(bits.astype("<u2", copy=False).data)
                        done += bits.nbytes
                        if progress is not None:
                            progress(done, total)
        if len(shards) > 1:
            weight_map = {name: file_name for file_name, names in shards.items() for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for file_name, content in reversed(model.small_files().items()):
            (path / file_name).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def _shards(model: RandomModel, shard_bytes: int) -> dict[str, list[str]]:
    """File name -> tensors, in order."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, shape in model.shapes.items():
        if groups[-1] and size + _nbytes(shape) > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += _nbytes(shape)
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": names for i, names in enumerate(groups, start=1)}


def _header(model: RandomModel, names: list[str]) -> bytes:
    """The directory of a safetensors file, padded so that data starts at a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        shape = model.shapes[name]
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + _nbytes(shape)]}
        offset += _nbytes(shape)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _nbytes(shape: tuple[int, ...]) -> int:
    return prod(shape) * _ITEM_BYTES
