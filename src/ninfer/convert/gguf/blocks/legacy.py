"""Blocks of 32 elements with one scale, and one minimum in the `_1` types.

All functions take uint8 [N, G, block_bytes] and give float32 [N, G, 32]. In the 4 and 5 bit types byte j of the quant
area holds element j in its low nibble and element j + 16 in its high nibble.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def half(blocks: Blocks, at: int) -> Values:
    """The fp16 field at byte `at` of every block as float32 [N, G, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Blocks) -> Blocks:
    """Low nibbles of all bytes, then their high nibbles: uint8 [..., B] -> uint8 [..., 2 B]."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(blocks: Blocks, at: int) -> Blocks:
    """Bit j of the u32 at byte `at` as 0 or 16 for element j: uint8 [N, G, 32]."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., at : at + 4]), axis=-1, bitorder="little")
    return bits << np.uint8(4)


def q4_0(blocks: Blocks) -> Values:
    """d * (code - 8)."""
    codes = nibbles(blocks[..., 2:18]).astype(np.float32) - np.float32(8)
    return half(blocks, 0) * codes


def q4_1(blocks: Blocks) -> Values:
    """d * code + m."""
    return half(blocks, 0) * nibbles(blocks[..., 4:20]).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Blocks) -> Values:
    """d * (code - 16) with five-bit codes."""
    codes = nibbles(blocks[..., 6:22]) | _fifth_bits(blocks, 2)
    return half(blocks, 0) * (codes.astype(np.float32) - np.float32(16))


def q5_1(blocks: Blocks) -> Values:
    """d * code + m with five-bit codes."""
    codes = nibbles(blocks[..., 8:24]) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes.astype(np.float32) + half(blocks, 2)


def q8_0(blocks: Blocks) -> Values:
    """d * code with signed bytes."""
    return half(blocks, 0) * blocks[..., 2:34].view(np.int8).astype(np.float32)
