"""Which request of one run stands beside which of another, and in what order they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import RequestRow

Order = Literal["interleaved", "partly interleaved", "one after the other", "unrecorded"]


@dataclass(frozen=True)
class Pair:
    """The same sample of two runs: one prompt, one repeat."""

    left: RequestRow
    right: RequestRow


@dataclass(frozen=True)
class Pairing:
    """Pairs in the order of the left run; num_left_out: measured samples of either run that have no partner, because it
    failed, was not taken, or had another prompt."""

    pairs: tuple[Pair, ...]
    num_left_out: int


def pair_rows(left: RunRecord, right: RunRecord) -> Pairing:
    """Pair measured requests that ended without an error by prompt, repeat and client; prompts have to be the same."""
    digests = [{p.id: p.digest for p in record.run.inputs.prompts} for record in (left, right)]
    by_key = {row.key: row for row in right.measured if row.error is None}
    pairs = tuple(
        Pair(row, by_key[row.key])
        for row in left.measured
        if row.error is None and row.key in by_key and digests[0][row.prompt] == digests[1][row.prompt]
    )
    return Pairing(pairs, len(left.measured) + len(right.measured) - 2 * len(pairs))


def order_of(left: Sequence[RequestRow], right: Sequence[RequestRow]) -> Order:
    """How the requests of two runs follow each other in time.

    Interleaved: every repeat visits both runs, so that a drift of the machine meets both. One after the other: the last
    request of one was sent before the first of the other, so drift and effect cannot be told apart.
    """
    stamped = [(row.stamps.sent_unix_ns, side) for side, rows in enumerate((left, right)) for row in rows if row.stamps]
    if len(stamped) < len(left) + len(right) or not left or not right:
        return "unrecorded"
    sides = [side for _, side in sorted(stamped)]
    switches = sum(a != b for a, b in pairwise(sides))
    repeats = len({row.repeat for row in left} | {row.repeat for row in right})
    if switches >= 2 * max(2, repeats) - 1:
        return "interleaved"
    return "one after the other" if switches == 1 else "partly interleaved"
