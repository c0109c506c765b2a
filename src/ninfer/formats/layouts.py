"""How the values of a tensor lie as bytes in an artifact. Two layouts, both lossless in both directions.

`row`: native values, row-major, little-endian; f32, bf16 and plain bytes (`u8`), any rank from 1 to 4.

`n16`: what matrix kernels read for a weight `[N, K]`. Sixteen consecutive rows form one record, so that a vector
register holds the same columns of sixteen rows and sums need no horizontal step. There are `ceil(N / 16)` records back
to back; rows behind N decode to 0 (scales, mins and values are zero bits). With `G = ceil(K / 32)`, lane n a row of the
record, and every part padded with zero bytes to a multiple of 64:

| format | parts of a record |
|---|---|
| q8g32 | scales float16 `[G][16]`; codes uint8 `[G][8][16][4]` |
| q4g32 | scales float16 `[G][16]`; nibble pairs uint8 `[G][4][16][4]` |
| q4g32m | scales float16 `[G][16]`; mins float16 `[G][16]`; nibble pairs uint8 `[G][4][16][4]` |
| bf16 | uint16 `[K][16]` |
| f32 | float32 `[K][16]` |

Code byte (g, j, n, b) is element 32g + 4j + b of row n, plus 128. Nibble-pair byte (g, j, n, b) holds element
32g + 4j + b in its low half and element 32g + 16 + 4j + b in its high half, as a GGUF block does. Four neighbouring
bytes of a lane are what one integer dot-product instruction consumes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.errors import FormatError, UnsupportedError
from ninfer.formats import q4g32
from ninfer.formats.base import GROUP, Array, Format, Planes, check_planes, padded_width, row_blocks

LANES = 16
"""Rows of a record."""

ALIGNMENT = 64
"""Every part of a record starts on a cache line."""

NAMES = ("row", "n16")

_ROW_ITEM_BYTES = {"f32": 4, "bf16": 2, "u8": 1}
_U8 = npt.NDArray[np.uint8]


def align(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 64."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def nbytes(format: str, shape: Sequence[int], layout: str) -> int:
    """Bytes of a tensor in a layout, exact; UnsupportedError where the layout cannot hold this format or rank."""
    if layout == "row":
        if format not in _ROW_ITEM_BYTES:
            raise UnsupportedError(f"layout 'row' holds {', '.join(_ROW_ITEM_BYTES)}, not {format!r}")
        return math.prod(shape) * _ROW_ITEM_BYTES[format]
    if layout == "n16":
        if len(shape) != 2:
            raise UnsupportedError(f"layout 'n16' holds matrices [N, K], not shape {list(shape)}")
        return -(-shape[0] // LANES) * sum(_record_parts(formats.get(format), shape[1]))
    raise UnsupportedError(f"layout {layout!r} is not supported; known: {', '.join(NAMES)}")


def _record_parts(fmt: Format, k: int) -> list[int]:
    """Padded byte sizes of a record's parts, in order: [scales, [mins,]] codes."""
    if fmt.group == 1:
        return [align(k * LANES * fmt.codes_dtype.itemsize)]
    groups = padded_width(k, GROUP) // GROUP
    bits = 8 if fmt.codes_dtype == np.int8 else 4
    halves = align(groups * LANES * 2)
    return [halves] * (1 + fmt.has_mins) + [align(groups * GROUP * LANES * bits // 8)]


def to_row(values: Array) -> _U8:
    """Bytes of an array in the `row` layout, uint8 `[nbytes]`: float32 is f32, uint16 is bf16 bits, uint8 is u8."""
    if values.dtype not in (np.float32, np.uint16, np.uint8):
        raise FormatError(f"layout 'row' holds float32, bf16 bits as uint16, or uint8; got {values.dtype}")
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def from_row(buffer: npt.ArrayLike | memoryview, shape: Sequence[int], format: str) -> Array:
    """The array that `to_row` stored: a view of `buffer`, nothing copied."""
    data = _bytes_of(buffer, nbytes(format, shape, "row"))
    dtype = {"f32": np.float32, "bf16": np.uint16, "u8": np.uint8}[format]
    return data.view(dtype).reshape(tuple(shape))


def to_n16(planes: Planes, format: str) -> _U8:
    """Bytes of a matrix in the `n16` layout, uint8 `[nbytes(format, shape, "n16")]`."""
    fmt = formats.get(format)
    check_planes(planes, fmt)
    n, k = planes.shape
    parts = _record_parts(fmt, k)
    halves = [plane for plane in (planes.scales, planes.mins) if plane is not None]
    records = np.zeros((-(-n // LANES), sum(parts)), np.uint8)
    for rows in row_blocks(n, planes.codes.shape[1], multiple=LANES):
        target = records[rows.start // LANES : -(-rows.stop // LANES)]
        start = 0
        for plane, size in zip(halves, parts[:-1], strict=True):
            _store(target, start, _lanes(plane[rows], 0).transpose(0, 2, 1))
            start += size
        _store(target, start, _code_words(planes.codes[rows], fmt))
    return records.reshape(-1)


def from_n16(buffer: npt.ArrayLike | memoryview, shape: tuple[int, int], format: str) -> Planes:
    """The planes that `to_n16` stored; copies. Any content decodes, FormatError only for a wrong length."""
    fmt = formats.get(format)
    n, k = shape
    width = padded_width(k, fmt.group)
    parts = _record_parts(fmt, k)
    records = _bytes_of(buffer, nbytes(format, shape, "n16")).reshape(-1, sum(parts))
    codes = np.empty((n, width), fmt.codes_dtype)
    halves = [np.empty((n, width // GROUP), np.float16) for _ in parts[:-1]]
    for rows in row_blocks(n, width, multiple=LANES):
        source = records[rows.start // LANES : -(-rows.stop // LANES)]
        start = 0
        for plane, size in zip(halves, parts[:-1], strict=True):
            lanes = _load(source, start, np.dtype(np.float16), (width // GROUP, LANES)).transpose(0, 2, 1)
            plane[rows] = lanes.reshape(-1, width // GROUP)[: rows.stop - rows.start]
            start += size
        codes[rows] = _codes_from_words(source, start, fmt, width)[: rows.stop - rows.start]
    return Planes((n, k), codes, *halves)


def _bytes_of(buffer: npt.ArrayLike | memoryview, expected: int) -> _U8:
    data = np.asarray(buffer).reshape(-1)
    if data.dtype != np.uint8 or data.size != expected:
        raise FormatError(f"expected {expected} bytes, got {data.size} of {data.dtype}")
    return data


def _lanes(rows: Array, fill: int) -> Array:
    """`[rows, X]` as `[records, 16, X]`, the last record completed with `fill`."""
    count, width = rows.shape
    missing = -count % LANES
    if missing:
        rows = np.concatenate([rows, np.full((missing, width), fill, rows.dtype)])
    return rows.reshape(-1, LANES, width)


def _store(records: _U8, start: int, part: Array) -> None:
    """Write `[records, ...]` of any dtype into each record's bytes from `start` on."""
    size = math.prod(part.shape[1:]) * part.itemsize
    target = records[:, start : start + size].view(part.dtype)
    target.reshape(part.shape)[...] = part  # splitting the last axis of a strided array is a view, never a copy


def _load(records: _U8, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    return records[:, start : start + size].view(dtype).reshape(-1, *shape)


# Four codes of a row travel as one uint32, so that reordering moves words and not bytes. Only bytewise operations are
# applied to the words, hence the result does not depend on the machine's byte order.
_OFFSET_BINARY = np.uint32(0x80808080)
_LOW_NIBBLES = np.uint32(0x0F0F0F0F)
_FOUR = np.uint32(4)


def _code_words(codes: Array, fmt: Format) -> Array:
    """The codes part of some records, from codes `[rows, Kp]`.

    uint32 `[records, G, 8, 16]` (bytes), uint32 `[records, G, 4, 16]` (nibbles) or the plain values `[records, K, 16]`.
    """
    if fmt.group == 1:
        return _lanes(codes, 0).transpose(0, 2, 1)
    fill = q4g32.ZERO_CODE if fmt.name == q4g32.Q4G32.name else 0
    words = np.ascontiguousarray(_lanes(codes, fill)).view(np.uint32)
    if fmt.codes_dtype == np.int8:
        return (words ^ _OFFSET_BINARY).reshape(len(words), LANES, -1, 8).transpose(0, 2, 3, 1)
    halves = words.reshape(len(words), LANES, -1, 2, 4)
    packed = halves[:, :, :, 0] | (halves[:, :, :, 1] << _FOUR)
    return packed.transpose(0, 2, 3, 1)


def _codes_from_words(records: _U8, start: int, fmt: Format, width: int) -> Array:
    """Inverse of `_code_words`: codes `[16 * records, Kp]`."""
    if fmt.group == 1:
        return _load(records, start, fmt.codes_dtype, (width, LANES)).transpose(0, 2, 1).reshape(-1, width)
    word = np.dtype(np.uint32)
    if fmt.codes_dtype == np.int8:
        lanes = _load(records, start, word, (width // GROUP, 8, LANES)).transpose(0, 3, 1, 2) ^ _OFFSET_BINARY
    else:
        packed = _load(records, start, word, (width // GROUP, 4, LANES)).transpose(0, 3, 1, 2)
        lanes = np.stack([packed & _LOW_NIBBLES, (packed >> _FOUR) & _LOW_NIBBLES], axis=3)
    return np.ascontiguousarray(lanes).view(fmt.codes_dtype).reshape(-1, width)
