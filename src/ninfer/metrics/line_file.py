"""A file of lines that is only appended to; each line is whole or absent, also after `kill -9`."""

from __future__ import annotations

import os
from pathlib import Path

_STEP_BYTES = 65536


class LineFile:
    """A line is one write(2) to a file opened for appending, so lines of one process never mix and a killed process
    leaves no part of one behind, but for a page-sized part in the rarest case: opening removes a line without an end.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens or creates `path`; OSError when it cannot be appended to."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _remove_cut_line(self._descriptor)
        except OSError:
            os.close(self._descriptor)
            raise

    def append(self, line: bytes) -> None:
        """Add `line` and its end. OSError when it could not be written whole; then nothing of it stays."""
        size = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, line + b"\n")
        if written != len(line) + 1:
            os.ftruncate(self._descriptor, size)
            raise OSError(28, "the disk is full")

    def sync(self) -> None:
        """Wait until everything appended is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def whole_lines(path: Path) -> list[bytes]:
    """The lines of such a file without their ends; a last line without an end is none."""
    return path.read_bytes().split(b"\n")[:-1]


def _remove_cut_line(descriptor: int) -> None:
    """Cut the file after its last newline."""
    if not os.path.isfile(f"/proc/self/fd/{descriptor}") or os.fstat(descriptor).st_size == 0:
        return
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _STEP_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(descriptor, end)
