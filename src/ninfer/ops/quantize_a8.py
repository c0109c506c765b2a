"""The activation codec of the `a8` profile: int8 codes with one float32 scale per group of columns.

For a group with `amax = max |x|`, all in float32:

    amax < 2^-100:  scale = 0, codes = 0          (the scale would be close to the subnormals)
    otherwise:      scale = amax / 127, code = round_half_even(x * (127 / amax))

so that codes lie in -127 .. 127. A partial last group is completed with zeros, which change nothing. A NaN or infinity
in a group makes its scale NaN or infinite: it is never lost. Linear products use groups of 32 columns, the groups of
the packed weights; attention scores against an int8 KV cache use groups of 64 head dims, the groups of that cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.ops.spec import F32Array, F64Array

LINEAR_GROUP = 32
QUERY_GROUP = 64
SMALLEST_GROUP_MAX = np.float32(2.0**-100)


def quantize_a8(x: F32Array, group: int) -> tuple[npt.NDArray[np.int8], F32Array]:
    """Codes int8 `[..., G, group]` and scales float32 `[..., G]` of float32 `[..., K]`, with `G = ceil(K / group)`."""
    missing = -x.shape[-1] % group
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    groups = padded.reshape(*x.shape[:-1], -1, group)
    amax = np.abs(groups).max(axis=-1)
    empty = amax < SMALLEST_GROUP_MAX
    divisor = np.where(empty, np.float32(1), amax)
    inverse = np.where(empty, np.float32(0), np.float32(127) / divisor)
    scales = np.where(empty, np.float32(0), amax / np.float32(127))
    scaled = np.rint(groups * inverse[..., None])
    codes = np.where(np.isfinite(scaled), scaled, 0).astype(np.int8)
    return codes, scales


def dequantize_a8(codes: npt.NDArray[np.int8], scales: F32Array, width: int) -> F64Array:
    """The exact values of the codes, float64 `[..., width]`."""
    values = codes.astype(np.float64) * scales.astype(np.float64)[..., None]
    return values.reshape(*scales.shape[:-1], -1)[..., :width]


def as_seen_by_a8(x: F64Array, group: int) -> F64Array:
    """What is left of float32 values `[..., K]` after the codec, float64 of the same shape."""
    return dequantize_a8(*quantize_a8(x.astype(np.float32), group), x.shape[-1])
