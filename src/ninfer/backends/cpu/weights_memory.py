"""Where weights live while a model runs: mapped from the file, or copied once into transparent huge pages.

Decoding reads every weight once per step, so it runs at memory speed, and huge pages read up to 1.5 times as fast as
4 KiB pages (`ninfer bench ceilings`). The file itself cannot be mapped with huge pages on ordinary file systems.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer.backends.base import Matrix
from ninfer.backends.cpu import _native
from ninfer.backends.options import WeightsMemory
from ninfer.errors import ConfigError

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMINFO = Path("/proc/meminfo")

LARGEST_COPY_SHARE = 0.75
"""Of the available memory: weights above it are not copied automatically, because the copy could not be reclaimed, and
while it is made the file competes with it for memory."""


def obstacle_to_copy(
    nbytes: int, *, huge_pages: bool, available_bytes: int | None, share: float = LARGEST_COPY_SHARE
) -> str:
    """Why weights of this size stay mapped when nobody says otherwise; empty if they are copied."""
    if not huge_pages:
        return "this system has no transparent huge pages, so a copy would gain nothing"
    if available_bytes is not None and nbytes > share * available_bytes:
        return f"a copy of the weights would take {nbytes} of {available_bytes} available bytes"
    return ""


def choose_weights_memory(mode: WeightsMemory, nbytes: int) -> str:
    """`huge` or `mapped`. ConfigError if `huge` is asked for and cannot be had.

    Plans have settled `auto` before (`engine.planning`), by the same rule; here it is for those who load without one.
    """
    if mode == "mapped":
        return "mapped"
    share = 1.0 if mode == "huge" else LARGEST_COPY_SHARE
    obstacle = obstacle_to_copy(nbytes, huge_pages=_huge_pages(), available_bytes=available_bytes(), share=share)
    if obstacle and mode == "huge":
        raise ConfigError(f"weights_memory=huge cannot be had: {obstacle}; use auto or mapped")
    return "mapped" if obstacle else "huge"


def _huge_pages() -> bool:
    try:
        return "[never]" not in _THP.read_text(encoding="ascii")
    except OSError:
        return False


def available_bytes() -> int | None:
    """Memory that can be taken without swapping, or None where the system does not say."""
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


class WeightStore:
    """One huge-page region that takes all matrices of a model, each on a 64-byte border."""

    def __init__(self, nbytes: int) -> None:
        self._memory: npt.NDArray[np.uint8] = _native.allocate(nbytes, True)
        self._used = 0

    def hold(self, matrix: Matrix) -> npt.NDArray[np.uint8]:
        """Copy a matrix in; the result stays valid while any such result does."""
        size = matrix.data.size
        place = self._memory[self._used : self._used + size]
        if matrix.source is None:
            place[:] = matrix.data
        else:
            _native.read_into(matrix.source.fd, matrix.source.offset, place)
        self._used += -(-size // 64) * 64
        return place
