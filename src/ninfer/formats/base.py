"""What all weight formats share: the planes of a matrix, the format protocol, and walking a matrix in groups of 32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ninfer.errors import FormatError, InvariantError

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]

GROUP = 32
"""Consecutive elements along K that share one scale, in every grouped weight format (GGUF's block length)."""

BLOCK_ELEMENTS = 1 << 18
"""Elements worked on at a time: 1 MiB of float32, so that temporaries stay small and in cache."""


@dataclass(frozen=True, eq=False)
class Planes:
    """The logical content of a stored matrix `[N, K]`, row-major, whatever its byte layout.

    With `Kp` = K rounded up to the format's group and `G = Kp / 32`:

    | format | codes | scales | mins |
    |---|---|---|---|
    | f32 | float32 `[N, K]` | - | - |
    | bf16 | uint16 `[N, K]`, the upper half of the float32 bits | - | - |
    | q8g32 | int8 `[N, Kp]` | float16 `[N, G]` | - |
    | q4g32 | uint8 `[N, Kp]`, one nibble 0..15 per byte | float16 `[N, G]` | - |
    | q4g32m | uint8 `[N, Kp]`, one nibble 0..15 per byte | float16 `[N, G]` | float16 `[N, G]` |
    """

    shape: tuple[int, int]
    codes: Array
    scales: npt.NDArray[np.float16] | None = None
    mins: npt.NDArray[np.float16] | None = None


class Format(Protocol):
    """The exact meaning of stored codes. Layout, that is the order of the bytes, is another word: `layouts`."""

    name: str
    group: int
    """1, or the number of elements along K that share a scale."""
    codes_dtype: np.dtype[Any]
    has_scales: bool
    has_mins: bool

    def pack(self, x: F32Array) -> Planes:
        """Encode float32 `[N, K]` by the format's canonical rule; FormatError names the first value without a code."""
        ...

    def unpack(self, planes: Planes) -> F64Array:
        """The exact values, float64 `[N, K]`; every format's values are float64 numbers."""
        ...

    def nbytes(self, shape: tuple[int, int]) -> int:
        """Bytes of codes, scales and mins of a `[N, K]` matrix, a partial last group counted whole; no alignment."""
        ...


def padded_width(k: int, group: int) -> int:
    """K rounded up to whole groups."""
    return -(-k // group) * group


def check_matrix(x: Array) -> None:
    """FormatError unless `x` is a non-empty float32 `[N, K]`."""
    if x.ndim != 2 or x.dtype != np.float32 or x.size == 0:
        raise FormatError(f"expected a non-empty float32 matrix [N, K], got {x.dtype} {list(x.shape)}")


def check_planes(planes: Planes, fmt: Format) -> None:
    """FormatError unless the planes have the shapes and dtypes of `fmt` and 4-bit codes are below 16."""
    n, k = planes.shape
    width = padded_width(k, fmt.group)
    wanted: list[tuple[str, Array | None, np.dtype[Any] | None, int]] = [
        ("codes", planes.codes, fmt.codes_dtype, width),
        ("scales", planes.scales, np.dtype(np.float16) if fmt.has_scales else None, width // fmt.group),
        ("mins", planes.mins, np.dtype(np.float16) if fmt.has_mins else None, width // fmt.group),
    ]
    for name, plane, dtype, columns in wanted:
        if dtype is None:
            if plane is not None:
                raise FormatError(f"{fmt.name} has no {name} plane")
        elif plane is None or plane.dtype != dtype or plane.shape != (n, columns):
            seen = "nothing" if plane is None else f"{plane.dtype} {list(plane.shape)}"
            raise FormatError(f"{fmt.name} {name} of {planes.shape} must be {dtype} [{n}, {columns}], got {seen}")
    if fmt.codes_dtype == np.uint8 and int(planes.codes.max(initial=0)) > 15:
        raise FormatError(f"{fmt.name} codes must be nibbles 0..15, got {int(planes.codes.max())}")


def per_group(plane: npt.NDArray[np.float16] | None) -> F64Array:
    """Scales or mins of checked planes as float64 `[N, G, 1]`, to go with codes `[N, G, 32]`."""
    if plane is None:
        raise InvariantError("planes without scales or mins were used as a grouped format's")
    return plane.astype(np.float64)[..., None]


def row_blocks(n: int, width: int, multiple: int = 1) -> Iterator[slice]:
    """Consecutive row ranges of about BLOCK_ELEMENTS elements, each but the last a multiple of `multiple` rows."""
    rows = max(BLOCK_ELEMENTS // max(width, 1) // multiple, 1) * multiple
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def group_blocks(x: F32Array, *, repeat_last: bool = False) -> Iterator[tuple[slice, F32Array]]:
    """Yield (rows, float32 `[rows, G, 32]`) over a matrix `[N, K]`.

    A partial last group is completed with zeros, or with the row's last value (`repeat_last`), which changes neither
    the smallest nor the largest of the group.
    """
    n, k = x.shape
    width = padded_width(k, GROUP)
    for rows in row_blocks(n, width):
        block = x[rows]
        if width != k:
            block = np.pad(block, ((0, 0), (0, width - k)), mode="edge" if repeat_last else "constant")
        yield rows, np.ascontiguousarray(block).reshape(block.shape[0], width // GROUP, GROUP)


def to_float16(values: F32Array, rows: slice, what: str) -> npt.NDArray[np.float16]:
    """Round `[rows, G]` to float16 (nearest, ties to even); FormatError for NaN, infinity or beyond float16's range."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    finite = np.isfinite(halves)
    if not finite.all():
        row, group = (int(i) for i in np.argwhere(~finite)[0])
        value = float(values[row, group])
        raise FormatError(f"{what} {value!r} of row {rows.start + row}, group {group} is not a finite float16")
    return halves


def reciprocal(values: F32Array) -> F32Array:
    """1 / values in float32; 0 where that is not a finite number (zero, or a subnormal below 2^-128)."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / values
    inverse[~np.isfinite(inverse)] = 0
    return inverse
