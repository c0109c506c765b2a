"""Copy drafting: what followed the last tokens when they stood in prompt or output before.

Nothing is learned and nothing computed, so a draft costs microseconds; it is right where a text repeats itself:
quotations, edits of a given text, code, tables, enumerations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask, Ids

KEY_LENGTHS = (8, 3)
"""Tokens by which earlier places are found, the longest first. Two tokens repeat by chance too often, and eight tell
apart the places that share three."""

GRADE_BOUNDS = (5, 8, 16)
"""A match of at least so many tokens is of the next grade: short ones are guesses, long ones copies."""

MAX_MATCH = 32
"""Tokens that are compared backwards at most: bounds the work per draft, and tells all grades apart."""

MAX_TABLE_BITS = 17
"""A table of 2**17 places is 512 KiB; beyond 65,536 tokens old places are overwritten more and more often."""

FEW_ROWS = 16
"""Up to so many new positions are hashed one by one: array operations cost a microsecond each, however short."""

_MULTIPLIER = 0x9E3779B97F4A7C15  # an odd number near 2**64 / golden ratio: spreads the products over the high bits
_MASK = 2**64 - 1


def table_bits(max_context: int) -> int:
    """Address bits of each table of a sequence: two places for every token of the context, up to the limit."""
    return min(MAX_TABLE_BITS, max(6, (2 * max_context - 1).bit_length()))


def memory_bytes(max_context: int) -> int:
    """What the tables of one sequence take."""
    return len(KEY_LENGTHS) * 4 * 2 ** table_bits(max_context)


class NgramProposer:
    """Drafts by the latest earlier place of the last tokens: what followed there, and over again if that was so near
    that it ends in the present.

    Each sequence has one table per key length, from a hash of the key to the last position where it ended. Other keys
    with the same hash overwrite it, and are told apart by comparing tokens. Work and memory per token are constant.
    """

    num_grades = len(GRADE_BOUNDS) + 1

    def __init__(self, max_window: int, *, max_context: int) -> None:
        self.max_window = max_window
        self._bits = table_bits(max_context)
        self._places: dict[int, _Places] = {}

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        return [self._draft(task) for task in tasks]

    def observe(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            places = self._places.get(rows.sequence)
            if places is None:
                places = self._places[rows.sequence] = _Places(self._bits)
            places.add(rows.tokens, rows.position + rows.count)

    def settle(self, sequence: int) -> None:
        """Nothing is kept under page ids."""

    def forget(self, sequence: int) -> None:
        self._places.pop(sequence, None)

    def close(self) -> None:
        self._places.clear()

    def _draft(self, task: DraftTask) -> Draft:
        places = self._places.get(task.sequence)
        found = None if places is None else places.find(task.tokens)
        if found is None:
            return NO_DRAFT
        position, length = found
        grade = bisect_right(GRADE_BOUNDS, length)
        window = task.window_of(grade)
        behind = task.tokens[position + 1 : position + 1 + window].tolist()
        while len(behind) < window:
            behind += behind[: window - len(behind)]
        return Draft(tuple(behind), grade=grade)


class _Places:
    """Where the keys of one sequence ended last."""

    def __init__(self, bits: int) -> None:
        self._shift = 64 - bits
        self._tables = [np.full(1 << bits, -1, dtype=np.int32) for _ in KEY_LENGTHS]
        self._num_added = 0

    def add(self, tokens: Ids, count: int) -> None:
        """Take up keys that end within the first `count` tokens, which are followed by at least one more."""
        for length, table in zip(KEY_LENGTHS, self._tables, strict=True):
            first = max(self._num_added, length - 1)
            if count - first > FEW_ROWS:
                # Of equal indices NumPy keeps the last, which is the latest place.
                table[self._hashes(tokens[first - length + 1 : count], length)] = np.arange(first, count)
            elif first < count:
                new = tokens[first - length + 1 : count].tolist()
                for offset in range(count - first):
                    table[self._hash(new[offset : offset + length])] = first + offset
        self._num_added = count

    def find(self, tokens: Ids) -> tuple[int, int] | None:
        """The latest known place before the end where the last tokens stood, as the position of the last of them, and
        how many stood there; at least as many as the shortest key."""
        last = tokens[-KEY_LENGTHS[0] :].tolist()
        for length, table in zip(KEY_LENGTHS, self._tables, strict=True):
            if len(tokens) > length:
                position = int(table[self._hash(last[-length:])])
                if position >= 0:
                    matched = _common_suffix(tokens[: position + 1], tokens)
                    if matched >= length:
                        return position, matched
        return None

    def _hash(self, key: list[int]) -> int:
        """The place of one key in its table: a polynomial of its tokens modulo 2**64, of which the top bits count."""
        mixed = 1
        for token in key:
            mixed = mixed * _MULTIPLIER + token & _MASK
        return (mixed * _MULTIPLIER & _MASK) >> self._shift

    def _hashes(self, tokens: Ids, length: int) -> npt.NDArray[np.uint64]:
        """`_hash` of every key of `length` in `tokens`."""
        values = tokens.astype(np.uint64)
        count = len(values) - length + 1
        mixed = np.ones(count, dtype=np.uint64)
        for offset in range(length):
            mixed = mixed * np.uint64(_MULTIPLIER) + values[offset : offset + count]
        return (mixed * np.uint64(_MULTIPLIER)) >> np.uint64(self._shift)


def _common_suffix(first: Ids, second: Ids) -> int:
    """Tokens that two texts have in common at their ends, up to `MAX_MATCH`."""
    length = min(len(first), len(second), MAX_MATCH)
    differ = np.flatnonzero(first[len(first) - length :] != second[len(second) - length :])
    return length if not len(differ) else length - 1 - int(differ[-1])
