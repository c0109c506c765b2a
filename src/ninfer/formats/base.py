"""What all weight formats share: the planes of a matrix, the format protocol, and walking a matrix in groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ninfer.errors import FormatError, InvariantError

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]

GROUP = 32
"""Consecutive elements along K that share one scale in q8g32, q4g32 and q4g32m (GGUF's block length)."""

WHOLE_ROW = 0
"""As a format's `group`: all elements of a row share one scale."""

BLOCK_ELEMENTS = 1 << 18
"""Elements worked on at a time: 1 MiB of float32, so that temporaries stay small and in cache."""

LARGEST_FACTOR = 2.0**100
"""Of a tensor scale, and its inverse the smallest: far beyond any weight, and no product with an E4M3 scale leaves the
normal float32 numbers."""


@dataclass(frozen=True)
class TensorScale:
    """What a format with two levels of scales (nvfp4) holds once for a whole tensor.

    factor: a float64 that multiplies every group scale: `eff = float32(scale * factor)`. Files give either a float32
    divisor g or a float32 multiplier m. float64(1 / g) and m itself are factors with which this one formula gives
    exactly `float32(scale / g)` and `float32(scale * m)`: the E4M3 scale s has 4 significant bits and g 24, so s / g
    keeps 2^-53 of its size away from every border between two float32 numbers, and s * m fits a float64.
    input_scale: a float32 that activations are multiplied by before they become NVFP4 (`ops.nvfp4_rows`), or None for
    a weight that must not meet such activations.
    FormatError for a number outside 2^-100 .. 2^100.
    """

    factor: float
    input_scale: float | None = None

    def __post_init__(self) -> None:
        _check_range("tensor scale factor", self.factor)
        if self.input_scale is not None:
            _check_range("input scale", self.input_scale)
            _check_float32("input scale", self.input_scale)

    @classmethod
    def of_divisor(cls, divisor: float, input_scale: float | None = None) -> TensorScale:
        """The scale that divides group scales by the float32 `divisor`."""
        _check_range("tensor scale divisor", divisor)
        _check_float32("tensor scale divisor", divisor)
        return cls(1.0 / divisor, input_scale)


def _check_range(name: str, value: float) -> None:
    if not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:  # also refuses NaN
        raise FormatError(f"{name} {value!r} must be from 2^-100 to 2^100")


def _check_float32(name: str, value: float) -> None:
    if float(np.float32(value)) != value:
        raise FormatError(f"{name} {value!r} is no float32 number")


@dataclass(frozen=True, eq=False)
class Planes:
    """The logical content of a stored matrix `[N, K]`, row-major, whatever its byte layout.

    With `Kp` = K rounded up to the format's `pad`:

    | format | codes | scales | mins |
    |---|---|---|---|
    | f32 | float32 `[N, K]` | - | - |
    | bf16 | uint16 `[N, K]`, the upper half of the float32 bits | - | - |
    | q8g32 | int8 `[N, Kp]` | float16 `[N, Kp / 32]` | - |
    | q4g32 | uint8 `[N, Kp]`, 0..15 around 8 | float16 `[N, Kp / 32]` | - |
    | q4g32m | uint8 `[N, Kp]`, 0..15 | float16 `[N, Kp / 32]` | float16 `[N, Kp / 32]` |
    | q4g64 | uint8 `[N, Kp]`, 0..15 around 8 | float16 `[N, Kp / 64]` | - |
    | q5g64 | uint8 `[N, Kp]`, 0..31 around 16 | float16 `[N, Kp / 64]` | - |
    | q6g64 | uint8 `[N, Kp]`, 0..63 around 32 | float16 `[N, Kp / 64]` | - |
    | nvfp4 | uint8 `[N, Kp]`, E2M1 codes 0..15 | uint8 `[N, Kp / 16]`, E4M3 codes | - |
    | fp8 | uint8 `[N, Kp]`, E4M3 codes | float32 `[N, 1]` | - |

    tensor: of nvfp4 alone.
    """

    shape: tuple[int, int]
    codes: Array
    scales: Array | None = None
    mins: npt.NDArray[np.float16] | None = None
    tensor: TensorScale | None = None

    @property
    def all_scales(self) -> list[Array]:
        """Scales and mins, where there are any."""
        return [plane for plane in (self.scales, self.mins) if plane is not None]


class Format(ABC):
    """The exact meaning of stored codes. Layout, that is the order of the bytes, is another word: `layouts`."""

    name: ClassVar[str]
    codes_dtype: ClassVar[np.dtype[Any]]
    code_bits: ClassVar[int]
    """Bits of a code; where `codes_dtype` is wider, codes are below `2^code_bits`."""
    zero_code: ClassVar[int] = 0
    """The code that decodes to 0 where there is no minimum."""
    group: ClassVar[int] = 1
    """Elements along K that share a scale: 1 for formats without scales, WHOLE_ROW for one scale per row."""
    pad: ClassVar[int] = 1
    """Codes of a row are completed to a multiple of this with `zero_code`."""
    scales_dtype: ClassVar[np.dtype[Any] | None] = None
    has_mins: ClassVar[bool] = False
    has_tensor_scale: ClassVar[bool] = False

    @abstractmethod
    def pack(self, x: F32Array) -> Planes:
        """Encode float32 `[N, K]` by the format's canonical rule; FormatError names the first value without a code."""

    @abstractmethod
    def unpack(self, planes: Planes) -> F64Array:
        """The exact values, float64 `[N, K]`; every format's values are float64 numbers."""

    def num_scales(self, k: int) -> int:
        """Scales of a row of K elements."""
        if self.scales_dtype is None:
            return 0
        return 1 if self.group == WHOLE_ROW else padded_width(k, self.pad) // self.group

    def nbytes(self, shape: tuple[int, int]) -> int:
        """Bytes of the codes, scales and mins of a `[N, K]` matrix, padding of K counted, and of its tensor scale (a
        float64 and a float32); no alignment."""
        n, k = shape
        row = padded_width(k, self.pad) * self.code_bits // 8
        if self.scales_dtype is not None:
            row += self.num_scales(k) * self.scales_dtype.itemsize * (1 + self.has_mins)
        return n * row + 12 * self.has_tensor_scale


def padded_width(k: int, pad: int) -> int:
    """K rounded up to a multiple of `pad`."""
    return -(-k // pad) * pad


def check_matrix(x: Array) -> None:
    """FormatError unless `x` is a non-empty float32 `[N, K]`."""
    if x.ndim != 2 or x.dtype != np.float32 or x.size == 0:
        raise FormatError(f"expected a non-empty float32 matrix [N, K], got {x.dtype} {list(x.shape)}")


def check_planes(planes: Planes, fmt: Format) -> None:
    """FormatError unless the planes have the shapes and dtypes of `fmt` and its codes have no more than their bits."""
    n, k = planes.shape
    wanted: list[tuple[str, Array | None, np.dtype[Any] | None, int]] = [
        ("codes", planes.codes, fmt.codes_dtype, padded_width(k, fmt.pad)),
        ("scales", planes.scales, fmt.scales_dtype, fmt.num_scales(k)),
        ("mins", planes.mins, fmt.scales_dtype if fmt.has_mins else None, fmt.num_scales(k)),
    ]
    for name, plane, dtype, columns in wanted:
        if dtype is None:
            if plane is not None:
                raise FormatError(f"{fmt.name} has no {name} plane")
        elif plane is None or plane.dtype != dtype or plane.shape != (n, columns):
            seen = "nothing" if plane is None else f"{plane.dtype} {list(plane.shape)}"
            raise FormatError(f"{fmt.name} {name} of {planes.shape} must be {dtype} [{n}, {columns}], got {seen}")
    if (planes.tensor is not None) != fmt.has_tensor_scale:
        raise FormatError(f"{fmt.name} {'needs a' if fmt.has_tensor_scale else 'has no'} tensor scale")
    if fmt.code_bits < 8 and int(planes.codes.max(initial=0)) >> fmt.code_bits:
        largest = (1 << fmt.code_bits) - 1
        raise FormatError(f"{fmt.name} codes must be 0..{largest}, got {int(planes.codes.max())}")


def per_group(plane: Array | None) -> F64Array:
    """Scales or mins of checked planes as float64 `[N, G, 1]`, to go with codes `[N, G, group]`."""
    if plane is None:
        raise InvariantError("planes without scales or mins were used as a grouped format's")
    return plane.astype(np.float64)[..., None]


def row_blocks(n: int, width: int, multiple: int = 1) -> Iterator[slice]:
    """Consecutive row ranges of about BLOCK_ELEMENTS elements, each but the last a multiple of `multiple` rows."""
    rows = max(BLOCK_ELEMENTS // max(width, 1) // multiple, 1) * multiple
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def group_blocks(
    x: F32Array, group: int = GROUP, *, pad: int | None = None, repeat_last: bool = False
) -> Iterator[tuple[slice, F32Array]]:
    """Yield (rows, float32 `[rows, G, group]`) over a matrix `[N, K]`, K completed to a multiple of `pad` (or `group`).

    Completed with zeros, or with the row's last value (`repeat_last`), which changes neither the smallest nor the
    largest of the group.
    """
    n, k = x.shape
    width = padded_width(k, pad or group)
    for rows in row_blocks(n, width):
        block = x[rows]
        if width != k:
            block = np.pad(block, ((0, 0), (0, width - k)), mode="edge" if repeat_last else "constant")
        yield rows, np.ascontiguousarray(block).reshape(block.shape[0], width // group, group)


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


SMALLEST_HALF = np.float16(2.0**-24)


def encode_symmetric(x: F32Array, group: int, low: int, high: int) -> Iterator[tuple[slice, F32Array, Array]]:
    """The canonical encoder of signed codes with a float16 scale; yields (rows, codes `[rows, Kp]` as float32, scales).

    Per group, all in float32: `scale = float16(amax / high)`, 2^-24 where that rounds to 0 and amax does not;
    `code = clamp(round_half_even(x * float32(1 / scale)), low, high)`. Codes come from the rounded scale.
    """
    for rows, groups in group_blocks(x, group):
        amax = np.abs(groups).max(axis=-1)
        scale = to_float16(amax / np.float32(high), rows, "scale")
        scale[(scale == 0) & (amax > 0)] = SMALLEST_HALF
        scaled = groups * reciprocal(scale.astype(np.float32))[..., None]
        np.rint(scaled, out=scaled)
        np.clip(scaled, low, high, out=scaled)
        yield rows, scaled.reshape(len(scaled), -1), scale
