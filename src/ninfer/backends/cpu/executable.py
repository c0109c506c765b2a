"""Compile a graph to a native program: every kernel, weight and buffer bound before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ninfer.backends.base import (
    ALONE,
    Beside,
    Executable,
    F32Array,
    LayerState,
    Matrix,
    Weights,
    check_state_options,
    journal_widths,
    stride_floats,
    weight_names,
)
from ninfer.backends.cpu import _native
from ninfer.backends.cpu.weights_memory import WeightStore, choose_weights_memory
from ninfer.backends.options import Numerics, RuntimeOptions
from ninfer.errors import BackendError, InvariantError, UnsupportedError
from ninfer.ops.batch import ForwardBatch, StateAccess
from ninfer.ops.graph import BufferSlots, Feature, Graph, Node, Value

WEIGHT_FORMATS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        ("f32", "bf16", "q8g32", "q4g32", "q4g32m", "q4g64", "q5g64", "q6g64", "nvfp4", "fp8")
    )
}
_KV_FORMATS = {"bf16": 0, "int8": 1}
NUMERICS: Mapping[Numerics, int] = {"f32": 0, "a8": 1, "w4a4": 2, "a8g32": 3}
"""What this backend implements of formats and numeric profiles; the rest is refused by name."""

_SMALLEST_HUGE_KV = 32 * 2**20
"""KV memory below this stays in ordinary pages: huge ones are no faster there (2,048 positions of SmolLM2, 2-core
Zen 5, November 2026) and make memory resident that a short answer never touches."""

_HUGE_PAGE = 2 * 2**20
"""Recurrent state is read and written whole at every step, so it takes huge pages as soon as it fills one."""

_View = tuple[int, int, int]


def compile_graph(graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside = ALONE) -> NativeExecutable:
    """Bind a graph for this CPU. UnsupportedError names what this backend or this CPU cannot run; BackendError if
    memory runs out."""
    return NativeExecutable(graph, weights, options, beside)


def plan_memory(graph: Graph, weights: Weights, options: RuntimeOptions) -> dict[str, int]:
    """Bytes that `compile_graph` will hold, by part, exactly; allocates nothing."""
    recorder = _Recorder(graph, weights, options)
    recorder.program.plan(options.num_pages)
    return recorder.memory()


class _Recorder:
    """Feeds a graph to a native program node by node; holds what the program points to."""

    def __init__(
        self, graph: Graph, weights: Weights, options: RuntimeOptions, store: WeightStore | None = None
    ) -> None:
        self.graph = graph
        self.options = options
        self._weights = weights
        self._store = store
        self._matrix_ids: dict[str, int] = {}
        self._vector_ids: dict[str, int] = {}
        self.held: dict[str, Matrix] = {}
        self.weight_bytes = 0
        check_state_options(graph, options)
        if options.numerics not in NUMERICS:
            raise UnsupportedError(f"numerics {options.numerics!r}; the CPU backend has {', '.join(NUMERICS)}")
        if options.kv_format not in _KV_FORMATS:
            raise UnsupportedError(f"KV format {options.kv_format!r}; the CPU backend has {', '.join(_KV_FORMATS)}")
        try:
            self.program = _native.Program(
                options.threads, options.isa or "", NUMERICS[options.numerics], options.max_rows, options.max_logit_rows
            )
            self.page_bytes = self.program.set_kv(
                _KV_FORMATS[options.kv_format], [(layer.num_kv_heads, layer.head_dim) for layer in graph.kv_layers]
            )
            for index, layer in enumerate(graph.state_layers):
                _, key_width, _, _ = journal_widths(graph, index)
                heads = layer.num_v_heads, layer.key_dim, layer.value_dim
                self.program.add_state_layer(layer.conv_channels, layer.conv_taps, *heads, key_width)
        except ValueError as error:
            raise UnsupportedError(str(error)) from None
        self.state_bytes = self.program.plan_state(options.num_state_slots, options.num_journals, options.journal_rows)
        self.slots: BufferSlots = graph.assign_slots()
        self.slot_ids = [self.program.add_slot(width, rows == "R") for width, rows in self.slots.slots]
        for node in graph.nodes:
            record = _RECORDERS.get(node.op)
            if record is None:
                raise UnsupportedError(f"op {node.op!r}; the CPU backend has {', '.join(sorted(_RECORDERS))}")
            record(self, node)

    def memory(self) -> dict[str, int]:
        logits = 0
        if self.graph.logits is not None:
            logits = 4 * stride_floats(self.graph.buffer_widths[self.graph.logits.buffer]) * self.options.max_logit_rows
        workspace = self.program.workspace_bytes + self.program.scratch_bytes
        return {
            "weights": self.weight_bytes,
            "kv": self.page_bytes * self.options.num_pages,
            "state": self.state_bytes,
            "workspace": workspace - logits,
            "logits": logits,
        }

    def view(self, value: Value) -> _View:
        return self.slot_ids[self.slots.slot_of[value.buffer]], value.offset, value.width

    def out(self, node: Node) -> _View:
        if node.output is None:
            raise InvariantError(f"op {node.op} was recorded without an output")
        return self.view(node.output)

    def matrix(self, name: str) -> int:
        if name not in self._matrix_ids:
            matrix: Matrix = self._weights.matrix(name)
            if matrix.format not in WEIGHT_FORMATS:
                raise UnsupportedError(
                    f"weight {name} has format {matrix.format!r}; the CPU backend has {', '.join(WEIGHT_FORMATS)}"
                )
            data = matrix.data if self._store is None or matrix.shared else self._store.hold(matrix)
            n, k = matrix.shape
            self._matrix_ids[name] = self.program.add_weight(data, WEIGHT_FORMATS[matrix.format], n, k)
            self.held[name] = replace(matrix, data=data, source=None, shared=True)
            self.weight_bytes += 0 if matrix.shared else matrix.data.size
        return self._matrix_ids[name]

    def vector(self, name: str) -> int:
        if name not in self._vector_ids:
            vector = np.ascontiguousarray(self._weights.vector(name), dtype=np.float32)
            self._vector_ids[name] = self.program.add_vector(vector)
            self.weight_bytes += vector.nbytes
        return self._vector_ids[name]


def _embedding(r: _Recorder, node: Node) -> None:
    r.program.embedding(r.matrix(node.weights[0]), r.out(node))


def _rms_norm(r: _Recorder, node: Node) -> None:
    w, num_heads = r.vector(node.weights[0]), node.count("num_heads")
    r.program.rms_norm(r.view(node.inputs[0]), w, num_heads, node.number("eps"), r.out(node))


def _gated_rms_norm(r: _Recorder, node: Node) -> None:
    x, z = node.inputs
    w, num_heads = r.vector(node.weights[0]), node.count("num_heads")
    r.program.gated_rms_norm(r.view(x), r.view(z), w, num_heads, node.number("eps"), r.out(node))


def _l2_norm(r: _Recorder, node: Node) -> None:
    num_heads, eps, scale = node.count("num_heads"), node.number("eps"), node.number("scale")
    r.program.l2_norm(r.view(node.inputs[0]), num_heads, eps, scale, r.out(node))


def _linear(r: _Recorder, node: Node) -> None:
    residual = r.view(node.inputs[1]) if len(node.inputs) > 1 else None
    r.program.linear(r.view(node.inputs[0]), [r.matrix(name) for name in node.weights], r.out(node), residual)


def _rope_angles(r: _Recorder, node: Node) -> None:
    r.program.rope_angles(list(node.numbers("frequencies")), node.number("magnitude"), r.out(node))


def _rope(r: _Recorder, node: Node) -> None:
    x, angles = node.inputs
    r.program.rope(r.view(x), r.view(angles), node.count("num_heads"), node.count("head_dim"), r.out(node))


def _kv_append(r: _Recorder, node: Node) -> None:
    k, v = node.inputs
    r.program.kv_append(node.count("layer"), r.view(k), r.view(v))


def _paged_attention(r: _Recorder, node: Node) -> None:
    layer, num_heads, scale = node.count("layer"), node.count("num_heads"), node.number("scale")
    causal, window = bool(node.count("causal")), node.count("window")
    r.program.paged_attention(layer, r.view(node.inputs[0]), num_heads, scale, causal, window, r.out(node))


def _silu_mul(r: _Recorder, node: Node) -> None:
    x = node.inputs[0]
    gate, up = x.columns(0, x.width // 2), x.columns(x.width // 2, x.width)
    r.program.silu_mul(r.view(up), r.view(gate), r.out(node))


def _sigmoid_mul(r: _Recorder, node: Node) -> None:
    x, gate = node.inputs
    r.program.sigmoid_mul(r.view(x), r.view(gate), r.out(node))


def _delta_gates(r: _Recorder, node: Node) -> None:
    a, b = node.inputs
    decay, dt_bias = (r.vector(name) for name in node.weights)
    r.program.delta_gates(r.view(a), r.view(b), decay, dt_bias, r.out(node))


def _causal_conv(r: _Recorder, node: Node) -> None:
    r.program.causal_conv(node.count("layer"), r.view(node.inputs[0]), r.vector(node.weights[0]), r.out(node))


def _dynamic_conv(r: _Recorder, node: Node) -> None:
    z, d, *more = (r.view(value) for value in node.inputs)
    residual = more[0] if more else None
    r.program.dynamic_conv(
        z, d, r.vector(node.weights[0]), node.count("first"), node.count("taps"), r.out(node), residual
    )


def _gated_delta_rule(r: _Recorder, node: Node) -> None:
    q, k, v, gates = (r.view(value) for value in node.inputs)
    r.program.gated_delta_rule(node.count("layer"), q, k, v, gates, node.count("num_k_heads"), r.out(node))


def _select_rows(r: _Recorder, node: Node) -> None:
    r.program.select_rows(r.view(node.inputs[0]), r.out(node))


_RECORDERS: Mapping[str, Callable[[_Recorder, Node], None]] = {
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


def _kv_memory(recorder: _Recorder, owner: Executable | None) -> npt.NDArray[np.uint8]:
    """Pages of its own, or those of an executable with the same layers."""
    num_bytes = recorder.page_bytes * recorder.options.num_pages
    if owner is None:
        return _native.allocate(num_bytes, num_bytes >= _SMALLEST_HUGE_KV)
    kv = _native_of(owner)._kv
    if _native_of(owner)._graph.kv_layers != recorder.graph.kv_layers or kv.size < num_bytes:
        raise InvariantError(f"pages of {kv.size} bytes for layers {recorder.graph.kv_layers} of {num_bytes} bytes")
    return kv


def _native_of(executable: Executable) -> NativeExecutable:
    if not isinstance(executable, NativeExecutable):
        raise InvariantError(f"{executable} beside one of the CPU backend")
    return executable


class NativeExecutable:
    """A graph bound to this CPU (`backends.base.Executable`)."""

    _program: _native.Program

    def __init__(self, graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside) -> None:
        matrices = [weights.matrix(name) for name in weight_names(graph)[0]]
        matrix_bytes = sum(matrix.data.size for matrix in matrices if not matrix.shared)
        weights_memory = choose_weights_memory(options.weights_memory, matrix_bytes)
        try:
            store = WeightStore(matrix_bytes) if weights_memory == "huge" else None
            recorder = _Recorder(graph, weights, options, store)
            self._kv = _kv_memory(recorder, beside.pages)
            if beside.threads is not None:
                recorder.program.share_threads(_native_of(beside.threads)._program)
            state = _native.allocate(recorder.state_bytes, recorder.state_bytes >= _HUGE_PAGE)
            recorder.program.finish(self._kv, recorder.page_bytes, options.num_pages, state)
        except MemoryError:
            wanted = sum(plan_memory(graph, weights, options).values())
            raise BackendError(f"out of memory for {wanted} bytes of model and cache") from None
        self._program = recorder.program
        self._recorder: _Recorder | None = recorder
        self._graph = graph
        memory = recorder.memory()
        self.memory: Mapping[str, int] = memory if beside.pages is None else memory | {"kv": 0}
        self.isa: str = self._program.isa
        self._logits: npt.NDArray[np.float32] | None = None
        if graph.logits is not None:
            self._logits = self._array(recorder, graph.logits)
        self._features = {feature: self._array(recorder, value) for feature, value in graph.features.items()}
        self._last_rows: dict[str, int] | None = None

    def forward(self, batch: ForwardBatch) -> F32Array:
        """Run one step; gives the logits float32 `[R, V]`, valid until the next step."""
        sequences = batch.sequences
        table = np.empty((len(sequences), 9), np.int32)
        saves: list[tuple[int, int]] = []
        first_page = 0
        for i, s in enumerate(sequences):
            table[i] = (s.start, s.count, s.position, first_page, *self._state_columns(s.state))
            first_page += len(s.pages)
            if s.state is not None:
                saves += s.state.saves
        pages = sequences[0].pages if len(sequences) == 1 else np.concatenate([s.pages for s in sequences])
        try:
            self._program.run(batch.token_ids, table, pages, batch.logit_rows, saves)
        except ValueError as error:
            raise InvariantError(f"a step that no model may ask for: {error}") from None
        num_rows = len(batch.logit_rows)
        self._last_rows = {"T": len(batch.token_ids), "R": num_rows}
        if self._logits is None:
            return np.empty((num_rows, 0), np.float32)
        return self._logits[:num_rows]

    def _state_columns(self, access: StateAccess | None) -> tuple[int, int, int, int, int]:
        """Slot read, journal replayed and its rows, journal written, number of saves; -1 for none."""
        if access is None:
            if self._graph.state_layers:
                raise InvariantError("a step without state accesses of a graph with recurrent layers")
            return -1, -1, 0, -1, 0
        read = -1 if access.read is None else access.read
        journal = -1 if access.journal is None else access.journal
        return read, *(access.replay or (-1, 0)), journal, len(access.saves)

    def feature(self, feature: Feature) -> F32Array:
        """A view of what a marked feature was in the last step."""
        if self._last_rows is None or feature not in self._features:
            raise InvariantError(f"feature {feature} of a graph that marks {list(self._features)}, after a step")
        return self._features[feature][: self._last_rows[self._graph.features[feature].rows]]

    def holds(self, name: str) -> bool:
        """Whether a matrix of the graph has this name."""
        return name in self._live().held

    def held_matrix(self, name: str) -> Matrix:
        """A weight where this executable reads it."""
        return self._live().held[name]

    def set_input(self, value: Value, array: F32Array) -> None:
        """Fill a value made by `Graph.new_input`, float32 `[rows of the next step, width]`."""
        if value.buffer not in self._graph.inputs:
            raise InvariantError(f"buffer {value.buffer} is not an input of the graph")
        slot, offset, width = self._live().view(value)
        self._program.slot_array(slot)[: len(array), offset : offset + width] = array

    def read_value(self, value: Value) -> F32Array:
        """A copy of what a value had at the end of the last step; for tests and debugging."""
        recorder = self._live()
        if self._last_rows is None or not recorder.slots.survives(value.buffer):
            raise InvariantError(f"buffer {value.buffer} holds nothing of the last step")
        slot, offset, width = recorder.view(value)
        return np.array(self._program.slot_array(slot)[: self._last_rows[value.rows], offset : offset + width])

    def read_state(self, slot: int) -> list[LayerState]:
        """A copy of what a state slot holds, by recurrent layer."""
        recorder = self._live()
        layers = range(len(self._graph.state_layers))
        return [LayerState(*recorder.program.read_state(slot, layer)) for layer in layers]

    def profile(self) -> list[tuple[str, int]]:
        """Nanoseconds by node since `start_profile`, as (op, ns) in graph order."""
        return [(node.op, ns) for node, ns in zip(self._graph.nodes, self._program.node_ns, strict=True)]

    def start_profile(self) -> None:
        """From now on every step adds up the time of each node."""
        self._program.set_profiling(True)

    @property
    def last_forward_ns(self) -> int:
        """Nanoseconds the last step spent in native code."""
        return int(self._program.last_run_ns)

    def close(self) -> None:
        """Release threads, buffers, weights and KV pages."""
        self._logits, self._features = None, {}
        self._recorder = None
        del self._program

    def _array(self, recorder: _Recorder, value: Value) -> F32Array:
        """All rows that a value can have."""
        slot, offset, width = recorder.view(value)
        return np.asarray(self._program.slot_array(slot))[:, offset : offset + width]

    def _live(self) -> _Recorder:
        if self._recorder is None:
            raise InvariantError("the executable was closed")
        return self._recorder
