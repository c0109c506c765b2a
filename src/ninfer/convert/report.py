"""What a conversion did to every tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TensorReport:
    """One tensor's way. Errors compare the stored values with those of the source.

    relative_rms_error: sqrt(sum of squared differences / sum of squares). max_error: largest absolute difference.
    """

    name: str
    source_name: str
    source_type: str
    format: str
    relative_rms_error: float
    max_error: float

    @property
    def exact(self) -> bool:
        """Every stored value equals the source's."""
        return self.max_error == 0.0

    def to_json(self) -> dict[str, Any]:
        """For the artifact. Six digits: what a reader needs, and free of the last bits that a sum's order decides."""
        entry: dict[str, Any] = {"source_type": self.source_type, "format": self.format, "exact": self.exact}
        if not self.exact:
            entry["relative_rms_error"] = float(f"{self.relative_rms_error:.6g}")
            entry["max_error"] = float(f"{self.max_error:.6g}")
        return entry


@dataclass(frozen=True)
class ConversionReport:
    """A finished conversion.

    path: the artifact; digest: its content's identity. weights: the one format asked for; recipe: the recipe asked for;
    both None for exact keeping.
    """

    path: Path
    source: Path
    source_kind: str
    architecture: str
    weights: str | None
    recipe: str | None
    tensors: Sequence[TensorReport]
    resources: Sequence[str]
    notes: Sequence[str]
    source_bytes: int
    file_bytes: int
    digest: str

    @property
    def inexact(self) -> list[TensorReport]:
        """Tensors whose values changed."""
        return [tensor for tensor in self.tensors if not tensor.exact]

    @property
    def exact(self) -> bool:
        return not self.inexact
