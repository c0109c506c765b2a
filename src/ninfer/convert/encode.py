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
from ninfer.convert.names.orders import Indices
from ninfer.convert.names.rules import CHANGES, Assignment
from ninfer.convert.report import TensorReport
from ninfer.convert.weight import Chosen
from ninfer.errors import FormatError
from ninfer.formats import Planes, layouts
from ninfer.formats.base import GROUP, WHOLE_ROW, Array
from ninfer.formats.nvfp4 import NVFP4

_BLOCK_ELEMENTS: Final = 1 << 18
"""Elements worked on at a time: a float64 copy of a block is 2 MiB and stays in cache."""


@dataclass(frozen=True)
class Encoded:
    """A tensor as the artifact stores it."""

    format: str
    layout: str
    data: npt.NDArray[np.uint8]
    report: TensorReport


def encode(assignment: Assignment, wanted: str | None) -> Encoded:
    """Encode a tensor: vectors as f32, matrices in layout n16.

    `wanted`: the format of a matrix, or None for the one that keeps what the source holds: its exact image, exact
    floats, or, for types we have no format for, `q8g32` (`bf16` if the row is no multiple of 32).
    Raises ConversionError, naming the tensor, for NaN and infinity and for values that the format cannot hold.
    """
    rule, weight = assignment.rule, assignment.weight
    if len(rule.shape) == 1:
        return _encode_vector(assignment)
    weight.check()
    exact = weight.exact_format()
    name = wanted or exact or _keeping_format(assignment)
    if name == exact:
        return _encode_image(assignment, name)
    if name == "q4g32m" and rule.shape[1] % GROUP:
        raise weight.error(f"rows of {rule.shape[1]} are no multiple of 32, as q4g32m needs")
    return _encode_values(assignment, name)


def _keeping_format(assignment: Assignment) -> str:
    name = assignment.weight.float_format()
    if name == "f32":
        lossless = all(not (block.view(np.uint32) & 0xFFFF).any() for _, block in _value_blocks(assignment))
        return "bf16" if lossless else "f32"
    return name or ("q8g32" if assignment.rule.shape[1] % GROUP == 0 else "bf16")


def _encode_vector(assignment: Assignment) -> Encoded:
    """All values at once, changed as the rule says."""
    rule = assignment.rule
    values = np.concatenate([block for _, block in _value_blocks(assignment)])
    if rule.change:
        with np.errstate(over="ignore"):
            values = CHANGES[rule.change](values)
        if not np.isfinite(values).all():
            raise assignment.weight.error(f"{rule.change} of its values is beyond the range of f32")
    return Encoded("f32", "row", layouts.to_row(values.reshape(rule.shape)), _report(assignment, "f32"))


def _encode_image(assignment: Assignment, name: str) -> Encoded:
    """Move codes and scales as they are."""
    groups = _group_order(assignment, name)
    data = _empty_image(assignment, name)
    for place, rows in _row_blocks(assignment):
        planes = assignment.weight.planes(rows)
        _put(data, place, planes if groups is None else _with_groups(planes, name, groups), name)
        assignment.weight.drop_pages()
    return Encoded(name, "n16", data, _report(assignment, name))


def _group_order(assignment: Assignment, name: str) -> Indices | None:
    """For each of our groups of a row the source's; ConversionError if the columns do not move in whole groups."""
    if assignment.rule.columns is None:
        return None
    group = max(formats.get(name).group, 1)
    indices = assignment.rule.columns.indices()
    columns = indices.reshape(-1, group) if len(indices) % group == 0 else None
    if columns is None or (columns[:, :1] % group).any() or (columns != columns[:, :1] + np.arange(group)).any():
        raise assignment.weight.error(
            f"its columns have to be reordered, and they do not move in whole groups of {group} of {name}; "
            "--weights f32 keeps the values"
        )
    return columns[:, 0] // group


def _with_groups(planes: Planes, name: str, groups: Indices) -> Planes:
    """Planes with the groups of every row in another order; all of them are whole."""
    fmt = formats.get(name)
    n, k = planes.shape
    codes = np.full_like(planes.codes, fmt.zero_code)
    codes[:, :k] = planes.codes[:, :k].reshape(n, len(groups), -1)[:, groups].reshape(n, k)

    def moved(plane: Array | None) -> Array | None:
        if plane is None or fmt.group == WHOLE_ROW:
            return plane
        result = plane.copy()
        result[:, : len(groups)] = plane[:, groups]
        return result

    return Planes(planes.shape, codes, moved(planes.scales), moved(planes.mins), planes.tensor)


def _encode_values(assignment: Assignment, name: str) -> Encoded:
    """Decode to float32, encode again, and measure the difference."""
    target = formats.get(name)
    error = _Error()
    pack = target.pack
    if isinstance(target, NVFP4):  # its scales depend on the whole tensor
        largest = max(float(np.abs(values).max()) for _, values in _value_blocks(assignment))
        pack = partial(target.pack_part, amax=largest)
    data = _empty_image(assignment, name)
    for place, values in _value_blocks(assignment):
        try:
            planes = pack(values)
        except FormatError as problem:
            raise assignment.weight.error(f"cannot be stored as {name}: {problem}") from problem
        error.add(values, target.unpack(planes))
        _put(data, place, planes, name)
    if not np.isfinite(error.largest):
        raise assignment.weight.error(f"values are beyond the range of {name}")
    return Encoded(name, "n16", data, _report(assignment, name, error))


def _row_blocks(assignment: Assignment) -> Iterator[tuple[slice, Chosen]]:
    """(our rows, the file's rows): whole records of the n16 layout at a time, in our order."""
    weight, order = assignment.weight, assignment.rule.rows
    indices = None if order is None else order.indices()
    count = weight.num_rows if indices is None else len(indices)
    step = max(_BLOCK_ELEMENTS // weight.shape[-1] // layouts.LANES, 1) * layouts.LANES
    for start in range(0, count, step):
        place = slice(start, min(start + step, count))
        yield place, place if indices is None else indices[place]


def _value_blocks(assignment: Assignment) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """(our rows, float32 [rows, K] in our order of columns); all are finite."""
    weight, order = assignment.weight, assignment.rule.columns
    columns = None if order is None else order.indices()
    for place, rows in _row_blocks(assignment):
        values = weight.values(rows)
        if columns is not None:
            values = values[:, columns]
        if not np.isfinite(values).all():
            raise weight.error("holds NaN or infinity")
        yield place, values
        weight.drop_pages()


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
        source_name=assignment.weight.name,
        source_type=assignment.weight.kind,
        format=name,
        relative_rms_error=error.relative_rms if error else 0.0,
        max_error=error.largest if error else 0.0,
    )
