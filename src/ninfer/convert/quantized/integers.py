"""Symmetric integer weights of compressed-tensors: `code * scale` with a scale per tensor, row or group of columns.

`weight` I8 [N, K] holds codes as they are. `weight_packed` I32 [N, ceil(K b / 32)] with `weight_shape` (N, K) holds
them in b bits as `code + 2^(b-1)`: a row is a little-endian stream of bits.

Codes fit the smallest of our formats that has as many bits and whose groups are not crossed by theirs; that is exact
where all scales are float16 numbers. Otherwise the values are encoded anew.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.convert.gguf.blocks import dequantise
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.quantized.module import FLOATS, Module
from ninfer.convert.weight import Chosen, Values, Weight
from ninfer.formats import Planes
from ninfer.formats.base import padded_width

_CANDIDATES: Final = ("q4g64", "q4g32", "q5g64", "q6g64", "q8g32")
"""From the smallest."""


class IntegerWeight(Weight):
    """`group`: columns that share a scale, K for one scale per row. `scales` has a row for every row, or one in all."""

    def __init__(
        self, module: Module, codes: SourceTensor, scales: SourceTensor, shape: tuple[int, int], bits: int, group: int
    ) -> None:
        super().__init__(*module.used)
        self.name = module.full_name("weight")
        self.kind = f"INT{bits} {'row' if group == shape[1] else f'group {group}'}"
        self.shape = shape
        self._module, self._codes, self._scales, self._bits, self._group = module, codes, scales, bits, group
        self._exact: list[str | None] = []

    def exact_format(self) -> str | None:
        if not self._exact:
            self._exact.append(self._find_exact_format())
        return self._exact[0]

    def _find_exact_format(self) -> str | None:
        scales = self._scale_rows(slice(None))
        with np.errstate(over="ignore"):
            if (scales.astype(np.float16) != scales).any():
                return None
        for name in _CANDIDATES:
            target = formats.get(name)
            fits = self._group == self.shape[1] or self._group % target.group == 0
            if target.code_bits >= self._bits and fits:
                return name
        return None

    def planes(self, rows: Chosen) -> Planes:
        name = self.exact_format()
        if name is None:
            return super().planes(rows)
        target = formats.get(name)
        codes = self._integers(rows) + np.int16(target.zero_code)
        k, width = self.shape[1], padded_width(self.shape[1], target.pad)
        padded = np.pad(codes, [(0, 0), (0, width - k)], constant_values=target.zero_code)
        scales = self._scale_rows(rows).astype(np.float16)
        ours = np.arange(target.num_scales(k)) * target.group // self._group
        scales = np.broadcast_to(scales[:, ours], (len(codes), len(ours)))
        return Planes((len(codes), k), padded.astype(target.codes_dtype), np.ascontiguousarray(scales))

    def values(self, rows: Chosen) -> Values:
        codes = self._integers(rows).astype(np.float32)
        groups = codes.reshape(len(codes), -1, self._group)
        return (groups * self._scale_rows(rows)[..., None]).reshape(codes.shape)

    def _scale_rows(self, rows: Chosen) -> npt.NDArray[np.float32]:
        """float32 `[n or 1, K / group]`."""
        stored = self._scales.rows().reshape(-1, self.shape[1] // self._group * self._scales.info.type.block_bytes)
        scales = dequantise(self._scales.info.type.name, stored if len(stored) == 1 else stored[rows])
        if not np.isfinite(scales).all():
            self._module.fail("weight_scale", "holds NaN or infinity")
        return scales

    def _integers(self, rows: Chosen) -> npt.NDArray[np.int16]:
        """Signed codes `[n, K]`."""
        stored = self._codes.rows()[rows]
        if self._codes.info.type.name == "I8":
            return stored.view(np.int8).astype(np.int16)
        unsigned = unpacked(stored, self._bits)[:, : self.shape[1]]
        return unsigned.astype(np.int16) - np.int16(1 << (self._bits - 1))


def unpacked(stored: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Unsigned codes of rows that are little-endian bit streams, uint8 `[n, 8 B / bits]` of bytes `[n, B]`."""
    if bits == 8:
        return stored
    if bits == 4:
        return np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)
    stream = np.unpackbits(stored, axis=1, bitorder="little")
    whole = stream.shape[1] // bits * bits
    fields = stream[:, :whole].reshape(len(stored), -1, bits)
    return np.packbits(fields, axis=-1, bitorder="little")[..., 0]


def int8(module: Module) -> Weight:
    """`weight` I8 with a scale per row or per tensor."""
    codes = module.need("weight", ["I8"], None, "INT8")
    if len(codes.info.shape) != 2:
        module.fail("weight", f"has shape {list(codes.info.shape)}; a matrix is needed")
    n, k = codes.info.shape
    scales, group = _scales(module, n, k, "INT8")
    return IntegerWeight(module, codes, scales, (n, k), 8, group)


def packed_integers(module: Module) -> Weight:
    """`weight_packed` I32 with `weight_shape`; the number of bits is what the shapes allow."""
    codes = module.need("weight_packed", ["I32"], None, "packed integers")
    sizes = module.need("weight_shape", ["I64", "I32"], (2,), "packed integers")
    integer = np.int64 if sizes.info.type.name == "I64" else np.int32
    n, k = (int(size) for size in sizes.rows().view(integer)[0])
    if len(codes.info.shape) != 2 or codes.info.shape[0] != n or k < 1:
        module.fail("weight_shape", f"is [{n}, {k}], but weight_packed is {list(codes.info.shape)}")
    words = codes.info.shape[1]
    possible = [bits for bits in range(2, 9) if -(-k * bits // 32) == words]
    if len(possible) != 1:
        module.fail("weight_packed", f"has {words} words for {k} codes; 2 to 8 bits need {k} * bits / 32, rounded up")
    scales, group = _scales(module, n, k, "packed integers")
    return IntegerWeight(module, codes, scales, (n, k), possible[0], group)


def _scales(module: Module, n: int, k: int, why: str) -> tuple[SourceTensor, int]:
    """The scales and how many columns share one: all of a row, or a power of two, so that a group that was meant to be
    cut off at the end of a row is not taken for smaller ones."""
    tensor = module.need("weight_scale", FLOATS, None, why)
    seen = tensor.info.shape
    if seen in ((), (1,), (1, 1), (n,)):
        return tensor, k
    group = k // seen[1] if len(seen) == 2 and seen[0] == n and k % seen[1] == 0 else 0
    if group == 0 or (group != k and group & (group - 1)):
        wanted = f"[{n}, 1] or [{n}, {k} / a power of two]"
        module.fail("weight_scale", f"has shape {list(seen)}; {why} of [{n}, {k}] need {wanted}")
    return tensor, group
