"""One tensor of a checkpoint to the bytes of an artifact, block by block, with the error that this introduces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.convert.gguf import images
from ninfer.convert.gguf.blocks import dequantise
from ninfer.convert.names.rules import Assignment
from ninfer.convert.report import TensorReport
from ninfer.errors import ConversionError, FormatError
from ninfer.formats import layouts
from ninfer.formats.base import GROUP

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
    (values,) = (block for _, block in _value_blocks(assignment))
    return Encoded("f32", "row", layouts.to_row(values), _report(assignment, "f32"))


def _encode_image(assignment: Assignment, name: str) -> Encoded:
    """Move codes and scales as they are."""
    data = _empty_image(assignment, name)
    for place, rows in _row_blocks(assignment):
        planes = images.planes(assignment.tensor.info.type.name, rows)
        for part in (planes.scales, planes.mins):
            if part is not None and not np.isfinite(part).all():
                raise ConversionError(f"{_where(assignment)}: a scale or minimum is NaN or infinite")
        _put(data, place, layouts.to_n16(planes, name), assignment)
    return Encoded(name, "n16", data, _report(assignment, name))


def _encode_values(assignment: Assignment, name: str) -> Encoded:
    """Decode to float32, encode again, and measure the difference."""
    target = formats.get(name)
    error = _Error()
    data = _empty_image(assignment, name)
    for place, values in _value_blocks(assignment):
        try:
            planes = target.pack(values)
        except FormatError as problem:
            raise ConversionError(f"{_where(assignment)}: cannot be stored as {name}: {problem}") from problem
        error.add(values, target.unpack(planes))
        _put(data, place, layouts.to_n16(planes, name), assignment)
    if not np.isfinite(error.largest):
        raise ConversionError(f"{_where(assignment)}: values are beyond the range of {name}")
    return Encoded(name, "n16", data, _report(assignment, name, error))


def _row_blocks(assignment: Assignment) -> Iterator[tuple[slice, Rows]]:
    """(our rows, stored rows): whole records of the n16 layout at a time, rows of rotary heads in our order.

    Pages of the source that were read are given back, so that memory in use does not grow with the source.
    """
    rows = assignment.tensor.rows()
    order = half_split_order(assignment.rule.shape[0], assignment.rule.rope_heads)
    step = max(_BLOCK_ELEMENTS // assignment.rule.shape[-1] // layouts.LANES, 1) * layouts.LANES
    for start in range(0, len(rows), step):
        place = slice(start, min(start + step, len(rows)))
        yield place, rows[place] if order is None else rows[order[place]]
        assignment.tensor.drop_pages()


def half_split_order(num_rows: int, rope_heads: int) -> npt.NDArray[np.int64] | None:
    """For each of our rows the source row: row s * D/2 + i of a head is row 2i + s there. None: the order is ours."""
    if rope_heads == 0:
        return None
    return np.arange(num_rows).reshape(rope_heads, -1, 2).transpose(0, 2, 1).reshape(-1)


def _value_blocks(assignment: Assignment) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """(our rows, float32 [rows, K]) with the tensor's own scale applied; all values are finite."""
    for place, rows in _row_blocks(assignment):
        values = dequantise(assignment.tensor.info.type.name, rows)
        if assignment.scale != 1.0:
            values *= np.float32(assignment.scale)
        if not np.isfinite(values).all():
            raise ConversionError(f"{_where(assignment)}: holds NaN or infinity")
        yield place, values


def _empty_image(assignment: Assignment, name: str) -> npt.NDArray[np.uint8]:
    return np.empty(layouts.nbytes(name, assignment.rule.shape, "n16"), np.uint8)


def _put(data: npt.NDArray[np.uint8], place: slice, records: npt.NDArray[np.uint8], assignment: Assignment) -> None:
    """Records of sixteen rows follow each other, so a block of whole records has its place."""
    record_bytes = len(data) // -(-assignment.rule.shape[0] // layouts.LANES)
    start = place.start // layouts.LANES * record_bytes
    data[start : start + len(records)] = records


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
