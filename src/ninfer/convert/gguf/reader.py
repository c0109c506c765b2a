"""A mapped GGUF file: metadata and tensor directory, fully checked before anything is handed out.

Source: the container layout in docs (GGUF versions 2 and 3, little-endian). Every count, length and size is compared
with the bytes that exist before it is used, so a hostile header costs neither time nor memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ninfer.convert.gguf.cursor import Cursor
from ninfer.convert.gguf.types import ARRAY, BOOL, REMOVED_TYPE_IDS, SCALARS, STRING, TENSOR_TYPES
from ninfer.convert.mapped import MappedFile, TensorInfo
from ninfer.errors import ArtifactError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32

# Limits well above real files (the largest vocabularies have some 260 thousand tokens and 520 thousand merges).
MAX_HEADER_BYTES: Final = 1 << 26
MAX_STRING_BYTES: Final = 1 << 22
MAX_NAME_BYTES: Final = 1 << 10
MAX_ENTRIES: Final = 1 << 16
MAX_ARRAY_ITEMS: Final = 1 << 21  # over all arrays of one file
MAX_ARRAY_DEPTH: Final = 4
MAX_DIMS: Final = 4
MAX_ELEMENTS: Final = (1 << 63) - 1
MAX_ALIGNMENT: Final = 1 << 20

# Smallest encodings: what one entry takes at least, to refuse counts the file cannot hold.
_MIN_KV_BYTES: Final = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8
_MIN_ITEM_BYTES: Final = {STRING: 8, ARRAY: 12}

Value = str | bool | int | float | list["Value"]


class GGUFFile(MappedFile):
    """An open file. Use as a context manager.

    metadata: key -> str, bool, int, float or (nested) list of these.
    tensors: name -> TensorInfo, in directory order.
    """

    def __init__(self, path: Path) -> None:
        """Map `path` and check the whole header. Raises ArtifactError naming the field and its offset."""
        super().__init__(path)
        try:
            header = _Header(self.data, self.size, path)
        except BaseException:
            self.close()
            raise
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: Mapping[str, Value] = MappingProxyType(header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(header.tensors)


class _Header:
    """Parses everything in front of the tensor data."""

    def __init__(self, data: mmap.mmap, size: int, file: Path) -> None:
        self._cursor = Cursor(data, size, MAX_HEADER_BYTES, file)
        self._size = size
        self._array_items = 0
        self._nested_arrays = 0
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._read()

    def _read(self) -> None:
        cursor = self._cursor
        magic = cursor.take(len(MAGIC), "magic")
        if magic != MAGIC:
            cursor.fail("magic", f"not a GGUF file: starts with {magic!r}, expected {MAGIC!r}", at=0)
        self.version = cursor.u32("version")
        if self.version & 0xFFFF == 0 and self.version:
            cursor.fail("version", "big-endian GGUF files are not supported", at=4)
        if self.version not in VERSIONS:
            cursor.fail("version", f"GGUF version {self.version} is not supported, only 2 and 3 are", at=4)
        tensor_count = self._count("tensor count")
        kv_count = self._count("metadata count")
        # Both lists must fit into what is left.
        least = tensor_count * _MIN_TENSOR_BYTES + kv_count * _MIN_KV_BYTES
        if least > cursor.remaining:
            cursor.fail(
                "tensor count and metadata count",
                f"{tensor_count} tensors and {kv_count} keys need at least {least} bytes, "
                f"the file has {cursor.remaining} left",
                at=8,
            )
        for index in range(kv_count):
            self._read_kv(index)
        self.alignment = self._read_alignment()
        relative = [self._read_tensor(index) for index in range(tensor_count)]
        data_start = -(-cursor.pos // self.alignment) * self.alignment
        self._place(relative, data_start)

    def _count(self, field: str) -> int:
        start = self._cursor.pos
        count = self._cursor.u64(field)
        if count > MAX_ENTRIES:
            self._cursor.fail(field, f"{count} is over the limit of {MAX_ENTRIES}", at=start)
        return count

    def _read_kv(self, index: int) -> None:
        cursor, start = self._cursor, self._cursor.pos
        key = cursor.string(f"key of metadata entry {index}", MAX_NAME_BYTES)
        if not key:
            cursor.fail(f"key of metadata entry {index}", "empty key", at=start)
        if key in self.metadata:
            cursor.fail(f"metadata {key!r}", "duplicate key", at=start)
        type_start = cursor.pos
        type_id = cursor.u32(f"type of metadata {key!r}")
        self.metadata[key] = self._value(type_id, f"metadata {key!r}", type_start)

    def _value(self, type_id: int, field: str, type_start: int) -> Value:
        cursor = self._cursor
        if type_id == STRING:
            return cursor.string(field, MAX_STRING_BYTES)
        if type_id == ARRAY:
            return self._array(field, 1)
        if type_id not in SCALARS:
            cursor.fail(field, f"unknown value type {type_id}", at=type_start)
        start = cursor.pos
        value = cursor.scalar(SCALARS[type_id][1], field)
        return self._bools([value], field, start)[0] if type_id == BOOL else value

    def _bools(self, values: list[int | float], field: str, start: int) -> list[Value]:
        for index, value in enumerate(values):
            if value not in (0, 1):
                self._cursor.fail(field, f"BOOL must be 0 or 1, not {value}", at=start + index)
        return [bool(value) for value in values]

    def _array(self, field: str, depth: int) -> list[Value]:
        cursor, start = self._cursor, self._cursor.pos
        if depth > MAX_ARRAY_DEPTH:
            cursor.fail(field, f"arrays nested more than {MAX_ARRAY_DEPTH} deep", at=start)
        item_type = cursor.u32(f"element type of {field}")
        if item_type not in SCALARS and item_type not in _MIN_ITEM_BYTES:
            cursor.fail(field, f"unknown array element type {item_type}", at=start)
        count = cursor.u64(f"array length of {field}")
        item_bytes = _MIN_ITEM_BYTES.get(item_type) or SCALARS[item_type][1].size
        if count * item_bytes > cursor.remaining:
            message = (
                f"array of {count} elements needs at least {count * item_bytes} bytes, {cursor.remaining} are left"
            )
            cursor.fail(field, message, at=start + 4)
        self._array_items += count
        if self._array_items > MAX_ARRAY_ITEMS:
            cursor.fail(field, f"more than {MAX_ARRAY_ITEMS} array elements in one file", at=start + 4)
        if item_type == STRING:
            return list(cursor.strings(count, field, MAX_STRING_BYTES))
        if item_type == ARRAY:
            self._nested_arrays += count
            if self._nested_arrays > MAX_ENTRIES:
                cursor.fail(field, f"more than {MAX_ENTRIES} nested arrays in one file", at=start + 4)
            return [self._array(f"{field}[{i}]", depth + 1) for i in range(count)]
        values_start = cursor.pos
        values = cursor.scalars(SCALARS[item_type][1].format[1:], count, field)
        return self._bools(values, field, values_start) if item_type == BOOL else list(values)

    def _read_alignment(self) -> int:
        key = "general.alignment"
        value = self.metadata.get(key, DEFAULT_ALIGNMENT)
        allowed = f"a power of two from 1 to {MAX_ALIGNMENT}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(f"metadata {key!r}", f"must be an integer, {allowed}, not {type(value).__name__}")
        if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._error(f"metadata {key!r}", f"is {value}; allowed is {allowed}")
        return value

    def _read_tensor(self, index: int) -> TensorInfo:
        """One directory entry; its offset is still relative to the start of the data."""
        cursor, start = self._cursor, self._cursor.pos
        name = cursor.string(f"name of tensor {index}", MAX_NAME_BYTES)
        field = f"tensor {name!r}"
        if not name:
            cursor.fail(f"name of tensor {index}", "empty name", at=start)
        if name in self.tensors:
            cursor.fail(field, "duplicate tensor name", at=start)
        dims_start = cursor.pos
        num_dims = cursor.u32(f"dimension count of {field}")
        if not 1 <= num_dims <= MAX_DIMS:
            cursor.fail(field, f"has {num_dims} dimensions, allowed are 1 to {MAX_DIMS}", at=dims_start)
        extents = [cursor.u64(f"dimension {axis} of {field}") for axis in range(num_dims)]
        if 0 in extents:
            cursor.fail(field, f"dimension {extents.index(0)} is zero", at=dims_start + 4)
        if prod(extents) > MAX_ELEMENTS:
            cursor.fail(field, f"dimensions {extents} overflow", at=dims_start + 4)
        type_start = cursor.pos
        type_id = cursor.u32(f"type of {field}")
        if type_id not in TENSOR_TYPES:
            kind = "removed" if type_id in REMOVED_TYPE_IDS else "unknown"
            cursor.fail(field, f"{kind} tensor type {type_id}", at=type_start)
        tensor_type = TENSOR_TYPES[type_id]
        if extents[0] % tensor_type.block_elems:
            message = (
                f"row length {extents[0]} is no multiple of {tensor_type.block_elems}, the block of {tensor_type.name}"
            )
            cursor.fail(field, message, at=dims_start + 4)
        nbytes = prod(extents) // tensor_type.block_elems * tensor_type.block_bytes
        offset_start = cursor.pos
        offset = cursor.u64(f"offset of {field}")
        if offset % self.alignment:
            cursor.fail(field, f"offset {offset} is no multiple of the alignment {self.alignment}", at=offset_start)
        info = TensorInfo(name, tensor_type, tuple(reversed(extents)), offset, nbytes)
        self.tensors[name] = info
        return info

    def _place(self, relative: list[TensorInfo], data_start: int) -> None:
        """Turn relative offsets into absolute ones; every tensor lies inside the file and none overlaps another."""
        for info in relative:
            end = data_start + info.offset + info.nbytes
            if end > self._size:
                message = (
                    f"needs {info.nbytes} bytes at offset {data_start + info.offset}, so a file of {end} bytes; "
                    f"the file has {self._size}"
                )
                raise self._error(f"tensor {info.name!r}", message)
            self.tensors[info.name] = TensorInfo(
                info.name, info.type, info.shape, data_start + info.offset, info.nbytes
            )
        ordered = sorted(self.tensors.values(), key=lambda info: info.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                message = f"overlaps tensor {before.name!r}, which ends at offset {before.offset + before.nbytes}"
                raise self._error(f"tensor {after.name!r} at offset {after.offset}", message)

    def _error(self, field: str, message: str) -> ArtifactError:
        return ArtifactError(message, file=self._cursor.file, field=field)
