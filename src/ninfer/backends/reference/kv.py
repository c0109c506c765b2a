"""KV pages of one layer as NumPy arrays, in the real storage formats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.formats import kv_bf16, kv_int8
from ninfer.ops.batch import PAGE_TOKENS
from ninfer.ops.graph import KVShape

F32Array = npt.NDArray[np.float32]


class PagedKV:
    """`num_pages` pages of one layer; keys and values are the two halves of the first axis."""

    def __init__(self, shape: KVShape, num_pages: int, kv_format: str) -> None:
        cells = (2, num_pages, PAGE_TOKENS, shape.num_kv_heads)
        self._heads = (shape.num_kv_heads, shape.head_dim)
        self._int8 = kv_format == kv_int8.NAME
        self._codes = np.zeros((*cells, shape.head_dim), np.int8 if self._int8 else np.uint16)
        self._scales = np.zeros((*cells, kv_int8.num_groups(shape.head_dim) if self._int8 else 0), np.float16)

    def split_heads(self, rows: F32Array) -> F32Array:
        """`[T, Hk * D]` as `[T, Hk, D]`."""
        return rows.reshape(-1, *self._heads)

    def write(self, pages: npt.NDArray[np.int32], position: int, k: F32Array, v: F32Array) -> None:
        """Store float32 `[count, Hk, D]` keys and values at the positions from `position` on."""
        index = np.arange(position, position + len(k))
        page, slot = pages[index // PAGE_TOKENS], index % PAGE_TOKENS
        for half, x in enumerate((k, v)):
            if self._int8:
                self._codes[half, page, slot], self._scales[half, page, slot] = kv_int8.encode(x)
            else:
                self._codes[half, page, slot] = kv_bf16.encode(x)

    def read(self, pages: npt.NDArray[np.int32], length: int) -> tuple[F32Array, F32Array]:
        """The first `length` tokens' keys and values, float32 `[length, Hk, D]`; exact."""
        index = np.arange(length)
        page, slot = pages[index // PAGE_TOKENS], index % PAGE_TOKENS
        return self._decode(0, page, slot), self._decode(1, page, slot)

    def _decode(self, half: int, page: npt.NDArray[np.int32], slot: npt.NDArray[np.int64]) -> F32Array:
        codes = self._codes[half, page, slot]
        return kv_int8.decode(codes, self._scales[half, page, slot]) if self._int8 else kv_bf16.decode(codes)


def page_bytes(shape: KVShape, kv_format: str) -> int:
    """Bytes of one page of one layer."""
    codec = kv_int8 if kv_format == kv_int8.NAME else kv_bf16
    return 2 * PAGE_TOKENS * shape.num_kv_heads * codec.nbytes(shape.head_dim)
