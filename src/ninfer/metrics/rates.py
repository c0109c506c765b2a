"""Every derived number of a request, defined once. What its inputs do not define is None, never 0 or infinity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ninfer.metrics.speculation import Rounds, SpeculationCounts
from ninfer.metrics.timeline import Phases
from ninfer.metrics.usage import Usage


@dataclass(frozen=True, slots=True)
class Definition:
    """What a measured word means; documentation tables are made from these."""

    word: str
    unit: str
    formula: str


def prefill_rate(usage: Usage, phases: Phases) -> float | None:
    """Prompt tokens computed (so not cached) per second of prefill, tok/s. None without a first token."""
    if usage.completion == 0:
        return None
    return _ratio(usage.computed, phases.prefill)


def decode_rate(usage: Usage, phases: Phases) -> float | None:
    """Tokens after the first per second of decode, tok/s: the first token belongs to prefill. None below two tokens."""
    if usage.completion < 2:
        return None
    return _ratio(usage.completion - 1, phases.decode)


def end_to_end_rate(usage: Usage, phases: Phases) -> float | None:
    """Completion tokens per second of the whole request, tok/s. None without a token."""
    if usage.completion == 0:
        return None
    return _ratio(usage.completion, phases.total)


def request_rates(usage: Usage, phases: Phases) -> dict[str, float | None]:
    """The rates of one request under the names that every report uses."""
    return {
        "prefill_tok_per_s": prefill_rate(usage, phases),
        "decode_tok_per_s": decode_rate(usage, phases),
        "end_to_end_tok_per_s": end_to_end_rate(usage, phases),
    }


def acceptance(counts: SpeculationCounts) -> float | None:
    """Share of drafted tokens that were accepted. None when nothing was drafted."""
    return _ratio(counts.accepted, counts.drafted)


def tokens_per_round(counts: SpeculationCounts) -> float | None:
    """Mean tokens a decode round yields: its own one plus the accepted drafts. None without a round."""
    accepted = _ratio(counts.accepted, counts.rounds)
    return None if accepted is None else 1.0 + accepted


def round_seconds(counts: SpeculationCounts, phases: Phases) -> float | None:
    """Mean seconds of a decode round. None without a round."""
    return _ratio(phases.decode, counts.rounds)


def position_acceptance(counts: SpeculationCounts) -> tuple[float | None, ...]:
    """For each draft position, the share of rounds that drafted it in which it and all before it were accepted.

    Unconditional, so not a product of conditional rates. Rounds that never drafted the position say nothing about it
    and are left out; with a constant draft window these are all rounds.
    """
    return tuple(_ratio(a, n) for a, n in zip(counts.accepted_per_position, counts.rounds_with_draft, strict=True))


def speculation_report(rounds: Rounds, decode_seconds: float) -> dict[str, Any]:
    """The rounds of one request, or of several that decoded for so many seconds together, under the names that every
    report uses. Acceptance stands beside what it means nothing without: windows, tokens per round and round time."""
    counts = rounds.counts
    return {
        "backend": rounds.method,
        "draft_window": rounds.max_window,
        "rounds": counts.rounds,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "fallback_steps": counts.fallback_steps,
        "windows": list(counts.windows),
        "accepted_per_position": list(counts.accepted_per_position),
        "position_acceptance": list(position_acceptance(counts)),
        "acceptance": acceptance(counts),
        "tokens_per_round": tokens_per_round(counts),
        "round_seconds": _ratio(decode_seconds, counts.rounds),
        "seconds": asdict(rounds.seconds),
    }


def peak(rates: Iterable[float | None]) -> float | None:
    """Best of repeated exact per-request rates, never of a sampling window. None when none is defined."""
    return max((rate for rate in rates if rate is not None), default=None)


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


DEFINITIONS: tuple[Definition, ...] = (
    Definition("prefill rate", "tok/s", "computed prompt tokens / prefill seconds"),
    Definition("decode rate", "tok/s", "(completion tokens - 1) / decode seconds"),
    Definition("end-to-end rate", "tok/s", "completion tokens / total seconds"),
    Definition("TTFT", "s", "first token published - arrival"),
    Definition("acceptance", "1", "accepted / drafted draft tokens"),
    Definition("tokens per round", "1", "1 + accepted / rounds"),
    Definition("round time", "s", "decode seconds / rounds"),
    Definition("position acceptance i", "1", "rounds in which drafts 0..i were accepted / rounds that drafted i"),
    Definition("peak", "as the rate", "best of repeated exact per-request rates"),
    Definition("perplexity", "1", "exp(mean over tokens of -ln p(token))"),
    Definition("KL divergence", "nat", "sum over the vocabulary of p * ln(p / q): p of the reference, q of the model"),
    Definition("top-1 agreement", "1", "positions whose most probable token is the reference's / positions"),
    Definition("shift", "nat", "ln q(token) - ln p(token) of the token that follows in the text"),
    Definition("finish", "word", "stop_token, stop_string, output_limit, context_capacity, cancelled"),
)
