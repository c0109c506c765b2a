"""Round costs measured before the first request: dummy rows on the loaded model, in memory that is given back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ninfer.cache import SequenceState, TokenMemory, pages_for
from ninfer.engine.plan import EnginePlan
from ninfer.engine.step import ForwardModel
from ninfer.engine.window import CONTEXT_BOUNDS
from ninfer.metrics import now_ns
from ninfer.models.batch import ForwardBatch, SequenceRows

BUDGET_S = 0.5
"""Seconds that all measurements together may take before the rest is left to interpolation and to real rounds."""

REPEATS = 3


def measure_step_costs(
    model: ForwardModel, plan: EnginePlan, memory: TokenMemory, budget_s: float = BUDGET_S
) -> dict[int, dict[int, float]]:
    """Seconds of a step by context in tokens and rows, as `RoundCosts` takes them.

    memory: nothing else has any of it; all of it is free again afterwards. At least the shortest context is measured,
    with one row and with the longest block. What KV pages and state slots hold by then does not matter: nobody reads
    what nobody wrote.
    """
    deadline = now_ns() + int(budget_s * 1e9)
    found: dict[int, dict[int, float]] = {}
    for index, (context, rows) in enumerate(_points(plan)):
        if index >= 2 and now_ns() > deadline:
            break
        seconds = [_time_step(model, plan, memory, context, rows) for _ in range(REPEATS)]
        found.setdefault(context, {})[rows] = min(seconds)
    return found


def _points(plan: EnginePlan) -> Iterator[tuple[int, int]]:
    """(context, rows) in order of worth: the ends of the shortest context first, then what lies between and behind."""
    block = _block(plan)
    lowest = 0
    for bound in (*CONTEXT_BOUNDS, plan.max_context):
        context = (lowest + min(bound, plan.max_context)) // 2
        if lowest < plan.max_context:
            lanes = min(plan.max_concurrency, plan.num_pages // pages_for(context + block))
            several = [count * block for count in (2, 4, 8, 16, 32, 64) if count <= lanes]
            yield from ((context, rows) for rows in dict.fromkeys([1, block, *range(2, block), *several]))
        lowest = bound


def _block(plan: EnginePlan) -> int:
    """Rows of the longest block that a context holds."""
    return min(plan.verify_rows, plan.max_context)


def _time_step(model: ForwardModel, plan: EnginePlan, memory: TokenMemory, context: int, rows: int) -> float:
    """Seconds of one step with so many rows, in blocks of sequences of so many tokens that were never computed."""
    block = _block(plan)
    position = min(context, plan.max_context - block)
    states: list[SequenceState] = []
    sequences = []
    try:
        for start in range(0, rows, block):
            count = min(block, rows - start)
            state = memory.new_sequence(position + count)
            states.append(state)
            if position:
                state.reserve(position)
                state.commit(position)
            state.reserve(count, partial=count > 1)
            sequences.append(SequenceRows(start, count, position, state.pages, state.access))
        ids = (np.arange(rows) * 7919 % plan.vocab_size).astype(np.int32)
        started = now_ns()
        model.forward(ForwardBatch(ids, tuple(sequences), np.arange(rows, dtype=np.int32)))
        return (now_ns() - started) * 1e-9
    finally:
        for state in states:
            state.release()
