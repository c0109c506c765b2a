"""One function per op: fetch what the contract reads, call its oracle, hand the result back in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ninfer.backends.base import Matrix
from ninfer.backends.options import Numerics
from ninfer.backends.reference.kv import PagedKV
from ninfer.backends.reference.state import Inputs, RecurrentState
from ninfer.ops import SPECS
from ninfer.ops.batch import ForwardBatch
from ninfer.ops.causal_conv import window_after
from ninfer.ops.graph import Node, Value
from ninfer.ops.linear import InputCodec, exact
from ninfer.ops.nvfp4_rows import as_seen_by_w4a4
from ninfer.ops.one_digit import as_seen_by_a8g32
from ninfer.ops.two_digits import as_seen_by_a8

F64Array = npt.NDArray[np.float64]

FLOAT_FORMATS = ("f32", "bf16", "fp8")
"""Weights that meet float32 inputs under every numeric profile."""


def input_codec(matrix: Matrix, numerics: Numerics) -> InputCodec:
    """What a product with this weight sees of its input (`ops.linear`)."""
    if numerics == "f32" or matrix.format in FLOAT_FORMATS:
        return exact
    if numerics == "a8g32":
        return as_seen_by_a8g32
    tensor = matrix.tensor_scale
    if numerics == "w4a4" and tensor is not None and tensor.input_scale is not None:
        return partial(as_seen_by_w4a4, input_scale=tensor.input_scale)
    return as_seen_by_a8


@dataclass(frozen=True)
class StepState:
    """What nodes may touch during a step. `read` gives a value as float64 `[rows, width]`."""

    batch: ForwardBatch
    read: Callable[[Value], F64Array]
    matrices: Mapping[str, F64Array]
    vectors: Mapping[str, F64Array]
    codecs: Mapping[str, InputCodec]
    kv: Sequence[PagedKV]
    windows: Sequence[RecurrentState]
    recurrent: Sequence[RecurrentState]
    quantized_scores: bool
    """Whether queries meet int8 keys in fixed point (`ops.paged_attention`)."""
    kv_format: str


def _embedding(step: StepState, node: Node) -> F64Array:
    return SPECS["embedding"].oracle(step.batch.token_ids, step.matrices[node.weights[0]])


def _rms_norm(step: StepState, node: Node) -> F64Array:
    return SPECS["rms_norm"].oracle(step.read(node.inputs[0]), step.vectors[node.weights[0]], node.number("eps"))


def _linear(step: StepState, node: Node) -> F64Array:
    residual = step.read(node.inputs[1]) if len(node.inputs) > 1 else None
    weights = [step.matrices[name] for name in node.weights]
    codecs = [step.codecs[name] for name in node.weights]
    return SPECS["linear"].oracle(step.read(node.inputs[0]), weights, residual, codecs=codecs)


def _rope_angles(step: StepState, node: Node) -> F64Array:
    positions = step.batch.positions()
    return SPECS["rope_angles"].oracle(positions, node.numbers("frequencies"), node.number("magnitude"))


def _rope(step: StepState, node: Node) -> F64Array:
    x, angles = (step.read(value) for value in node.inputs)
    return SPECS["rope"].oracle(x, angles, node.count("num_heads"), node.count("head_dim"))


def _kv_append(step: StepState, node: Node) -> None:
    layer = step.kv[node.count("layer")]
    k, v = (layer.split_heads(step.read(value).astype(np.float32)) for value in node.inputs)
    for s in step.batch.sequences:
        rows = slice(s.start, s.start + s.count)
        layer.write(s.pages, s.position, k[rows], v[rows])


def _paged_attention(step: StepState, node: Node) -> F64Array:
    q = step.read(node.inputs[0])
    heads = q.reshape(len(q), node.count("num_heads"), node.count("head_dim"))
    quantized = step.quantized_scores and step.kv_format == "int8"
    parts = []
    for s in step.batch.sequences:
        keys, values = step.kv[node.count("layer")].read(s.pages, s.position + s.count)
        parts.append(
            SPECS["paged_attention"].oracle(
                heads[s.start : s.start + s.count],
                keys.astype(np.float64),
                values.astype(np.float64),
                s.position,
                node.number("scale"),
                quantized=quantized,
                causal=bool(node.count("causal")),
                window=node.count("window") or None,
            )
        )
    return np.concatenate(parts)


def _sigmoid_mul(step: StepState, node: Node) -> F64Array:
    x, gate = (step.read(value) for value in node.inputs)
    return SPECS["sigmoid_mul"].oracle(x, gate)


def _l2_norm(step: StepState, node: Node) -> F64Array:
    x = step.read(node.inputs[0])
    return SPECS["l2_norm"].oracle(x, node.count("num_heads"), node.number("scale"), node.number("eps"))


def _gated_rms_norm(step: StepState, node: Node) -> F64Array:
    x, z = (step.read(value) for value in node.inputs)
    return SPECS["gated_rms_norm"].oracle(x, z, step.vectors[node.weights[0]], node.number("eps"))


def _delta_gates(step: StepState, node: Node) -> F64Array:
    a, b = (step.read(value) for value in node.inputs)
    return SPECS["delta_gates"].oracle(a, b, *(step.vectors[name] for name in node.weights))


def _causal_conv(step: StepState, node: Node) -> F64Array:
    inputs = [step.read(node.inputs[0])]
    layer, w = step.windows[node.count("layer")], step.vectors[node.weights[0]]

    def advance(rows: Inputs, window: F64Array) -> tuple[F64Array, F64Array]:
        return SPECS["causal_conv"].oracle(rows[0], window, w), window_after(window, rows[0])

    return np.concatenate([layer.run(s, inputs, (0,), advance) for s in step.batch.sequences])


def _dynamic_conv(step: StepState, node: Node) -> F64Array:
    z, d, *more = (step.read(value) for value in node.inputs)
    taps, first = node.count("taps"), node.count("first")
    w = step.vectors[node.weights[0]][first : first + taps * z.shape[1]].reshape(taps, -1)
    parts = []
    for s in step.batch.sequences:
        rows = slice(s.start, s.start + s.count)
        residual = more[0][rows] if more else None
        parts.append(SPECS["dynamic_conv"].oracle(z[rows], d[rows].reshape(s.count, taps, -1), w, residual))
    return np.concatenate(parts)


def _gated_delta_rule(step: StepState, node: Node) -> F64Array:
    inputs = [step.read(value) for value in node.inputs]
    layer, k_heads = step.recurrent[node.count("layer")], node.count("num_k_heads")
    v_heads = inputs[3].shape[1] // 2

    def advance(rows: Inputs, s: F64Array) -> tuple[F64Array, F64Array]:
        count = len(rows[0])
        q, k = (x.reshape(count, k_heads, -1) for x in rows[:2])
        decay, beta = np.split(rows[3], 2, axis=1)
        o, after = SPECS["gated_delta_rule"].oracle(q, k, rows[2].reshape(count, v_heads, -1), decay, beta, s)
        return o.reshape(count, -1), after

    return np.concatenate([layer.run(s, inputs, (1, 2, 3), advance) for s in step.batch.sequences])


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
    "sigmoid_mul": _sigmoid_mul,
    "causal_conv": _causal_conv,
    "dynamic_conv": _dynamic_conv,
    "l2_norm": _l2_norm,
    "delta_gates": _delta_gates,
    "gated_delta_rule": _gated_delta_rule,
    "gated_rms_norm": _gated_rms_norm,
    "silu_mul": _silu_mul,
    "select_rows": _select_rows,
}
"""By the op of a node; None is given back by ops without an output."""
