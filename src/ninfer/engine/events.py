"""What a caller sees of a generation: deltas, then exactly one ending."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.decoding import TokenLogprobs
from ninfer.errors import NInferError
from ninfer.metrics import NO_ROUNDS, FinishReason, Phases, Rounds, Usage


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one request.

    ids: every completion token appears in exactly one delta, a stop token included; one that verified drafts has
    several. text: what can be shown now; it may
    lag behind the ids while a character or a possible stop string is incomplete, and is always "" without a tokenizer.
    All texts joined are the answer. thinking: the same for what comes before the answer, if the request tells them
    apart. logprobs: one per id if the request asked for them. cached: prompt tokens that were reused.
    """

    request_id: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    thinking: str = ""
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The ending of a generation without an error.

    seed: what the random draws were keyed by, also when the request named none; None for greedy requests.
    stop: the stop string that ended it, if one did.
    """

    request_id: int
    reason: FinishReason
    usage: Usage
    timings: Phases
    seed: int | None
    stop: str | None = None
    rounds: Rounds = NO_ROUNDS


@dataclass(frozen=True, slots=True)
class Failed:
    """The ending of a generation by an error that concerns this request; the engine lives on.

    rounds: none where an engine has failed as a whole, and its service ends what was open.
    """

    request_id: int
    error: NInferError
    usage: Usage
    timings: Phases
    rounds: Rounds = NO_ROUNDS


GenerationEvent = Delta | Finished | Failed
