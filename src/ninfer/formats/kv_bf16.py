"""kv_bf16: keys and values of the cache rounded to bf16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.formats import bf16

NAME = "bf16"


def encode(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 `[..., D]` to bf16 bits `[..., D]`, nearest even. Non-finite values stay what they are."""
    return bf16.encode(x)


def decode(codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """float32 `[..., D]`; exact."""
    return bf16.decode(codes)


def nbytes(head_dim: int) -> int:
    """Bytes of one key or one value of one head."""
    return 2 * head_dim
