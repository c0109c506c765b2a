"""E2M1 weights: NVFP4 of compressed-tensors and of ModelOpt, and MXFP4 of compressed-tensors.

| | compressed-tensors NVFP4 | ModelOpt NVFP4 | MXFP4 |
|---|---|---|---|
| codes U8 [N, K/2], even column low | weight_packed | weight | weight_packed |
| scales | weight_scale F8_E4M3 [N, K/16] | the same | weight_scale U8 or F8_E8M0 [N, K/32] |
| tensor scale | weight_global_scale, divides | weight_scale_2, multiplies | - |
| of inputs (W4A4) | input_global_scale, multiplies inputs | input_scale, divides them | - |

Both kinds of NVFP4 become our nvfp4 with every bit kept. MXFP4 becomes values.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.quantized.module import Module
from ninfer.convert.weight import Chosen, Values, Weight
from ninfer.errors import FormatError
from ninfer.formats import Planes, TensorScale
from ninfer.formats.nvfp4 import GROUP16
from ninfer.formats.small_floats import E2M1, E4M3_NAN

_LARGEST: Final = 2688.0
"""6 * 448, the largest number that codes and scales of a group can make."""

_LARGEST_WEIGHT: Final = 65504.0
"""No real weight is larger than float16 can say; one that is tells of a tensor scale used in the wrong direction."""

_MX_GROUP: Final = 32
_MX_NAN: Final = 255


class NVFP4Weight(Weight):
    """Every bit of a file's NVFP4."""

    def __init__(self, module: Module, codes: SourceTensor, scales: SourceTensor, tensor: TensorScale) -> None:
        super().__init__(*module.used)
        n, half = codes.info.shape
        self.name = module.full_name("weight")
        self.kind = "NVFP4" if tensor.input_scale is None else "NVFP4 with input scale"
        self.shape = (n, 2 * half)
        self._codes, self._scales, self._tensor, self._module = codes, scales, tensor, module

    def exact_format(self) -> str | None:
        return "nvfp4"

    def check(self) -> None:
        if int(self._scales.rows().max()) >= E4M3_NAN:
            self._module.fail("weight_scale", "holds NaN or a negative number; scales are from 0 to 448")

    def planes(self, rows: Chosen) -> Planes:
        codes, scales = unpacked(self._codes.rows()[rows]), self._scales.rows()[rows]
        missing = codes.shape[1] % formats.get("nvfp4").pad
        if missing:
            codes = np.pad(codes, [(0, 0), (0, GROUP16)])
            scales = np.pad(scales, [(0, 0), (0, 1)])
        return Planes((len(codes), self.shape[1]), codes, scales, tensor=self._tensor)

    def values(self, rows: Chosen) -> Values:
        return formats.get("nvfp4").unpack(self.planes(rows)).astype(np.float32)


class MXFP4Weight(Weight):
    """`E2M1 * 2^(scale - 127)` with a scale per 32 columns."""

    kind = "MXFP4"

    def __init__(self, module: Module, codes: SourceTensor, scales: SourceTensor) -> None:
        super().__init__(*module.used)
        n, half = codes.info.shape
        self.name = module.full_name("weight")
        self.shape = (n, 2 * half)
        self._codes, self._scales, self._module = codes, scales, module

    def check(self) -> None:
        if int(self._scales.rows().max()) == _MX_NAN:
            self._module.fail("weight_scale", f"holds NaN ({_MX_NAN})")

    def values(self, rows: Chosen) -> Values:
        codes, scales = unpacked(self._codes.rows()[rows]), self._scales.rows()[rows]
        steps = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        groups = E2M1[codes].reshape(len(codes), -1, _MX_GROUP)
        with np.errstate(over="ignore"):
            return (groups * steps[..., None]).reshape(codes.shape)


def unpacked(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes uint8 `[n, 2 B]` of bytes `[n, B]`: the low half of a byte is the even column."""
    codes = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(len(packed), -1)


def compressed_tensors_nvfp4(module: Module) -> Weight:
    """`weight_packed` with E4M3 scales."""
    codes, scales = _codes_and_scales(module, "weight_packed")
    divisor = module.scalar("weight_global_scale", "NVFP4")
    inputs = module.find_scalar("input_global_scale", "NVFP4")
    _check_direction(module, "weight_global_scale", _LARGEST / divisor)
    return NVFP4Weight(module, codes, scales, _tensor_scale(module, "weight_global_scale", 1.0 / divisor, inputs))


def modelopt_nvfp4(module: Module) -> Weight:
    """`weight` U8 with E4M3 scales. Our input scale is the float32 next to the inverse of the file's."""
    codes, scales = _codes_and_scales(module, "weight")
    factor = module.scalar("weight_scale_2", "NVFP4")
    inputs = module.find_scalar("input_scale", "NVFP4")
    _check_direction(module, "weight_scale_2", _LARGEST * factor)
    inverse = None if inputs is None else float(np.float32(1) / np.float32(inputs))
    return NVFP4Weight(module, codes, scales, _tensor_scale(module, "weight_scale_2", factor, inverse))


def compressed_tensors_mxfp4(module: Module) -> Weight:
    """`weight_packed` with E8M0 scales."""
    codes = module.need("weight_packed", ["U8"], None, "MXFP4")
    n, half = _matrix(module, "weight_packed", codes)
    if 2 * half % _MX_GROUP:
        module.fail("weight_packed", f"has {half} bytes per row; MXFP4 groups need a multiple of {_MX_GROUP // 2}")
    scales = module.need("weight_scale", ["U8", "F8_E8M0"], (n, 2 * half // _MX_GROUP), "MXFP4")
    return MXFP4Weight(module, codes, scales)


def _codes_and_scales(module: Module, leaf: str) -> tuple[SourceTensor, SourceTensor]:
    codes = module.need(leaf, ["U8"], None, "NVFP4")
    n, half = _matrix(module, leaf, codes)
    if 2 * half % GROUP16:
        module.fail(leaf, f"has {half} bytes per row; NVFP4 groups need a multiple of {GROUP16 // 2}")
    return codes, module.need("weight_scale", ["F8_E4M3"], (n, 2 * half // GROUP16), "NVFP4")


def _matrix(module: Module, leaf: str, tensor: SourceTensor) -> tuple[int, int]:
    if len(tensor.info.shape) != 2:
        module.fail(leaf, f"has shape {list(tensor.info.shape)}; a matrix is needed")
    return tensor.info.shape[0], tensor.info.shape[1]


def _check_direction(module: Module, leaf: str, largest: float) -> None:
    if largest > _LARGEST_WEIGHT:
        module.fail(leaf, f"would allow weights up to {largest:.3g}; it seems to be the inverse of what it should be")


def _tensor_scale(module: Module, leaf: str, factor: float, inputs: float | None) -> TensorScale:
    try:
        return TensorScale(factor, inputs)
    except FormatError as error:
        module.fail(leaf, str(error))
