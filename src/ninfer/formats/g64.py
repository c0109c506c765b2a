"""q4g64, q5g64, q6g64: codes of 4, 5 or 6 bits with one float16 scale per 64; the group formats of C++ NInfer files."""

from __future__ import annotations

import numpy as np

from ninfer.formats.base import (
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

GROUP64 = 64


class _Group64(Format):
    """Value = scale * (code - zero_code): two's complement codes in offset binary.

    The encoder is `encode_symmetric`. It emits the most negative code only under a subnormal scale that rounded down;
    the decoder accepts it anywhere.
    """

    codes_dtype = np.dtype(np.uint8)
    group = GROUP64
    pad = GROUP64
    scales_dtype = np.dtype(np.float16)

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        zero = self.zero_code
        width = padded_width(k, GROUP64)
        codes = np.empty((n, width), np.uint8)
        scales = np.empty((n, width // GROUP64), np.float16)
        for rows, block, scale in encode_symmetric(x, GROUP64, -zero, zero - 1):
            block += np.float32(zero)
            codes[rows], scales[rows] = block, scale
        return Planes((n, k), codes, scales)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        n, k = planes.shape
        steps = planes.codes.reshape(n, -1, GROUP64).astype(np.int8) - np.int8(self.zero_code)
        return (steps * per_group(planes.scales)).reshape(n, -1)[:, :k]


class Q4G64(_Group64):
    """4.25 bits per weight."""

    name = "q4g64"
    code_bits = 4
    zero_code = 8


class Q5G64(_Group64):
    """5.25 bits per weight."""

    name = "q5g64"
    code_bits = 5
    zero_code = 16


class Q6G64(_Group64):
    """6.25 bits per weight."""

    name = "q6g64"
    code_bits = 6
    zero_code = 32
