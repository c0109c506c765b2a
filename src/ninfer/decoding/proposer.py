"""What drafts tokens for the engine to verify, and what it is told.

A proposer never decides anything about the text: the engine verifies every draft against the target model, so a wrong
draft costs time only. It is asked once per step for all sequences together, and told once per step what became final.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer.decoding.params import SamplingParams
from ninfer.decoding.sampler import Candidates

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DraftTask:
    """One sequence to draft for.

    sequence: its id. tokens: int32, all its tokens, of which the last is not processed by the target yet (the anchor);
    a view until the next step. pages: page ids of its KV memory, enough for `len(tokens) + window` tokens. window: most
    tokens to draft, at least 1.

    grade_windows: most tokens of a draft by its grade, for proposers with `num_grades` above 1; `window` is the highest
    of them. seed: what draws from a draft distribution are keyed by (`Purpose.DRAFT` at the absolute position of the
    token); None asks for best guesses.
    """

    sequence: int
    tokens: Ids
    pages: Ids
    window: int
    sampling: SamplingParams
    grade_windows: tuple[int, ...] = ()
    seed: int | None = None

    def window_of(self, grade: int) -> int:
        """Most tokens of a draft of this grade, possibly none."""
        return self.grade_windows[grade] if self.grade_windows else self.window


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow, at most `window` and possibly none.

    distributions: what each token was drawn from, in the same order; None when the tokens are the proposer's best guess
    and nothing was drawn. grade: how good its ground is, `0 .. num_grades - 1` in no particular order. Acceptance is
    followed by grade, because drafts of one proposer can be of very different worth: a copy of three tokens is a guess,
    one that has matched for thirty nearly certain.
    """

    ids: tuple[int, ...]
    distributions: tuple[Candidates, ...] | None = None
    grade: int = 0


NO_DRAFT = Draft(())


@dataclass(frozen=True, slots=True)
class Committed:
    """Rows of one sequence that a step has made final: tokens `position .. position + count - 1`.

    tokens: int32, all its known tokens, a view until the next step. Token `position + count` is among them: the new
    anchor, or the next of a prompt. row: where these rows begin in the arrays of the step that computed them (target
    features). pages: as in a `DraftTask`, enough for `position + count` tokens.
    """

    sequence: int
    tokens: Ids
    pages: Ids
    position: int
    count: int
    row: int


class Proposer(Protocol):
    """Drafts for the sequences of one engine. It owns its draft state by sequence id and never guesses it from lengths.

    An exception of any call but `close` fails the step as one of the target's forward would.
    """

    @property
    def max_window(self) -> int:
        """Most tokens of one draft."""
        ...

    @property
    def num_grades(self) -> int:
        """How many grades its drafts have; 1 where they are all alike."""
        ...

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """One draft per task, in order."""
        ...

    def observe(self, committed: Sequence[Committed]) -> None:
        """What the last step made final, before any other call; every row of every sequence is told exactly once,
        in order. Tokens that a prefix hit brought along are not told: a sequence's first `position` is their number."""
        ...

    def settle(self, sequence: int) -> None:
        """Complete the state that is kept under page ids for the observed tokens of full pages, which are about to be
        shared: nothing is written to them afterwards."""
        ...

    def forget(self, sequence: int) -> None:
        """The sequence has ended, or its token memory was taken: drop what is known of it, if anything."""
        ...

    def close(self) -> None: ...
