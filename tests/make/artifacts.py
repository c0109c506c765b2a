"""Tiny random models of any family as artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ninfer import formats
from ninfer.artifact import ArtifactWriter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arrays = dict[str, np.ndarray]


def document(config: DataclassInstance) -> dict[str, Any]:
    """A configuration as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


def write_weights(
    path: Path, architecture: str, document: Mapping[str, Any], weights: Mapping[str, np.ndarray], format: str
) -> Path:
    """An artifact with all matrices in `format` and all vectors as they are."""
    with ArtifactWriter(path, architecture, document, {"source": "tests"}) as writer:
        for name, array in weights.items():
            if array.ndim == 1:
                writer.add_vector(name, array)
            else:
                writer.add_matrix(name, format, formats.get(format).pack(array))
        return writer.finish()
