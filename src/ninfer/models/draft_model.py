"""A draft model that runs: graphs compiled beside their target, over KV pages of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.backends.base import Executable, F32Array, Matrix
from ninfer.backends.options import RuntimeOptions
from ninfer.errors import InvariantError
from ninfer.models.batch import BatchLimits, ForwardBatch, check_batch
from ninfer.models.weights import ArtifactWeights
from ninfer.ops.graph import Value


class DraftWeights:
    """`backends.base.Weights`: those of the draft's own files by name, all others are the target's."""

    def __init__(self, own: Mapping[str, ArtifactWeights], target: Callable[[str], Matrix]) -> None:
        self._own = own
        self._target = target

    def matrix(self, name: str) -> Matrix:
        return self._own[name].matrix(name) if name in self._own else self._target(name)

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


class DraftModel:
    """A loaded draft.

    passes: its graphs, over the same KV pages. ids: the token of every logit, int32 and ascending; None where logit i
    is that of token i. config: what its kind needs to know of it.
    """

    def __init__(self, config: Any, passes: tuple[DraftPass, ...], ids: npt.NDArray[np.int32] | None) -> None:
        self.config = config
        self.passes = passes
        self.ids = ids

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held, by the names in `backends.base.MEMORY_PARTS`; what is the target's is not counted."""
        held = [one.executable.memory for one in self.passes]
        return {part: sum(memory[part] for memory in held) for part in held[0]}

    def close(self) -> None:
        """Release all memory. The target must be closed later."""
        for one in reversed(self.passes):
            one.executable.close()
