"""From the tensors of a Hugging Face checkpoint to its weights: what is quantised, and how, is read off the tensors.

| next to each other in a module | is |
|---|---|
| weight_packed U8, weight_scale F8_E4M3, weight_global_scale | NVFP4 of compressed-tensors |
| weight U8, weight_scale F8_E4M3, weight_scale_2 | NVFP4 of ModelOpt |
| weight_packed U8, weight_scale U8 or F8_E8M0 | MXFP4 of compressed-tensors |
| weight_packed I32, weight_shape, weight_scale | packed integers of compressed-tensors |
| weight F8_E4M3, weight_scale or weight_scale_inv | FP8 by row, tensor or block |
| weight I8, weight_scale | INT8 by row or tensor |
| weight BF16, F16 or F32 | plain |

Rules name a weight `<module>.weight`, whatever its tensors are called. A companion that is not used up is an error: a
scale that is silently ignored gives a model that almost works. Two kinds are left out knowingly and noted: scales of
activations of weights whose products we compute with more exact activations, and scales of FP8 KV caches, since our
caches have scales of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ninfer.convert.fields import Fields
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.quantized import fp8, integers, nvfp4
from ninfer.convert.quantized.module import FLOATS, Module
from ninfer.convert.weight import StoredWeight, Weight
from ninfer.errors import ConversionError

_METHODS: Final = ("compressed-tensors", "modelopt", "fp8")
_COMPANIONS: Final = (
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "pre_quant_scale",
)
_REASONS: Final = {
    "weight_zero_point": "codes with zero points are not supported",
    "weight_g_idx": "columns in the order of activations are not supported",
    "pre_quant_scale": "scales of input columns (AWQ) are not supported",
    "input_zero_point": "activations with zero points are not supported",
}
_KV_SCALES: Final = ("k_scale", "v_scale")
_DEFAULT_BLOCK: Final = (128, 128)


def fp8_block(fields: Fields) -> tuple[int, int]:
    """Check `quantization_config` of a config.json; gives the rows and columns of an FP8 block.

    ConversionError for methods whose tensors mean something else, and for weights that need a transform at run time.
    """
    name = "quantization_config"
    place = fields if fields.has(name) else fields.table("text_config")  # multimodal files may have it in either
    if not place.has(name):
        return _DEFAULT_BLOCK
    table = place.table(name)
    if table.text("quant_method", default="") not in _METHODS:
        methods = ", ".join(_METHODS)
        table.refuse("quant_method", f"checkpoints of this method are not supported; supported: {methods}")
    for key in ("transform_config", "sparsity_config"):
        if table.values.get(key):
            table.refuse(key, "weights that are transformed or sparse are not supported")
    key = "weight_block_size"
    size = table.values.get(key)
    if size is None:
        return _DEFAULT_BLOCK
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and 1 <= n <= 1 << 16 for n in size)):
        table.fail(key, f"must be two sizes from 1 to {1 << 16}, not {size!r:.60}")
    return size[0], size[1]


def gather(tensors: Mapping[str, SourceTensor], block: tuple[int, int]) -> tuple[dict[str, Weight], list[str]]:
    """(weights by the name that rules use, notes). Tensors that are no part of a weight stay what they are.

    ArtifactError for a companion that is missing or has the wrong type, shape or value, ConversionError for one that
    is not understood; both name the tensor.
    """
    modules: dict[str, dict[str, SourceTensor]] = {}
    for name, tensor in tensors.items():
        base, _, leaf = name.rpartition(".")
        modules.setdefault(base, {})[leaf] = tensor
    weights: dict[str, Weight] = {}
    dropped = {"activation scales": 0, "KV cache scales": 0}
    for name, parts in modules.items():
        module = Module(name, parts)
        weight = _weight(module, block)
        if weight is not None:
            weights[weight.name] = weight
        for leaf in module.unused:
            if leaf == "input_scale" and weight is not None:
                dropped["activation scales"] += 1
            elif leaf in _KV_SCALES and module.scalar(leaf, "a KV cache"):
                dropped["KV cache scales"] += 1
            elif leaf in _COMPANIONS:
                reason = _REASONS.get(leaf) or _meaningless(module)
                raise ConversionError(f"{parts[leaf].file.path}: tensor {module.full_name(leaf)!r}: {reason}")
            else:
                weights[module.full_name(leaf)] = _plain(parts[leaf])
    notes = [f"{count} {what} are not needed and left out" for what, count in dropped.items() if count]
    return weights, notes


def _weight(module: Module, block: tuple[int, int]) -> Weight | None:
    """The quantised weight of a module, None if it has none."""
    packed, weight, scale = (module.dtype(leaf) for leaf in ("weight_packed", "weight", "weight_scale"))
    if packed is not None and weight is not None:
        module.fail("weight_packed", "stands next to a weight; one of them is too many")
    if packed == "I32":
        return integers.packed_integers(module)
    if packed is not None:
        mx = scale in ("U8", "F8_E8M0") and not module.has("weight_global_scale")
        return nvfp4.compressed_tensors_mxfp4(module) if mx else nvfp4.compressed_tensors_nvfp4(module)
    if weight == "U8":
        return nvfp4.modelopt_nvfp4(module)
    if weight == "F8_E4M3":
        return fp8.fp8(module, block)
    return integers.int8(module) if weight == "I8" else None


def _plain(tensor: SourceTensor) -> Weight:
    dtype = tensor.info.type.name
    if dtype not in FLOATS:
        raise ConversionError(
            f"{tensor.file.path}: tensor {tensor.info.name!r} has dtype {dtype!r}, which is not imported without the "
            f"scales of a quantised weight; imported are {', '.join(FLOATS)}"
        )
    return StoredWeight(tensor)


def _meaningless(module: Module) -> str:
    for leaf in ("weight", "weight_packed"):
        if module.has(leaf):
            return f"it has no meaning next to a {leaf} of {module.dtype(leaf)}"
    return "the weight that it belongs to is missing"
