"""The activation codec of the `a8g32` profile: one int8 code per value, one float32 scale per group of 32 columns.

For a group of a row, the last one completed with zeros, with `amax = max |x|`, all in float32:

    amax < 2^-100:  scale = 0, code = 0           (the scale would be close to the subnormals)
    otherwise:      scale = amax / 127, code = round_half_even(x * (127 / amax))

This is what llama.cpp and its relatives do for products with packed weights (Q8_0 activations, there with float16
scales). It needs half the byte dot products of `two_digits` and is about a hundred times less exact; the comparison is
in docs/how-it-works.md, "Numeric profiles". A NaN or infinity makes the group's scale NaN or infinite: it is never
lost.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.ops.spec import F32Array, F64Array
from ninfer.ops.two_digits import fixed_point

GROUP = 32
LARGEST_CODE = np.float32(127)


def to_codes(x: F32Array) -> tuple[npt.NDArray[np.int32], F32Array]:
    """Codes int32 `[rows, G, 32]` and scales float32 `[rows, G]` of float32 `[rows, K]`, G = ceil(K / 32)."""
    groups = np.pad(x, [(0, 0), (0, -x.shape[1] % GROUP)]).reshape(len(x), -1, GROUP)
    return fixed_point(groups, LARGEST_CODE)


def as_seen_by_a8g32(x: F64Array) -> F64Array:
    """What is left of float32 values `[rows, K]` after the codec, float64 of the same shape."""
    codes, scales = to_codes(x.astype(np.float32))
    values = codes.astype(np.float64) * scales.astype(np.float64)[..., None]
    return values.reshape(len(x), -1)[:, : x.shape[1]]
