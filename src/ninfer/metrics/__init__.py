"""Owns: clocks, request timelines, every derived number, each defined once, and the files of lines they are kept in.
Does not own: who measures or prints.
Read first: timeline.py.
"""

from ninfer.metrics.finish import FinishReason
from ninfer.metrics.histogram import SECONDS_BUCKETS, Histogram
from ninfer.metrics.rates import (
    DEFINITIONS,
    Definition,
    acceptance,
    decode_rate,
    end_to_end_rate,
    peak,
    position_acceptance,
    prefill_rate,
    request_rates,
    round_seconds,
    speculation_report,
    tokens_per_round,
)
from ninfer.metrics.speculation import (
    NO_ROUNDS,
    Rounds,
    RoundSeconds,
    RoundTally,
    RoundTimes,
    SpeculationCounts,
    joined_rounds,
)
from ninfer.metrics.timeline import Phases, RequestTimeline, joined_timeline, now_ns
from ninfer.metrics.usage import TokenCounters, Usage

__all__ = [
    "DEFINITIONS",
    "NO_ROUNDS",
    "SECONDS_BUCKETS",
    "Definition",
    "FinishReason",
    "Histogram",
    "Phases",
    "RequestTimeline",
    "RoundSeconds",
    "RoundTally",
    "RoundTimes",
    "Rounds",
    "SpeculationCounts",
    "TokenCounters",
    "Usage",
    "acceptance",
    "decode_rate",
    "end_to_end_rate",
    "joined_rounds",
    "joined_timeline",
    "now_ns",
    "peak",
    "position_acceptance",
    "prefill_rate",
    "request_rates",
    "round_seconds",
    "speculation_report",
    "tokens_per_round",
]
