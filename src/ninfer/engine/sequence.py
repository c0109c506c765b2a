"""One running request: the only mutable object of the engine besides its queues."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ninfer.cache import SequenceState, Snapshot, TokenMemory
from ninfer.decoding import TokenHistory, fresh_seed
from ninfer.engine.guide import Guide
from ninfer.engine.output import TextOutput
from ninfer.engine.request import GenerationRequest
from ninfer.errors import InvariantError
from ninfer.metrics import FinishReason, Phases, RequestTimeline, RoundTally, TokenCounters, Usage, now_ns


class Sequence:
    """Tokens, token memory, text and timeline of one request.

    `known`, int32, are prompt and completion. From admission on, and until it is preempted, `state` covers a first part
    of them.

    Of its prompt each token counts once, as cached or computed. What is computed again, because the memory was taken
    (preemption) or lost (`SequenceState.rollback`), counts as recomputed.
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
        self.tokens: npt.NDArray[np.int32] = np.array(request.prompt_ids, dtype=np.int32)
        self.history = TokenHistory(request.prompt_ids) if sampling.has_penalties else None
        self.seed = None if sampling.is_greedy else fresh_seed() if sampling.seed is None else sampling.seed
        self.num_overtaken = 0
        self.num_cached = 0
        self.num_computed = 0
        self.num_recomputed = 0
        self._high = 0
        self._state: SequenceState | None = None
        self._forget_memory()

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
    def has_state(self) -> bool:
        """Whether the sequence has token memory."""
        return self._state is not None

    @property
    def known(self) -> npt.NDArray[np.int32]:
        """Prompt and completion so far; a view."""
        return self.tokens[: self.length]

    @property
    def num_output(self) -> int:
        return self.length - self.num_prompt

    def draft_window(self, most: int) -> int:
        """Tokens that a draft may have, at most `most`: one less than may follow, as every round gives one itself."""
        return min(most, self.limit - self.num_output - 1)

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet: the rest of the prompt, or the last completion token.

        All of them, where a failed step took the recurrent state with it (`SequenceState.rollback`).
        """
        return self.length - self.state.committed

    def admit(self, memory: TokenMemory) -> None:
        """Get token memory, for the first time or after a preemption."""
        self._state = memory.new_sequence(self.state_tokens)
        self.num_fed = self.length
        if self.timeline.admitted_ns is None:
            self.tokens = np.concatenate([self.tokens, np.empty(self.limit, dtype=np.int32)])
            self.timeline.admitted_ns = now_ns()

    def count_reused(self, counters: TokenCounters) -> None:
        """Count the committed tokens as reused, as far as they have not been there before."""
        self.num_bound = self.state.committed
        new = max(0, min(self.num_bound, self.num_prompt) - self._high)
        self.num_cached += new
        counters.cached += new
        self._high = max(self._high, self.num_bound)

    def count_rows(self, count: int, counters: TokenCounters) -> None:
        """Count the last `count` committed rows as computed."""
        end = self.state.committed
        again = max(0, min(end, self._high) - (end - count))
        new = max(0, min(end, self.num_prompt) - max(end - count, self._high))
        self.num_recomputed += again
        self.num_computed += new
        counters.recomputed += again
        counters.prefill += new
        self._high = max(self._high, end)

    def append(self, token: int) -> None:
        """Add a completion token."""
        self.tokens[self.length] = token
        self.length += 1
        if self.history is not None:
            self.history.append(token)

    def preempt(self) -> None:
        """Give back the token memory; `admit` gets it again."""
        self.state.release()
        self._forget_memory()

    def release(self) -> None:
        """Give back the token memory, if there is any. The end of a sequence, whatever the reason."""
        if self._state is not None:
            self._state.release()
            self._forget_memory()

    def account(self) -> tuple[Usage, Phases]:
        """Final counts and timings; stamps the end. Call once, after `release`."""
        self.timeline.ended_ns = now_ns()
        usage = Usage(
            prompt=self.num_prompt,
            cached=self.num_cached,
            completion=self.num_output,
            computed=self.num_computed,
            thinking=self.num_thinking,
            recomputed=self.num_recomputed,
        )
        return usage, self.timeline.phases()

    def _forget_memory(self) -> None:
        """What is true of the present token memory only, at its beginning.

        num_fed: tokens that were known at admission. num_bound: the first ones, that others computed. num_published:
        those that are in the prefix index. branch: those whose pages it had (`PrefixMatch.num_known`). tail: the
        snapshot of the last page border of the completion.
        """
        self._state = None
        self.num_fed = self.num_bound = self.num_published = self.branch = 0
        self.tail: Snapshot | None = None
