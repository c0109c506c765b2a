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
from ninfer.errors import ConfigError

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMINFO = Path("/proc/meminfo")
_LARGEST_SHARE = 0.8  # of the memory that is available now; the rest is left to caches and other programs


def choose_weights_memory(mode: str, nbytes: int) -> tuple[str, str]:
    """(`huge` or `mapped`, why). ConfigError if `huge` is asked for and cannot be had."""
    if mode == "mapped":
        return "mapped", "asked for"
    obstacle = _obstacle(nbytes)
    if mode == "huge":
        if obstacle:
            raise ConfigError(f"weights_memory=huge cannot be had: {obstacle}; use auto or mapped")
        return "huge", "asked for"
    if mode != "auto":
        raise ConfigError(f"weights_memory is {mode!r}; it is one of auto, huge, mapped")
    if obstacle:
        return "mapped", obstacle
    return "huge", "huge pages are available and the weights fit"


def _obstacle(nbytes: int) -> str:
    try:
        enabled = _THP.read_text(encoding="ascii")
    except OSError:
        return "this system has no transparent huge pages"
    if "[never]" in enabled:
        return "transparent huge pages are switched off"
    available = available_bytes()
    if available is not None and nbytes > available * _LARGEST_SHARE:
        return f"{nbytes} bytes of weights are over {_LARGEST_SHARE:.0%} of the {available} available"
    return ""


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
