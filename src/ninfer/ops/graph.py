"""The graph a model records: named ops over symbolic row matrices, with no array library and no backend in sight.

A step of the engine has `T` rows (one per token) and `R` rows whose logits are wanted. Every value is a float32 matrix of
one of these row counts. A model records its graph once at load; a backend compiles the graph to an executable which then
runs any number of steps (docs/how-it-works.md, "The path of a token").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ninfer.errors import InvariantError

RowSpace = Literal["T", "R"]


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
    params: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True)
class KVShape:
    """What one layer's KV cache holds per token: `num_kv_heads` keys and values of width `head_dim`."""

    num_kv_heads: int
    head_dim: int


class Graph:
    """An append-only list of nodes in execution order, the buffers they write and the KV layers they touch."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.buffer_widths: list[int] = []
        self.buffer_rows: list[RowSpace] = []
        self.kv_layers: list[KVShape] = []
        self.logits: Value | None = None

    def new_value(self, width: int, rows: RowSpace) -> Value:
        """A fresh buffer `[rows, width]`; written by exactly one node."""
        if width < 1:
            raise InvariantError(f"a value of width {width}")
        self.buffer_widths.append(width)
        self.buffer_rows.append(rows)
        return Value(len(self.buffer_widths) - 1, rows, 0, width)

    def new_kv_layer(self, shape: KVShape) -> int:
        """Reserve a KV layer; returns its index, which `kv_append` and `paged_attention` name."""
        self.kv_layers.append(shape)
        return len(self.kv_layers) - 1

    def add(
        self,
        op: str,
        inputs: tuple[Value, ...] = (),
        *,
        weights: tuple[str, ...] = (),
        output: Value | None = None,
        **params: float | int,
    ) -> None:
        """Append one node; called by the recording functions of the op modules only."""
        self.nodes.append(Node(op, inputs, weights, output, dict(params)))

    def assign_slots(self) -> BufferSlots:
        """Let buffers whose lives do not overlap share memory.

        A slot is free again after the last node that reads or writes its buffer. Slots serve one row space and one
        width, so that a buffer's row stride never changes; first fit in node order makes the result deterministic.
        """
        last_use: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            for value in (*node.inputs, *([node.output] if node.output else [])):
                last_use[value.buffer] = index
        if self.logits is not None:
            last_use[self.logits.buffer] = len(self.nodes)
        slot_of: dict[int, int] = {}
        slots: list[tuple[int, RowSpace]] = []
        free: dict[tuple[int, RowSpace], list[int]] = {}
        for index, node in enumerate(self.nodes):
            if node.output is not None and node.output.buffer not in slot_of:
                buffer = node.output.buffer
                key = (self.buffer_widths[buffer], self.buffer_rows[buffer])
                pool = free.setdefault(key, [])
                if not pool:
                    slots.append(key)
                    pool.append(len(slots) - 1)
                slot_of[buffer] = pool.pop()
            for buffer in {v.buffer for v in (*node.inputs, *([node.output] if node.output else []))}:
                if last_use[buffer] == index:
                    free[(self.buffer_widths[buffer], self.buffer_rows[buffer])].append(slot_of[buffer])
        return BufferSlots(slot_of, slots)


@dataclass(frozen=True)
class BufferSlots:
    """`slot_of[buffer]` is the slot a buffer lives in; `slots[i]` is its `(width, row space)`."""

    slot_of: dict[int, int]
    slots: list[tuple[int, RowSpace]]
