"""q4g32: nibbles around 8 with one float16 scale per 32; bit-exact image of GGUF Q4_0."""

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

ZERO_CODE = 8
"""The nibble that decodes to 0."""


class Q4G32(Format):
    """Value = scale * (nibble - 8). The scale carries the sign of the group's largest element, which gets nibble 0.

    The encoder is GGUF's (ggml `quantize_row_q4_0_ref`): codes come from the scale before it is rounded to float16, so
    that what is encoded here and what other GGUF tools encode are the same bytes.
    """

    name = "q4g32"
    group = GROUP
    pad = GROUP
    codes_dtype = np.dtype(np.uint8)
    code_bits = 4
    zero_code = ZERO_CODE
    scales_dtype = np.dtype(np.float16)

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        n, k = x.shape
        width = padded_width(k, GROUP)
        codes = np.empty((n, width), np.uint8)
        scales = np.empty((n, width // GROUP), np.float16)
        for rows, groups in group_blocks(x):
            largest_at = np.abs(groups).argmax(axis=-1)[..., None]  # the first of equals
            largest = np.take_along_axis(groups, largest_at, axis=-1)[..., 0]
            scale = largest / np.float32(-8)
            scales[rows] = to_float16(scale, rows, "scale")
            scaled = groups * reciprocal(scale)[..., None]
            scaled += np.float32(8.5)
            np.clip(scaled, 0, 15, out=scaled)
            codes[rows] = scaled.reshape(-1, width)  # the cast truncates
        return Planes((n, k), codes, scales)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        n, k = planes.shape
        steps = planes.codes.reshape(n, -1, GROUP).astype(np.int8) - np.int8(ZERO_CODE)
        return (steps * per_group(planes.scales)).reshape(n, -1)[:, :k]
