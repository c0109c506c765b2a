"""From the bytes of a file to a checked directory. Nothing here trusts the file; every refusal is an ArtifactError."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ninfer.artifact import strict_json
from ninfer.artifact.entry import MAX_OBJECTS, TensorEntry, storage_problem
from ninfer.artifact.header import (
    ARCHITECTURE_KEY,
    CONFIG_KEY,
    DIGEST_KEY,
    FORMAT_VERSION,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
    METADATA_KEYS,
    OBJECTS_KEY,
    OPENING,
    PROVENANCE_KEY,
    QUANTIZATION_KEY,
    VERSION_KEY,
    header_digest,
)
from ninfer.errors import ArtifactError
from ninfer.formats.layouts import ALIGNMENT, align

_CPP_MAGIC = b"NINFER\0"
_CPP_VERSIONS = (1, 2, 3)
_GGUF_MAGIC = b"GGUF"
_ARCHITECTURE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_OBJECT_KEYS = {"format", "layout", "shape", "nbytes", "blake2b"}


@dataclass(frozen=True)
class Header:
    """The checked directory of one file; `objects` is in file order."""

    architecture: str
    config: dict[str, Any]
    objects: dict[str, TensorEntry]
    provenance: dict[str, Any]
    quantization: dict[str, Any]
    digest: str
    nbytes: int
    """Bytes before the first payload."""


def parse_header(data: memoryview, *, file: object) -> Header:
    """Check the directory of the file whose bytes are `data`; payload bytes are not read.

    After this, every object lies inside the file on a 64-byte border, overlaps no other and has exactly the bytes that
    its format, layout and shape need; objects fill the file without holes; the header is what its writer wrote.
    """
    region = _header_region(data, file)
    root = strict_json.parse_object(region[LENGTH_BYTES:], file=file, field="header")
    metadata = _metadata(root.pop(METADATA, None), file)
    table = strict_json.parse_object(metadata[OBJECTS_KEY], file=file, field=OBJECTS_KEY)
    objects = _objects(root, table, len(region), file)
    _check_placement(objects, len(region), len(data), file)
    if not _ARCHITECTURE.fullmatch(metadata[ARCHITECTURE_KEY]):
        raise ArtifactError(f"not a family name: {metadata[ARCHITECTURE_KEY]!r:.80}", file=file, field=ARCHITECTURE_KEY)
    documents = {
        key: strict_json.parse_object(metadata[key], file=file, field=key)
        for key in (CONFIG_KEY, PROVENANCE_KEY, QUANTIZATION_KEY)
    }
    digest = metadata[DIGEST_KEY]
    if not region.startswith(OPENING, LENGTH_BYTES) or digest != header_digest(region):
        raise ArtifactError("the header is not what its writer wrote (digest differs)", file=file, field=DIGEST_KEY)
    return Header(
        architecture=metadata[ARCHITECTURE_KEY],
        config=documents[CONFIG_KEY],
        objects=objects,
        provenance=documents[PROVENANCE_KEY],
        quantization=documents[QUANTIZATION_KEY],
        digest=digest,
        nbytes=len(region),
    )


def _shown(name: str) -> str:
    """A key of the file as an error message may show it: on one line, not endless."""
    return name if len(name) <= 200 and name.isprintable() else repr(name[:200])


def _header_region(data: memoryview, file: object) -> bytes:
    """All bytes before the payloads, after the checks that need no JSON."""
    start = bytes(data[:LENGTH_BYTES])
    if start.startswith(_CPP_MAGIC) and len(start) == LENGTH_BYTES:
        version = start[-1]
        known = "" if version in _CPP_VERSIONS else ", which we do not know"
        raise ArtifactError(
            f"this is a .ninfer file of the C++ NInfer, container version {version}{known}; it must be converted: "
            "run `ninfer convert` on the checkpoint it was made from",
            file=file,
            field="magic",
        )
    if start.startswith(_GGUF_MAGIC):
        raise ArtifactError("this is a GGUF file; run `ninfer convert` on it first", file=file, field="magic")
    if len(start) < LENGTH_BYTES:
        raise ArtifactError(f"not a .ninfer file: only {len(start)} bytes", file=file, field="header length")
    length = int.from_bytes(start, "little")
    if not len(OPENING) <= length <= MAX_HEADER_BYTES:
        allowed = f"{len(OPENING)} to {MAX_HEADER_BYTES}"
        raise ArtifactError(f"not a .ninfer file: {length}, allowed are {allowed}", file=file, field="header length")
    end = LENGTH_BYTES + length
    if end > len(data):
        raise ArtifactError(f"truncated: needs {end} bytes, has {len(data)}", file=file, field="header")
    if data[LENGTH_BYTES] != ord("{"):
        raise ArtifactError("not a .ninfer file: no JSON object", file=file, field="header")
    return bytes(data[:end])


def _metadata(metadata: object, file: object) -> dict[str, str]:
    """The metadata strings: exactly ours, of our version."""
    if not isinstance(metadata, dict) or VERSION_KEY not in metadata:
        raise ArtifactError(
            "this is a safetensors file without NInfer metadata; run `ninfer convert` on its checkpoint",
            file=file,
            field=METADATA,
        )
    version = metadata[VERSION_KEY]
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"written in version {version!r:.80}, this program reads {FORMAT_VERSION!r}", file=file, field=VERSION_KEY
        )
    for key in METADATA_KEYS:
        if not isinstance(metadata.get(key), str):
            raise ArtifactError(f"must be a string, got {metadata.get(key)!r:.80}", file=file, field=key)
    for key in metadata:
        if key not in METADATA_KEYS:
            raise ArtifactError("unknown metadata key", file=file, field=_shown(key))
    return metadata


def _objects(root: dict[str, Any], table: dict[str, Any], data_start: int, file: object) -> dict[str, TensorEntry]:
    """Join the safetensors entries with our table; sorted by place in the file."""
    if len(root) > MAX_OBJECTS:
        raise ArtifactError(f"{len(root)} objects, at most {MAX_OBJECTS} are allowed", file=file, field="header")
    if root.keys() != table.keys():
        name = min(root.keys() ^ table.keys())
        place = "the header" if name in root else OBJECTS_KEY
        raise ArtifactError(f"object is only in {place}", file=file, field=_shown(name))
    entries = []
    for name, place in root.items():
        begin, end = _range(name, place, file)
        stored = table[name]
        if not isinstance(stored, dict) or stored.keys() != _OBJECT_KEYS:
            wanted = ", ".join(sorted(_OBJECT_KEYS))
            raise ArtifactError(f"must have exactly {wanted}", file=file, field=f"{OBJECTS_KEY}: {_shown(name)}")
        problem = storage_problem(name, **stored)
        if problem is not None:
            field, complaint = problem
            raise ArtifactError(complaint, file=file, field=f"{_shown(name)}.{field}")
        if end - begin != align(stored["nbytes"]):
            message = (
                f"range of {end - begin} bytes, expected {stored['nbytes']} rounded up to a multiple of {ALIGNMENT}"
            )
            raise ArtifactError(message, file=file, field=f"{name}.data_offsets")
        entries.append(
            TensorEntry(
                name=name,
                format=stored["format"],
                layout=stored["layout"],
                shape=tuple(stored["shape"]),
                offset=data_start + begin,
                nbytes=stored["nbytes"],
                padded_nbytes=end - begin,
                blake2b=stored["blake2b"],
            )
        )
    entries.sort(key=lambda entry: entry.offset)
    return {entry.name: entry for entry in entries}


def _range(name: str, place: object, file: object) -> tuple[int, int]:
    """(begin, end) of a safetensors entry, relative to the first payload."""
    if not isinstance(place, dict) or place.keys() != _ENTRY_KEYS or place["dtype"] != "U8":
        raise ArtifactError("must be a U8 tensor with dtype, shape, data_offsets", file=file, field=_shown(name))
    offsets = place["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(value) is int for value in offsets):
        raise ArtifactError(
            f"must be two integers, got {offsets!r:.80}", file=file, field=f"{_shown(name)}.data_offsets"
        )
    begin, end = offsets
    if not 0 <= begin < end:
        raise ArtifactError(f"[{begin}, {end}] is not a range", file=file, field=f"{_shown(name)}.data_offsets")
    shape = place["shape"]
    if shape != [end - begin] or type(shape[0]) is not int:
        raise ArtifactError(f"must be [{end - begin}], got {shape!r:.80}", file=file, field=f"{_shown(name)}.shape")
    return begin, end


def _check_placement(objects: dict[str, TensorEntry], data_start: int, file_bytes: int, file: object) -> None:
    """Objects, in file order, follow each other without overlap or hole, on 64-byte borders, to the end of the file."""
    if data_start % ALIGNMENT:
        raise ArtifactError(f"payloads start at byte {data_start}, not at a multiple of 64", file=file, field="header")
    position = data_start
    for entry in objects.values():
        field = f"{entry.name}.data_offsets"
        if entry.offset % ALIGNMENT:
            raise ArtifactError(f"starts at byte {entry.offset}, not at a multiple of 64", file=file, field=field)
        if entry.offset != position:
            word = "overlaps the object before it" if entry.offset < position else "leaves a hole before it"
            raise ArtifactError(
                f"starts at byte {entry.offset}, {word}, which ends at {position}", file=file, field=field
            )
        position += entry.padded_nbytes
        if position > file_bytes:
            message = f"truncated: the object ends at byte {position}, the file at {file_bytes}"
            raise ArtifactError(message, file=file, field=field)
    if position != file_bytes:
        raise ArtifactError(f"{file_bytes - position} bytes behind the last object", file=file, field="file size")
