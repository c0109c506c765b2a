"""Rules from the tensors of a checkpoint to ours, and their application: nothing missing, nothing left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.names.orders import Order
from ninfer.convert.weight import Weight
from ninfer.errors import ArtifactError, ConversionError

_MOST_LISTED = 8


Values = npt.NDArray[np.float32]

CHANGES: Final[Mapping[str, Callable[[Values], Values]]] = {
    "one_plus": lambda w: np.float32(1) + w,
    "exp": lambda w: np.exp(w.astype(np.float64)).astype(np.float32),
    "minus": lambda w: -w,
    "columns_first": lambda w: w.T,
}
"""What a rule may do to the float32 values of a vector, as the file has them; functions are rounded once."""


@dataclass(frozen=True)
class TensorRule:
    """Our tensor `target` of `shape` comes from the file's tensor `source`.

    source_shape: the shape it has there, None if it is ours. rows, columns: which of the file's rows (all axes but the
    last are rows) and columns become ours; None for all of them as they are. change: a word of `CHANGES`, for vectors
    only; empty for none.
    """

    target: str
    source: str
    shape: tuple[int, ...]
    rows: Order | None = None
    columns: Order | None = None
    change: str = ""
    source_shape: tuple[int, ...] | None = None

    @property
    def needed_shape(self) -> tuple[int, ...]:
        """The shape that the file's tensor must have."""
        return self.source_shape or self.shape


@dataclass(frozen=True)
class Assignment:
    """A rule with the weight that fulfils it."""

    rule: TensorRule
    weight: Weight

    @property
    def nbytes(self) -> int:
        """Stored bytes of the rows that the rule takes."""
        if self.rule.rows is None:
            return self.weight.nbytes
        return self.weight.nbytes * len(self.rule.rows.indices()) // self.weight.num_rows


def assign(rules: Sequence[TensorRule], weights: Mapping[str, Weight], file: Path) -> list[Assignment]:
    """Match every rule with a weight of its shape and every weight with at least one rule.

    ArtifactError lists missing tensors and wrong shapes, ConversionError lists tensors that no rule knows.
    """
    wanted = {rule.source for rule in rules}
    missing = list(dict.fromkeys(rule.source for rule in rules if rule.source not in weights))
    unknown = [name for name in weights if name not in wanted]
    if missing:
        also = f"; unexpected tensors: {listed(unknown)}" if unknown else ""
        raise ArtifactError(f"missing tensors: {listed(missing)}{also}", file=file)
    if unknown:
        raise ConversionError(f"{file}: tensors without a rule: {listed(unknown)}")
    wrong = [
        f"{rule.source} is {list(weights[rule.source].shape)}, needed is {list(rule.needed_shape)}"
        for rule in rules
        if weights[rule.source].shape != rule.needed_shape
    ]
    if wrong:
        raise ArtifactError(f"wrong shapes: {listed(wrong, '; ')}", file=file)
    return [Assignment(rule, weights[rule.source]) for rule in rules]


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first few items, and how many more there are."""
    names = list(items)
    more = len(names) - _MOST_LISTED
    return separator.join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
