"""q4g32m: nibbles with a float16 scale and a float16 minimum per 32; bit-exact image of GGUF Q4_1."""

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
    group_blocks,
    padded_width,
    per_group,
    reciprocal,
    to_float16,
)


class Q4G32M(Format):
    """Value = scale * nibble + min.

    The encoder is GGUF's (ggml `quantize_row_q4_1_ref`): scale and min are the group's range over 15 and its smallest
    value; codes come from both before they are rounded to float16. In a partial last group only real values count; the
    codes behind them are 0, and what those decode to (the min) means nothing.
    """

    name = "q4g32m"
    group = GROUP
    pad = GROUP
    codes_dtype = np.dtype(np.uint8)
    code_bits = 4
    scales_dtype = np.dtype(np.float16)
    has_mins = True

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        width = padded_width(k, GROUP)
        codes = np.empty((n, width), np.uint8)
        scales = np.empty((n, width // GROUP), np.float16)
        mins = np.empty_like(scales)
        for rows, groups in group_blocks(x, repeat_last=True):
            low = groups.min(axis=-1)
            mins[rows] = to_float16(low, rows, "minimum")
            with np.errstate(over="ignore", invalid="ignore"):
                scale = (groups.max(axis=-1) - low) / np.float32(15)
            scales[rows] = to_float16(scale, rows, "scale")
            scaled = groups - low[..., None]
            scaled *= reciprocal(scale)[..., None]
            scaled += np.float32(0.5)
            np.clip(scaled, 0, 15, out=scaled)
            codes[rows] = scaled.reshape(-1, width)  # the cast truncates
        codes[:, k:] = 0
        return Planes((n, k), codes, scales, mins)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        n, k = planes.shape
        values = planes.codes.reshape(n, -1, GROUP) * per_group(planes.scales)
        values += per_group(planes.mins)
        return values.reshape(n, -1)[:, :k]
