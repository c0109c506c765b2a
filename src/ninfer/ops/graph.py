"""The graph a model records: named ops over symbolic row matrices, with no array library and no backend in sight.

A step of the engine has `T` rows (one per token) and `R` rows whose logits are wanted. Every value is a float32 matrix
of one of these row counts. A model records its graph once at load; a backend compiles the graph to an executable which
then runs any number of steps (docs/how-it-works.md, "The path of a token").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ninfer.errors import InvariantError

RowSpace = Literal["T", "R"]
Param = float | int | tuple[float, ...]

Feature = int | Literal["final"]
"""What a draft model may read of its target: the residual stream after layer i, counted from 0, or `final`, the rows
after the last norm, which the head reads."""


@dataclass(frozen=True)
class Value:
    """Columns `offset .. offset + width` of one buffer: float32 `[rows, width]`, one row per step row."""

    buffer: int
    rows: RowSpace
    offset: int
    width: int

    def columns(self, start: int, stop: int) -> Value:
        """A view of columns `start .. stop`; nothing is copied."""
        if not 0 <= start < stop <= self.width:
            raise InvariantError(f"columns {start}:{stop} of a value that has {self.width}")
        return Value(self.buffer, self.rows, self.offset + start, stop - start)


@dataclass(frozen=True)
class Node:
    """One op call: `op` names a contract in `ninfer.ops`; `params` are its numbers, fixed at record time."""

    op: str
    inputs: tuple[Value, ...]
    weights: tuple[str, ...]
    output: Value | None
    params: Mapping[str, Param] = field(default_factory=dict)

    def buffers(self) -> list[int]:
        """The buffers this node touches, each once, in a fixed order."""
        values = (*self.inputs, *([] if self.output is None else [self.output]))
        return list(dict.fromkeys(value.buffer for value in values))

    def number(self, name: str) -> float:
        """A parameter that is one number."""
        value = self.params[name]
        if isinstance(value, tuple):
            raise InvariantError(f"parameter {name} of {self.op} is a list")
        return value

    def count(self, name: str) -> int:
        """A parameter that is a count or an index."""
        return int(self.number(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        """A parameter that is a list of numbers."""
        value = self.params[name]
        if not isinstance(value, tuple):
            raise InvariantError(f"parameter {name} of {self.op} is one number")
        return value


@dataclass(frozen=True)
class KVShape:
    """What one layer's KV cache holds per token: `num_kv_heads` keys and values of width `head_dim`."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class StateShape:
    """What one recurrent layer keeps of a sequence, all float32.

    The last `conv_taps - 1` input rows of its `conv_channels` convolved channels, and per value head a matrix
    `[key_dim, value_dim]`. A layer without one of the two has no channels, or no heads.
    """

    conv_channels: int
    conv_taps: int
    num_v_heads: int
    key_dim: int
    value_dim: int


class Graph:
    """An append-only list of nodes in execution order, the buffers they write, the KV and state layers they touch.

    `inputs` names buffers that no node writes: whoever runs the graph fills them (`Executable.set_input`). Models have
    none, everything they need comes from the step's batch; graphs of a single op, as tests record them, do.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.buffer_widths: list[int] = []
        self.buffer_rows: list[RowSpace] = []
        self.kv_layers: list[KVShape] = []
        self.state_layers: list[StateShape] = []
        self.logits: Value | None = None
        self.features: dict[Feature, Value] = {}

    def new_value(self, width: int, rows: RowSpace) -> Value:
        """A fresh buffer `[rows, width]`. One node writes it, or several nodes one part of its columns each."""
        if width < 1:
            raise InvariantError(f"a value of width {width}")
        self.buffer_widths.append(width)
        self.buffer_rows.append(rows)
        return Value(len(self.buffer_widths) - 1, rows, 0, width)

    def new_input(self, width: int, rows: RowSpace = "T") -> Value:
        """A fresh buffer `[rows, width]` that the caller of the executable fills before a step."""
        value = self.new_value(width, rows)
        self.inputs.append(value.buffer)
        return value

    def input_values(self) -> list[Value]:
        """The inputs as a whole, in order."""
        return [Value(buffer, self.buffer_rows[buffer], 0, self.buffer_widths[buffer]) for buffer in self.inputs]

    def new_kv_layer(self, shape: KVShape) -> int:
        """Reserve a KV layer; returns its index, which `kv_append` and `paged_attention` name."""
        self.kv_layers.append(shape)
        return len(self.kv_layers) - 1

    def new_state_layer(self, shape: StateShape) -> int:
        """Reserve a recurrent layer; returns its index, which one `causal_conv` and one `gated_delta_rule` may name."""
        if min(shape.conv_channels, shape.num_v_heads) < 0 or min(shape.conv_taps, shape.key_dim, shape.value_dim) < 1:
            raise InvariantError(f"a recurrent layer of {shape}")
        self.state_layers.append(shape)
        return len(self.state_layers) - 1

    def state_node(self, op: str, layer: int) -> Node | None:
        """The node of `op` that uses a recurrent layer."""
        return next((n for n in self.nodes if n.op == op and n.params["layer"] == layer), None)

    def add(
        self,
        op: str,
        inputs: tuple[Value, ...] = (),
        *,
        weights: tuple[str, ...] = (),
        output: Value | None = None,
        **params: Param,
    ) -> None:
        """Append one node; called by the recording functions of the op modules only."""
        self.nodes.append(Node(op, inputs, weights, output, dict(params)))

    def mark_logits(self, value: Value) -> None:
        """Name the value `[R, V]` that a step gives back."""
        if value.rows != "R":
            raise InvariantError("logits are computed for selected rows only; use select_rows first")
        self.logits = value

    def mark_feature(self, feature: Feature, value: Value) -> None:
        """Name a value that stays to be read when a step is over."""
        if feature in self.features:
            raise InvariantError(f"feature {feature} as {value}; it is {self.features[feature]}")
        self.features[feature] = value

    def assign_slots(self) -> BufferSlots:
        """Let buffers whose lives do not overlap share memory.

        A slot is free again after the last node that reads or writes its buffer. Slots serve one row space and one
        width, so that a buffer's row stride never changes; first fit in node order makes the result deterministic.
        Inputs, features and the logits keep a slot of their own to the end of the step.
        """
        last_use = self._last_uses()
        slot_of: dict[int, int] = {}
        slots: list[tuple[int, RowSpace]] = []
        free: dict[tuple[int, RowSpace], list[int]] = {}
        owner: list[int] = []

        def take(buffer: int) -> None:
            key = (self.buffer_widths[buffer], self.buffer_rows[buffer])
            pool = free.setdefault(key, [])
            if not pool:
                pool.append(len(slots))
                slots.append(key)
                owner.append(buffer)
            slot_of[buffer] = pool.pop()
            owner[slot_of[buffer]] = buffer

        for buffer in self.inputs:
            take(buffer)
        for index, node in enumerate(self.nodes):
            if node.output is not None and node.output.buffer not in slot_of:
                take(node.output.buffer)
            for buffer in node.buffers():
                if buffer not in slot_of:
                    raise InvariantError(f"node {index} ({node.op}) reads buffer {buffer} before it is written")
                if last_use[buffer] == index:
                    free[(self.buffer_widths[buffer], self.buffer_rows[buffer])].append(slot_of[buffer])
        return BufferSlots(slot_of, slots, owner)

    def _last_uses(self) -> dict[int, int]:
        """For every buffer the index of the last node that needs it; the number of nodes if it outlives them all."""
        last_use = {buffer: index for index, node in enumerate(self.nodes) for buffer in node.buffers()}
        results = [*self.features.values(), *([] if self.logits is None else [self.logits])]
        kept = [*self.inputs, *(value.buffer for value in results)]
        return last_use | dict.fromkeys(kept, len(self.nodes))


@dataclass(frozen=True)
class BufferSlots:
    """Which memory each buffer lives in.

    `slot_of[buffer]` is its slot; `slots[i]` is the `(width, row space)` of a slot; `last_owner[i]` is the buffer whose
    content the slot has when a step is over.
    """

    slot_of: dict[int, int]
    slots: list[tuple[int, RowSpace]]
    last_owner: list[int]

    def survives(self, buffer: int) -> bool:
        """Whether a buffer's content is still there when a step is over."""
        return buffer in self.slot_of and self.last_owner[self.slot_of[buffer]] == buffer
