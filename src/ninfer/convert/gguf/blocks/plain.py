"""Unquantised elements: F32, F16 and BF16. Blocks are uint8 [N, K, element_bytes]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def f32(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The stored float32 values."""
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def f16(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """IEEE half precision, widened exactly."""
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def bf16(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The upper 16 bits of a float32."""
    bits = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (bits << 16).view(np.float32)
