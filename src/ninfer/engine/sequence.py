"""One running request: the only mutable object of the engine besides its queues."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.cache import SequenceState, TokenMemory
from ninfer.decoding import TokenHistory, fresh_seed
from ninfer.engine.guide import Guide
from ninfer.engine.output import TextOutput
from ninfer.engine.request import GenerationRequest
from ninfer.errors import InvariantError
from ninfer.metrics import FinishReason, Phases, RequestTimeline, RoundTally, Usage, now_ns


class Sequence:
    """Tokens, token memory, text and timeline of one request.

    From admission on, `tokens[:length]` int32 are prompt and completion, and `state` covers a prefix of them.
    """

    def __init__(
        self,
        request_id: int,
        request: GenerationRequest,
        *,
        max_context: int,
        end_tokens: frozenset[int],
        output: TextOutput | None,
        guide: Guide | None,
        timeline: RequestTimeline,
        rounds: RoundTally,
    ) -> None:
        sampling = request.sampling
        room = max_context - len(request.prompt_ids)
        self.id = request_id
        self.request = request
        self.output = output
        self.guide = guide
        self.num_thinking = 0
        self.timeline = timeline
        self.rounds = rounds
        self.end_tokens = end_tokens
        self.num_prompt = self.length = len(request.prompt_ids)
        self.limit = room if request.max_new is None else min(request.max_new, room)
        self.limit_reason = (
            FinishReason.OUTPUT_LIMIT if self.limit == request.max_new else FinishReason.CONTEXT_CAPACITY
        )
        self.tokens: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.history = TokenHistory(request.prompt_ids) if sampling.has_penalties else None
        self.seed = None if sampling.is_greedy else fresh_seed() if sampling.seed is None else sampling.seed
        self._state: SequenceState | None = None
        self._computed_prompt = 0

    @property
    def state_tokens(self) -> int:
        """Tokens whose state the sequence needs at most: the last completion token is never fed back."""
        return self.num_prompt + self.limit - 1

    @property
    def state(self) -> SequenceState:
        if self._state is None:
            raise InvariantError(f"request {self.id} has no token memory")
        return self._state

    @property
    def num_output(self) -> int:
        return self.length - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet: the rest of the prompt, or the last completion token.

        All of them, where a failed step took the recurrent state with it (`SequenceState.rollback`).
        """
        return self.length - self.state.committed

    def admit(self, memory: TokenMemory) -> None:
        """Claim memory for the whole request."""
        self._state = memory.new_sequence(self.state_tokens)
        self.tokens = np.empty(self.num_prompt + self.limit, dtype=np.int32)
        self.tokens[: self.num_prompt] = self.request.prompt_ids
        self.timeline.admitted_ns = now_ns()

    def append(self, token: int) -> None:
        """Add a completion token."""
        self.tokens[self.length] = token
        self.length += 1
        if self.history is not None:
            self.history.append(token)

    def release(self) -> None:
        """Give back the token memory, if it has any. The end of a sequence, whatever the reason."""
        if self._state is not None:
            self._computed_prompt = min(self._state.committed, self.num_prompt)
            self._state.release()
            self._state = None

    def account(self) -> tuple[Usage, Phases]:
        """Final counts and timings; stamps the end. Call once, after `release`."""
        self.timeline.ended_ns = now_ns()
        usage = Usage(
            prompt=self.num_prompt,
            cached=0,
            completion=self.num_output,
            computed=self._computed_prompt,
            thinking=self.num_thinking,
        )
        return usage, self.timeline.phases()
