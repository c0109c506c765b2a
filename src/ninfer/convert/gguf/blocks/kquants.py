"""Super-blocks of 256 elements with quantised scales: Q4_K, Q5_K, Q6_K.

All functions take uint8 [N, G, block_bytes] and give float32 [N, G, 256].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks.legacy import half

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def scales_and_minima(packed: Blocks) -> tuple[Blocks, Blocks]:
    """Unpack the twelve bytes of Q4_K and Q5_K: uint8 [..., 12] -> two uint8 [..., 8] of six-bit numbers.

    Sub-blocks 0..3 have theirs in the low six bits of bytes 0..3 and 4..7; sub-blocks 4..7 take four bits from bytes
    8..11 and two from the top of the earlier bytes.
    """
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    return scales, minima


def _sub_block_nibbles(packed: Blocks) -> Blocks:
    """uint8 [N, G, 128] -> uint8 [N, G, 8, 32]: each run of 32 bytes holds sub-blocks 2p (low) and 2p + 1 (high)."""
    runs = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return np.concatenate((runs & 15, runs >> 4), axis=-2).reshape(*packed.shape[:-1], 8, 32)


def _scaled(blocks: Blocks, codes: Blocks) -> Values:
    """(d * scale) * code - (dmin * minimum) for codes uint8 [N, G, 8, 32]."""
    scales, minima = scales_and_minima(blocks[..., 4:16])
    step = half(blocks, 0) * scales.astype(np.float32)
    low = half(blocks, 2) * minima.astype(np.float32)
    return step[..., None] * codes.astype(np.float32) - low[..., None]


def q4_k(blocks: Blocks) -> Values:
    """Four-bit codes, scale and minimum per 32 elements."""
    return _scaled(blocks, _sub_block_nibbles(blocks[..., 16:144]))


def q5_k(blocks: Blocks) -> Values:
    """As Q4_K with a fifth bit: bit k of byte e % 32 of the `qh` area belongs to element e of sub-block k."""
    high = blocks[..., 16:48]
    sub_block = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((high[..., None, :] >> sub_block) & np.uint8(1)) << np.uint8(4)
    return _scaled(blocks, _sub_block_nibbles(blocks[..., 48:176]) | fifth)


def q6_k(blocks: Blocks) -> Values:
    """(d * scale) * (code - 32), six-bit codes, a signed scale per 16 elements."""
    lead = blocks.shape[:-1]
    low_bytes = blocks[..., 0:128].reshape(*lead, 2, 64)
    low = np.concatenate((low_bytes & 15, low_bytes >> 4), axis=-1)  # [N, G, half, 128]
    high_bytes = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    shift = (2 * np.arange(4, dtype=np.uint8))[:, None]
    high = ((high_bytes >> shift) & 3).reshape(*lead, 2, 128)
    codes = (low | (high << 4)).astype(np.float32) - np.float32(32)
    scales = half(blocks, 208) * blocks[..., 192:208].view(np.int8).astype(np.float32)
    return scales[..., None] * codes.reshape(*lead, 16, 16)
