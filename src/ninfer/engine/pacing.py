"""How many rows of prompts a step may have beside decoding sequences, which wait for them."""

from __future__ import annotations

from collections import deque

from ninfer.engine.config import Auto

GAP_LIMIT = 2.5
"""A step with prompt rows is to take at most this many times the same step without them: under 3, with room for noise.
Its price: a few rows at a time are computed less well than a chunk. 4,000 tokens of SmolLM2 took 2.7 times as long
beside one stream as alone, where the stream's own step takes 2.7 ms (2-core AMX Xeon, November 2026)."""

LEAST_ROWS = 4
"""Rows of the first step of a prompt, when nothing is known of what they cost at its depth; then up to twice as many
as in the step before. Never fewer, even where the limit is missed: deep in a prompt a step spends most of its time on
reading keys and values, once for all rows. With one row each, 4,000 tokens of SmolLM2 took 8 times as long as alone."""

NUM_TIMES = 16
MIN_TIMES = 3
MAX_AGE_STEPS = 256
"""Of the last 16 decode steps alone the shortest counts: whatever disturbs a step makes it longer, and one that finds
the caches full of a prompt is no measure of a stream that runs alone. If fewer than 3 were seen with as many sequences,
or none in the last 256 steps, steps without prompt rows come first."""


class Pace:
    """The rows of prompts in steps with decode rows: a fixed number, or as many as the measured times allow.

    Times decide about the cut of prompts only, and that changes no token.
    """

    def __init__(self, mixed_chunk: int | Auto, prefill_chunk: int) -> None:
        self._fixed = None if mixed_chunk == "auto" else mixed_chunk
        self._most = prefill_chunk
        self._step = 0
        self._alone: dict[int, deque[tuple[int, float]]] = {}
        self._prompt: int | None = None
        self._rows = 0
        self._row_s = 0.0

    def rows(self, num_decoding: int, prompt: int) -> int:
        """Rows for prompts in a step with `num_decoding` other rows. prompt: the request whose prompt comes first."""
        if self._fixed is not None:
            return self._fixed
        alone = self._alone.get(num_decoding)
        if alone is None or len(alone) < MIN_TIMES or self._step - alone[-1][0] > MAX_AGE_STEPS:
            return 0
        if prompt != self._prompt:
            self._prompt, self._rows, self._row_s = prompt, 0, 0.0
        if not self._rows:
            return min(LEAST_ROWS, self._most)
        most = min(self._most, 2 * self._rows)
        allowed = (GAP_LIMIT - 1) * min(seconds for _, seconds in alone)
        return most if self._row_s * most <= allowed else max(min(LEAST_ROWS, self._most), int(allowed / self._row_s))

    def observe(self, num_decoding: int, num_prompt_rows: int, seconds: float) -> None:
        """What a step took, of which the first rows were those of decoding sequences."""
        self._step += 1
        if self._fixed is not None or not num_decoding:
            return
        alone = self._alone.setdefault(num_decoding, deque(maxlen=NUM_TIMES))
        if not num_prompt_rows:
            alone.append((self._step, seconds))
        elif alone:
            self._rows = num_prompt_rows
            self._row_s = max(0.0, seconds - min(s for _, s in alone)) / num_prompt_rows
