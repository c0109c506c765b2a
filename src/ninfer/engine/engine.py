"""The engine: requests in, events out, one step at a time.

It has no threads and no clockwork of its own: whoever owns it calls `step()`, and nothing else may touch it meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from types import TracebackType

from ninfer.cache import StateSlots, TokenMemory
from ninfer.decoding.proposer import Proposer
from ninfer.engine.batch import BatchBuilder
from ninfer.engine.events import Delta, GenerationEvent
from ninfer.engine.guide import Guide
from ninfer.engine.output import TextOutput
from ninfer.engine.pacing import Pace
from ninfer.engine.plan import EnginePlan
from ninfer.engine.request import GenerationRequest
from ninfer.engine.reuse import PrefixReuse
from ninfer.engine.scheduler import Scheduler
from ninfer.engine.sequence import Sequence
from ninfer.engine.speculation import Speculation
from ninfer.engine.step import ForwardModel, StepLoop
from ninfer.engine.window import AutoWindow, FixedWindow, RoundCosts
from ninfer.errors import InvariantError, NInferError, RequestError
from ninfer.metrics import FinishReason, RequestTimeline, RoundTally, TokenCounters, now_ns
from ninfer.text.channels import ThinkingSplitter, ThinkingTags
from ninfer.text.tokenizer import Tokenizer


class Engine:
    """Continuous batching over one model, first come first served.

    Every submitted request gives deltas and then exactly one ending. Emitted ids depend on the request and the plan
    only, not on what else runs. Without a tokenizer the engine works on ids alone: deltas have no text.
    """

    def __init__(
        self,
        plan: EnginePlan,
        model: ForwardModel,
        tokenizer: Tokenizer | None = None,
        *,
        proposer: Proposer | None = None,
        costs: RoundCosts | None = None,
    ) -> None:
        """Takes over `model`, which must have been loaded with `plan.options`, and `proposer`; `close` closes them.

        A plan with `speculation` needs a proposer, and costs if that is adaptive.
        """
        self.plan = plan
        self.tokenizer = tokenizer
        self._model = model
        options = plan.options
        self._memory = token_memory(plan)
        self.counters = TokenCounters()
        self._speculation = _speculation(plan, proposer, costs)
        reuse = PrefixReuse(
            self._memory,
            self.counters,
            snapshot_interval=0 if plan.prefix is None else plan.prefix.snapshot_interval,
            drafts=self._speculation,
        )
        pace = Pace(plan.mixed_chunk, plan.prefill_chunk)
        self._scheduler = Scheduler(
            self._memory,
            reuse,
            max_concurrency=plan.max_concurrency,
            prefill_chunk=plan.prefill_chunk,
            window=plan.verify_rows - 1,
            pace=pace,
        )
        batches = BatchBuilder(max_rows=options.max_rows, max_logit_rows=options.max_logit_rows)
        self._loop = StepLoop(model, self._scheduler, reuse, pace, batches, self.counters, self._speculation)
        self._live: dict[int, Sequence] = {}
        self._outbox: list[GenerationEvent] = []
        self._streams: dict[int, deque[GenerationEvent]] = {}
        self._next_id = 0

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_preemptions(self) -> int:
        """How often a sequence has given its memory to an older one."""
        return self._scheduler.num_preemptions

    @property
    def num_free_pages(self) -> int:
        """KV pages that no request holds, of `plan.num_pages`; those kept for reuse are among them."""
        return self._memory.pages.num_available

    @property
    def num_kept_pages(self) -> int:
        """KV pages that are kept for reuse, whether a request holds them too or not."""
        return 0 if self._memory.index is None else self._memory.index.num_pages

    @property
    def num_kept_snapshots(self) -> int:
        """Snapshots of recurrent state that are kept for reuse."""
        return 0 if self._memory.index is None else self._memory.index.num_snapshots

    @property
    def num_free_state_slots(self) -> int:
        """Recurrent-state slots that no request holds, of `plan.options.num_state_slots`; kept snapshots are among
        them."""
        slots = self._memory.slots
        return 0 if slots is None else slots.slots.num_free + self.num_kept_snapshots

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to tell."""
        return bool(self._live or self._outbox)

    def submit(self, request: GenerationRequest, *, timeline: RequestTimeline | None = None) -> int:
        """Queue a request; the id that its events carry.

        `timeline` brings the stamps of what happened before (arrival, loading, submission by another thread); without
        it the request arrives now. RequestError if this model and plan can never run it.
        """
        self.check(request)
        now = now_ns()
        if timeline is None:
            timeline = RequestTimeline(arrival_ns=now)
        if timeline.submitted_ns is None:
            timeline.submitted_ns = now
        sequence = self._sequence(request, timeline)
        self._next_id += 1
        self._live[sequence.id] = sequence
        self._scheduler.add(sequence)
        return sequence.id

    def _sequence(self, request: GenerationRequest, timeline: RequestTimeline) -> Sequence:
        stop, thinking = request.stop, request.thinking
        end_tokens = frozenset(stop.token_ids)
        if stop.model_end_tokens:
            end_tokens = end_tokens.union(self.plan.end_token_ids)
        output, guide = None, None
        if self.tokenizer is not None:
            visible_ids = request.visible_ids
            if thinking is not None:
                visible_ids |= self._tags.control_ids
            output = TextOutput(
                self.tokenizer,
                stop.strings,
                thinking=None if thinking is None else ThinkingSplitter(is_open=thinking.start == "open"),
                visible_ids=visible_ids,
            )
            if request.constraint is not None or (thinking is not None and thinking.budget is not None):
                constraint = None if request.constraint is None else request.constraint.start()
                guide = Guide(self._tags, thinking, constraint, end_tokens)
        return Sequence(
            self._next_id,
            request,
            max_context=self.plan.max_context,
            end_tokens=end_tokens,
            output=output,
            guide=guide,
            timeline=timeline,
            rounds=RoundTally() if self.plan.speculation is None else self.plan.speculation.tally(),
        )

    @cached_property
    def _tags(self) -> ThinkingTags:
        if self.tokenizer is None:
            raise InvariantError("there are no tags without a tokenizer")
        return ThinkingTags.of(self.tokenizer)

    def check(self, request: GenerationRequest) -> None:
        """RequestError for a request that this model and plan can never run. Callable from any thread."""
        plan = self.plan
        num_prompt = len(request.prompt_ids)
        if num_prompt >= plan.max_context:
            raise RequestError(
                f"the prompt has {num_prompt} tokens and the context holds {plan.max_context}, output included",
                kind="context_length_exceeded",
                param="prompt",
            )
        biased = [token for token, _ in request.sampling.logit_bias]
        for param, ids in (
            ("prompt", request.prompt_ids),
            ("stop_token_ids", request.stop.token_ids),
            ("logit_bias", biased),
        ):
            highest = max(ids, default=0)
            if highest >= plan.vocab_size:
                raise RequestError(
                    f"{param} holds token id {highest}; this vocabulary ends at {plan.vocab_size - 1}", param=param
                )
        if request.stop.strings and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this model has none", param="stop")
        if self.tokenizer is None and (request.thinking is not None or request.constraint is not None):
            raise RequestError("thinking and constraints need a tokenizer, and this model has none", param="thinking")
        if request.constraint is not None and not (request.stop.model_end_tokens and plan.end_token_ids):
            raise RequestError(
                "a constrained answer ends by the model's end token, which is switched off or missing",
                param="ignore_eos",
            )

    def step(self) -> list[GenerationEvent]:
        """Run one step of everything that runs; the events since the last call, except those of `generate` iterators.

        An exception other than a failing request's (which is its `Failed` event) leaves all requests as they were
        before.
        """
        self._advance()
        events, self._outbox = self._outbox, []
        return events

    def cancel(self, request_id: int) -> bool:
        """End a request now; its last events come with the next step. False if it has ended already."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        if sequence.num_output and sequence.output is not None:
            rest = sequence.output.finish()
            if rest.text or rest.thinking:
                self._publish(Delta(request_id, (), rest.text, thinking=rest.thinking, cached=sequence.num_cached))
        self._publish(self._loop.finish(sequence, FinishReason.CANCELLED))
        return True

    def fail(self, request_id: int, error: NInferError) -> bool:
        """End a request by an error now, as its `Failed` event of the next step. False if it has ended already."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._publish(self._loop.fail(sequence, error))
        return True

    def generate(
        self, request: GenerationRequest, *, timeline: RequestTimeline | None = None
    ) -> Iterator[GenerationEvent]:
        """The events of one request, stepping the engine as needed. Closing the iterator early cancels the request.

        Several iterators and `step` may take turns: each sees its own events. Submission happens at the first `next`.
        """
        request_id = self.submit(request, timeline=timeline)
        stream = self._streams[request_id] = deque()
        try:
            while stream or request_id in self._live:
                if not stream:
                    self._advance()
                while stream:
                    yield stream.popleft()
        finally:
            self.cancel(request_id)
            del self._streams[request_id]

    def drain(self) -> Iterator[GenerationEvent]:
        """The events of all requests until none is left."""
        while self.has_work:
            yield from self.step()

    def close(self) -> None:
        """Close the model. Requests that have not ended get no more events."""
        self._live.clear()
        if self._speculation is not None:
            self._speculation.close()
        self._model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _advance(self) -> None:
        for event in self._loop.step():
            self._publish(event)

    def _publish(self, event: GenerationEvent) -> None:
        if not isinstance(event, Delta) and self._live.pop(event.request_id, None) is None:
            raise InvariantError(f"request {event.request_id} ended twice")
        stream = self._streams.get(event.request_id)
        (self._outbox if stream is None else stream).append(event)


def token_memory(plan: EnginePlan) -> TokenMemory:
    """The token memory of a plan, all of it free."""
    slots = None
    if plan.state is not None:
        slots = StateSlots(
            plan.state.layout,
            num_slots=plan.options.num_state_slots,
            num_journals=plan.options.num_journals,
            max_snapshots=plan.state.max_snapshots,
        )
    return TokenMemory(plan.num_pages, slots, reuses_prefixes=plan.prefix is not None)


def _speculation(plan: EnginePlan, proposer: Proposer | None, costs: RoundCosts | None) -> Speculation | None:
    planned = plan.speculation
    if (planned is None) != (proposer is None):
        raise InvariantError(f"the plan has speculation {planned}, the engine proposer {proposer}")
    if planned is None or proposer is None:
        return None
    if not planned.adaptive:
        return Speculation(proposer, FixedWindow(planned.window, proposer.num_grades), planned.rule)
    if costs is None:
        raise InvariantError("windows that set themselves need the costs of rounds")
    return Speculation(proposer, AutoWindow(planned.window, proposer.num_grades, costs), planned.rule)
