"""Native kernels of the CPU backend."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def allocate(bytes: int, huge: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')]:
    """
    Zeroed anonymous memory as a uint8 array; `huge` asks for transparent huge pages. Raises MemoryError.
    """

def read_into(fd: int, offset: int, to: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill a uint8 array from a file at an offset; raises RuntimeError when the file ends early.
    """

PAGE_TOKENS: int = 64

MAX_HEAD_DIM: int = 256

def targets() -> list:
    """
    Instruction-set targets, slowest first: (name, empty or the reason why it cannot run here).
    """

class Program:
    """
    A recorded graph bound to kernels, weights and buffers; see native/core/program.h.
    """

    def __init__(self, threads: int, isa: str, numerics: int, max_rows: int, max_logit_rows: int) -> None: ...

    def add_weight(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], format: int, n: int, k: int) -> int: ...

    def add_vector(self, data: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def add_slot(self, width: int, logit_rows: bool) -> int: ...

    def set_kv(self, format: int, heads_and_dims: Sequence[tuple[int, int]]) -> int: ...

    def add_state_layer(self, channels: int, taps: int, v_heads: int, key_dim: int, value_dim: int, key_width: int) -> None: ...

    def plan_state(self, slots: int, journals: int, journal_rows: int) -> int:
        """Bytes of so many state slots and journals."""

    def read_state(self, slot: int, layer: int) -> tuple: ...

    def embedding(self, arg0: int, arg1: tuple[int, int, int], /) -> None: ...

    def rms_norm(self, arg0: tuple[int, int, int], arg1: int, arg2: int, arg3: float, arg4: tuple[int, int, int], /) -> None: ...

    def gated_rms_norm(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], arg2: int, arg3: int, arg4: float, arg5: tuple[int, int, int], /) -> None: ...

    def l2_norm(self, arg0: tuple[int, int, int], arg1: int, arg2: float, arg3: float, arg4: tuple[int, int, int], /) -> None: ...

    def linear(self, x: tuple[int, int, int], weights: Sequence[int], out: tuple[int, int, int], residual: tuple[int, int, int] | None) -> None: ...

    def rope_angles(self, arg0: Sequence[float], arg1: float, arg2: tuple[int, int, int], /) -> None: ...

    def rope(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], arg2: int, arg3: int, arg4: tuple[int, int, int], /) -> None: ...

    def kv_append(self, arg0: int, arg1: tuple[int, int, int], arg2: tuple[int, int, int], /) -> None: ...

    def paged_attention(self, arg0: int, arg1: tuple[int, int, int], arg2: int, arg3: float, arg4: bool, arg5: int, arg6: tuple[int, int, int], /) -> None: ...

    def silu_mul(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], arg2: tuple[int, int, int], /) -> None: ...

    def sigmoid_mul(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], arg2: tuple[int, int, int], /) -> None: ...

    def delta_gates(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], arg2: int, arg3: int, arg4: tuple[int, int, int], /) -> None: ...

    def causal_conv(self, arg0: int, arg1: tuple[int, int, int], arg2: int, arg3: tuple[int, int, int], /) -> None: ...

    def dynamic_conv(self, z: tuple[int, int, int], d: tuple[int, int, int], vector: int, first: int, taps: int, out: tuple[int, int, int], residual: tuple[int, int, int] | None) -> None: ...

    def gated_delta_rule(self, arg0: int, arg1: tuple[int, int, int], arg2: tuple[int, int, int], arg3: tuple[int, int, int], arg4: tuple[int, int, int], arg5: int, arg6: tuple[int, int, int], /) -> None: ...

    def select_rows(self, arg0: tuple[int, int, int], arg1: tuple[int, int, int], /) -> None: ...

    def share_threads(self, other: Program) -> None:
        """Use the threads of a program that never runs at once."""

    def plan(self, num_pages: int) -> None: ...

    def finish(self, kv: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], page_bytes: int, num_pages: int, state: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def run(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequences: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pages: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logit_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], saves: Sequence[tuple[int, int]]) -> None: ...

    def slot_array(self, slot: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...

    @property
    def isa(self) -> str: ...

    @property
    def workspace_bytes(self) -> int: ...

    @property
    def scratch_bytes(self) -> int: ...

    def set_profiling(self, on: bool) -> None:
        """
        Start (from zero) or stop adding up the nanoseconds of every node on thread 0, barriers included.
        """

    @property
    def node_ns(self) -> list[int]:
        """Nanoseconds by node, in the order the nodes were added."""

    @property
    def last_run_ns(self) -> int: ...

def bench_memory_read(num_bytes: int, *, huge_pages: bool, threads: int, passes: int, repeats: int) -> dict:
    """
    Read a fresh buffer; {'seconds': one per repeat, 'huge_bytes': what huge pages really back}.
    """

def bench_peaks() -> list:
    """Every arithmetic loop: name, needs, available, ops_per_iteration."""

def bench_run_peak(name: str, *, threads: int, iterations: int, repeats: int) -> list[float]:
    """Seconds of each repeat of one arithmetic loop."""

def bench_barrier(*, threads: int, rounds: int) -> float:
    """Seconds per round of a spinning barrier."""
