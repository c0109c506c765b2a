"""Owns: how numbers are stored: exact pack, unpack and size of every weight and KV format, and their byte layouts.
Does not own: files, kernels.
Read first: q4g32m.py, then layouts.py.
"""

from __future__ import annotations

from ninfer.errors import UnsupportedError
from ninfer.formats.base import Format, Planes
from ninfer.formats.bf16 import BF16
from ninfer.formats.f32 import F32
from ninfer.formats.q4g32 import Q4G32
from ninfer.formats.q4g32m import Q4G32M
from ninfer.formats.q8g32 import Q8G32

__all__ = ["NAMES", "Format", "Planes", "get"]

_FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (F32(), BF16(), Q8G32(), Q4G32(), Q4G32M())}

NAMES: tuple[str, ...] = tuple(_FORMATS)
"""Every weight format; KV formats are codecs of their own (`kv_bf16`, `kv_int8`)."""


def get(name: str) -> Format:
    """The weight format called `name`; UnsupportedError lists the known names."""
    try:
        return _FORMATS[name]
    except KeyError:
        raise UnsupportedError(f"weight format {name!r} is not supported; known: {', '.join(NAMES)}") from None
