"""A mapped safetensors file: the directory, fully checked before anything is handed out.

u64 little-endian: bytes of the JSON text; JSON object: name -> {dtype, shape, data_offsets}; tensor data
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ninfer.artifact import strict_json
from ninfer.convert.gguf.types import TENSOR_TYPES, TensorType
from ninfer.convert.mapped import MappedFile, TensorInfo
from ninfer.errors import ArtifactError, ConversionError

MAX_HEADER_BYTES: Final = 16 << 20
"""Bound of the JSON text; ten thousand tensors need about one megabyte."""
MAX_DIMS: Final = 8
MAX_EXTENT: Final = 1 << 40

_LENGTH_BYTES: Final = 8
_NO_GGUF_ID: Final = -1
_IMPORTED: Final[dict[str, TensorType]] = {
    kind.name: kind for kind in TENSOR_TYPES.values() if kind.name in ("F32", "F16", "BF16", "I8", "I32", "I64")
} | {name: TensorType(_NO_GGUF_ID, name, 1, 1) for name in ("U8", "F8_E4M3", "F8_E8M0")}


class SafetensorsFile(MappedFile):
    """An open file. Use as a context manager. tensors: name -> TensorInfo, in directory order."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactError for a malformed file, ConversionError for element types that are not imported."""
        super().__init__(path)
        try:
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(self._read())
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[str, TensorInfo]:
        if self.size < _LENGTH_BYTES:
            raise ArtifactError(f"truncated: {self.size} bytes", file=self.path, field="header length")
        length = int.from_bytes(self.data[:_LENGTH_BYTES], "little")
        left = self.size - _LENGTH_BYTES
        if length > min(MAX_HEADER_BYTES, left):
            message = f"is {length}; the file has {left} bytes left and the limit is {MAX_HEADER_BYTES}"
            raise ArtifactError(message, file=self.path, field="header length")
        text = self.data[_LENGTH_BYTES : _LENGTH_BYTES + length]
        directory = strict_json.parse_object(text, file=self.path, field="header")
        directory.pop("__metadata__", None)
        data_start = _LENGTH_BYTES + length
        tensors = {name: self._tensor(name, entry, data_start) for name, entry in directory.items()}
        end, last = data_start, "the header"
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if info.offset != end:
                word = "overlaps" if info.offset < end else "leaves a gap after"
                raise ArtifactError(f"{word} {last}", file=self.path, field=f"tensor {info.name!r}")
            end, last = info.offset + info.nbytes, f"tensor {info.name!r}"
        if end != self.size:
            raise ArtifactError(f"{self.size - end} bytes after {last}", file=self.path, field="end of file")
        return tensors

    def _tensor(self, name: str, entry: Any, data_start: int) -> TensorInfo:
        field = f"tensor {name!r:.200}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ArtifactError("needs exactly dtype, shape and data_offsets", file=self.path, field=field)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str):
            raise ArtifactError(f"dtype {dtype!r:.60} is no text", file=self.path, field=field)
        if dtype not in _IMPORTED:
            raise ConversionError(
                f"{self.path}: {field} has dtype {dtype!r:.60}, which is not imported; "
                f"imported dtypes: {', '.join(_IMPORTED)}"
            )
        if not _sizes(shape, 0, MAX_DIMS, low=1):
            message = f"shape {shape!r:.80} must be up to {MAX_DIMS} sizes from 1 to {MAX_EXTENT}"
            raise ArtifactError(message, file=self.path, field=field)
        if not _sizes(offsets, 2, 2, low=0):
            raise ArtifactError(f"data_offsets {offsets!r:.80} are no two sizes", file=self.path, field=field)
        nbytes = prod(shape) * _IMPORTED[dtype].block_bytes
        begin, end = offsets
        if end - begin != nbytes or data_start + end > self.size:
            message = (
                f"{dtype} {shape} needs {nbytes} bytes, data_offsets {offsets} hold {end - begin}; "
                f"the file has {self.size - data_start} bytes of data"
            )
            raise ArtifactError(message, file=self.path, field=field)
        return TensorInfo(name, _IMPORTED[dtype], tuple(shape), data_start + begin, nbytes)


def _sizes(value: object, least: int, most: int, *, low: int) -> bool:
    return (
        isinstance(value, list)
        and least <= len(value) <= most
        and all(type(size) is int and low <= size <= MAX_EXTENT for size in value)
    )
