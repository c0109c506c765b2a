"""Where a difference comes from: exact splits, nothing left over.

Decode: tokens per second are tokens per round over seconds per round. The logarithm of a rate ratio is therefore the
sum of the logarithms of two ratios, and of a third where accepted tokens were cut off by the end of an answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ninfer.bench.compare.quantities import ACCEPTANCE, DECODE_RATE, DRAFTS_PER_ROUND, ROUND_TIME, TOKENS_PER_ROUND
from ninfer.bench.records.schema import RequestRow, RunFile

Basis = Literal["counted", "from acceptance and window"]
PHASES = ("load", "prepare", "queue", "prefill", "decode")
ROUND_PARTS = ("draft", "verify", "sample", "rollback")


@dataclass(frozen=True)
class Rounds:
    """One run's decoding by rounds. acceptance is None without drafts.

    drafts: tokens drafted per round: the window, or less where windows were cut or adapted.
    used: share of the tokens that rounds yielded which are in the answers; an answer that ends within a round drops
    the rest of it. basis: rounds were counted, or tokens per round follow from acceptance and a constant window.
    parts: mean seconds per round by part of it, empty where they were not recorded.
    """

    rate: float
    tokens_per_round: float
    round_s: float
    used: float
    acceptance: float | None
    drafts: float
    basis: Basis
    parts: dict[str, float]


@dataclass(frozen=True)
class DecodeSplit:
    """Two runs' decoding; the three logs add up to that of the rate ratio (right over left)."""

    left: Rounds
    right: Rounds

    @property
    def log_tokens(self) -> float:
        return math.log(self.right.tokens_per_round / self.left.tokens_per_round)

    @property
    def log_round_time(self) -> float:
        """What the round time contributes: negative when rounds take longer."""
        return -math.log(self.right.round_s / self.left.round_s)

    @property
    def log_used(self) -> float:
        return math.log(self.right.used / self.left.used)

    @property
    def log_rate(self) -> float:
        return math.log(self.right.rate / self.left.rate)

    @property
    def break_even(self) -> float | None:
        """The acceptance at which the right run, with its round time and drafts, would decode as fast as the left one.

        None without drafts. Above 1 no acceptance is enough.
        """
        if self.right.drafts == 0:
            return None
        return (self.left.rate * self.right.round_s / self.right.used - 1) / self.right.drafts

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by which each part of a round is longer on the right, `other` included; they add up to the whole
        difference. Empty where not both runs recorded them."""
        if not (self.left.parts and self.right.parts):
            return {}
        return {name: self.right.parts[name] - self.left.parts[name] for name in (*ROUND_PARTS, "other")}


def split_decode(left: Rounds | None, right: Rounds | None) -> DecodeSplit | None:
    """None where one run's rounds are not known."""
    return None if left is None or right is None else DecodeSplit(left, right)


def rounds_of(run: RunFile, rows: Sequence[RequestRow]) -> Rounds | None:
    """The rounds of requests, counted in their rows; or, where no row counts them, derived from an acceptance that the
    source gives for the whole run and a window that every round drafted."""
    counted = [row for row in rows if DECODE_RATE.parts(row) and TOKENS_PER_ROUND.parts(row)]
    if counted:
        rate, tokens, round_s = DECODE_RATE.of(counted), TOKENS_PER_ROUND.of(counted), ROUND_TIME.of(counted)
        if rate is None or tokens is None or round_s is None:
            return None
        used, drafts = rate * round_s / tokens, DRAFTS_PER_ROUND.of(counted) or 0.0
        return Rounds(rate, tokens, round_s, used, ACCEPTANCE.of(counted), drafts, "counted", _parts(counted, round_s))
    rate, reported, window = DECODE_RATE.of(rows), run.reported.get("acceptance"), run.facts.get("draft.tokens")
    if rate is None or not isinstance(reported, float) or window is None or not isinstance(window.value, int):
        return None
    tokens = 1 + window.value * reported
    return Rounds(rate, tokens, tokens / rate, 1.0, reported, window.value, "from acceptance and window", {})


def _parts(rows: Sequence[RequestRow], round_s: float) -> dict[str, float]:
    """Mean seconds per round by part, `other` for the rest; empty unless every row has every part."""
    sums = dict.fromkeys(ROUND_PARTS, 0.0)
    rounds = 0
    for row in rows:
        counts = row.speculation
        if counts is None or counts.seconds is None or counts.rounds is None:
            return {}
        rounds += counts.rounds
        for name in ROUND_PARTS:
            seconds: float | None = getattr(counts.seconds, name)
            if seconds is None:
                return {}
            sums[name] += seconds
    means = {name: total / rounds for name, total in sums.items()}
    return {**means, "other": round_s - sum(means.values())}


@dataclass(frozen=True)
class TimeSplit:
    """Mean seconds by which requests take longer on the right: the whole, and its parts, which add up to it.

    parts: load, prepare, queue, prefill, what the speed of decode makes, what the length of answers makes, other.
    """

    seconds: float
    parts: dict[str, float]


def split_time(left: Sequence[RequestRow], right: Sequence[RequestRow]) -> TimeSplit | None:
    """The difference of mean request time, from equally many requests on both sides.

    Decode seconds are tokens times seconds per token; their difference is divided between the two in proportion to the
    logarithms of their ratios (the logarithmic mean Divisia index), which leaves nothing over. None where a request
    lacks its total or its decode seconds; a phase that a run did not record is part of `other`.
    """
    sides = []
    for rows in (left, right):
        totals = [row.seconds.total for row in rows if row.seconds.total is not None]
        decode = [(row.seconds.decode, row.usage.completion_tokens) for row in rows]
        if not rows or len(totals) < len(rows) or any(s is None or n is None for s, n in decode):
            return None
        sides.append(sum(totals) / len(rows))
    parts = {}
    for name in PHASES[:-1]:
        means = [_mean_phase(rows, name) for rows in (left, right)]
        parts[name] = 0.0 if None in means else (means[1] or 0.0) - (means[0] or 0.0)
    parts["decode speed"], parts["output length"] = _split_decode_seconds(left, right)
    seconds = sides[1] - sides[0]
    parts["other"] = seconds - sum(parts.values())
    return TimeSplit(seconds, parts)


def _mean_phase(rows: Sequence[RequestRow], name: str) -> float | None:
    seconds = [getattr(row.seconds, name) for row in rows]
    return None if None in seconds else sum(seconds) / len(rows)


def _split_decode_seconds(left: Sequence[RequestRow], right: Sequence[RequestRow]) -> tuple[float, float]:
    """(by speed, by length) of the difference of mean decode seconds."""
    seconds = [sum(row.seconds.decode or 0.0 for row in rows) / len(rows) for rows in (left, right)]
    tokens = [sum(max((row.usage.completion_tokens or 0) - 1, 0) for row in rows) / len(rows) for rows in (left, right)]
    change = seconds[1] - seconds[0]
    if min(seconds) <= 0 or min(tokens) <= 0 or change == 0:
        ratio = tokens[1] / tokens[0] if min(tokens) > 0 else 1.0
        by_length = math.log(ratio) * seconds[0]  # the limit of the mean for equal seconds
        return change - by_length, by_length
    mean = change / math.log(seconds[1] / seconds[0])
    by_length = mean * math.log(tokens[1] / tokens[0])
    return change - by_length, by_length
