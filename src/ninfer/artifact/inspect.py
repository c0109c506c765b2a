"""What is in a `.ninfer` file, as plain data for people and programs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from ninfer.artifact.entry import TensorEntry
from ninfer.artifact.reader import Artifact


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Everything the header says, JSON-ready; payloads are not read.

    `totals` counts stored bytes; `bits_per_weight` relates them to the real parameters, so what a layout adds (scales,
    rows that complete a record) counts as overhead.
    """
    with Artifact.open(path) as artifact:
        return {
            "file": str(artifact.path),
            "file_bytes": artifact.file_bytes,
            "header_bytes": artifact.header_bytes,
            "digest": artifact.digest,
            "architecture": artifact.architecture,
            "config": artifact.config,
            "provenance": artifact.provenance,
            "quantization": artifact.quantization,
            "totals": {
                "weights": _total(artifact.tensors.values()),
                "by_format": {
                    name: _total(entry for entry in artifact.tensors.values() if entry.format == name)
                    for name in sorted({entry.format for entry in artifact.tensors.values()})
                },
            },
            "objects": [_describe(entry) for entry in artifact.objects.values()],
        }


def _describe(entry: TensorEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "format": entry.format,
        "layout": entry.layout,
        "shape": list(entry.shape),
        "offset": entry.offset,
        "bytes": entry.nbytes,
        "blake2b": entry.blake2b,
    }


def _total(entries: Iterable[TensorEntry]) -> dict[str, Any]:
    counted = list(entries)
    parameters = sum(math.prod(entry.shape) for entry in counted)
    nbytes = sum(entry.nbytes for entry in counted)
    bits = round(8 * nbytes / parameters, 4) if parameters else None
    return {"tensors": len(counted), "parameters": parameters, "bytes": nbytes, "bits_per_weight": bits}
