"""Every kernel of the CPU backend by itself: time, bytes and operations per second, and its share of what limits it.

A case is compiled as a graph of its own (`op_cases.py`) and timed inside the native program, without the Python around
it. Its ceilings are taken in the same run: memory reads of a buffer of the case's own size, and the arithmetic loop of
the instruction its kernel is built on. Nothing is printed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.backends.base import Matrix
from ninfer.backends.cpu.ceilings import NativeCeilings, PeakLoop
from ninfer.backends.cpu.executable import NativeExecutable, compile_graph
from ninfer.backends.options import KVFormat, Numerics, RuntimeOptions
from ninfer.bench import ceilings
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.measurements import Measurement, Run, Scalar, Work, split_warmups
from ninfer.bench.op_cases import OpCase, cases
from ninfer.errors import ConfigError
from ninfer.formats.layouts import to_n16
from ninfer.ops.batch import PAGE_TOKENS, ForwardBatch, SequenceRows, StateAccess
from ninfer.ops.graph import Graph, Value

OP = "op"
WARMUPS, REPEATS = 5, 25
INPUT_SCALE = 500.0
"""Of nvfp4 weights: a calibration that saw 5.4 as the largest input."""

DEFAULT_ROWS = (1, 4, 16, 128, 512)
DEFAULT_DEPTHS = (512, 2048)
DEFAULT_FORMATS = ("q4g32m", "q8g32")

PEAK_LOOPS: Mapping[str, tuple[str, str]] = {
    "avx2": ("int8_avx2_maddubs", "fp32_fma_avx2"),
    "avx512_vnni": ("int8_avx512_vnni", "fp32_fma_avx512"),
    "amx": ("int8_amx", "fp32_fma_avx512"),
}
"""Instruction set of the kernels -> the loops that are the peak of its int8 and of its float32 products."""


@dataclass(frozen=True)
class OpShare:
    """One measured case beside its two limits; None where a limit was not measured or does not apply."""

    measurement: Measurement
    bytes_per_s: float
    ops_per_s: float | None
    memory_share: float | None
    arithmetic_share: float | None


def measure(
    *,
    threads: int,
    rows: Sequence[int] = DEFAULT_ROWS,
    depths: Sequence[int] = DEFAULT_DEPTHS,
    weight_formats: Sequence[str] = DEFAULT_FORMATS,
    numerics: Numerics = "a8",
    kv_format: KVFormat = "int8",
    isa: str | None = None,
    ops: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Measure all cases, or only those of the named `ops`.

    Raises ConfigError for an unknown op or format, UnsupportedError for an instruction set that cannot run here.
    """
    unknown = sorted(set(weight_formats) - set(formats.NAMES))
    if unknown:
        raise ConfigError(f"weight format {', '.join(unknown)}; choose from {', '.join(formats.NAMES)}")
    selected = list(cases(rows=rows, depths=depths, weight_formats=weight_formats, numerics=numerics))
    known = sorted({case.op for case in selected})
    if set(ops) - set(known):
        raise ConfigError(f"no op is called {', '.join(sorted(set(ops) - set(known)))}; there are {', '.join(known)}")
    selected = [case for case in selected if not ops or case.op in ops]
    measurements: list[Measurement] = []
    for case in selected:
        progress(f"{case.op} {case.shape}, {case.rows} rows")
        options = RuntimeOptions(
            numerics=numerics,
            kv_format=kv_format,
            num_pages=-(-(case.depth + case.rows) // PAGE_TOKENS),
            max_rows=case.rows,
            max_logit_rows=max(1, case.logit_rows),
            num_state_slots=1,
            threads=threads,
            isa=isa,
        )
        measurements.append(_measure_case(case, options))
    used_isa = str(measurements[0].inputs["isa"])
    loops = NativeCeilings()
    progress("ceilings")
    sizes = sorted({_ceiling_size(m, threads) for m in measurements})
    for size in sizes:
        measurements.append(ceilings.memory_read(loops, size, huge=True, threads=threads, repeats=5))
    wanted = PEAK_LOOPS.get(used_isa, ())
    for loop in loops.peak_loops():
        if loop.name in wanted and loop.available:
            measurements.extend(_peaks(loops, loop, threads))
    conditions = {"threads": threads, "numerics": numerics, "kv_format": kv_format, "isa": used_isa}
    return Run("ops", describe_machine(), package_versions(), tuple(measurements), conditions=conditions)


def shares(run: Run) -> list[OpShare]:
    """Every case of the run with its rates and its shares of the ceilings taken in the same run."""
    threads = int(run.conditions["threads"])
    int8_loop, float_loop = PEAK_LOOPS.get(str(run.conditions["isa"]), ("", ""))
    result = []
    for m in run.measurements:
        if m.name != OP:
            continue
        bytes_per_s = m.rate.median
        num_ops = m.number("num_ops")
        ops_per_s = num_ops / m.summary.median if num_ops else None
        read = run.find(ceilings.MEMORY_READ, buffer_bytes=_ceiling_size(m, threads))
        peak = run.find(ceilings.PEAK, loop=float_loop if m.inputs["exact"] else int8_loop)
        result.append(
            OpShare(
                m,
                bytes_per_s,
                ops_per_s,
                bytes_per_s / read.rate.median if read else None,
                ops_per_s / peak.rate.median if ops_per_s and peak else None,
            )
        )
    return result


def _peaks(loops: NativeCeilings, loop: PeakLoop, threads: int) -> list[Measurement]:
    return list(ceilings.peak(loops, loop, [threads], repeats=5))


def _ceiling_size(m: Measurement, threads: int) -> int:
    """A buffer as large as what a step of the case touches, from 1 MiB on rounded up to a quarter of an octave."""
    step = ceilings.MIB // 4
    while 4 * step < m.number("working_bytes"):
        step *= 2
    step //= 2
    size = max(ceilings.MIB, step * math.ceil(m.number("working_bytes") / step))
    return size - size % (64 * threads)


class _CaseWeights:
    """`backends.base.Weights` of a case: every copy its own memory, all copies of a shape the same random values."""

    def __init__(self, case: OpCase) -> None:
        self._case = case
        self._packed: dict[tuple[tuple[int, int], str], npt.NDArray[np.uint8]] = {}
        self._vectors = {name: np.ones(width, np.float32) for name, width in case.vectors.items()}
        self._matrices = {name: self._matrix(*what) for name, what in case.matrices.items()}

    def matrix(self, name: str) -> Matrix:
        return self._matrices[name]

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self._vectors[name]

    def _matrix(self, shape: tuple[int, int], weight_format: str) -> Matrix:
        key = (shape, weight_format)
        if key not in self._packed:
            values = np.random.default_rng(0).standard_normal(shape, np.float32)
            planes = formats.get(weight_format).pack(values)
            if planes.tensor is not None:  # as of checkpoints for w4a4
                planes = replace(planes, tensor=replace(planes.tensor, input_scale=INPUT_SCALE))
            self._packed[key] = to_n16(planes, weight_format)
        data = self._packed[key]
        room = np.empty(data.size + 64, np.uint8)
        start = -room.ctypes.data % 64
        room[start : start + data.size] = data
        return Matrix(weight_format, shape, room[start : start + data.size])


def _measure_case(case: OpCase, options: RuntimeOptions) -> Measurement:
    graph = Graph()
    case.record(graph, case.copies)
    executable = compile_graph(graph, _CaseWeights(case), options)
    try:
        _fill_inputs(graph, executable, case.rows)
        pages = np.arange(options.num_pages, dtype=np.int32)
        access = StateAccess(0, saves=((case.rows, 0),)) if graph.state_layers else None
        batch = ForwardBatch(
            np.arange(case.rows, dtype=np.int32),
            (SequenceRows(0, case.rows, case.depth, pages, access),),
            np.arange(case.logit_rows, dtype=np.int32),
        )
        seconds = []
        for _ in range(WARMUPS + REPEATS):
            executable.forward(batch)
            seconds.append(executable.last_forward_ns / 1e9 / case.copies)
        isa = executable.isa
        kv_bytes = executable.memory["kv"] / case.copies / (options.num_pages * PAGE_TOKENS)
    finally:
        executable.close()
    num_bytes = case.num_bytes + (kv_bytes * (case.depth + case.rows) if graph.kv_layers else 0)
    inputs: dict[str, Scalar] = {
        "op": case.op,
        "shape": case.shape,
        "rows": case.rows,
        "num_bytes": num_bytes,
        "num_ops": case.num_ops,
        "copies": case.copies,
        "working_bytes": num_bytes * (case.copies if case.separate else 1),
        "exact": case.exact,
        "isa": isa,
        "threads": options.threads,
    }
    taken = split_warmups(seconds, WARMUPS)
    return Measurement(OP, "s", taken.values, taken.warmups, inputs, Work(num_bytes, "byte"))


def _fill_inputs(graph: Graph, executable: NativeExecutable, rows: int) -> None:
    """Ordinary numbers everywhere: zeros and subnormals would flatter or slow some kernels."""
    rng = np.random.default_rng(1)
    for buffer in graph.inputs:
        width = graph.buffer_widths[buffer]
        value = Value(buffer, graph.buffer_rows[buffer], 0, width)
        executable.set_input(value, rng.standard_normal((rows, width), np.float32))
