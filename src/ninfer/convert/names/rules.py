"""Rules from the tensors of a checkpoint to ours, and their application: nothing missing, nothing left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer.convert.mapped import SourceTensor
from ninfer.errors import ArtifactError, ConversionError

_MOST_LISTED = 8


@dataclass(frozen=True)
class TensorRule:
    """Our tensor `target` of `shape` is the file's tensor `source`.

    rope_heads: if not 0, the rows are those of so many heads whose rotary pairs lie side by side (2i, 2i + 1); ours
    lie half a head apart (i, i + D/2).
    """

    target: str
    source: str
    shape: tuple[int, ...]
    rope_heads: int = 0


@dataclass(frozen=True)
class Assignment:
    """A rule with the tensor that fulfils it. `scale` multiplies all values (NVFP4 keeps one outside its blocks)."""

    rule: TensorRule
    tensor: SourceTensor
    scale: float = 1.0


def assign(
    rules: Sequence[TensorRule],
    tensors: Mapping[str, SourceTensor],
    file: Path,
    *,
    scales: Mapping[str, float] | None = None,
) -> list[Assignment]:
    """Match every rule with a tensor of its shape and every tensor with a rule.

    `scales`: source name -> factor. ArtifactError lists missing tensors and wrong shapes, ConversionError lists tensors
    that no rule knows.
    """
    wanted = {rule.source for rule in rules}
    missing = [rule.source for rule in rules if rule.source not in tensors]
    unknown = [name for name in tensors if name not in wanted]
    if missing:
        also = f"; unexpected tensors: {listed(unknown)}" if unknown else ""
        raise ArtifactError(f"missing tensors: {listed(missing)}{also}", file=file)
    if unknown:
        raise ConversionError(f"{file}: tensors without a rule: {listed(unknown)}")
    wrong = [
        f"{rule.source} is {list(tensors[rule.source].info.shape)}, needed is {list(rule.shape)}"
        for rule in rules
        if tensors[rule.source].info.shape != rule.shape
    ]
    if wrong:
        raise ArtifactError(f"wrong shapes: {listed(wrong, '; ')}", file=file)
    return [Assignment(rule, tensors[rule.source], (scales or {}).get(rule.source, 1.0)) for rule in rules]


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first few items, and how many more there are."""
    names = list(items)
    more = len(names) - _MOST_LISTED
    return separator.join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
