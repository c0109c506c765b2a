"""Which rows or columns of a file's tensor become ours, and in which order, where head layouts differ.

Rows are independent in every stored type, so an order of rows never changes a value. An order of columns moves whole
blocks of a quantised type or is refused (`encode`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Order(Protocol):
    """An order is a value: equal orders select alike."""

    def indices(self) -> Indices:
        """For each of our rows (or columns) the file's, int64."""
        ...


@dataclass(frozen=True)
class HalfSplit:
    """Rotary pairs half a head apart (i, i + D/2), from a file where they lie side by side (2i, 2i + 1)."""

    num_heads: int
    head_dim: int

    def indices(self) -> Indices:
        rows = np.arange(self.num_heads * self.head_dim)
        return rows.reshape(self.num_heads, -1, 2).transpose(0, 2, 1).reshape(-1)


@dataclass(frozen=True)
class HeadPart:
    """Part `part` of every head, from a file whose heads hold `num_parts` parts of `head_dim` rows each."""

    num_heads: int
    head_dim: int
    part: int
    num_parts: int

    def indices(self) -> Indices:
        rows = np.arange(self.num_heads * self.num_parts * self.head_dim)
        return rows.reshape(self.num_heads, self.num_parts, self.head_dim)[:, self.part].reshape(-1)


@dataclass(frozen=True)
class Grouped:
    """Value heads next to each other when they share a key head, from a file that goes round the key heads.

    With r = num_v_heads / num_k_heads, our head g * r + s is the file's head g + s * num_k_heads. Heads have `width`
    rows; `first` rows in front of them stay where they are.
    """

    num_k_heads: int
    num_v_heads: int
    width: int
    first: int = 0

    def indices(self) -> Indices:
        heads = np.arange(self.num_v_heads * self.width).reshape(-1, self.num_k_heads, self.width)
        return np.concatenate([np.arange(self.first), self.first + heads.transpose(1, 0, 2).reshape(-1)])
