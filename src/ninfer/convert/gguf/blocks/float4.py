"""Four-bit floats (E2M1): MXFP4 with a power-of-two scale per 32, NVFP4 with an E4M3 scale per 16 elements."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks.legacy import nibbles

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

# E2M1 doubled; code 8 (minus zero) decodes to plus zero here.
_DOUBLED: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def _half_powers() -> Values:
    """2**(e - 128) for e = 0..254; NaN for 255, as E8M0 defines it."""
    table = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)
    table[255] = np.nan
    return table


def _half_e4m3() -> Values:
    """Half of an unsigned E4M3 number for every byte; bytes 0x00 and 0x7F give zero, the top bit is ignored."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value[0x7F] = 0
    return (value / 2).astype(np.float32)


_HALF_POWERS: Final = _half_powers()
_HALF_E4M3: Final = _half_e4m3()


def mxfp4(blocks: Blocks) -> Values:
    """uint8 [N, G, 17] -> float32 [N, G, 32]; byte j holds elements j and j + 16."""
    return _HALF_POWERS[blocks[..., 0:1]] * _DOUBLED[nibbles(blocks[..., 1:17])]


def nvfp4(blocks: Blocks) -> Values:
    """uint8 [N, G, 36] -> float32 [N, G, 64], without the per-tensor scale, which is a tensor of its own.

    In each sub-block of 16 byte j of its 8 holds elements j and j + 8.
    """
    codes = nibbles(blocks[..., 4:36].reshape(*blocks.shape[:-1], 4, 8))
    values = _DOUBLED[codes] * _HALF_E4M3[blocks[..., 0:4]][..., None]
    return values.reshape(*blocks.shape[:-1], 64)
