"""Running the small graphs of op contracts on any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.backends import cpu
from ninfer.backends.base import Executable, Matrix, Weights
from ninfer.backends.cpu.executable import NUMERICS, WEIGHT_FORMATS
from ninfer.backends.options import Numerics, RuntimeOptions
from ninfer.backends.reference import executable as reference
from ninfer.formats.base import Planes
from ninfer.formats.layouts import to_n16
from ninfer.ops.batch import PAGE_TOKENS, ForwardBatch, SequenceRows
from ninfer.ops.graph import Graph, Value
from ninfer.ops.spec import Case, F32Array, Step

CPU_ISAS: tuple[str, ...] = tuple(cpu.available_isas())
BACKENDS: tuple[str, ...] = ("reference", *CPU_ISAS)
"""`reference`, or the instruction set of the native backend."""


def sizes_of(case: Case) -> dict[str, Any]:
    """The sizes that `cases` of an op module has bound to the case's `record`, by the names of its arguments."""
    assert isinstance(case.record, partial)
    return case.record.keywords


def formats_on(backend: str) -> tuple[str, ...]:
    """The weight formats a backend has."""
    return formats.NAMES if backend == "reference" else tuple(WEIGHT_FORMATS)


def numerics_on(backend: str) -> tuple[str, ...]:
    """The numeric profiles a backend has."""
    return get_args(Numerics) if backend == "reference" else tuple(NUMERICS)


BACKEND_FORMATS = tuple((backend, name) for backend in BACKENDS for name in formats_on(backend))
"""Every backend with every weight format it has."""

NATIVE_FORMATS = tuple((isa, name) for isa in CPU_ISAS for name in formats_on(isa))


class StoredWeights:
    """`backends.base.Weights` of float32 arrays: matrices stored in one format, vectors as they are.

    input_scale: what an nvfp4 matrix has for NVFP4 activations.
    """

    def __init__(self, arrays: Mapping[str, F32Array], format: str, input_scale: float | None = None) -> None:
        self._vectors = {name: array for name, array in arrays.items() if array.ndim == 1}
        self._format = format
        self._matrices: dict[str, Matrix] = {}
        for name, array in arrays.items():
            if array.ndim == 2:
                planes = formats.get(format).pack(array)
                if planes.tensor is not None:
                    planes = replace(planes, tensor=replace(planes.tensor, input_scale=input_scale))
                self.add(name, planes)

    def add(self, name: str, planes: Planes) -> None:
        """A matrix with codes of the caller's choice, which an encoder might never give."""
        self._matrices[name] = Matrix(self._format, planes.shape, aligned(to_n16(planes, self._format)))

    def matrix(self, name: str) -> Matrix:
        return self._matrices[name]

    def vector(self, name: str) -> F32Array:
        return self._vectors[name]


def aligned(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy that starts on a 64-byte border, as in an artifact."""
    room = np.empty(data.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + data.size] = data
    return room[start : start + data.size]


def compile_on(backend: str, graph: Graph, weights: Weights, **options: Any) -> Executable:
    """Compile for `reference` or for the native backend restricted to an instruction set."""
    if backend == "reference":
        return reference.compile_graph(graph, weights, RuntimeOptions(backend="reference", **options))
    from ninfer.backends.cpu import executable as native

    return native.compile_graph(graph, weights, RuntimeOptions(backend="cpu", isa=backend, **options))


def pages_of(case: Case, num_pages: int | None = None, seed: int = 5) -> dict[int, npt.NDArray[np.int32]]:
    """Disjoint, shuffled pages for every sequence of a case, out of `num_pages` (None: as few as will do)."""
    needed: dict[int, int] = {}
    for step in case.steps:
        for rows in step.rows:
            pages = -(-(rows.position + rows.count) // PAGE_TOKENS)
            needed[rows.sequence] = max(needed.get(rows.sequence, 0), pages)
    ids = np.random.default_rng(seed).permutation(num_pages or sum(needed.values())).astype(np.int32)
    ends = np.cumsum(list(needed.values()))
    return {s: ids[end - count : end] for (s, count), end in zip(needed.items(), ends, strict=True)}


def batch_of(step: Step, pages: Mapping[int, npt.NDArray[np.int32]]) -> ForwardBatch:
    """The step as arrays."""
    sequences, start = [], 0
    for rows in step.rows:
        sequences.append(SequenceRows(start, rows.count, rows.position, pages[rows.sequence], rows.state))
        start += rows.count
    ids = np.zeros(start, np.int32) if step.token_ids is None else np.array(step.token_ids, np.int32)
    return ForwardBatch(ids, tuple(sequences), np.array(step.logit_rows, np.int32))


def state_options(steps: Sequence[Step]) -> dict[str, int]:
    """The fewest slots, journals and journal rows that serve the steps."""
    rows = [r for step in steps for r in step.rows]
    accesses = [r.state for r in rows if r.state is not None]
    slots = [slot for a in accesses for _, slot in a.saves]
    journals = [r.state.journal for r in rows if r.state is not None and r.state.journal is not None]
    kept = [r.count for r in rows if r.state is not None and r.state.journal is not None]
    return {
        "num_state_slots": max(slots, default=-1) + 1,
        "num_journals": max(journals, default=-1) + 1,
        "journal_rows": max(kept, default=0),
    }


def run_case(
    backend: str,
    case: Case,
    format: str = "f32",
    *,
    num_pages: int | None = None,
    seed: int = 5,
    input_scale: float | None = None,
    **options: Any,
) -> list[F32Array]:
    """What the case's value is after every step; `input_scale` is that of all nvfp4 matrices."""
    graph = Graph()
    value = case.record(graph)
    pages = pages_of(case, num_pages, seed)
    executable = compile_on(
        backend,
        graph,
        StoredWeights(case.weights, format, input_scale),
        **{
            "num_pages": num_pages or max(sum(len(ids) for ids in pages.values()), 1),
            "max_rows": max(step.num_rows for step in case.steps),
            "max_logit_rows": max(1, *(len(step.logit_rows) for step in case.steps)),
            **state_options(case.steps),
            **options,
        },
    )
    try:
        return [run_step(executable, graph, value, step, pages) for step in case.steps]
    finally:
        executable.close()


def run_step(
    executable: Executable, graph: Graph, value: Value, step: Step, pages: Mapping[int, npt.NDArray[np.int32]]
) -> F32Array:
    """Feed the inputs of one step, run it, read the value."""
    for buffer, array in zip(graph.inputs, step.inputs, strict=True):
        rows = graph.buffer_rows[buffer]
        executable.set_input(Value(buffer, rows, 0, graph.buffer_widths[buffer]), array)
    executable.forward(batch_of(step, pages))
    return executable.read_value(value)
