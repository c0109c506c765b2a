"""q8g32: signed bytes with one float16 scale per 32; bit-exact image of GGUF Q8_0."""

from __future__ import annotations

import numpy as np

from ninfer.formats.base import (
    GROUP,
    F32Array,
    F64Array,
    Format,
    Planes,
    check_matrix,
    check_planes,
    encode_symmetric,
    padded_width,
    per_group,
)

QMAX = 127


class Q8G32(Format):
    """Value = scale * code.

    The encoder is that of NInfer's own Q8G32, not GGUF's: the scale is rounded to float16 first, values are multiplied
    by the float32 reciprocal of the rounded scale, then rounded to nearest even. A scale that would round to 0 becomes
    2^-24. The encoder never emits -128; the decoder accepts it, as GGUF files may hold it.
    """

    name = "q8g32"
    group = GROUP
    pad = GROUP
    codes_dtype = np.dtype(np.int8)
    code_bits = 8
    scales_dtype = np.dtype(np.float16)

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        width = padded_width(k, GROUP)
        codes = np.empty((n, width), np.int8)
        scales = np.empty((n, width // GROUP), np.float16)
        for rows, block, scale in encode_symmetric(x, GROUP, -QMAX, QMAX):
            codes[rows], scales[rows] = block, scale
        return Planes((n, k), codes, scales)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        n, k = planes.shape
        values = planes.codes.reshape(n, -1, GROUP) * per_group(planes.scales)
        return values.reshape(n, -1)[:, :k]
