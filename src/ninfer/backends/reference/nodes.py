"""One function per op: fetch what the contract reads, call its oracle, hand the result back in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.backends.reference.kv import PagedKV
from ninfer.ops import SPECS
from ninfer.ops.batch import ForwardBatch
from ninfer.ops.graph import Node, Value

F64Array = npt.NDArray[np.float64]

EXACT_FORMATS = ("f32", "bf16")
"""Weights that meet float32 inputs under either numeric profile."""


@dataclass(frozen=True)
class StepState:
    """What nodes may touch during a step. `read` gives a value as float64 `[rows, width]`."""

    batch: ForwardBatch
    read: Callable[[Value], F64Array]
    matrices: Mapping[str, F64Array]
    vectors: Mapping[str, F64Array]
    formats: Mapping[str, str]
    kv: Sequence[PagedKV]
    a8: bool
    kv_format: str


def _embedding(step: StepState, node: Node) -> F64Array:
    return SPECS["embedding"].oracle(step.batch.token_ids, step.matrices[node.weights[0]])


def _rms_norm(step: StepState, node: Node) -> F64Array:
    return SPECS["rms_norm"].oracle(step.read(node.inputs[0]), step.vectors[node.weights[0]], node.params["eps"])


def _linear(step: StepState, node: Node) -> F64Array:
    residual = step.read(node.inputs[1]) if len(node.inputs) > 1 else None
    weights = [step.matrices[name] for name in node.weights]
    quantized = [step.a8 and step.formats[name] not in EXACT_FORMATS for name in node.weights]
    return SPECS["linear"].oracle(step.read(node.inputs[0]), weights, residual, quantized=quantized)


def _rope_angles(step: StepState, node: Node) -> F64Array:
    return SPECS["rope_angles"].oracle(step.batch.positions(), int(node.params["rotary_dim"]), node.params["theta"])


def _rope(step: StepState, node: Node) -> F64Array:
    x, angles = (step.read(value) for value in node.inputs)
    return SPECS["rope"].oracle(x, angles, int(node.params["num_heads"]), int(node.params["head_dim"]))


def _kv_append(step: StepState, node: Node) -> None:
    layer = step.kv[int(node.params["layer"])]
    k, v = (layer.split_heads(step.read(value).astype(np.float32)) for value in node.inputs)
    for s in step.batch.sequences:
        rows = slice(s.start, s.start + s.count)
        layer.write(s.pages, s.position, k[rows], v[rows])


def _paged_attention(step: StepState, node: Node) -> F64Array:
    p = node.params
    q = step.read(node.inputs[0])
    heads = q.reshape(len(q), int(p["num_heads"]), int(p["head_dim"]))
    quantized = step.a8 and step.kv_format == "int8"
    parts = []
    for s in step.batch.sequences:
        keys, values = step.kv[int(p["layer"])].read(s.pages, s.position + s.count)
        parts.append(
            SPECS["paged_attention"].oracle(
                heads[s.start : s.start + s.count],
                keys.astype(np.float64),
                values.astype(np.float64),
                s.position,
                p["scale"],
                quantized=quantized,
            )
        )
    return np.concatenate(parts)


def _silu_mul(step: StepState, node: Node) -> F64Array:
    return SPECS["silu_mul"].oracle(step.read(node.inputs[0]))


def _select_rows(step: StepState, node: Node) -> F64Array:
    return SPECS["select_rows"].oracle(step.read(node.inputs[0]), step.batch.logit_rows)


RUN: Mapping[str, Callable[[StepState, Node], F64Array | None]] = {
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope_angles": _rope_angles,
    "rope": _rope,
    "kv_append": _kv_append,
    "paged_attention": _paged_attention,
    "silu_mul": _silu_mul,
    "select_rows": _select_rows,
}
"""By the op of a node; None is given back by ops without an output."""
