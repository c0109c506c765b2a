"""What a backend is: weights and a graph go in, something that only runs comes out.

A backend is a module with two functions of these signatures:

    compile_graph(graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside = ALONE) -> Executable
    plan_memory(graph: Graph, weights: Weights, options: RuntimeOptions) -> dict[str, int]

`plan_memory` allocates nothing and gives the bytes that `compile_graph` will hold, by the names in `MEMORY_PARTS`; it
equals the executable's `memory`, but for pages that are another's. What a backend cannot run (an op, a format, a head
width, an instruction set that this machine lacks) is an UnsupportedError from either function that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer.backends.options import RuntimeOptions
from ninfer.errors import ConfigError
from ninfer.formats import TensorScale
from ninfer.formats.layouts import find_tensor_scale
from ninfer.ops import SPECS
from ninfer.ops.batch import ForwardBatch
from ninfer.ops.graph import Feature, Graph, Value

F32Array = npt.NDArray[np.float32]

MEMORY_PARTS = ("weights", "kv", "state", "workspace", "logits")
"""`weights`: as the backend holds them, mapped file ranges included; `kv`: all pages; `state`: slots and journals of
recurrent layers; `logits`: the buffer that
`forward` gives back; `workspace`: all other buffers and scratch."""

STRIDE_FLOATS = 16
"""Rows of a buffer start on a cache line: strides are whole multiples of 64 bytes."""


@dataclass(frozen=True)
class FileRange:
    """Where in an open file the bytes of a weight start; `fd` stays open as long as the weights do."""

    fd: int
    offset: int


@dataclass(frozen=True, eq=False)
class Matrix:
    """A stored weight `[N, K]`: `data` uint8 has it in layout n16 (`formats.layouts`), from a 64-byte border on.

    It is usually mapped and read only.
    """

    format: str
    shape: tuple[int, int]
    data: npt.NDArray[np.uint8]
    source: FileRange | None = None
    """The same bytes in a file, for backends that read rather than map; None where there is no file."""
    shared: bool = False
    """`data` is where another executable of the backend holds this weight (`Executable.held_matrix`), or will hold it:
    it is used in place and counted once."""

    @property
    def tensor_scale(self) -> TensorScale | None:
        """What the format holds once per tensor, read from the end of `data`; None for formats without."""
        return find_tensor_scale(self.data, self.format)


@dataclass(frozen=True, eq=False)
class LayerState:
    """What one slot holds of one recurrent layer: `window [taps-1, C]` and `s [Hv, Dk, Dv]`, both float32."""

    window: F32Array
    s: F32Array


class Weights(Protocol):
    """Where a backend gets weights by the names that graph nodes use; both raise KeyError for an unknown name."""

    def matrix(self, name: str) -> Matrix: ...

    def vector(self, name: str) -> F32Array:
        """float32 `[W]`."""
        ...


class Executable(Protocol):
    """A compiled graph with its weights, buffers and KV pages. It runs one step at a time."""

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes held, by the names in MEMORY_PARTS."""
        ...

    @property
    def last_forward_ns(self) -> int:
        """Nanoseconds the last step spent in nodes, without the Python around them; 0 before the first step."""
        ...

    def forward(self, batch: ForwardBatch) -> F32Array:
        """Run one step; gives the logits float32 `[R, V]`, valid until the next step (`[R, 0]` without logits).

        The batch must be valid for this executable (`models.batch.check_batch`).
        """
        ...

    def feature(self, feature: Feature) -> F32Array:
        """What a marked feature was in the last step, float32 `[rows, W]`: a view, valid until the next step.

        InvariantError for a feature that the graph does not mark, or before the first step.
        """
        ...

    def holds(self, name: str) -> bool:
        """Whether a matrix of the graph has this name."""
        ...

    def held_matrix(self, name: str) -> Matrix:
        """A weight of the graph as it is held, for an executable that runs beside this one and closes before it."""
        ...

    def set_input(self, value: Value, array: F32Array) -> None:
        """Fill a value made by `Graph.new_input`, float32 `[rows of the next step, width]`; it stays until replaced."""
        ...

    def read_value(self, value: Value) -> F32Array:
        """A copy of what a value had at the end of the last step, float32 `[rows, width]`; for tests and debugging.

        InvariantError if a later node took its memory (`BufferSlots.survives`), or before the first step.
        """
        ...

    def read_state(self, slot: int) -> list[LayerState]:
        """A copy of what a state slot holds, by recurrent layer; for tests and debugging."""
        ...

    def close(self) -> None:
        """Release everything; nothing may be called after it."""
        ...


@dataclass(frozen=True)
class Beside:
    """Executables of the same backend and options that a new one runs beside, never at the same time.

    threads: whose threads it uses. pages: whose KV pages are its own too; the layers of both graphs are alike.
    """

    threads: Executable | None = None
    pages: Executable | None = None


ALONE = Beside()


class CompileGraph(Protocol):
    def __call__(
        self, graph: Graph, weights: Weights, options: RuntimeOptions, beside: Beside = ALONE
    ) -> Executable: ...


class PlanMemory(Protocol):
    def __call__(self, graph: Graph, weights: Weights, options: RuntimeOptions) -> dict[str, int]: ...


def check_state_options(graph: Graph, options: RuntimeOptions) -> None:
    """ConfigError if a graph with recurrent layers is to run without a slot for their state."""
    if graph.state_layers and options.num_state_slots < 1:
        raise ConfigError(f"num_state_slots is 0; the model has {len(graph.state_layers)} recurrent layers")


def journal_widths(graph: Graph, layer: int) -> tuple[int, int, int, int]:
    """Values that a journal keeps per row of one recurrent layer: convolution inputs, keys, values, gates."""
    shape = graph.state_layers[layer]
    rule = graph.state_node("gated_delta_rule", layer)
    key_heads = 0 if rule is None else rule.count("num_k_heads")
    values = shape.num_v_heads * shape.value_dim
    return shape.conv_channels, key_heads * shape.key_dim, values, 2 * shape.num_v_heads


def buffer_bytes(graph: Graph, options: RuntimeOptions) -> tuple[int, int]:
    """Bytes of a graph's slots at full size: (all but the logits, the logits)."""
    slots = graph.assign_slots()
    logits_slot = None if graph.logits is None else slots.slot_of[graph.logits.buffer]
    others = logits = 0
    for index, (width, rows) in enumerate(slots.slots):
        count = options.max_rows if rows == "T" else options.max_logit_rows
        size = 4 * count * stride_floats(width)
        if index == logits_slot:
            logits = size
        else:
            others += size
    return others, logits


def stride_floats(width: int) -> int:
    """Floats from one row of a buffer to the next."""
    return -(-width // STRIDE_FLOATS) * STRIDE_FLOATS


def weight_names(graph: Graph) -> tuple[list[str], list[str]]:
    """Names of (matrices, vectors) in the order of use, each once."""
    by_rank: dict[int, dict[str, None]] = {1: {}, 2: {}}
    for node in graph.nodes:
        for axes in SPECS[node.op].weights.values():
            by_rank[len(axes)] |= dict.fromkeys(node.weights)
    return list(by_rank[2]), list(by_rank[1])
