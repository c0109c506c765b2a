"""The step loop: plan, reserve, forward, commit, decide, publish."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer.decoding import sample, token_logprobs
from ninfer.engine.batch import BatchBuilder
from ninfer.engine.events import Delta, Failed, Finished, GenerationEvent
from ninfer.engine.guide import require_clean_close
from ninfer.engine.output import Shown, TextOutput
from ninfer.engine.scheduler import Scheduler, StepPlan
from ninfer.engine.sequence import Sequence
from ninfer.errors import BackendError, NInferError
from ninfer.metrics import FinishReason, TokenCounters, now_ns
from ninfer.models.batch import ForwardBatch
from ninfer.text.channels import Channel

Logits = npt.NDArray[np.float32]


class ForwardModel(Protocol):
    """What the engine needs of a loaded model."""

    def forward(self, batch: ForwardBatch) -> Logits:
        """Logits float32 `[R, V]` of the batch's logit rows, valid until the next call. BackendError if it cannot."""

    def close(self) -> None: ...


class StepLoop:
    """Runs steps over the scheduler's sequences. A step changes nothing unless its forward succeeds."""

    def __init__(self, model: ForwardModel, scheduler: Scheduler, batches: BatchBuilder) -> None:
        self._model = model
        self._scheduler = scheduler
        self._batches = batches
        self.counters = TokenCounters()

    def step(self) -> list[GenerationEvent]:
        """One step; the events it gave, in row order.

        A BackendError of the forward ends the sequences of the step; any other exception leaves the step undone. What
        the forward wrote over by then (`SequenceState.rollback`) is computed again.
        """
        self._scheduler.admit()
        plan = self._scheduler.plan()
        if not plan.scheduled:
            return []
        try:
            for scheduled in plan.scheduled:
                scheduled.sequence.state.reserve(scheduled.count)
            logits = self._model.forward(self._batches.build(plan))
        except BackendError as error:
            return [self.fail(scheduled.sequence, error) for scheduled in plan.scheduled]
        except BaseException:
            self._scheduler.roll_back(plan)
            raise
        return self._commit(plan, logits)

    def _commit(self, plan: StepPlan, logits: Logits) -> list[GenerationEvent]:
        events: list[GenerationEvent] = []
        row = 0
        self.counters.steps += 1
        for scheduled in plan.scheduled:
            if not scheduled.sequence.num_output:
                self.counters.prefill += scheduled.count
            scheduled.sequence.state.commit(scheduled.count)
            if scheduled.wants_token:
                self._advance(scheduled.sequence, logits[row], events)
                row += 1
        return events

    def _advance(self, sequence: Sequence, logits: Logits, events: list[GenerationEvent]) -> None:
        """Choose the next token of a sequence, and end it if a rule says so."""
        request = sequence.request
        try:
            token = _choose(sequence, logits)
            sequence.append(token)
            self.counters.completion += 1
            self.counters.first += sequence.num_output == 1
            shown, reason = _judge(sequence, token)
        except BackendError as error:
            events.append(self.fail(sequence, error))
            return
        logprobs = () if request.logprobs is None else (token_logprobs(logits, token, request.logprobs),)

        stamp = now_ns()
        sequence.timeline.last_token_ns = stamp
        if sequence.num_output == 1:
            sequence.timeline.first_token_ns = stamp
        events.append(Delta(sequence.id, (token,), shown.text, logprobs, shown.thinking))
        if reason is not None:
            events.append(self.finish(sequence, reason, shown.stop))

    def finish(self, sequence: Sequence, reason: FinishReason, stop: str | None = None) -> Finished:
        """End a sequence: memory freed, timeline closed."""
        self._scheduler.remove(sequence)
        sequence.release()
        usage, timings = sequence.account()
        return Finished(sequence.id, reason, usage, timings, sequence.seed, stop)

    def fail(self, sequence: Sequence, error: NInferError) -> Failed:
        """End a sequence by an error."""
        self._scheduler.remove(sequence)
        sequence.release()
        usage, timings = sequence.account()
        return Failed(sequence.id, error, usage, timings)


def _choose(sequence: Sequence, logits: Logits) -> int:
    """The next token: from all, or from those its guide allows."""
    allowed = None
    if sequence.guide is not None and sequence.output is not None:
        allowed = sequence.guide.allowed(sequence.output.channel, len(logits))
    request = sequence.request
    return sample(
        logits, request.sampling, sequence.history, seed=sequence.seed, position=sequence.length, allowed=allowed
    )


def _judge(sequence: Sequence, token: int) -> tuple[Shown, FinishReason | None]:
    """What a new token means: what to show, and whether it ends the sequence.

    Stop tokens go before stop strings, those before limits. At an end the text that was held back comes out, up to a
    stop string that only shows up then.
    """
    output = sequence.output
    shown, reason = Shown(), None
    if token in sequence.end_tokens:
        reason = FinishReason.STOP_TOKEN
    elif output is not None:
        shown = _push(sequence, output, token)
    if shown.stop is not None:
        return shown, FinishReason.STOP_STRING
    if reason is None and sequence.num_output == sequence.limit:
        reason = sequence.limit_reason
    if reason is not None and output is not None:
        rest = output.finish()
        shown = Shown(shown.text + rest.text, shown.thinking + rest.thinking, rest.stop)
        if rest.stop is not None:
            reason = FinishReason.STOP_STRING
    return shown, reason


def _push(sequence: Sequence, output: TextOutput, token: int) -> Shown:
    """What a token completes, told to whoever follows the sequence."""
    before = output.channel
    shown = output.push(token)
    after = output.channel
    if Channel.THINKING in (before, after):
        sequence.num_thinking += 1
    if sequence.guide is not None:
        if before is Channel.THINKING and after is Channel.ANSWER and sequence.request.constraint is not None:
            require_clean_close(shown.text)
        sequence.guide.follow(token, before, after)
    return shown
