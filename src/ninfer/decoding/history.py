"""Token counts of one sequence, as penalties need them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError


class TokenHistory:
    """Which tokens a sequence has, and how often its output has them.

    Grows by one token per step in constant time, and shrinks again when provisional tokens are dropped. `ids` lists the
    distinct tokens in order of first appearance.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._index = {token: index for index, token in enumerate(distinct)}
        self._ids = np.fromiter(distinct, dtype=np.int64, count=len(distinct))
        self._counts = np.zeros(len(distinct), dtype=np.int64)
        self._num_prompt = len(distinct)
        self._num_distinct = len(distinct)
        self._output: list[int] = []

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Distinct tokens of prompt and output, int64 `[N]`."""
        return self._ids[: self._num_distinct]

    @property
    def output_counts(self) -> npt.NDArray[np.int64]:
        """How often the output has each of `ids`, int64 `[N]`; 0 for tokens of the prompt only."""
        return self._counts[: self._num_distinct]

    @property
    def output_length(self) -> int:
        return len(self._output)

    def append(self, token: int) -> None:
        """Add one output token."""
        index = self._index.get(token)
        if index is None:
            index = self._num_distinct
            if index == len(self._ids):
                self._grow()
            self._index[token] = index
            self._ids[index] = token
            self._counts[index] = 0
            self._num_distinct += 1
        self._counts[index] += 1
        self._output.append(token)

    def truncate(self, length: int) -> None:
        """Forget output tokens behind the first `length`."""
        if not 0 <= length <= len(self._output):
            raise InvariantError(f"cannot truncate {len(self._output)} output tokens to {length}")
        while len(self._output) > length:
            token = self._output.pop()
            index = self._index[token]
            self._counts[index] -= 1
            if self._counts[index] == 0 and index >= self._num_prompt:
                # First appearances are undone in reverse order, so this is always the last distinct token.
                del self._index[token]
                self._num_distinct -= 1

    def _grow(self) -> None:
        capacity = max(64, 2 * len(self._ids))
        self._ids = np.resize(self._ids, capacity)
        self._counts = np.resize(self._counts, capacity)
