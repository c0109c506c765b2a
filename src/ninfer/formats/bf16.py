"""bf16: the upper 16 bits of a float32 (1 sign, 8 exponent, 7 mantissa bits)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.formats.base import F32Array, F64Array, Format, Planes, check_matrix, check_planes, row_blocks

QUIET_BIT = np.uint32(1 << 22)


def encode(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 of any shape to bf16 bits: nearest, ties to even; overflow gives infinity, NaN stays a quiet NaN.

    A NaN keeps its sign and the upper bits of its payload, as in GGUF.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if is_nan.any():
        rounded[is_nan] = bits[is_nan] | QUIET_BIT
    return (rounded >> np.uint32(16)).astype(np.uint16).reshape(x.shape)


def decode(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 value of bf16 bits of any shape; exact."""
    wide: npt.NDArray[Any] = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


class BF16(Format):
    """Codes are bf16 bits as uint16 `[N, K]`; encoding is IEEE rounding, so NaN and infinity are kept."""

    name = "bf16"
    codes_dtype = np.dtype(np.uint16)
    code_bits = 16

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        codes = np.empty((n, k), np.uint16)
        for rows in row_blocks(n, k):
            codes[rows] = encode(x[rows])
        return Planes((n, k), codes)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        return decode(planes.codes).astype(np.float64)
