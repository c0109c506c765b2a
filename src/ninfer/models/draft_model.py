"""A draft model that runs: graphs compiled beside their target, over KV pages of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ninfer.backends.base import Executable, F32Array, Matrix
from ninfer.backends.options import RuntimeOptions
from ninfer.errors import InvariantError
from ninfer.formats import bf16
from ninfer.formats.layouts import LANES
from ninfer.models.batch import BatchLimits, ForwardBatch, check_batch
from ninfer.models.dflash import DFlashConfig
from ninfer.models.mtp import MTPModule
from ninfer.models.weights import ArtifactWeights
from ninfer.ops.graph import Value


class DraftWeights:
    """`backends.base.Weights`: what `shared` has of matrices, and the others from the draft's own files."""

    def __init__(self, own: Mapping[str, ArtifactWeights], shared: Callable[[str], Matrix | None]) -> None:
        self._own = own
        self._shared = shared

    def matrix(self, name: str) -> Matrix:
        shared = self._shared(name)
        return self._own[name].matrix(name) if shared is None else shared

    def vector(self, name: str) -> F32Array:
        return self._own[name].vector(name)


class DraftPass:
    """One compiled graph of a draft model, whose inputs are rows that the target or an earlier pass has made."""

    def __init__(self, executable: Executable, inputs: tuple[Value, ...], vocab_size: int, options: RuntimeOptions):
        self.executable = executable
        self.max_rows = options.max_rows
        self._inputs = inputs
        self._limits = BatchLimits(vocab_size, options.max_rows, options.max_logit_rows, options.num_pages)

    def run(self, batch: ForwardBatch, rows: tuple[npt.NDArray[np.float32], ...]) -> npt.NDArray[np.float32]:
        """Run one step on `rows`, one float32 `[T, W]` per input; gives the logits `[R, num_logits]`, valid until the
        next step. InvariantError for a batch that is not valid, before anything is written."""
        check_batch(batch, self._limits)
        for value, array in zip(self._inputs, rows, strict=True):
            if array.shape != (len(batch.token_ids), value.width):
                raise InvariantError(f"rows {array.shape} for {len(batch.token_ids)} tokens and an input {value}")
            self.executable.set_input(value, array)
        return self.executable.forward(batch)


class RowTable:
    """Rows of a stored matrix, found one by one in the file."""

    FORMATS = ("bf16", "f32")

    def __init__(self, matrix: Matrix) -> None:
        shape = (-1, matrix.shape[1], LANES)
        self._bf16 = matrix.data.view(np.uint16).reshape(shape) if matrix.format == "bf16" else None
        self._f32 = matrix.data.view(np.float32).reshape(shape) if matrix.format == "f32" else None

    def rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """float32 `[n, K]`."""
        where = (ids // LANES, slice(None), ids % LANES)
        if self._bf16 is not None:
            return bf16.decode(self._bf16[where])
        if self._f32 is None:
            raise InvariantError("a row table of neither format")
        return self._f32[where]


@dataclass(frozen=True)
class SelectorTables:
    """The codebooks of a candidate selector."""

    predecessor: RowTable
    successor: RowTable


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft.

    module: what runs. passes: its graphs, over the same KV pages. ids: the token of every logit, int32 and ascending;
    None where logit i is that of token i. spare_page: the first page id that no sequence has, one per lane.
    """

    module: MTPModule | DFlashConfig
    passes: tuple[DraftPass, ...]
    ids: npt.NDArray[np.int32] | None
    selector: SelectorTables | None
    spare_page: int

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held, by the names in `backends.base.MEMORY_PARTS`; what is the target's is not counted."""
        held = [one.executable.memory for one in self.passes]
        return {part: sum(memory[part] for memory in held) for part in held[0]}

    def close(self) -> None:
        """Release all memory. The target must be closed later."""
        for one in reversed(self.passes):
            one.executable.close()
