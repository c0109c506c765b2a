"""nvfp4: E2M1 nibbles, one E4M3 scale per 16, one scale per tensor."""

from __future__ import annotations

import numpy as np

from ninfer.errors import FormatError, InvariantError
from ninfer.formats.base import (
    LARGEST_FACTOR,
    Array,
    F32Array,
    F64Array,
    Format,
    Planes,
    TensorScale,
    check_matrix,
    check_planes,
    group_blocks,
    padded_width,
    row_blocks,
)
from ninfer.formats.small_floats import E2M1, E2M1_MAX, E4M3, E4M3_MAX, to_e2m1, to_e4m3

GROUP16 = 16


class NVFP4(Format):
    """Value = E2M1 * eff, with `eff = float32(E4M3 scale * tensor factor)` rounded before the product.

    Encoder, in float32 but for eff: `g = 2688 / amax(tensor)`; per group `s = E4M3(min(448, g * amax / 6))`, then
    `code = E2M1(x / eff)`, 0 where s is 0.
    """

    name = "nvfp4"
    codes_dtype = np.dtype(np.uint8)
    code_bits = 4
    group = GROUP16
    pad = 2 * GROUP16
    scales_dtype = np.dtype(np.uint8)
    has_tensor_scale = True

    def pack(self, x: F32Array) -> Planes:
        check_matrix(x)
        return self.pack_part(x, max(float(np.abs(x[rows]).max()) for rows in row_blocks(*x.shape)))

    def pack_part(self, x: F32Array, amax: float) -> Planes:
        """Encode some rows of a tensor whose largest magnitude is `amax`."""
        check_matrix(x)
        divisor = divisor_of(amax)
        tensor = TensorScale.of_divisor(float(divisor))
        n, k = x.shape
        width = padded_width(k, self.pad)
        codes = np.empty((n, width), np.uint8)
        scales = np.empty((n, width // GROUP16), np.uint8)
        for rows, groups in group_blocks(x, GROUP16, pad=self.pad):
            largest = np.abs(groups).max(axis=-1)
            fits = largest <= amax  # not so for NaN
            if not fits.all():
                row, group = (int(i) for i in np.argwhere(~fits)[0])
                value = float(largest[row, group])
                at = f"row {rows.start + row}, group {group}"
                raise FormatError(f"magnitude {value!r} of {at} is not finite or above the tensor's {amax!r}")
            scale = to_e4m3(np.minimum(divisor * largest / E2M1_MAX, E4M3_MAX))
            eff = effective_scales(scale, tensor)
            with np.errstate(divide="ignore", invalid="ignore"):
                block = to_e2m1(groups / eff[..., None])
            block[scale == 0] = 0
            codes[rows], scales[rows] = block.reshape(len(block), -1), scale
        return Planes((n, k), codes, scales, tensor=tensor)

    def unpack(self, planes: Planes) -> F64Array:
        check_planes(planes, self)
        if planes.scales is None or planes.tensor is None:
            raise InvariantError("checked planes of nvfp4 have scales and a tensor scale")
        n, k = planes.shape
        eff = effective_scales(planes.scales, planes.tensor).astype(np.float64)
        return (E2M1[planes.codes.reshape(n, -1, GROUP16)] * eff[..., None]).reshape(n, -1)[:, :k]


def divisor_of(amax: float) -> np.float32:
    """The canonical g of a tensor: it makes the largest group scale 448. Limited to 2^100, which all smaller tensors
    have; FormatError for a magnitude that is not finite or needs a smaller g than 2^-100."""
    most = float(E2M1_MAX * E4M3_MAX)
    if not amax <= most * LARGEST_FACTOR:
        raise FormatError(f"the largest magnitude {amax!r} is beyond nvfp4")
    return np.float32(LARGEST_FACTOR) if amax * LARGEST_FACTOR < most else np.float32(most) / np.float32(amax)


def effective_scales(scales: Array, tensor: TensorScale) -> F32Array:
    """float32 `eff` of E4M3 codes of any shape."""
    return (E4M3.astype(np.float64) * tensor.factor).astype(np.float32)[scales]
