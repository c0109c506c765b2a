"""The weights of an artifact as backends read them: checked against what the family expects, mapped, not copied."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.artifact import Artifact, TensorEntry
from ninfer.backends.base import FileRange, Matrix
from ninfer.errors import ArtifactError, FormatError
from ninfer.formats import layouts

MOST_NAMES_SHOWN = 8


class ArtifactWeights:
    """`backends.base.Weights` over a mapped artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def matrix(self, name: str) -> Matrix:
        entry = self._artifact.tensors[name]
        data = np.frombuffer(self._artifact.payload(name), np.uint8)
        source = FileRange(*self._artifact.file_range(name))
        return Matrix(entry.format, (entry.shape[0], entry.shape[1]), data, source)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return np.frombuffer(self._artifact.read(name), np.float32)


class ShapedConfig(Protocol):
    """A configuration that says which tensors a file has."""

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]: ...


def check_tensors(artifact: Artifact, config: ShapedConfig) -> None:
    """ArtifactError unless the file has exactly the tensors of the model, in storage that backends read.

    Matrices are in layout n16 and any weight format, vectors are f32 in layout row. Tensor scales are read; codes and
    scales of groups are not: whether all of them are numbers is `verify`'s work.
    """
    expected = config.tensor_shapes()
    missing = [name for name in expected if name not in artifact.tensors]
    if missing:
        raise ArtifactError(f"tensors are missing: {_names(missing)}", file=artifact.path)
    unknown = [name for name in artifact.tensors if name not in expected]
    if unknown:
        raise ArtifactError(f"tensors are not part of this model: {_names(unknown)}", file=artifact.path)
    wrong = [
        f"{name} is {entry.format} {list(entry.shape)} in layout {entry.layout}, not {_wanted(expected[name])}"
        for name, entry in artifact.tensors.items()
        if not _fits(entry, expected[name])
    ]
    if wrong:
        raise ArtifactError(f"tensors do not fit the configuration: {_names(wrong)}", file=artifact.path)
    for name, entry in artifact.tensors.items():
        if formats.get(entry.format).has_tensor_scale:
            tail = np.frombuffer(artifact.read(name, entry.nbytes - layouts.TAIL_BYTES), np.uint8)
            try:
                layouts.find_tensor_scale(tail, entry.format)
            except FormatError as error:
                raise ArtifactError(str(error), file=artifact.path, field=name) from error


def _fits(entry: TensorEntry, shape: tuple[int, ...]) -> bool:
    storage = (entry.layout == "n16" and entry.format in formats.NAMES, (entry.format, entry.layout) == ("f32", "row"))
    return entry.shape == shape and (storage[0] if len(shape) == 2 else storage[1])


def _wanted(shape: tuple[int, ...]) -> str:
    return f"a weight {list(shape)} in layout n16" if len(shape) == 2 else f"f32 {list(shape)} in layout row"


def _names(items: list[str]) -> str:
    more = len(items) - MOST_NAMES_SHOWN
    return ", ".join(items[:MOST_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
