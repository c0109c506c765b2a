"""How the values of a tensor lie as bytes in an artifact. Two layouts, both lossless in both directions.

`row`: native values, row-major, little-endian; f32, bf16 and plain bytes (`u8`), any rank from 1 to 4.

`n16`: what matrix kernels read for a weight `[N, K]`. Sixteen consecutive rows form one record, so that a vector
register holds the same columns of sixteen rows and sums need no horizontal step. There are `ceil(N / 16)` records back
to back; rows behind N decode to 0 (scales, mins and values are zero bits, codes the format's `zero_code`). With lane n
a row of the record, `C = ceil(K / 32)` blocks of 32 columns (rounded up to an even number for groups of 64), and every
part padded with zero bytes to a multiple of 64:

| format | parts of a record |
|---|---|
| q8g32 | scales float16 `[C][16]`; codes uint8 `[C][8][16][4]` |
| q4g32 | scales float16 `[C][16]`; nibble pairs uint8 `[C][4][16][4]` |
| q4g32m | scales float16 `[C][16]`; mins float16 `[C][16]`; nibble pairs uint8 `[C][4][16][4]` |
| q4g64 | scales float16 `[C/2][16]`; nibble pairs uint8 `[C][4][16][4]` |
| q5g64 | scales float16 `[C/2][16]`; nibble pairs uint8 `[C][4][16][4]`; high bits uint8 `[C][1][16][4]` |
| q6g64 | scales float16 `[C/2][16]`; nibble pairs uint8 `[C][4][16][4]`; high bits uint8 `[C][2][16][4]` |
| nvfp4 | scales uint8 `[2C][16]`, E4M3; nibble pairs uint8 `[C][4][16][4]` |
| fp8 | scales float32 `[16]`; codes uint8 `[ceil(K / 4)][16][4]`, E4M3 |
| bf16 | uint16 `[K][16]` |
| f32 | float32 `[K][16]` |

Byte (c, j, n, b) of 8-bit codes is column 32c + 4j + b of row n; q8g32 adds 128. Word j (0..7) of a lane's block means
these four columns below. Nibble-pair byte (c, j, n, b) holds the low four bits of word j in its low half and of word
j + 4 in its high half, as a GGUF block does. High-bit byte (c, 0, n, b) of q5g64 holds bit 4 of word j at its bit j;
byte (c, h, n, b) of q6g64 holds bits 4 and 5 of word 4h + i at its bits 2i and 2i + 1: one shift and one mask move them
to their place above the nibbles. Four neighbouring bytes of a lane are what one integer dot-product instruction
consumes.

A tensor scale (nvfp4) follows the last record as a tail of 64 bytes: float64 factor, float32 input scale (0 for none),
zero bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.errors import FormatError, UnsupportedError
from ninfer.formats.base import Array, Format, Planes, TensorScale, check_planes, padded_width, row_blocks
from ninfer.formats.small_floats import E4M3_NAN

LANES = 16
"""Rows of a record."""

ALIGNMENT = 64
"""Every part of a record starts on a cache line."""

TAIL_BYTES = ALIGNMENT
"""Bytes behind the last record of a format with a tensor scale."""

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
        fmt = formats.get(format)
        return num_records(shape[0]) * record_bytes(fmt, shape[1]) + TAIL_BYTES * fmt.has_tensor_scale
    raise UnsupportedError(f"layout {layout!r} is not supported; known: {', '.join(NAMES)}")


def num_records(n: int) -> int:
    """Records of N rows."""
    return -(-n // LANES)


def record_bytes(fmt: Format, k: int) -> int:
    """Bytes of one record."""
    return sum(_record_parts(fmt, k))


def _record_parts(fmt: Format, k: int) -> list[int]:
    """Padded byte sizes of a record's parts, in order: [scales, [mins,]] codes or low bits[, high bits]."""
    codes = padded_width(k, fmt.pad) * LANES
    parts = []
    if fmt.scales_dtype is not None:
        parts = [align(fmt.num_scales(k) * LANES * fmt.scales_dtype.itemsize)] * (1 + fmt.has_mins)
    if fmt.code_bits >= 8:
        return [*parts, align(codes * fmt.code_bits // 8)]
    parts.append(align(codes // 2))
    return [*parts, align(codes * (fmt.code_bits - 4) // 8)] if fmt.code_bits > 4 else parts


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
    image = np.zeros(nbytes(format, planes.shape, "n16"), np.uint8)
    size = record_bytes(fmt, k)
    records = image[: num_records(n) * size].reshape(-1, size)
    for rows in row_blocks(n, planes.codes.shape[1], multiple=LANES):
        target = records[rows.start // LANES : num_records(rows.stop)]
        scales = [_lanes(plane[rows], 0).transpose(0, 2, 1) for plane in planes.all_scales]
        parts = [*scales, *_code_parts(planes.codes[rows], fmt)]
        start = 0
        for part, step in zip(parts, _record_parts(fmt, k), strict=True):
            _store(target, start, part)
            start += step
    if planes.tensor is not None:
        image[-TAIL_BYTES:] = tail(planes.tensor)
    return image


def from_n16(buffer: npt.ArrayLike | memoryview, shape: tuple[int, int], format: str) -> Planes:
    """The planes that `to_n16` stored; copies. Any records decode; FormatError for a wrong length or tensor scale."""
    fmt = formats.get(format)
    n, k = shape
    width = padded_width(k, fmt.pad)
    parts = _record_parts(fmt, k)
    image = _bytes_of(buffer, nbytes(format, shape, "n16"))
    records = image[: num_records(n) * sum(parts)].reshape(-1, sum(parts))
    codes = np.empty((n, width), fmt.codes_dtype)
    scales: list[Array] = []
    if fmt.scales_dtype is not None:
        scales = [np.empty((n, fmt.num_scales(k)), fmt.scales_dtype) for _ in range(1 + fmt.has_mins)]
    for rows in row_blocks(n, width, multiple=LANES):
        source = records[rows.start // LANES : num_records(rows.stop)]
        start = 0
        for plane, step in zip(scales, parts, strict=False):
            lanes = _load(source, start, plane.dtype, (plane.shape[1], LANES)).transpose(0, 2, 1)
            plane[rows] = lanes.reshape(-1, plane.shape[1])[: rows.stop - rows.start]
            start += step
        codes[rows] = _codes(source, start, fmt, width)[: rows.stop - rows.start]
    mins = scales.pop() if fmt.has_mins else None
    return Planes((n, k), codes, scales[0] if scales else None, mins, find_tensor_scale(image, format))


def find_flaw(buffer: npt.ArrayLike | memoryview, shape: Sequence[int], format: str, layout: str) -> str | None:
    """What no encoder writes, None if there is nothing: a code or scale that is NaN or infinite, a tensor scale that
    cannot be one. Padding counts. Reads everything and copies about BLOCK_ELEMENTS codes at a time."""
    image = _bytes_of(buffer, nbytes(format, shape, layout))
    if layout == "row":
        if format == "u8":
            return None
        flaws = _not_finite(from_row(image, shape, format).reshape(-1))
        return f"value {int(flaws.argmax())} is NaN or infinite" if flaws.any() else None
    fmt = formats.get(format)
    n, k = shape
    size = record_bytes(fmt, k)
    records = image[: num_records(n) * size].reshape(-1, size)
    for rows in row_blocks(n, padded_width(k, fmt.pad), multiple=LANES):
        for what, numbers in _float_parts(records[rows.start // LANES : num_records(rows.stop)], fmt, k):
            flaws = _not_finite(numbers).any(axis=(1, 3)).reshape(-1)
            if flaws.any():
                return f"a {what} of row {rows.start + int(flaws.argmax())} is NaN or infinite"
    try:
        find_tensor_scale(image, format)
    except FormatError as error:
        return str(error)
    return None


def _float_parts(records: _U8, fmt: Format, k: int) -> Iterator[tuple[str, Array]]:
    """The floating-point numbers of some records, by what they are: `[records, X, 16, Y]`."""
    start = 0
    sizes = _record_parts(fmt, k)
    if fmt.scales_dtype is not None:
        for what, size in zip(["scale", "minimum"][: 1 + fmt.has_mins], sizes, strict=False):
            yield what, _load(records, start, fmt.scales_dtype, (fmt.num_scales(k), LANES, 1))
            start += size
    if fmt.code_bits >= 8 and fmt.codes_dtype != np.int8:
        together = 4 if fmt.code_bits == 8 else 1
        yield "code", _load(records, start, fmt.codes_dtype, (padded_width(k, fmt.pad) // together, LANES, together))


def _not_finite(numbers: Array) -> npt.NDArray[np.bool_]:
    """Where floats, bf16 bits (uint16) or E4M3 codes (uint8) are NaN or infinite."""
    if numbers.dtype == np.uint16:
        return (numbers & np.uint16(0x7F80)) == 0x7F80
    return (numbers & E4M3_NAN) == E4M3_NAN if numbers.dtype == np.uint8 else ~np.isfinite(numbers)


def tail(tensor: TensorScale) -> _U8:
    """The 64 bytes behind the records."""
    content = np.zeros(TAIL_BYTES, np.uint8)
    content[:8].view("<f8")[0] = tensor.factor
    content[8:12].view("<f4")[0] = tensor.input_scale or 0.0
    return content


def find_tensor_scale(image: _U8, format: str) -> TensorScale | None:
    """The tensor scale of an `n16` image, None for formats without; FormatError if it cannot be one."""
    if not formats.get(format).has_tensor_scale:
        return None
    content = image[-TAIL_BYTES:].tobytes()
    factor, input_scale = struct.unpack_from("<df", content)
    if any(content[12:]):
        raise FormatError("bytes behind the tensor scale are not zero")
    return TensorScale(factor, input_scale or None)


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
_WORD = np.dtype(np.uint32)
_FOUR = np.uint32(4)


def _every_byte(value: int) -> np.uint32:
    return np.uint32(value * 0x01010101)


def _code_parts(codes: Array, fmt: Format) -> list[Array]:
    """The parts of some records that hold codes, from codes `[rows, Kp]`.

    Plain values `[records, K, 16]`; bytes as uint32 `[records, Kp / 4, 16]`; or the low four bits, two words in one, as
    uint32 `[records, C, 4, 16]`, then what is above them, four or eight words in one, as uint32
    `[records, C, 2 or 1, 16]`.
    """
    lanes = _lanes(codes, fmt.zero_code)
    if fmt.code_bits > 8:
        return [lanes.transpose(0, 2, 1)]
    words = np.ascontiguousarray(lanes).view(_WORD)
    if fmt.code_bits == 8:
        return [(words ^ _OFFSET_BINARY if fmt.codes_dtype == np.int8 else words).transpose(0, 2, 1)]
    words = words.reshape(len(words), LANES, -1, 8)
    low = words & _every_byte(15)
    parts = [low[..., :4] | (low[..., 4:] << _FOUR)]
    if fmt.code_bits > 4:
        bits = fmt.code_bits - 4
        high = (words >> _FOUR) & _every_byte((1 << bits) - 1)
        parts.append(_joined(high.reshape(*high.shape[:3], bits, 8 // bits), bits))
    return [part.transpose(0, 2, 3, 1) for part in parts]


def _joined(fields: Array, bits: int) -> Array:
    """`[..., 8 / bits]` fields of so many bits per byte as one word each, the first lowest."""
    joined = fields[..., 0].copy()
    for i in range(1, fields.shape[-1]):
        joined |= fields[..., i] << np.uint32(i * bits)
    return joined


def _codes(records: _U8, start: int, fmt: Format, width: int) -> Array:
    """Inverse of `_code_parts`, whose first part starts at byte `start` of a record: codes `[16 * records, Kp]`."""
    if fmt.code_bits > 8:
        return _load(records, start, fmt.codes_dtype, (width, LANES)).transpose(0, 2, 1).reshape(-1, width)
    if fmt.code_bits == 8:
        words = _load(records, start, _WORD, (width // 4, LANES)).transpose(0, 2, 1)
        words = words ^ _OFFSET_BINARY if fmt.codes_dtype == np.int8 else words
    else:
        blocks = width // 32
        low = _load(records, start, _WORD, (blocks, 4, LANES)).transpose(0, 3, 1, 2)
        words = np.concatenate([low & _every_byte(15), (low >> _FOUR) & _every_byte(15)], axis=-1)
        if fmt.code_bits > 4:
            bits = fmt.code_bits - 4
            start += align(width * LANES // 2)
            high = _load(records, start, _WORD, (blocks, bits, LANES)).transpose(0, 3, 1, 2)
            shifts = np.arange(0, 8, bits, dtype=np.uint32)
            fields = (high[..., None] >> shifts) & _every_byte((1 << bits) - 1)
            words |= fields.reshape(words.shape) << _FOUR
    return np.ascontiguousarray(words).view(fmt.codes_dtype).reshape(-1, width)
