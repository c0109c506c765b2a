"""What an op contract says in a form that programs can read: shapes, weights, parameters, effects, tolerance, cases.

Axis letters: `T` rows of the step, `R` rows whose logits are wanted, `N, K` of a weight, `H`/`Hq`/`Hk` heads, `D` head
width, `W` any width; `C` channels of a convolution, `Hv, Dk, Dv` value heads, key width, value width of a recurrent
matrix. Every value is float32 `[rows, width]`; several axes behind the first are folded into the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ninfer.ops.batch import StateAccess
from ninfer.ops.graph import Graph, Value
from ninfer.ops.profiles import Profile

F32Array = npt.NDArray[np.float32]
F64Array = npt.NDArray[np.float64]

Fact = Literal["token_ids", "positions", "logit_rows", "kv"]
"""What an op may read of the step besides its inputs: `kv` is the content of the sequence's pages."""


@dataclass(frozen=True)
class OpSpec:
    """One contract. `oracle` is the formula in float64 from stored bits; its arguments are the op's own.

    `state` is what the op keeps of a sequence in a recurrent layer, by name and axes: read before the first row of a
    step, replaced row by row, and saved where the step says (`batch.StateAccess`). `profile_of_codes` stands for
    `profile` under every numeric profile but `f32`, with int8 KV.
    """

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    output: tuple[str, ...] | None
    profile: Profile
    oracle: Callable[..., Any]
    cases: Callable[[np.random.Generator], Iterator[Case]]
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    params: tuple[str, ...] = ()
    reads: tuple[Fact, ...] = ()
    writes_kv: bool = False
    state: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    profile_of_codes: Profile | None = None


@dataclass(frozen=True)
class Rows:
    """One sequence of a case's step: `count` new tokens behind `position` old ones; `sequence` is its number."""

    sequence: int
    position: int
    count: int
    state: StateAccess | None = None


def rows_in_slot(slot: int, position: int, count: int) -> Rows:
    """Rows of sequence `slot` that find the state in the slot of that number and leave it there."""
    return Rows(slot, position, count, StateAccess.in_place(slot, position, count))


@dataclass(frozen=True)
class Step:
    """One step of a case. `inputs` float32 `[T or R, width]` go to the graph's inputs in order."""

    rows: Sequence[Rows]
    inputs: Sequence[F32Array]
    token_ids: Sequence[int] | None = None
    logit_rows: Sequence[int] = ()

    @property
    def num_rows(self) -> int:
        return sum(rows.count for rows in self.rows)


@dataclass(frozen=True)
class Case:
    """A small graph around one op and steps that feed it. `weights` are float32; a test stores matrices as it likes.

    `record` gets a graph and returns the value to compare after every step; it calls `graph.new_input` itself.
    """

    label: str
    record: Callable[[Graph], Value]
    steps: Sequence[Step]
    weights: Mapping[str, F32Array] = field(default_factory=dict)
