"""Owns: clocks, request timelines and every derived number, each defined once.
Does not own: who measures or prints.
Read first: timeline.py.
"""

from ninfer.metrics.finish import FinishReason
from ninfer.metrics.rates import (
    DEFINITIONS,
    Definition,
    acceptance,
    decode_rate,
    end_to_end_rate,
    peak,
    position_acceptance,
    prefill_rate,
    round_seconds,
    tokens_per_round,
)
from ninfer.metrics.timeline import Phases, RequestTimeline, now_ns
from ninfer.metrics.usage import SpeculationCounts, Usage

__all__ = [
    "DEFINITIONS",
    "Definition",
    "FinishReason",
    "Phases",
    "RequestTimeline",
    "SpeculationCounts",
    "Usage",
    "acceptance",
    "decode_rate",
    "end_to_end_rate",
    "now_ns",
    "peak",
    "position_acceptance",
    "prefill_rate",
    "round_seconds",
    "tokens_per_round",
]
