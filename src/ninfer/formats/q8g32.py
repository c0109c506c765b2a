"""q8g32: signed bytes with one float16 scale per 32; bit-exact image of GGUF Q8_0."""

from __future__ import annotations

import numpy as np

from ninfer.formats.base import (
    GROUP,
    F32Array,
    F64Array,
    Planes,
    check_matrix,
    check_planes,
    group_blocks,
    padded_width,
    per_group,
    reciprocal,
    to_float16,
)

QMAX = np.float32(127)
SMALLEST_SCALE = np.float16(2.0**-24)


class Q8G32:
    """Value = scale * code.

    The encoder is that of NInfer's own Q8G32, not GGUF's: the scale is rounded to float16 first, values are multiplied
    by the float32 reciprocal of the rounded scale, then rounded to nearest even. A scale that would round to 0 becomes
    2^-24. The encoder never emits -128; the decoder accepts it, as GGUF files may hold it.
    """

    name = "q8g32"
    group = GROUP
    codes_dtype = np.dtype(np.int8)
    has_scales = True
    has_mins = False

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        width = padded_width(k, GROUP)
        codes = np.empty((n, width), np.int8)
        scales = np.empty((n, width // GROUP), np.float16)
        for rows, groups in group_blocks(x):
            amax = np.abs(groups).max(axis=-1)
            scale = to_float16(amax / QMAX, rows, "scale")
            scale[(scale == 0) & (amax > 0)] = SMALLEST_SCALE
            scaled = groups * reciprocal(scale.astype(np.float32))[..., None]
            np.rint(scaled, out=scaled)
            np.clip(scaled, -QMAX, QMAX, out=scaled)
            codes[rows] = scaled.reshape(-1, width)
            scales[rows] = scale
        return Planes((n, k), codes, scales)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        n, k = planes.shape
        values = planes.codes.reshape(n, -1, GROUP) * per_group(planes.scales)
        return values.reshape(n, -1)[:, :k]

    def nbytes(self, shape: tuple[int, int]) -> int:
        return shape[0] * (padded_width(shape[1], GROUP) // GROUP) * (GROUP + 2)
