"""One tensor of a checkpoint to the bytes of an artifact, block by block, with the error that this introduces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.convert.gguf import images
from ninfer.convert.gguf.blocks import dequantise
from ninfer.convert.names.orders import Indices
from ninfer.convert.names.rules import CHANGES, Assignment
from ninfer.convert.report import TensorReport
from ninfer.errors import ConversionError, FormatError
from ninfer.formats import Planes, layouts
from ninfer.formats.base import GROUP
from ninfer.formats.nvfp4 import NVFP4

_BLOCK_ELEMENTS: Final = 1 << 18
"""Elements worked on at a time: a float64 copy of a block is 2 MiB and stays in cache."""

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """A tensor as the artifact stores it."""

    format: str
    layout: str
    data: npt.NDArray[np.uint8]
    report: TensorReport


def encode(assignment: Assignment, weights: str | None) -> Encoded:
    """Encode a tensor: vectors as f32, matrices in layout n16.

    `weights`: the format of all matrices, or None for the one that keeps what the source holds: its exact image, exact
    floats, or, for types we have no format for, `q8g32` (`bf16` if the row is no multiple of 32).
    Raises ConversionError, naming the tensor, for NaN and infinity and for values that the format cannot hold.
    """
    rule, kind = assignment.rule, assignment.tensor.info.type.name
    if len(rule.shape) == 1:
        return _encode_vector(assignment)
    name = weights or _keeping_format(assignment)
    if name == images.FORMATS.get(kind):
        return _encode_image(assignment, name)
    if name == "q4g32m" and rule.shape[1] % GROUP:
        raise ConversionError(f"{_where(assignment)}: rows of {rule.shape[1]} are no multiple of 32, as q4g32m needs")
    return _encode_values(assignment, name)


def _keeping_format(assignment: Assignment) -> str:
    kind = assignment.tensor.info.type.name
    if kind in images.FORMATS:
        return images.FORMATS[kind]
    if kind == "BF16":
        return "bf16"
    if kind in ("F32", "F16"):
        lossless = all(not (block.view(np.uint32) & 0xFFFF).any() for _, block in _value_blocks(assignment))
        return "bf16" if lossless else "f32"
    return "q8g32" if assignment.rule.shape[1] % GROUP == 0 else "bf16"


def _encode_vector(assignment: Assignment) -> Encoded:
    """All values at once, changed as the rule says."""
    rule = assignment.rule
    values = np.concatenate([block for _, block in _value_blocks(assignment)])
    if rule.change:
        with np.errstate(over="ignore"):
            values = CHANGES[rule.change](values)
        if not np.isfinite(values).all():
            raise ConversionError(f"{_where(assignment)}: {rule.change} of its values is beyond the range of f32")
    return Encoded("f32", "row", layouts.to_row(values.reshape(rule.shape)), _report(assignment, "f32"))


def _encode_image(assignment: Assignment, name: str) -> Encoded:
    """Move codes and scales as they are."""
    data = _empty_image(assignment, name)
    blocks = _block_order(assignment)
    for place, rows in _row_blocks(assignment):
        if blocks is not None:
            rows = rows.reshape(len(rows), -1, assignment.tensor.info.type.block_bytes)[:, blocks]
            rows = rows.reshape(len(rows), -1)
        planes = images.planes(assignment.tensor.info.type.name, rows)
        for part in (planes.scales, planes.mins):
            if part is not None and not np.isfinite(part).all():
                raise ConversionError(f"{_where(assignment)}: a scale or minimum is NaN or infinite")
        _put(data, place, planes, name)
    return Encoded(name, "n16", data, _report(assignment, name))


def _block_order(assignment: Assignment) -> Indices | None:
    """For each of our blocks of a row the source's; ConversionError if the columns do not move in whole blocks."""
    if assignment.rule.columns is None:
        return None
    kind = assignment.tensor.info.type
    columns = assignment.rule.columns.indices().reshape(-1, kind.block_elems)
    first = columns[:, :1]
    if (first % kind.block_elems).any() or (columns != first + np.arange(kind.block_elems)).any():
        raise ConversionError(
            f"{_where(assignment)}: its columns have to be reordered, and they do not move in whole {kind.name} blocks "
            f"of {kind.block_elems}; --weights f32 keeps the values"
        )
    return first[:, 0] // kind.block_elems


def _encode_values(assignment: Assignment, name: str) -> Encoded:
    """Decode to float32, encode again, and measure the difference."""
    target = formats.get(name)
    error = _Error()
    data = _empty_image(assignment, name)
    pack = target.pack
    if isinstance(target, NVFP4):  # its scales depend on the whole tensor
        largest = max(float(np.abs(values).max()) for _, values in _value_blocks(assignment))
        pack = partial(target.pack_part, amax=largest)
    for place, values in _value_blocks(assignment):
        try:
            planes = pack(values)
        except FormatError as problem:
            raise ConversionError(f"{_where(assignment)}: cannot be stored as {name}: {problem}") from problem
        error.add(values, target.unpack(planes))
        _put(data, place, planes, name)
    if not np.isfinite(error.largest):
        raise ConversionError(f"{_where(assignment)}: values are beyond the range of {name}")
    return Encoded(name, "n16", data, _report(assignment, name, error))


def _row_blocks(assignment: Assignment) -> Iterator[tuple[slice, Rows]]:
    """(our rows, stored rows): whole records of the n16 layout at a time, rows in our order, columns in the source's.

    Pages of the source that were read are given back, so that memory in use does not grow with the source.
    """
    rows, order = assignment.tensor.rows(), assignment.rule.rows
    indices = None if order is None else order.indices()
    count = len(rows) if indices is None else len(indices)
    step = max(_BLOCK_ELEMENTS // assignment.tensor.info.shape[-1] // layouts.LANES, 1) * layouts.LANES
    for start in range(0, count, step):
        place = slice(start, min(start + step, count))
        yield place, rows[place] if indices is None else rows[indices[place]]
        assignment.tensor.drop_pages()


def _value_blocks(assignment: Assignment) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """(our rows, float32 [rows, K] in our order of columns) with the tensor's own scale applied; all are finite."""
    order = assignment.rule.columns
    columns = None if order is None else order.indices()
    for place, rows in _row_blocks(assignment):
        values = dequantise(assignment.tensor.info.type.name, rows)
        if columns is not None:
            values = values[:, columns]
        if assignment.scale != 1.0:
            values *= np.float32(assignment.scale)
        if not np.isfinite(values).all():
            raise ConversionError(f"{_where(assignment)}: holds NaN or infinity")
        yield place, values


def _empty_image(assignment: Assignment, name: str) -> npt.NDArray[np.uint8]:
    return np.empty(layouts.nbytes(name, assignment.rule.shape, "n16"), np.uint8)


def _put(data: npt.NDArray[np.uint8], place: slice, planes: Planes, name: str) -> None:
    """Records of sixteen rows follow each other, so a block of whole records has its place; a tail comes last."""
    size = layouts.record_bytes(formats.get(name), planes.shape[1])
    start, stop = (layouts.num_records(row) * size for row in (place.start, place.stop))
    data[start:stop] = layouts.to_n16(planes, name)[: stop - start]
    if planes.tensor is not None:
        data[-layouts.TAIL_BYTES :] = layouts.tail(planes.tensor)


class _Error:
    """Sums over blocks; float64, in one fixed order."""

    def __init__(self) -> None:
        self._signal = self._noise = 0.0
        self.largest = 0.0

    def add(self, values: npt.NDArray[np.float32], stored: npt.NDArray[np.float64]) -> None:
        exact = values.astype(np.float64)
        self._signal += float(np.square(exact).sum())
        difference = np.subtract(stored, exact, out=exact)
        self.largest = max(self.largest, float(np.abs(difference).max()))
        self._noise += float(np.square(difference, out=difference).sum())

    @property
    def relative_rms(self) -> float:
        return sqrt(self._noise / self._signal) if self._signal else 0.0


def _report(assignment: Assignment, name: str, error: _Error | None = None) -> TensorReport:
    return TensorReport(
        name=assignment.rule.target,
        source_name=assignment.rule.source,
        source_type=assignment.tensor.info.type.name,
        format=name,
        relative_rms_error=error.relative_rms if error else 0.0,
        max_error=error.largest if error else 0.0,
    )


def _where(assignment: Assignment) -> str:
    return f"{assignment.tensor.file.path}: tensor {assignment.rule.source!r}"
