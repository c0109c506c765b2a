"""Owns: the meaning of GGUF block types: stored bytes to float32, bit for bit as the format defines them.
Does not own: the container, our own formats.
Read first: plain.py, then legacy.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks import float4, kquants, legacy, plain
from ninfer.convert.gguf.types import TENSOR_TYPES

Rows = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

_BY_TYPE: Final[dict[str, Callable[[Rows], Values]]] = {
    "F32": plain.f32,
    "F16": plain.f16,
    "BF16": plain.bf16,
    "Q4_0": legacy.q4_0,
    "Q4_1": legacy.q4_1,
    "Q5_0": legacy.q5_0,
    "Q5_1": legacy.q5_1,
    "Q8_0": legacy.q8_0,
    "Q4_K": kquants.q4_k,
    "Q5_K": kquants.q5_k,
    "Q6_K": kquants.q6_k,
    "MXFP4": float4.mxfp4,
    "NVFP4": float4.nvfp4,
}
_BLOCK_BYTES: Final = {kind.name: kind.block_bytes for kind in TENSOR_TYPES.values()}

IMPORTED_TYPES: Final = tuple(_BY_TYPE)


def dequantise(type_name: str, rows: Rows) -> Values:
    """Decode stored rows, uint8 [N, row_bytes], to float32 [N, K].

    `type_name` is one of `IMPORTED_TYPES`. All arithmetic is float32 in the order the format states, so results are
    the same everywhere; NaN and infinity in scales come through.
    """
    num_rows = rows.shape[0]
    block_bytes = _BLOCK_BYTES[type_name]
    blocks = rows.reshape(num_rows, -1, block_bytes)
    # Damaged scales may be infinite; the caller judges the values, a warning would only repeat it.
    with np.errstate(over="ignore", invalid="ignore"):
        return _BY_TYPE[type_name](blocks).reshape(num_rows, -1)
