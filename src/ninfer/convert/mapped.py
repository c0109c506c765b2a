"""Tensors inside a mapped source file, whatever container describes them."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from ninfer.convert.gguf.types import TensorType
from ninfer.errors import ArtifactError

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major (slowest axis first); `offset` is absolute in its file."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one innermost row; a scalar is a row of one."""
        width = self.shape[-1] if self.shape else 1
        return width // self.type.block_elems * self.type.block_bytes


class MappedFile:
    """A regular file mapped read-only. Views stay valid after `close`; the map goes with the last of them."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactError if `path` is no regular file, cannot be read or is empty."""
        self.path = path
        self.data = _map(path)
        self._bytes: Rows = np.frombuffer(self.data, dtype=np.uint8)

    @property
    def size(self) -> int:
        return len(self.data)

    def rows(self, info: TensorInfo) -> Rows:
        """Stored bytes of a tensor as a read-only uint8 [rows, row_bytes] view of the map."""
        return self._bytes[info.offset : info.offset + info.nbytes].reshape(-1, info.row_bytes)

    def drop_pages(self, info: TensorInfo) -> None:
        """Let the system forget a tensor's pages that were read, so that memory in use follows the largest tensor."""
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        self.data.madvise(mmap.MADV_DONTNEED, start, info.offset + info.nbytes - start)

    def close(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        with suppress(BufferError):  # a view is still held somewhere
            self.data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class SourceTensor:
    """A tensor together with the file that holds it."""

    file: MappedFile
    info: TensorInfo

    def rows(self) -> Rows:
        """Stored bytes as a read-only uint8 [rows, row_bytes] view; leading axes are merged."""
        return self.file.rows(self.info)

    def drop_pages(self) -> None:
        self.file.drop_pages(self.info)


def _map(path: Path) -> mmap.mmap:
    try:
        # Non-blocking, so that a named pipe is refused below instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(f"cannot be opened: {error.strerror}", file=path) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError("not a regular file", file=path)
        if status.st_size == 0:
            raise ArtifactError("the file is empty", file=path)
        return mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
