"""Owns: how numbers are stored: exact pack, unpack and size of every weight and KV format, and their byte layouts.
Does not own: files, kernels.
Read first: q4g32m.py, then layouts.py.
"""

from __future__ import annotations

from ninfer.errors import UnsupportedError
from ninfer.formats.base import Format, Planes, TensorScale
from ninfer.formats.bf16 import BF16
from ninfer.formats.f32 import F32
from ninfer.formats.fp8 import FP8
from ninfer.formats.g64 import Q4G64, Q5G64, Q6G64
from ninfer.formats.nvfp4 import NVFP4
from ninfer.formats.q4g32 import Q4G32
from ninfer.formats.q4g32m import Q4G32M
from ninfer.formats.q8g32 import Q8G32

__all__ = ["NAMES", "Format", "Planes", "TensorScale", "get"]

_ALL: tuple[Format, ...] = (
    F32(),
    BF16(),
    Q8G32(),
    Q4G32(),
    Q4G32M(),
    Q4G64(),
    Q5G64(),
    Q6G64(),
    NVFP4(),
    FP8(),
)
_FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in _ALL}

NAMES: tuple[str, ...] = tuple(_FORMATS)
"""Every weight format; KV formats are codecs of their own (`kv_bf16`, `kv_int8`)."""


def get(name: str) -> Format:
    """The weight format called `name`; UnsupportedError lists the known names."""
    try:
        return _FORMATS[name]
    except KeyError:
        raise UnsupportedError(f"weight format {name!r} is not supported; known: {', '.join(NAMES)}") from None
