"""Opening a `.ninfer` file: mapped read-only, directory checked, payloads untouched until asked for."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from ninfer.artifact.entry import TensorEntry
from ninfer.artifact.parse import Header, parse_header
from ninfer.errors import ArtifactError
from ninfer.formats import Planes, layouts
from ninfer.formats.base import Array


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """Map a whole regular, non-empty file read-only; ArtifactError if that is not possible."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError("not a regular file", file=path)
            if status.st_size == 0:
                raise ArtifactError("the file is empty", file=path)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte, a file that shrank
        raise ArtifactError(f"cannot be read: {error}", file=path) from error


class Artifact:
    """One mapped model file; everything about it is read-only.

    Memory given out by `payload` and `array` stays valid after `close` as long as it is referenced.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header) -> None:
        self._view = memoryview(mapping)
        self.path = path
        self.file_bytes = len(mapping)
        self.header_bytes = header.nbytes
        self.architecture = header.architecture
        self.config = header.config
        self.provenance = header.provenance
        self.quantization = header.quantization
        self.digest = header.digest
        """Identifies the whole content: the header digest, which covers the digests of all payloads."""
        self.objects: Mapping[str, TensorEntry] = MappingProxyType(header.objects)
        """Weights and resources, in file order."""
        self.tensors: Mapping[str, TensorEntry] = MappingProxyType(
            {name: entry for name, entry in header.objects.items() if not entry.is_resource}
        )
        """The weights alone, in file order."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Map the file and check its header (`parse_header` says what); payload digests are `verify`'s work."""
        mapping = map_file(path)
        with memoryview(mapping) as view:
            header = parse_header(view, file=path)
        return cls(Path(path), mapping, header)

    def payload(self, name: str) -> memoryview:
        """The bytes of an object without padding: read-only mapped memory, on a 64-byte border of the file."""
        entry = self._entry(name)
        return self._view[entry.offset : entry.offset + entry.nbytes]

    def find_resource(self, name: str) -> bytes | None:
        """The content of a `frontend/...` file, None if the artifact has none of that name."""
        return self.resource(name) if name in self.objects else None

    def resource(self, name: str) -> bytes:
        """The content of a `frontend/...` file; ArtifactError if there is none of that name."""
        if not self._entry(name).is_resource:
            raise ArtifactError("is a weight, not a resource", file=self.path, field=name)
        return bytes(self.payload(name))

    def array(self, name: str) -> Array:
        """An object in layout `row` as a read-only array of its shape, nothing copied (bf16: uint16 bits)."""
        entry = self._entry(name)
        if entry.layout != "row":
            raise ArtifactError(f"has layout {entry.layout!r}, 'row' is needed", file=self.path, field=name)
        return layouts.from_row(self.payload(name), entry.shape, entry.format)

    def planes(self, name: str) -> Planes:
        """A weight's logical content; a tensor in layout `row` counts as `[leading sizes multiplied, last size]`."""
        entry = self._entry(name)
        if entry.is_resource:
            raise ArtifactError("is a resource, not a weight", file=self.path, field=name)
        if entry.layout == "n16":
            return layouts.from_n16(self.payload(name), (entry.shape[0], entry.shape[1]), entry.format)
        codes = self.array(name).reshape(-1, entry.shape[-1])
        return Planes((codes.shape[0], codes.shape[1]), codes)

    def close(self) -> None:
        """Give the mapping up; it goes away with the last array or memoryview made from it. Later reads fail."""
        self._view.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entry(self, name: str) -> TensorEntry:
        entry = self.objects.get(name)
        if entry is None:
            raise ArtifactError("missing from this file", file=self.path, field=name)
        return entry
