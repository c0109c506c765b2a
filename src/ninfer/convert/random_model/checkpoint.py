"""A random model as an open checkpoint: conversion reads its weights as if they were in a file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.huggingface import config_fields, understand
from ninfer.convert.random_model.model import RandomModel
from ninfer.convert.random_model.values import RandomTensor
from ninfer.convert.weight import Chosen, Values, Weight


class RandomWeight(Weight):
    """A weight that is drawn where it is read."""

    kind = "BF16"

    def __init__(self, tensor: RandomTensor, path: Path) -> None:
        super().__init__()
        self.path = path
        self.nbytes = 2 * prod(tensor.shape)
        self.name = tensor.name
        self.shape = tensor.shape
        self._drawn = tensor

    def float_format(self) -> str | None:
        return "bf16"

    def values(self, rows: Chosen) -> Values:
        return self._drawn.values(rows)


@dataclass(frozen=True)
class _Files:
    """The small files of a random model, which are nowhere but in memory."""

    path: Path
    content: dict[str, bytes]

    def has(self, name: str) -> bool:
        return name in self.content

    def find(self, name: str, limit: int = 0) -> bytes | None:
        return self.content.get(name)


def random_checkpoint(model: RandomModel, path: Path) -> Checkpoint:
    """The checkpoint that opening the directory of this model gives. `path`: what errors name."""
    files = _Files(path, model.small_files())
    weights: dict[str, Weight] = {name: RandomWeight(model.tensor(name), path) for name in model.shapes}
    checkpoint = understand(files, config_fields(files), weights, [])
    checkpoint.kind = "random"
    return checkpoint
