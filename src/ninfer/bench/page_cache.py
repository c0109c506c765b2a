"""Whether a file's bytes are in the page cache, and how to make them so or not: what makes a load cold or warm."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from ninfer.errors import BackendError


def resident_bytes(path: Path) -> int:
    """Bytes of `path` that lie in the page cache, counted in whole pages by mincore(2).

    Raises BackendError where the kernel refuses to say (since Linux 5.2 it tells only owners of a file).
    """
    size = path.stat().st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    # A private writable mapping, because ctypes takes addresses of writable buffers only; nothing is written.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        start = ctypes.c_char.from_buffer(mapping)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), flags)
        error = ctypes.get_errno()
        del start  # or the mapping could not be closed
    if failed:
        raise BackendError(f"the kernel does not say what is cached of {path}: {os.strerror(error)}")
    return min(size, sum(flag & 1 for flag in flags) * mmap.PAGESIZE)


def drop(path: Path) -> None:
    """Ask the kernel to drop the file's clean pages; pages that some process has mapped stay, so check afterwards."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path: Path) -> None:
    """Read the file once, so that it lies in the page cache."""
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass
