"""The activation codec of the `w4a4` profile: NVFP4 with a static scale, the way checkpoints calibrated for it mean it.

For a row in blocks of 16 columns, the last completed with zeros, and the weight's float32 input scale ga, all in
float32, every operation rounded, divisions true ones:

    amax = max |x| of the block
    s    = E4M3(min(448, (ga * amax) / 6)),  NaN if amax is NaN or infinite
    code = E2M1(clamp((x * ga) / s, -6, 6)), 0 where s = 0

A value is then E2M1 * s / ga. E2M1 and E4M3 round to nearest, ties to even. ga is 2688 divided by the largest magnitude
seen in calibration, so that its block gets the scale 448; larger ones are cut. Kernels of GPUs multiply by approximate
reciprocals, so their codes may differ by a step where ours are close to a border. Source: the NVFP4 scheme of the
`compressed-tensors` package (strategy tensor_group, dynamic local).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.formats.small_floats import E2M1, E2M1_MAX, E4M3, E4M3_MAX, E4M3_NAN, to_e2m1, to_e4m3
from ninfer.ops.spec import F32Array, F64Array

BLOCK = 16


def to_codes(x: F32Array, input_scale: float) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """E2M1 codes uint8 `[rows, B, 16]` and E4M3 scale codes uint8 `[rows, B]` of float32 `[rows, K]`, B = ceil(K / 16).

    The codes of a block whose scale is NaN mean nothing.
    """
    ga = np.float32(input_scale)
    blocks = np.pad(x, [(0, 0), (0, -x.shape[1] % BLOCK)]).reshape(len(x), -1, BLOCK)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        amax = np.abs(blocks).max(axis=-1)
        scales = to_e4m3(np.minimum(ga * amax / E2M1_MAX, E4M3_MAX))
        scales[~np.isfinite(amax)] = E4M3_NAN
        codes = to_e2m1(blocks * ga / E4M3[scales][..., None])
    codes[scales == 0] = 0
    return codes, scales


def as_seen_by_w4a4(x: F64Array, input_scale: float) -> F64Array:
    """What is left of float32 values `[rows, K]` after the codec, float64 of the same shape."""
    codes, scales = to_codes(x.astype(np.float32), input_scale)
    values = E2M1[codes].astype(np.float64) * (E4M3[scales].astype(np.float64) / input_scale)[..., None]
    return values.reshape(len(x), -1)[:, : x.shape[1]]
