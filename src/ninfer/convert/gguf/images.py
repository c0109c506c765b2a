"""GGUF block types that are formats of ours: the same codes and scales, moved without a change."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks.legacy import nibbles
from ninfer.formats import Planes

FORMATS: Final = {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4g32m"}
"""GGUF type -> our format with the same meaning."""

_BLOCK_BYTES: Final = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


def planes(type_name: str, rows: npt.NDArray[np.uint8]) -> Planes:
    """The content of stored rows, uint8 [N, row_bytes], for a type of `FORMATS`."""
    blocks = rows.reshape(len(rows), -1, _BLOCK_BYTES[type_name])
    shape = (len(rows), blocks.shape[1] * 32)
    scales = _halves(blocks, 0)
    if type_name == "Q8_0":
        return Planes(shape, np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(shape), scales)
    if type_name == "Q4_0":
        return Planes(shape, nibbles(blocks[..., 2:]).reshape(shape), scales)
    return Planes(shape, nibbles(blocks[..., 4:]).reshape(shape), scales, _halves(blocks, 2))


def _halves(blocks: npt.NDArray[np.uint8], at: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float16)
