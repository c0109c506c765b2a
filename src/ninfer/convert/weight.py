"""A weight of a checkpoint as conversion sees it, whatever tensors of the file hold it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf import images
from ninfer.convert.gguf.blocks import dequantise
from ninfer.convert.mapped import Rows, SourceTensor
from ninfer.convert.names.orders import Indices
from ninfer.errors import ConversionError
from ninfer.formats import Planes, TensorScale
from ninfer.formats.small_floats import E4M3_NAN

Values = npt.NDArray[np.float32]
Chosen = slice | Indices
"""Which of the file's rows, in which order."""


class Weight(ABC):
    """A vector or a matrix `[N, K]` of the file, leading axes merged into N; it is read by rows, never as a whole.

    `name`: the tensor that rules and errors name; `kind`: how the file stores it, for reports; `nbytes`: stored bytes,
    those of its scales included.
    """

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]

    def __init__(self, *tensors: SourceTensor) -> None:
        if tensors:
            self.path = tensors[0].file.path
        self.nbytes = sum(tensor.info.nbytes for tensor in tensors)
        self._tensors = tensors

    @property
    def num_rows(self) -> int:
        """N; 1 for a vector."""
        return prod(self.shape[:-1])

    def exact_format(self) -> str | None:
        """The format of ours that holds the stored numbers bit for bit, None if there is none. May read all scales."""
        return None

    def float_format(self) -> str | None:
        """For plain floats the format that holds them all: bf16, or f32, which bf16 may do for. None for others."""
        return None

    def check(self) -> None:
        """ArtifactError for illegal numbers in a tensor of scales. It reads that tensor and allocates nothing large."""
        return

    def planes(self, rows: Chosen) -> Planes:
        """Rows in the exact format; ConversionError for codes that are no numbers."""
        raise self.error(f"{self.kind} has no exact image")

    @abstractmethod
    def values(self, rows: Chosen) -> Values:
        """Rows as float32 `[rows, K]`, as the file's format defines them; NaN and infinity may come through."""

    def drop_pages(self) -> None:
        """Let the system forget what was read, so that memory in use does not grow with the source."""
        for tensor in self._tensors:
            tensor.drop_pages()

    def is_same(self, other: Weight) -> bool:
        """Whether both are stored in the same way with the same bytes."""
        return (self.kind, self.shape) == (other.kind, other.shape) and all(
            np.array_equal(a.rows(), b.rows()) for a, b in zip(self._tensors, other._tensors, strict=True)
        )

    def error(self, message: str) -> ConversionError:
        """An error about this weight."""
        return ConversionError(f"{self.path}: tensor {self.name!r}: {message}")


class StoredWeight(Weight):
    """One tensor of plain floats or of GGUF blocks. `scale`: what GGUF's NVFP4 keeps outside of its blocks."""

    def __init__(self, tensor: SourceTensor, scale: TensorScale | None = None) -> None:
        super().__init__(tensor)
        self.name = tensor.info.name
        self.kind = tensor.info.type.name
        self.shape = tensor.info.shape
        self._scale = scale

    def exact_format(self) -> str | None:
        return images.FORMATS.get(self.kind)

    def float_format(self) -> str | None:
        return {"F32": "f32", "F16": "f32", "BF16": "bf16"}.get(self.kind)

    def planes(self, rows: Chosen) -> Planes:
        planes = images.planes(self.kind, self._rows(rows), self._scale)
        for part in planes.all_scales:
            if part.dtype == np.float16 and not np.isfinite(part).all():
                raise self.error("a scale or minimum is NaN or infinite")
            if part.dtype == np.uint8 and (part == E4M3_NAN).any():
                raise self.error("a scale is no E4M3 number")
        return planes

    def values(self, rows: Chosen) -> Values:
        values = dequantise(self.kind, self._rows(rows))
        if self._scale is not None:
            values *= np.float32(self._scale.factor)
        return values

    def _rows(self, rows: Chosen) -> Rows:
        return self._tensors[0].rows()[rows]
