"""E4M3 weights: one scale per row or per tensor, which our fp8 holds exactly, or one per block of rows and columns.

| tensors | means |
|---|---|
| weight F8_E4M3 [N, K], weight_scale [N, 1] or [N] | code * scale of the row |
| weight F8_E4M3 [N, K], weight_scale [1] or scalar | code * scale |
| weight F8_E4M3 [N, K], weight_scale_inv or weight_scale [N / 128, K / 128], rounded up | code * scale of the block |

Scales are float32, bfloat16 or float16 and multiply, also those called `inv`. A static `input_scale` is for kernels
with FP8 activations, which ours are not.
"""

from __future__ import annotations

import numpy as np

from ninfer import formats
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.quantized.module import FLOATS, Module
from ninfer.convert.weight import Chosen, Values, Weight
from ninfer.formats import Planes
from ninfer.formats.base import F32Array
from ninfer.formats.small_floats import E4M3, E4M3_NAN


class FP8Weight(Weight):
    """E4M3 codes with a scale per row, exactly."""

    def __init__(self, module: Module, codes: SourceTensor, scales: F32Array, kind: str) -> None:
        super().__init__(*module.used)
        self.name = module.full_name("weight")
        self.kind = kind
        self.shape = codes.info.shape
        self._codes = codes
        self._scales = np.broadcast_to(scales, (self.num_rows, 1))

    def exact_format(self) -> str | None:
        return "fp8"

    def planes(self, rows: Chosen) -> Planes:
        codes = self._codes.rows()[rows]
        if ((codes & 0x7F) == E4M3_NAN).any():
            raise self.error("holds NaN")
        padded = np.pad(codes, [(0, 0), (0, -codes.shape[1] % formats.get("fp8").pad)])
        return Planes((len(codes), self.shape[1]), padded, np.ascontiguousarray(self._scales[rows]))

    def values(self, rows: Chosen) -> Values:
        return formats.get("fp8").unpack(self.planes(rows)).astype(np.float32)


class FP8BlockWeight(Weight):
    """E4M3 codes with a scale per block; no format of ours."""

    def __init__(self, module: Module, codes: SourceTensor, scales: F32Array, block: tuple[int, int]) -> None:
        super().__init__(*module.used)
        self.name = module.full_name("weight")
        self.kind = f"FP8 block {block[0]}x{block[1]}"
        self.shape = codes.info.shape
        self._codes, self._scales, self._block = codes, scales, block

    def values(self, rows: Chosen) -> Values:
        indices = np.arange(self.num_rows)[rows]
        per_column = np.repeat(self._scales, self._block[1], axis=1)[:, : self.shape[1]]
        return E4M3[self._codes.rows()[rows]] * per_column[indices // self._block[0]]


def fp8(module: Module, block: tuple[int, int]) -> Weight:
    """`weight` F8_E4M3; `block`: rows and columns that share a scale where scales are per block."""
    codes = module.need("weight", ["F8_E4M3"], None, "FP8")
    if len(codes.info.shape) != 2:
        module.fail("weight", f"has shape {list(codes.info.shape)}; a matrix is needed")
    n, k = codes.info.shape
    blocks = (-(-n // block[0]), -(-k // block[1]))
    leaf = "weight_scale_inv" if module.has("weight_scale_inv") else "weight_scale"
    seen = module.need(leaf, FLOATS, None, "FP8").info.shape
    scales = module.scales(leaf, FLOATS, seen, "FP8")
    if leaf == "weight_scale" and seen in ((n, 1), (n,)):
        return FP8Weight(module, codes, scales.reshape(n, 1), "FP8 row")
    if leaf == "weight_scale" and seen in ((), (1,), (1, 1)):
        return FP8Weight(module, codes, scales.reshape(1, 1), "FP8 tensor")
    if seen != blocks:
        wanted = f"[{blocks[0]}, {blocks[1]}] for blocks of {block[0]} x {block[1]}"
        wanted = wanted if leaf == "weight_scale_inv" else f"[{n}, 1], [1] or {wanted}"
        module.fail(leaf, f"has shape {list(seen)}; FP8 [{n}, {k}] needs {wanted}")
    return FP8BlockWeight(module, codes, scales, block)
