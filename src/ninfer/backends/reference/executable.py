"""A graph run node by node in float64: the plain reference that every faster path is judged by.

Values are rounded to float32 where the contract says so, at the end of every node; KV pages hold the real codes.
Weights are decoded once to float64, shared ones too, so it needs 8 bytes per parameter. `threads` and `weights_memory`
mean nothing here: NumPy decides about threads, and there is no second way to hold weights. It does not promise the
determinism law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.backends.base import (
    ALONE,
    Beside,
    F32Array,
    LayerState,
    Matrix,
    Weights,
    buffer_bytes,
    check_state_options,
    journal_widths,
    stride_floats,
    weight_names,
)
from ninfer.backends.options import RuntimeOptions
from ninfer.backends.reference.kv import PagedKV, page_bytes
from ninfer.backends.reference.nodes import RUN, StepState, input_codec
from ninfer.backends.reference.state import RecurrentState
from ninfer.errors import InvariantError, UnsupportedError
from ninfer.formats.layouts import from_n16
from ninfer.ops.batch import ForwardBatch
from ninfer.ops.graph import Feature, Graph, Value

F64Array = npt.NDArray[np.float64]


def compile_graph(
    graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside = ALONE
) -> ReferenceExecutable:
    """Decode the weights and allocate buffers and pages; see `backends.base`."""
    return ReferenceExecutable(graph, weights, options, beside)


def plan_memory(graph: Graph, weights: Weights, options: RuntimeOptions) -> dict[str, int]:
    """Bytes of decoded weights, pages and buffers; temporaries inside a node are not counted."""
    _check(graph, options)
    matrices, vectors = weight_names(graph)
    elements = sum(weights.matrix(name).shape[0] * weights.matrix(name).shape[1] for name in matrices)
    elements += sum(weights.vector(name).size for name in vectors)
    workspace, logits = buffer_bytes(graph, options)
    kv = options.num_pages * sum(page_bytes(shape, options.kv_format) for shape in graph.kv_layers)
    state = sum(4 * _state_floats(graph, layer, options) for layer in range(len(graph.state_layers)))
    return {"weights": 8 * elements, "kv": kv, "state": state, "workspace": workspace, "logits": logits}


class ReferenceExecutable:
    """`backends.base.Executable` over the oracles."""

    def __init__(self, graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside) -> None:
        memory = plan_memory(graph, weights, options)
        owner = beside.pages
        self.memory: Mapping[str, int] = memory if owner is None else memory | {"kv": 0}
        self._graph = graph
        self._options = options
        matrices, vectors = weight_names(graph)
        self._stored = {name: weights.matrix(name) for name in matrices}
        self._codecs = {name: input_codec(matrix, options.numerics) for name, matrix in self._stored.items()}
        self._matrices = {name: _decode(matrix) for name, matrix in self._stored.items()}
        self._vectors = {name: weights.vector(name).astype(np.float64) for name in vectors}
        if owner is None:
            self._kv = [PagedKV(shape, options.num_pages, options.kv_format) for shape in graph.kv_layers]
        elif isinstance(owner, ReferenceExecutable) and owner._graph.kv_layers == graph.kv_layers:
            self._kv = owner._kv
        else:
            raise InvariantError(f"pages of {owner} for layers {graph.kv_layers}")
        self._windows, self._recurrent = _state_layers(graph, options)
        self._slots = graph.assign_slots()
        self._buffers = [
            np.zeros((options.max_rows if rows == "T" else options.max_logit_rows, stride_floats(width)), np.float32)
            for width, rows in self._slots.slots
        ]
        self._num_rows: dict[str, int] | None = None
        self.last_forward_ns = 0

    def forward(self, batch: ForwardBatch) -> F32Array:
        """Run one step; gives the logits float32 `[R, V]`, valid until the next step."""
        num_rows = {"T": len(batch.token_ids), "R": len(batch.logit_rows)}
        self._num_rows = num_rows
        step = StepState(
            batch=batch,
            read=lambda value: self._rows(value, num_rows).astype(np.float64),
            matrices=self._matrices,
            vectors=self._vectors,
            codecs=self._codecs,
            kv=self._kv,
            windows=self._windows,
            recurrent=self._recurrent,
            quantized_scores=self._options.numerics != "f32",
            kv_format=self._options.kv_format,
        )
        started = perf_counter_ns()
        for node in self._graph.nodes:
            result = RUN[node.op](step, node)
            if node.output is not None:
                self._rows(node.output, num_rows)[:] = result
        self.last_forward_ns = perf_counter_ns() - started
        if self._graph.logits is None:
            return np.empty((num_rows["R"], 0), np.float32)
        return self._rows(self._graph.logits, num_rows)

    def feature(self, feature: Feature) -> F32Array:
        """A view of what a marked feature was in the last step."""
        if self._num_rows is None or feature not in self._graph.features:
            raise InvariantError(f"feature {feature} of a graph that marks {list(self._graph.features)}, after a step")
        return self._rows(self._graph.features[feature], self._num_rows)

    def holds(self, name: str) -> bool:
        """Whether a matrix of the graph has this name."""
        return name in self._stored

    def held_matrix(self, name: str) -> Matrix:
        """A weight as it is stored; what it is decoded to is not shared."""
        return replace(self._stored[name], shared=True)

    def set_input(self, value: Value, array: F32Array) -> None:
        """Fill an input value, float32 `[rows of the next step, width]`; it stays until replaced."""
        if value.buffer not in self._graph.inputs:
            raise InvariantError(f"buffer {value.buffer} is not an input of the graph")
        self._rows(value, {value.rows: len(array)})[:] = array

    def read_value(self, value: Value) -> F32Array:
        """A copy of what a value had at the end of the last step."""
        if self._num_rows is None or not self._slots.survives(value.buffer):
            raise InvariantError(f"buffer {value.buffer} holds nothing of the last step")
        return self._rows(value, self._num_rows).copy()

    def read_state(self, slot: int) -> list[LayerState]:
        """A copy of what a state slot holds, by recurrent layer."""
        pairs = zip(self._windows, self._recurrent, strict=True)
        return [LayerState(window.slots[slot].copy(), s.slots[slot].copy()) for window, s in pairs]

    def close(self) -> None:
        """Drop weights, pages, state and buffers."""
        self._stored, self._matrices, self._vectors, self._kv, self._buffers = {}, {}, {}, [], []
        self._windows, self._recurrent = [], []
        self._num_rows = None

    def _rows(self, value: Value, num_rows: Mapping[str, int]) -> F32Array:
        buffer = self._buffers[self._slots.slot_of[value.buffer]]
        return buffer[: num_rows[value.rows], value.offset : value.offset + value.width]


def _state_layers(graph: Graph, options: RuntimeOptions) -> tuple[list[RecurrentState], list[RecurrentState]]:
    """By layer the windows of convolutions and the recurrent matrices."""
    windows, recurrent = [], []
    for layer, shape in enumerate(graph.state_layers):
        conv_width, *rule_widths = journal_widths(graph, layer)
        windows.append(RecurrentState((shape.conv_taps - 1, shape.conv_channels), (conv_width,), options))
        matrices = (shape.num_v_heads, shape.key_dim, shape.value_dim)
        recurrent.append(RecurrentState(matrices, rule_widths, options))
    return windows, recurrent


def _state_floats(graph: Graph, layer: int, options: RuntimeOptions) -> int:
    """Values of one recurrent layer in all slots and journals."""
    shape = graph.state_layers[layer]
    slot = (shape.conv_taps - 1) * shape.conv_channels + shape.num_v_heads * shape.key_dim * shape.value_dim
    rows = options.num_journals * options.journal_rows
    return options.num_state_slots * slot + rows * sum(journal_widths(graph, layer))


def _decode(matrix: Matrix) -> F64Array:
    return formats.get(matrix.format).unpack(from_n16(matrix.data, matrix.shape, matrix.format))


def _check(graph: Graph, options: RuntimeOptions) -> None:
    check_state_options(graph, options)
    if options.isa is not None:
        raise UnsupportedError(f"isa={options.isa}: the reference backend has no instruction sets to choose from")
    unknown = sorted({node.op for node in graph.nodes} - set(RUN))
    if unknown:
        raise UnsupportedError(f"op {unknown[0]!r}; the reference backend has {', '.join(sorted(RUN))}")
