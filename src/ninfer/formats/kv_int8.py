"""kv_int8: keys and values of the cache as signed bytes, one float16 scale per 64 head dims."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.errors import FormatError
from ninfer.formats.base import reciprocal

NAME = "int8"
GROUP = 64
QMAX = np.float32(127)
TOO_LARGE = np.float32(127 * 65504)
"""From here on the scale would need more than float16's largest value."""


def encode(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Encode float32 `[..., D]` to (codes int8 `[..., D]`, scales float16 `[..., ceil(D / 64)]`).

    `scale = float16(amax / 127)`, `code = clamp(round_half_even(x * float32(1 / scale)), -127, 127)`. Unlike q8g32, a
    scale that underflows to 0 gives codes 0. A partial last group has only its real values. FormatError for NaN,
    infinity, or a magnitude of 127 * 65504 and more.
    """
    head_dim = x.shape[-1]
    codes = np.empty(x.shape, np.int8)
    scales = np.empty((*x.shape[:-1], num_groups(head_dim)), np.float16)
    for group, start in enumerate(range(0, head_dim, GROUP)):
        part = x[..., start : start + GROUP]
        amax = np.abs(part).max(axis=-1, keepdims=True)
        if not (amax < TOO_LARGE).all():
            raise FormatError(f"KV value beyond the int8 cache format: a group of 64 has magnitude {np.max(amax)!r}")
        scale = (amax / QMAX).astype(np.float16)
        scaled = np.rint(part * reciprocal(scale.astype(np.float32)))
        codes[..., start : start + GROUP] = np.clip(scaled, -QMAX, QMAX)
        scales[..., group : group + 1] = scale
    return codes, scales


def decode(codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """float32 `[..., D]` = scale * code; exact."""
    wide = np.repeat(scales.astype(np.float32), GROUP, axis=-1)[..., : codes.shape[-1]]
    return codes * wide


def num_groups(head_dim: int) -> int:
    """Scales of one head's key or value."""
    return -(-head_dim // GROUP)


def nbytes(head_dim: int) -> int:
    """Bytes of one key or one value of one head: codes and scales."""
    return head_dim + 2 * num_groups(head_dim)
