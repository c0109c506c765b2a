"""The directory at the start of a `.ninfer` file: its bytes, its digest, how to write it.

A `.ninfer` file is a valid safetensors file:

    u64 little-endian: bytes of the JSON text that follows, spaces at its end included
    JSON text, completed with spaces so that what follows starts on a 64-byte border
    payloads in the order of the directory, each completed with zero bytes to a multiple of 64

The text starts with these characters, always:

    {"__metadata__":{"ninfer.header_blake2b":"<64 hex digits>",

and then holds, as safetensors wants it, the other metadata strings and one entry per object with dtype U8, the padded
size as shape, and `data_offsets` counted from the first payload:

| metadata key | string |
|---|---|
| `ninfer.header_blake2b` | BLAKE2b-256 of everything before the payloads, with 64 zeros in place of these digits |
| `ninfer.format_version` | `1` |
| `ninfer.architecture` | model family, for example `llama` |
| `ninfer.config` | JSON object: the family's configuration in our own names |
| `ninfer.objects` | JSON object: name to `{format, layout, shape, nbytes, blake2b}`, `nbytes` without padding |
| `ninfer.provenance` | JSON object: what the file was made from, by what |
| `ninfer.quantization` | JSON object: report of what conversion changed in the weights |

The header digest covers every header byte, among them the digests of the payloads; padding must be zero. So no bit of
the file can change unnoticed, and the header digest identifies the whole content: it is the artifact's digest.
"""

from __future__ import annotations

# Not from hashlib, which loads OpenSSL: 3.4 MB and some milliseconds of every start, for digests it does not compute.
from _blake2 import blake2b as _blake2b
from collections.abc import Iterable, Mapping
from typing import Any

from ninfer.artifact import strict_json
from ninfer.artifact.entry import TensorEntry
from ninfer.formats.layouts import align

FORMAT_VERSION = "1"
MAX_HEADER_BYTES = 8 << 20
"""Bound of the JSON text; a model of a thousand tensors needs about half a megabyte."""

METADATA = "__metadata__"
DIGEST_KEY = "ninfer.header_blake2b"
VERSION_KEY = "ninfer.format_version"
ARCHITECTURE_KEY = "ninfer.architecture"
CONFIG_KEY = "ninfer.config"
OBJECTS_KEY = "ninfer.objects"
PROVENANCE_KEY = "ninfer.provenance"
QUANTIZATION_KEY = "ninfer.quantization"
METADATA_KEYS = (
    DIGEST_KEY,
    VERSION_KEY,
    ARCHITECTURE_KEY,
    CONFIG_KEY,
    OBJECTS_KEY,
    PROVENANCE_KEY,
    QUANTIZATION_KEY,
)

LENGTH_BYTES = 8
OPENING = f'{{"{METADATA}":{{"{DIGEST_KEY}":"'.encode()
_DIGEST_START = LENGTH_BYTES + len(OPENING)
_DIGEST_STOP = _DIGEST_START + 64
_BLANK_DIGEST = "0" * 64


def blake2b(data: bytes | memoryview) -> str:
    """BLAKE2b-256, hex."""
    return _blake2b(data, digest_size=32).hexdigest()


def header_digest(region: bytes) -> str:
    """The digest of a header, from all bytes before the payloads; the digits inside do not matter."""
    digest = _blake2b(region[:_DIGEST_START], digest_size=32)
    digest.update(_BLANK_DIGEST.encode())
    digest.update(region[_DIGEST_STOP:])
    return digest.hexdigest()


def sealed(region: bytes) -> bytes:
    """The header with its digest put in place."""
    return region[:_DIGEST_START] + header_digest(region).encode() + region[_DIGEST_STOP:]


def encode_header(
    architecture: str,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    quantization: Mapping[str, Any],
    objects: Iterable[TensorEntry],
) -> bytes:
    """All bytes before the payloads, for payloads that follow in the order of `objects`; their `offset` is not used."""
    table: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    position = 0
    for entry in objects:
        table[entry.name] = {
            "format": entry.format,
            "layout": entry.layout,
            "shape": list(entry.shape),
            "nbytes": entry.nbytes,
            "blake2b": entry.blake2b,
        }
        end = position + entry.padded_nbytes
        entries[entry.name] = {"dtype": "U8", "shape": [entry.padded_nbytes], "data_offsets": [position, end]}
        position = end
    metadata = {
        DIGEST_KEY: _BLANK_DIGEST,
        VERSION_KEY: FORMAT_VERSION,
        ARCHITECTURE_KEY: architecture,
        CONFIG_KEY: strict_json.dump(config, sort_keys=True),
        OBJECTS_KEY: strict_json.dump(table, sort_keys=False),
        PROVENANCE_KEY: strict_json.dump(provenance, sort_keys=True),
        QUANTIZATION_KEY: strict_json.dump(quantization, sort_keys=True),
    }
    text = strict_json.dump({METADATA: metadata, **entries}, sort_keys=False).encode()
    length = align(LENGTH_BYTES + len(text)) - LENGTH_BYTES
    return sealed(length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length))
