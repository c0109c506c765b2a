"""Random weights: every value a function of the seed, the tensor's name and its place, drawn as bf16.

A tensor is cut into blocks of whole rows, and a block has a counter-based stream of its own (Philox, keyed by seed and
name, started at the block's index), so any rows can be drawn in any order and a tensor is never in memory as a whole.
Sixteen random bits choose one of 65,536 quantiles of the tensor's distribution, rounded to bf16.

Distributions keep activations near 1 and logits spread: matrices normal with variance 1 / K. The decay and the
convolution are spread as the authors' initialisers do it, A uniform in 0.01 .. 16 and taps uniform within
1 / sqrt(taps); norm weights and `dt_bias` are near their initial values, but not all equal, so that a wrong one shows.
"""

from __future__ import annotations

import hashlib
from functools import cache
from math import prod, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.formats import bf16

Bits = npt.NDArray[np.uint16]
Rows = slice | npt.NDArray[np.int64]

VERSION: Final = 1
"""Counts changes that give other values for the same seed."""

_LEVELS: Final = 1 << 16
_BLOCK_ELEMENTS: Final = 1 << 18
_BLOCK_ROWS: Final = 16
"""Blocks are multiples of this many rows, as the records that they become."""


class RandomTensor:
    """One tensor of a checkpoint by its Hugging Face name. `shape` as in that checkpoint; leading axes are rows."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int) -> None:
        self.name = name
        self.shape = shape
        self.width = shape[-1]
        self.num_rows = prod(shape[:-1])
        self._table = _quantiles(*_distribution(name, shape))
        digest = hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
        self._key = np.array([seed, int.from_bytes(digest, "little")], np.uint64)
        self._rows_per_block = max(_BLOCK_ELEMENTS // self.width // _BLOCK_ROWS, 1) * _BLOCK_ROWS

    def bits(self, rows: Rows) -> Bits:
        """Rows as bf16 bits, uint16 `[rows, width]`: a range, or indices in any order, each as often as it is named."""
        per_block = self._rows_per_block
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            first = start // per_block
            blocks = [self._block(block) for block in range(first, -(-stop // per_block))]
            whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            return whole[start - first * per_block : stop - first * per_block]
        block_of = rows // per_block
        result = np.empty((len(rows), self.width), np.uint16)
        for block in np.unique(block_of):
            inside = block_of == block
            result[inside] = self._block(int(block))[rows[inside] - block * per_block]
        return result

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The same rows as float32."""
        return bf16.decode(self.bits(rows))

    def all_values(self) -> npt.NDArray[np.float32]:
        """The whole tensor in its shape."""
        return self.values(slice(None)).reshape(self.shape)

    def _block(self, index: int) -> Bits:
        first = index * self._rows_per_block
        rows = min(self._rows_per_block, self.num_rows - first)
        generator = np.random.Philox(key=self._key, counter=np.array([0, 0, 0, index], np.uint64))
        words = generator.random_raw(-(-rows * self.width // 4)).astype("<u8", copy=False)
        return self._table[words.view("<u2")[: rows * self.width]].reshape(rows, self.width)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[str, float, float]:
    """(kind, two parameters) of a tensor's values."""
    if name.endswith("A_log"):
        return "log of uniform", 0.01, 16.0
    if name.endswith("dt_bias"):
        return "uniform", 0.5, 1.5
    if name.endswith("linear_attn.norm.weight"):
        return "uniform", 0.75, 1.25
    if len(shape) == 1:
        return "uniform", -0.25, 0.25
    if name.endswith("conv1d.weight"):
        return "uniform", -1 / sqrt(shape[-1]), 1 / sqrt(shape[-1])
    return "normal", 0.0, 1 / sqrt(shape[-1])


@cache
def _quantiles(kind: str, first: float, second: float) -> Bits:
    """bf16 bits of the quantiles at the middles of 65,536 equal parts: normal (mean, deviation), uniform (from, to)."""
    if kind == "normal":
        return bf16.encode((first + second * _normal_quantiles()).astype(np.float32))
    part = (np.arange(_LEVELS) + 0.5) / _LEVELS
    uniform = first + (second - first) * part
    return bf16.encode((np.log(uniform) if kind == "log of uniform" else uniform).astype(np.float32))


@cache
def _normal_quantiles() -> npt.NDArray[np.float64]:
    normal = NormalDist()
    lower = np.array([normal.inv_cdf((i + 0.5) / _LEVELS) for i in range(_LEVELS // 2)])
    return np.concatenate([lower, -lower[::-1]])
