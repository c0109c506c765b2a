"""f32: IEEE binary32 as it is."""

from __future__ import annotations

import numpy as np

from ninfer.formats.base import F32Array, F64Array, Planes, check_matrix, check_planes


class F32:
    """Codes are the values themselves, any bit pattern included."""

    name = "f32"
    group = 1
    codes_dtype = np.dtype(np.float32)
    has_scales = False
    has_mins = False

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        return Planes((x.shape[0], x.shape[1]), np.array(x, order="C"))

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        return planes.codes.astype(np.float64)

    def nbytes(self, shape: tuple[int, int]) -> int:
        return shape[0] * shape[1] * 4
