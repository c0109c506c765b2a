"""The activation codec of the `a8` profile: 16-bit fixed point per row, held as two int8 digits.

For a row with `amax = max |x|`, all in float32:

    amax < 2^-100:  scale = 0, code = 0           (the scale would be close to the subnormals)
    otherwise:      scale = amax / 32512, code = round_half_even(x * (32512 / amax))
    code = 256 * high + low,   low in -128 .. 127, high in -127 .. 127

A product with integer weights is then two int8 dot products, exact, `256 * sum(high * w) + sum(low * w)`, which the
byte instructions of every CPU of the last decade do at full speed. A NaN or infinity makes the row's scale NaN or
infinite: it is never lost.

Why is one int8 digit per group of 32, which costs half the products of a long prefill, a profile of its own (`a8g32`)
and not the default? Because it is not good enough: on SmolLM2-135M it moves the logits by 0.3 rms (KL divergence 3.6e-3
nat) and loses the golden answer; two digits per row move them by 0.03 (3e-5 nat), less than a bf16 KV cache does.
Decoding reads weights at memory speed either way. Measured 2026-11-30 on three prompts with the reference backend;
docs/how-it-works.md, "Numeric profiles".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.ops.spec import F32Array, F64Array

LARGEST_CODE = np.float32(127 * 256)
SMALLEST_ROW_MAX = np.float32(2.0**-100)


def to_codes(x: F32Array) -> tuple[npt.NDArray[np.int32], F32Array]:
    """Codes int32 `[..., K]` and scales float32 `[...]` of float32 `[..., K]`."""
    return fixed_point(x, LARGEST_CODE)


def fixed_point(x: F32Array, largest_code: np.float32) -> tuple[npt.NDArray[np.int32], F32Array]:
    """Codes int32 `[..., K]` up to `largest_code` and scales float32 `[...]`, one for each last axis, as above."""
    amax = np.abs(x).max(axis=-1)
    empty = amax < SMALLEST_ROW_MAX
    divisor = np.where(empty, np.float32(1), amax)
    inverse = np.where(empty, np.float32(0), largest_code / divisor)
    scales = np.where(empty, np.float32(0), amax / largest_code)
    scaled = np.rint(x * inverse[..., None])
    codes = np.where(np.isfinite(scaled), scaled, 0).astype(np.int32)
    return codes, scales


def as_seen_by_a8(x: F64Array) -> F64Array:
    """What is left of float32 values `[..., K]` after the codec, float64 of the same shape."""
    codes, scales = to_codes(x.astype(np.float32))
    return codes.astype(np.float64) * scales.astype(np.float64)[..., None]
