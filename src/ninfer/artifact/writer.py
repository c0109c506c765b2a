"""Writing a `.ninfer` file: objects stream in one by one, the file appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from ninfer.artifact.entry import MAX_OBJECTS, RESOURCE_FORMAT, TensorEntry, storage_problem
from ninfer.artifact.header import LENGTH_BYTES, MAX_HEADER_BYTES, blake2b, encode_header
from ninfer.errors import ArtifactError, InvariantError
from ninfer.formats import Planes, layouts
from ninfer.formats.base import Array

_COPY_BYTES = 8 << 20


class ArtifactWriter:
    """Collects objects in the order of the calls and writes the file at `finish`; equal calls give equal bytes.

    Payloads go to an unnamed spool file next to the target, because the header in front of them holds their digests;
    so memory is bounded by one object, and disk space by twice the file. Use as a context manager: leaving without
    `finish` leaves nothing behind. ArtifactError for what cannot be stored or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        architecture: str,
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
    ) -> None:
        self.path = Path(path)
        self._architecture = architecture
        self._config = config
        self._provenance = provenance
        self._objects: dict[str, TensorEntry] = {}
        self._spool = self._make_spool()

    def add(
        self, name: str, format: str, layout: str, shape: Sequence[int], data: bytes | bytearray | memoryview | Array
    ) -> TensorEntry:
        """Append one object whose stored bytes, padding not included, are those of `data`."""
        view = np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else memoryview(data)
        view = view.cast("B")
        entry = TensorEntry(
            name=name,
            format=format,
            layout=layout,
            shape=tuple(shape),
            offset=0,
            nbytes=len(view),
            padded_nbytes=layouts.align(len(view)),
            blake2b=blake2b(view),
        )
        problem = storage_problem(name, format, layout, entry.shape, entry.nbytes, entry.blake2b)
        if problem is not None:
            raise ArtifactError(problem[1], file=self.path, field=f"{name}.{problem[0]}")
        if name in self._objects:
            raise ArtifactError("added twice", file=self.path, field=name)
        if len(self._objects) == MAX_OBJECTS:
            raise ArtifactError(f"more than {MAX_OBJECTS} objects", file=self.path, field=name)
        try:
            self._spool.write(view)
            self._spool.write(bytes(entry.padded_nbytes - entry.nbytes))
        except OSError as error:
            raise ArtifactError(f"cannot be written: {error}", file=self.path, field=name) from error
        self._objects[name] = entry
        return entry

    def add_matrix(self, name: str, format: str, planes: Planes) -> TensorEntry:
        """Append a weight `[N, K]` in the layout kernels read."""
        return self.add(name, format, "n16", planes.shape, layouts.to_n16(planes, format))

    def add_vector(self, name: str, values: Array) -> TensorEntry:
        """Append float32 values of any shape as `f32` in layout `row`."""
        if values.dtype != np.float32:
            raise InvariantError(f"{name}: expected float32, got {values.dtype}")
        return self.add(name, "f32", "row", values.shape, layouts.to_row(values))

    def add_resource(self, name: str, content: bytes) -> TensorEntry:
        """Append a file of the frontend; `name` is its path under `frontend/`, the prefix included."""
        return self.add(name, RESOURCE_FORMAT, "row", (len(content),), content)

    def finish(self, quantization: Mapping[str, Any] | None = None) -> Path:
        """Write header and payloads, flush them to the disk, and only then give the file its name."""
        header = encode_header(
            self._architecture, self._config, self._provenance, quantization or {}, self._objects.values()
        )
        if len(header) > LENGTH_BYTES + MAX_HEADER_BYTES:
            raise ArtifactError(f"{len(header)} bytes, at most {MAX_HEADER_BYTES}", file=self.path, field="header")
        temporary = _unused_name(self.path)
        try:
            try:
                with open(temporary, "xb") as file:
                    file.write(header)
                    self._spool.seek(0)
                    while chunk := self._spool.read(_COPY_BYTES):
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.path)
                _sync_directory(self.path.parent)
            finally:
                temporary.unlink(missing_ok=True)
                self.close()
        except OSError as error:
            raise ArtifactError(f"cannot be written: {error}", file=self.path) from error
        return self.path

    def close(self) -> None:
        """Drop the spooled payloads; the writer is of no use afterwards."""
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_spool(self) -> BinaryIO:
        """A file without a name, so that no way to end leaves it behind."""
        name = _unused_name(self.path)
        try:
            spool = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
            name.unlink()
        except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
            raise ArtifactError(f"cannot be written: {error}", file=self.path) from error
        return spool


def _unused_name(path: Path) -> Path:
    """A hidden name next to `path`: the same file system, so that a rename is atomic."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def _sync_directory(directory: Path) -> None:
    """Make a rename in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
