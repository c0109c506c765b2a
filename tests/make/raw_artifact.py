"""Hand-made `.ninfer` bytes, right or wrong on purpose; nothing here uses the writer, so it is also its oracle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OPENING = b'{"__metadata__":{"ninfer.header_blake2b":"'
DIGEST_AT = 8 + len(OPENING)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def framed(text: bytes, payload: bytes) -> bytes:
    """Length, text completed with spaces to a 64-byte border, payload."""
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + payload


def sealed(data: bytes) -> bytes:
    """The file with the right header digest, where there is a place for one."""
    end = min(8 + int.from_bytes(data[:8], "little"), len(data))
    if not data.startswith(OPENING, 8) or end < DIGEST_AT + 64:
        return data
    blank = data[:DIGEST_AT] + b"0" * 64 + data[DIGEST_AT + 64 : end]
    return data[:DIGEST_AT] + digest_of(blank).encode() + data[DIGEST_AT + 64 :]


def reframed(data: bytes) -> bytes:
    """The file with header length, header padding and header digest put right, if a JSON value can be found in it."""
    text = data[8:].decode("latin-1")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return sealed(data)
    return sealed(framed(data[8 : 8 + end], data[8 + end :].lstrip(b" ")))


@dataclass
class RawArtifact:
    """The parts of a file; `build` writes them down, true or not."""

    payloads: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, Any] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)
    config: Any = field(default_factory=lambda: {"hidden_size": 3, "rope_theta": 1e5, "tied_head": True})
    provenance: Any = field(default_factory=lambda: {"source": "hand-made \u00e9"})
    quantization: Any = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Overrides of metadata strings; None removes one."""

    def add(self, name: str, format: str, layout: str, shape: list[int], payload: bytes) -> None:
        start = sum(len(data) + -len(data) % 64 for data in self.payloads.values())
        size = len(payload) + -len(payload) % 64
        self.payloads[name] = payload
        self.entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        self.table[name] = {
            "format": format,
            "layout": layout,
            "shape": shape,
            "nbytes": len(payload),
            "blake2b": digest_of(payload),
        }

    def build(self, edit: Callable[[bytes], bytes] = bytes) -> bytes:
        """The file; `edit` changes the JSON text before it is framed and sealed."""
        metadata = {
            "ninfer.header_blake2b": "0" * 64,
            "ninfer.format_version": "1",
            "ninfer.architecture": "llama",
            "ninfer.config": compact(self.config),
            "ninfer.objects": compact(self.table),
            "ninfer.provenance": compact(self.provenance),
            "ninfer.quantization": compact(self.quantization),
            **self.metadata,
        }
        metadata = {key: value for key, value in metadata.items() if value is not None}
        text = compact({"__metadata__": metadata, **self.entries}).encode()
        payload = b"".join(data + bytes(-len(data) % 64) for data in self.payloads.values())
        return sealed(framed(edit(text), payload))


def small() -> RawArtifact:
    """A vector, a bf16 matrix, a 4-bit matrix and a resource."""
    raw = RawArtifact()
    raw.add("norm", "f32", "row", [3], b"\0\0\x80?" * 3)
    raw.add("embed", "bf16", "n16", [5, 3], bytes(range(128)))
    raw.add("layers.0.q", "q4g32m", "n16", [17, 33], bytes(index % 123 for index in range(2 * (64 + 64 + 512))))
    raw.add("frontend/tokenizer.json", "u8", "row", [5], b'{"a"}')
    return raw
