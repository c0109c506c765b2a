"""Opening a `.ninfer` file: mapped read-only, directory checked, payloads untouched until asked for."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ninfer.artifact import strict_json
from ninfer.artifact.entry import TensorEntry
from ninfer.artifact.header import blake2b
from ninfer.artifact.parse import Header, parse_header
from ninfer.errors import ArtifactError
from ninfer.formats import Planes, layouts
from ninfer.formats.base import Array


def map_file(path: str | os.PathLike[str]) -> mmap.mmap:
    """Map a whole regular, non-empty file read-only; ArtifactError if that is not possible."""
    mapping, fd = _open_mapped(path)
    os.close(fd)
    return mapping


def _open_mapped(path: str | os.PathLike[str]) -> tuple[mmap.mmap, int]:
    """The mapping of a file and a descriptor of the same file, which the caller closes."""
    try:
        # Without O_NONBLOCK the open of a named pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise ArtifactError(f"is {what}; a file is needed", file=path)
            if status.st_size == 0:
                raise ArtifactError("the file is empty", file=path)
            return mmap.mmap(fd, 0, access=mmap.ACCESS_READ), fd
        except BaseException:
            os.close(fd)
            raise
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte, a file that shrank
        raise ArtifactError(f"cannot be read: {error}", file=path) from error


class Artifact:
    """One mapped model file; everything about it is read-only.

    Memory given out by `payload` and `array` stays valid after `close` as long as it is referenced.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, fd: int, header: Header) -> None:
        self._view = memoryview(mapping)
        self._fd = fd
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
        mapping, fd = _open_mapped(path)
        try:
            with memoryview(mapping) as view:
                header = parse_header(view, file=path)
        except BaseException:
            os.close(fd)
            raise
        return cls(Path(path), mapping, fd, header)

    @cached_property
    def weights_digest(self) -> str:
        """BLAKE2b-256 (hex) of the architecture and of names, formats, shapes and payload digests of all weights.

        Drafts name their target by it. Unlike `digest` it does not change with provenance or with a new chat template.
        """
        weights = {name: [entry.format, list(entry.shape), entry.blake2b] for name, entry in self.tensors.items()}
        identity = {"architecture": self.architecture, "weights": weights}
        return blake2b(strict_json.dump(identity, sort_keys=True).encode())

    @property
    def random(self) -> Mapping[str, Any] | None:
        """What random weights were drawn from, None for weights that mean something."""
        source = self.provenance.get("source")
        return source.get("random") if isinstance(source, dict) else None

    def payload(self, name: str) -> memoryview:
        """The bytes of an object without padding: read-only mapped memory, on a 64-byte border of the file."""
        entry = self._entry(name)
        return self._view[entry.offset : entry.offset + entry.nbytes]

    def file_range(self, name: str) -> tuple[int, int]:
        """An object as (descriptor, offset) of the open file, for reads that should leave no page of the mapping in
        memory; valid until `close`."""
        if self._fd < 0:
            raise ArtifactError("was closed", file=self.path)
        return self._fd, self._entry(name).offset

    def read(self, name: str, start: int = 0) -> bytes:
        """A copy of an object's bytes from `start` on, read from the file and not through the mapping: a touched
        mapping keeps up to 2 MiB around each object resident."""
        fd, offset = self.file_range(name)
        nbytes = self._entry(name).nbytes - start
        data = bytearray()
        while len(data) < nbytes:
            part = os.pread(fd, nbytes - len(data), offset + start + len(data))
            if not part:
                raise ArtifactError("the file was cut while it was open", file=self.path, field=name)
            data += part
        return bytes(data)

    def find_resource(self, name: str) -> bytes | None:
        """The content of a `frontend/...` file, None if the artifact has none of that name."""
        return self.resource(name) if name in self.objects else None

    def resource(self, name: str) -> bytes:
        """The content of a `frontend/...` file; ArtifactError if there is none of that name."""
        if not self._entry(name).is_resource:
            raise ArtifactError("is a weight, not a resource", file=self.path, field=name)
        return self.read(name)

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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

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
