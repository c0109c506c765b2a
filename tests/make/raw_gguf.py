"""Hand-made GGUF bytes, right or wrong on purpose: every field can be set to what no writer would produce."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
            U64: "<Q", I64: "<q", F64: "<d"}  # fmt: skip


def text(value: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(type_id: int, content: object) -> bytes:
    """An encoded metadata value; for ARRAY `content` is (element type, list of contents)."""
    if type_id == STRING:
        return text(content)
    if type_id == ARRAY:
        item_type, items = content
        return struct.pack("<IQ", item_type, len(items)) + b"".join(value(item_type, item) for item in items)
    return struct.pack(_FORMATS[type_id], content)


@dataclass
class RawTensor:
    """A directory entry and its data; `dims` are innermost first. `offset` None: placed after the tensor before it."""

    name: str | bytes
    dims: tuple[int, ...]
    data: bytes
    type_id: int = 0
    offset: int | None = None
    num_dims: int | None = None


@dataclass
class RawGGUF:
    """Fields of a file in order; None counts are the true ones. `metadata` holds (key, type id, encoded value)."""

    metadata: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    kv_count: int | None = None
    alignment: int = 32

    def add(self, key: str | bytes, type_id: int, content: object) -> RawGGUF:
        self.metadata.append((key, type_id, value(type_id, content)))
        return self

    def header(self) -> bytes:
        """Everything in front of the padding before the data."""
        count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        kv_count = len(self.metadata) if self.kv_count is None else self.kv_count
        parts = [self.magic, struct.pack("<IQQ", self.version, count, kv_count)]
        parts += [text(key) + struct.pack("<I", type_id) + encoded for key, type_id, encoded in self.metadata]
        for tensor, offset in zip(self.tensors, self.offsets(), strict=True):
            num_dims = len(tensor.dims) if tensor.num_dims is None else tensor.num_dims
            parts += [text(tensor.name), struct.pack(f"<I{len(tensor.dims)}Q", num_dims, *tensor.dims)]
            parts.append(struct.pack("<IQ", tensor.type_id, offset))
        return b"".join(parts)

    def offsets(self) -> list[int]:
        """The offset field of every tensor."""
        end, result = 0, []
        for tensor in self.tensors:
            result.append(end if tensor.offset is None else tensor.offset)
            if tensor.offset is None:
                end += -(-len(tensor.data) // self.alignment) * self.alignment
        return result

    def build(self) -> bytes:
        """The whole file."""
        header = self.header()
        out = bytearray(header + bytes(-len(header) % self.alignment))
        for tensor in self.tensors:
            if tensor.offset is None:
                out += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return bytes(out)
