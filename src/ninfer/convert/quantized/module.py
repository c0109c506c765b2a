"""The tensors of one module of a checkpoint, `<module>.<leaf>`, with checked access to the companions of a weight."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks import dequantise
from ninfer.convert.mapped import SourceTensor
from ninfer.errors import ArtifactError

FLOATS = ("F32", "BF16", "F16")


class Module:
    """`tensors` by leaf; every access marks its tensor as used, and what nobody used has to be explained."""

    def __init__(self, name: str, tensors: dict[str, SourceTensor]) -> None:
        self.name = name
        self.tensors = tensors
        self._used: dict[str, SourceTensor] = {}

    def has(self, leaf: str) -> bool:
        return leaf in self.tensors

    def dtype(self, leaf: str) -> str | None:
        """The element type of a tensor, None if there is none of that name."""
        return self.tensors[leaf].info.type.name if leaf in self.tensors else None

    def need(self, leaf: str, dtypes: Iterable[str], shape: tuple[int, ...] | None, why: str) -> SourceTensor:
        """A tensor that must be there, of one of these types and of this shape (None: any); `why` says for what."""
        tensor = self.tensors.get(leaf)
        allowed = tuple(dtypes)
        wanted = f"{' or '.join(allowed)}{'' if shape is None else f' {list(shape)}'}"
        if tensor is None:
            self.fail(leaf, f"is missing; {why} needs it as {wanted}")
        info = tensor.info
        if info.type.name not in allowed or (shape is not None and info.shape != shape):
            self.fail(leaf, f"is {info.type.name} {list(info.shape)}; {why} needs {wanted}")
        self._used[leaf] = tensor
        return tensor

    def scalar(self, leaf: str, why: str) -> float:
        """The one positive, finite number of a tensor that must be there, widened exactly from its type."""
        tensor = self.need(leaf, FLOATS, None, why)
        if prod(tensor.info.shape) != 1:
            self.fail(leaf, f"has shape {list(tensor.info.shape)}; {why} needs one number")
        value = float(floats(tensor)[0, 0])
        if not (np.isfinite(value) and value > 0):
            self.fail(leaf, f"is {value}; {why} needs a finite number above 0")
        return value

    def find_scalar(self, leaf: str, why: str) -> float | None:
        """As `scalar`, None if there is no such tensor."""
        return self.scalar(leaf, why) if self.has(leaf) else None

    def scales(self, leaf: str, dtypes: Iterable[str], shape: tuple[int, ...], why: str) -> npt.NDArray[np.float32]:
        """Finite scales as float32 of the given shape, widened exactly from their type."""
        tensor = self.need(leaf, dtypes, shape, why)
        values = floats(tensor).reshape(shape)
        if not np.isfinite(values).all():
            self.fail(leaf, "holds NaN or infinity")
        return values

    @property
    def used(self) -> list[SourceTensor]:
        """What was asked for, in that order: the tensors that make a weight."""
        return list(self._used.values())

    @property
    def unused(self) -> list[str]:
        """Leaves nobody asked for."""
        return [leaf for leaf in self.tensors if leaf not in self._used]

    def full_name(self, leaf: str) -> str:
        return f"{self.name}.{leaf}" if self.name else leaf

    def fail(self, leaf: str, message: str) -> NoReturn:
        """The tensor is wrong or missing: ArtifactError."""
        path = next(iter(self.tensors.values())).file.path
        raise ArtifactError(message, file=path, field=f"tensor {self.full_name(leaf)!r}")


def floats(tensor: SourceTensor) -> npt.NDArray[np.float32]:
    """All numbers of a small F32, BF16 or F16 tensor as float32 `[rows, width]`; exact."""
    return dequantise(tensor.info.type.name, tensor.rows())
