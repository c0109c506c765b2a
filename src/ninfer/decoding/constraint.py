"""What restricts the choice of a token beyond its probability."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]
"""Distinct token ids in increasing order, int64 `[N]`."""


class ConstraintState(Protocol):
    """Where one sequence is within what it may say. A step that is not committed has not touched it."""

    @property
    def is_complete(self) -> bool:
        """Whether the completion may end here."""

    def allowed(self, num_tokens: int) -> TokenIds:
        """Ids below `num_tokens` that may come next, besides an end. BackendError when the constraint cannot tell."""

    def advance(self, token: int) -> None:
        """Go on by a token that was allowed. BackendError if the constraint refuses it after all."""


class Constraint(Protocol):
    """What a completion must be; immutable, and shared by the requests that have it."""

    def start(self) -> ConstraintState:
        """The state before the first token. Cheap: the work was done when the constraint was made."""
