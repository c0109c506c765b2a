"""fp8: E4M3 bytes with one float32 scale per row."""

from __future__ import annotations

import numpy as np

from ninfer.errors import FormatError
from ninfer.formats.base import (
    WHOLE_ROW,
    F32Array,
    F64Array,
    Format,
    Planes,
    check_matrix,
    check_planes,
    padded_width,
    per_group,
    row_blocks,
)
from ninfer.formats.small_floats import E4M3, E4M3_MAX, to_e4m3

SMALLEST_SCALE = np.float32(2.0**-126)


class FP8(Format):
    """Value = scale * E4M3.

    Encoder, in float32: `scale = max(amax / 448, 2^-126)`, `code = E4M3(x / scale)`.
    """

    name = "fp8"
    codes_dtype = np.dtype(np.uint8)
    code_bits = 8
    group = WHOLE_ROW
    pad = 4
    scales_dtype = np.dtype(np.float32)

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        codes = np.zeros((n, padded_width(k, self.pad)), np.uint8)
        scales = np.empty((n, 1), np.float32)
        for rows in row_blocks(n, k):
            amax = np.abs(x[rows]).max(axis=-1, keepdims=True)
            finite = np.isfinite(amax)
            if not finite.all():
                row = int(np.argmin(finite))
                raise FormatError(f"row {rows.start + row} holds {float(amax[row, 0])!r}")
            scales[rows] = np.maximum(amax / E4M3_MAX, SMALLEST_SCALE)
            codes[rows, :k] = to_e4m3(x[rows] / scales[rows])
        return Planes((n, k), codes, scales)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        return E4M3[planes.codes[:, : planes.shape[1]]].astype(np.float64) * per_group(planes.scales)[..., 0]
