"""The step loop: plan, draft, reserve, forward, decide, commit, publish."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ninfer.cache import Snapshot
from ninfer.decoding import TokenLogprobs, distribution, sample, token_logprobs
from ninfer.decoding.proposer import Draft
from ninfer.decoding.verification import verify_drawn
from ninfer.engine.batch import BatchBuilder
from ninfer.engine.events import Delta, Failed, Finished, GenerationEvent
from ninfer.engine.guide import require_clean_close
from ninfer.engine.output import Shown, TextOutput
from ninfer.engine.pacing import Pace
from ninfer.engine.reuse import PrefixReuse
from ninfer.engine.scheduler import ScheduledRows, Scheduler, StepPlan
from ninfer.engine.sequence import Sequence
from ninfer.engine.speculation import KeptRows, Speculation
from ninfer.engine.window import DraftResult
from ninfer.errors import BackendError, NInferError
from ninfer.metrics import FinishReason, RoundTimes, TokenCounters, now_ns
from ninfer.models.batch import ForwardBatch
from ninfer.text.channels import Channel

Logits = npt.NDArray[np.float32]


class ForwardModel(Protocol):
    """What the engine needs of a loaded model."""

    def forward(self, batch: ForwardBatch) -> Logits:
        """Logits float32 `[R, V]` of the batch's logit rows, valid until the next call. BackendError if it cannot."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Turn:
    """What a step gave one sequence.

    ids: the tokens that follow, each as plain decoding would have chosen it. position, kept, row: the rows that became
    final, as in `KeptRows`. reason, stop, error: how the sequence ends, if it does. result: of a round
    (`ninfer.metrics.SpeculationCounts`). snapshots: those that the step made.
    """

    scheduled: ScheduledRows
    position: int
    row: int
    kept: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    reason: FinishReason | None = None
    stop: str | None = None
    error: NInferError | None = None
    result: DraftResult | None = None
    snapshots: tuple[Snapshot, ...] = ()


class StepLoop:
    """Runs steps over the scheduler's sequences. A step changes nothing unless its forward succeeds."""

    def __init__(
        self,
        model: ForwardModel,
        scheduler: Scheduler,
        reuse: PrefixReuse,
        pace: Pace,
        batches: BatchBuilder,
        counters: TokenCounters,
        speculation: Speculation | None = None,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._reuse = reuse
        self._pace = pace
        self._batches = batches
        self._speculation = speculation
        self._counters = counters

    def step(self) -> list[GenerationEvent]:
        """One step; the events it gave, in row order.

        A BackendError of the forward, or of a proposer, ends the sequences of the step; any other exception leaves the
        step undone. What the forward wrote over by then (`SequenceState.rollback`) is computed again.
        """
        began = now_ns()
        self._scheduler.admit()
        plan = self._scheduler.plan()
        if not plan.scheduled:
            return []
        times = RoundTimes()
        try:
            started = now_ns()
            if self._speculation is not None:
                plan = self._speculation.draft(plan)
                times.draft = now_ns() - started
            for scheduled in plan.scheduled:
                sequence, count = scheduled.sequence, scheduled.count
                counts = () if scheduled.is_block else self._reuse.snapshot_counts(sequence, count)
                sequence.state.reserve(count, partial=scheduled.is_block, snapshots=counts)
            logits = self._model.forward(self._batches.build(plan))
            times.verify = now_ns() - started - times.draft
        except BackendError as error:
            return [self.fail(scheduled.sequence, error) for scheduled in plan.scheduled]
        except BaseException:
            self._scheduler.roll_back(plan)
            raise
        turns = self._decide(plan, logits, times)
        self._commit(turns, times)
        self._learn(plan, turns, times)
        events = self._publish(turns)
        self._pace.observe(plan.num_decoding, plan.num_prompt_rows, (now_ns() - began) * 1e-9)
        return events

    def _decide(self, plan: StepPlan, logits: Logits, times: RoundTimes) -> list[Turn]:
        """Let every sequence walk through its rows of logits."""
        started = now_ns()
        self._counters.steps += 1
        turns: list[Turn] = []
        row = logit_row = 0
        for scheduled in plan.scheduled:
            turn = Turn(scheduled, scheduled.sequence.state.committed, row, scheduled.count)
            turns.append(turn)
            row += scheduled.count
            if scheduled.wants_token:
                num_rows = 1 + len(scheduled.draft.ids)
                self._walk(turn, logits[logit_row : logit_row + num_rows])
                logit_row += num_rows
        times.sample = now_ns() - started
        return turns

    def _walk(self, turn: Turn, logits: Logits) -> None:
        """Choose tokens row by row, `[1 + k, V]`, as long as the draft foresaw them; an ending may come at each.

        Row `i` is what follows the known token and the first `i` of `k` drafted ones. Its token is chosen and followed
        exactly as without a draft, so whatever a token changes (penalties, grammar, text) never has to be taken back.
        """
        sequence = turn.scheduled.sequence
        draft = turn.scheduled.draft.ids
        before = sequence.num_output
        for index, row in enumerate(logits):
            try:
                token, holds = _next_token(sequence, row, turn.scheduled.draft, index)
                sequence.append(token)
                shown, turn.reason = _judge(sequence, token)
            except BackendError as error:
                turn.error = error
                break
            turn.ids.append(token)
            turn.text += shown.text
            turn.thinking += shown.thinking
            turn.stop = shown.stop
            if sequence.request.logprobs is not None:
                turn.logprobs.append(token_logprobs(row, token, sequence.request.logprobs))
            if turn.reason is not None or not holds:
                break
        if draft:
            turn.kept = max(1, len(turn.ids))
        if turn.ids:
            sequence.timeline.last_token_ns = now_ns()
            if not before:
                sequence.timeline.first_token_ns = sequence.timeline.last_token_ns
        self._count(turn, before)

    def _count(self, turn: Turn, before: int) -> None:
        """Account for the tokens of a turn; `before` it there were so many."""
        sequence = turn.scheduled.sequence
        num_new = sequence.num_output - before
        self._counters.completion += num_new
        if not before:
            self._counters.first += num_new
        elif num_new:
            # What was drafted from the end of an answer on was never tested.
            has_ended = turn.reason is not None or turn.error is not None
            window = num_new - 1 if has_ended else len(turn.scheduled.draft.ids)
            sequence.rounds.add(window, num_new - 1)
            turn.result = DraftResult(sequence.id, turn.scheduled.draft.grade, window, num_new - 1)

    def _commit(self, turns: list[Turn], times: RoundTimes) -> None:
        """Make final what holds, and let the proposer know."""
        started = now_ns()
        for turn in turns:
            turn.snapshots = turn.scheduled.sequence.state.commit(turn.kept)
            turn.scheduled.sequence.count_rows(turn.kept, self._counters)
        committed = now_ns()
        times.rollback = committed - started
        if self._speculation is not None:
            living = [turn for turn in turns if turn.error is None]
            try:
                self._speculation.observe(KeptRows(t.scheduled, t.position, t.kept, t.row) for t in living)
            except BackendError as error:
                for turn in living:
                    turn.error = error
            times.draft += now_ns() - committed
        for turn in turns:
            self._reuse.committed(turn.scheduled.sequence, turn.snapshots, is_sound=turn.error is None)

    def _learn(self, plan: StepPlan, turns: list[Turn], times: RoundTimes) -> None:
        """Charge a step's rounds with its time, and let windows be chosen by what it gave."""
        results = [turn.result for turn in turns[: plan.num_decoding] if turn.result is not None]
        for turn in turns:
            if turn.result is not None:
                turn.scheduled.sequence.rounds.charge(times)
        if self._speculation is not None and results:
            self._speculation.record(plan, results, times)

    def _publish(self, turns: list[Turn]) -> list[GenerationEvent]:
        """The events of a step; what has ended gives its memory back."""
        events: list[GenerationEvent] = []
        for turn in turns:
            sequence = turn.scheduled.sequence
            if turn.ids:
                logprobs = tuple(turn.logprobs)
                events.append(
                    Delta(sequence.id, tuple(turn.ids), turn.text, logprobs, turn.thinking, sequence.num_cached)
                )
            if turn.error is not None:
                events.append(self.fail(sequence, turn.error))
            elif turn.reason is not None:
                events.append(self.finish(sequence, turn.reason, turn.stop))
        return events

    def finish(self, sequence: Sequence, reason: FinishReason, stop: str | None = None) -> Finished:
        """End a sequence: memory freed, timeline closed."""
        self._reuse.ended(sequence)
        self._release(sequence)
        usage, timings = sequence.account()
        return Finished(sequence.id, reason, usage, timings, sequence.seed, stop, sequence.rounds.result())

    def fail(self, sequence: Sequence, error: NInferError) -> Failed:
        """End a sequence by an error."""
        self._reuse.failed(sequence, error)
        self._release(sequence)
        usage, timings = sequence.account()
        return Failed(sequence.id, error, usage, timings, sequence.rounds.result())

    def _release(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        sequence.release()
        if self._speculation is not None:
            self._speculation.forget(sequence.id)


def _next_token(sequence: Sequence, logits: Logits, draft: Draft, index: int) -> tuple[int, bool]:
    """The token behind the first `index` of a draft, and whether it is the next one of it, so that more may follow."""
    allowed = None
    if sequence.guide is not None and sequence.output is not None:
        allowed = sequence.guide.allowed(sequence.output.channel, len(logits))
    sampling, position = sequence.request.sampling, sequence.length
    is_drafted = index < len(draft.ids)
    if is_drafted and draft.distributions is not None and sequence.seed is not None:
        target = distribution(logits, sampling, sequence.history, allowed)
        proposal = draft.distributions[index]
        return verify_drawn(target, draft.ids[index], proposal, seed=sequence.seed, position=position)
    token = sample(logits, sampling, sequence.history, seed=sequence.seed, position=position, allowed=allowed)
    return token, is_drafted and token == draft.ids[index]


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
