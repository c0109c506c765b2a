"""The two small floating-point numbers of weight formats: E2M1 in 4 bits and E4M3 in 8, of any array shape.

E2M1: sign, 2 exponent bits, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; no infinity, no NaN.
E4M3 (the "FN" kind): sign, 4 exponent bits of bias 7, 3 mantissa bits: up to 448; 0x7F and 0xFF are NaN, no infinity.
Sources: OCP Microscaling Formats 1.0, OCP 8-bit Floating Point 1.0. Rounding is to nearest, ties to the even code;
magnitudes beyond the largest become the largest.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

F32Array = npt.NDArray[np.float32]
_U8 = npt.NDArray[np.uint8]

E2M1_MAX: Final = np.float32(6)
E4M3_MAX: Final = np.float32(448)
E4M3_NAN: Final = np.uint8(0x7F)


def _e2m1() -> F32Array:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([magnitudes, -magnitudes])


def _e4m3() -> F32Array:
    byte = np.arange(128)
    exponent, mantissa = byte >> 3, byte & 7
    magnitudes = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    magnitudes[E4M3_NAN] = np.nan
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


E2M1: Final = _e2m1()
"""Values by code, float32 `[16]`; code 8 is minus zero."""
E4M3: Final = _e4m3()
"""Values by code, float32 `[256]`."""


def _rounding_table(magnitudes: F32Array, sign_bit: int, nan: int) -> _U8:
    """The code of every upper half of a float32, for numbers of the given ascending magnitudes; see `_upper_halves`."""
    values = (np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    borders = (magnitudes[:-1] + magnitudes[1:]) / 2
    below = np.searchsorted(borders, values, side="left")
    tied = (below < len(borders)) & (borders[np.minimum(below, len(borders) - 1)] == values)
    codes = np.where(np.isnan(values), nan, below + (tied & (below % 2 == 1)))
    return np.concatenate([codes, codes | sign_bit]).astype(np.uint8)


# Made when first needed: only what encodes needs them, and they take a millisecond and most of a megabyte.
@cache
def _e2m1_codes() -> _U8:
    return _rounding_table(E2M1[:8], 8, 7)


@cache
def _e4m3_codes() -> _U8:
    return _rounding_table(E4M3[:127], 0x80, int(E4M3_NAN))


def _upper_halves(x: F32Array) -> npt.NDArray[Any]:
    """The upper 16 bits, with the last of them set if any bit below is: enough to round to at most four bits.

    Neither the numbers nor the borders between them use the last bit, so setting it only says "above the border".
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    halves = bits >> np.uint32(16)
    halves |= (bits & np.uint32(0xFFFF)) != 0
    return halves


def to_e2m1(x: F32Array) -> _U8:
    """Codes 0..15 of numbers. NaN has none and becomes 6 of its sign: check before."""
    return _e2m1_codes()[_upper_halves(x)]


def to_e4m3(x: F32Array) -> _U8:
    """Codes of numbers; NaN stays NaN."""
    return _e4m3_codes()[_upper_halves(x)]
