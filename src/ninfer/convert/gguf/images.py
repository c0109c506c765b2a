"""GGUF block types that are formats of ours: the same codes and scales, moved without a change."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.blocks.legacy import nibbles
from ninfer.convert.gguf.types import TENSOR_TYPES
from ninfer.formats import Planes, TensorScale
from ninfer.formats.small_floats import E4M3_NAN

FORMATS: Final = {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4g32m", "NVFP4": "nvfp4"}
"""GGUF type -> our format with the same meaning."""

_BLOCKS: Final = {kind.name: kind for kind in TENSOR_TYPES.values() if kind.name in FORMATS}
_Blocks = npt.NDArray[np.uint8]


def planes(type_name: str, rows: npt.NDArray[np.uint8], scale: TensorScale | None = None) -> Planes:
    """The content of stored rows, uint8 [N, row_bytes], for a type of `FORMATS`; `scale` is the tensor's, for NVFP4."""
    kind = _BLOCKS[type_name]
    blocks = rows.reshape(len(rows), -1, kind.block_bytes)
    shape = (len(rows), blocks.shape[1] * kind.block_elems)
    if type_name == "NVFP4":
        return Planes(shape, *_nvfp4(blocks), tensor=scale or TensorScale(1.0))
    scales = _halves(blocks, 0)
    if type_name == "Q8_0":
        return Planes(shape, np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(shape), scales)
    if type_name == "Q4_0":
        return Planes(shape, nibbles(blocks[..., 2:]).reshape(shape), scales)
    return Planes(shape, nibbles(blocks[..., 4:]).reshape(shape), scales, _halves(blocks, 2))


def _nvfp4(blocks: _Blocks) -> tuple[_Blocks, _Blocks]:
    """Codes and scales. A sub-block of 16 has elements j and j + 8 in byte j. GGUF's scales have no sign and no NaN:
    the top bit is ignored, 0x7F means 0, and 0xFF, which no encoder writes, means 480, which E4M3 has not."""
    codes = nibbles(blocks[..., 4:].reshape(*blocks.shape[:-1], 4, 8)).reshape(len(blocks), -1)
    stored = blocks[..., :4].reshape(len(blocks), -1)
    return codes, np.where(stored == E4M3_NAN, np.uint8(0), stored & np.uint8(0x7F))


def _halves(blocks: _Blocks, at: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float16)
