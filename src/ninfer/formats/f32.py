"""f32: IEEE binary32 as it is."""

from __future__ import annotations

import numpy as np

from ninfer.formats.base import F32Array, F64Array, Format, Planes, check_matrix, check_planes


class F32(Format):
    """Codes are the values themselves, any bit pattern included."""

    name = "f32"
    codes_dtype = np.dtype(np.float32)
    code_bits = 32

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        return Planes((x.shape[0], x.shape[1]), np.array(x, order="C"))

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        return planes.codes.astype(np.float64)
