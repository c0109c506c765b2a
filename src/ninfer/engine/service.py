"""An engine on a thread of its own: commands in, events out.

Two threads meet here. The *front* (an asyncio loop, or a test) calls the public methods; the *engine's thread* runs
`run` and alone touches the engine. Commands go through an inbox, which `reserved` bounds: a request is submitted and
cancelled at most once. Events go back once per step, through `post`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from ninfer.engine.engine import Engine
from ninfer.engine.events import Delta, Failed, GenerationEvent
from ninfer.engine.request import GenerationRequest
from ninfer.errors import EngineFailedError, NInferError, OverloadedError, RequestError
from ninfer.metrics import RequestTimeline, Usage, now_ns

Listener = Callable[[GenerationEvent], None]
Post = Callable[[Callable[[], None]], object]

MAX_RETRY_AFTER_S = 60.0


@dataclass(slots=True, eq=False)
class Ticket:
    """One submitted request.

    listener: called in the front with each event; the ending comes last, exactly once, whatever happens.
    admission_deadline_ns, end_deadline_ns: when the request fails unless it was admitted or has ended; None: never.
    """

    request: GenerationRequest
    listener: Listener
    timeline: RequestTimeline
    admission_deadline_ns: int | None
    end_deadline_ns: int | None
    request_id: int | None = None
    num_output: int = 0

    def deadline_ns(self) -> float:
        """The next deadline that counts; infinity if there is none."""
        deadlines = [self.end_deadline_ns]
        if self.timeline.admitted_ns is None:
            deadlines.append(self.admission_deadline_ns)
        return min((d for d in deadlines if d is not None), default=math.inf)


class _Verb(Enum):
    SUBMIT = auto()
    CANCEL = auto()
    FAIL_ALL = auto()


@dataclass(frozen=True, slots=True)
class _Command:
    verb: _Verb
    ticket: Ticket | None = None
    error: NInferError | None = None


class EngineService:
    """Continuous batching for a front that must not block.

    `max_pending` requests may wait beside the `max_concurrency` that can run; more are an `OverloadedError`. `post`
    runs a function in the front (`loop.call_soon_threadsafe`); the default calls it at once, for steps by hand.
    An exception that leaves a step ends the service: every open request fails with it and `on_failure` gets it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_pending: int,
        post: Post = lambda function: function(),
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._engine = engine
        self.capacity = engine.plan.max_concurrency + max_pending
        self._post = post
        self._on_failure = on_failure
        self._thread: threading.Thread | None = None
        # Shared, under the lock of `_wake`.
        self._wake = threading.Condition()
        self._inbox: list[_Command] = []
        self._stopping = False
        self._failure: NInferError | None = None
        # The front's.
        self._num_open = 0
        self._ended_seconds = 0.0
        self._num_ended = 0
        self._on_idle: Callable[[], None] | None = None
        # The engine thread's.
        self._tickets: dict[int, Ticket] = {}
        self._next_deadline_ns = math.inf

    # Front

    @property
    def engine(self) -> Engine:
        """For what never changes (plan, tokenizer, `check`) and for counters."""
        return self._engine

    @property
    def failure(self) -> NInferError | None:
        """Why the service has ended, None while it has not."""
        return self._failure

    @property
    def is_draining(self) -> bool:
        return self._on_idle is not None

    @property
    def num_open(self) -> int:
        """Places taken: requests that are being prepared, wait or run."""
        return self._num_open

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Hold `count` of the places while requests are prepared, wait and run.

        RequestError for more than there are, OverloadedError when they are not free or the service is going away.
        """
        self._require_places(count)
        self._num_open += count
        try:
            yield
        finally:
            self._num_open -= count
            self._tell_if_idle()

    def submit(
        self,
        request: GenerationRequest,
        listener: Listener,
        *,
        timeline: RequestTimeline,
        admission_deadline_ns: int | None = None,
        end_deadline_ns: int | None = None,
    ) -> Ticket:
        """Queue a request that `engine.check` has passed; to be called inside `reserved`. Never raises."""
        timeline.submitted_ns = now_ns()
        ticket = Ticket(request, listener, timeline, admission_deadline_ns, end_deadline_ns)
        self._send(_Command(_Verb.SUBMIT, ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a request at the next step, in whatever phase it is; nothing happens if it has ended."""
        self._send(_Command(_Verb.CANCEL, ticket))

    def fail_all(self, error: NInferError) -> None:
        """End every open request by an error at the next step."""
        self._send(_Command(_Verb.FAIL_ALL, error=error))

    def drain(self, on_idle: Callable[[], None]) -> None:
        """Refuse new requests from now on; `on_idle` is called when no place is taken any more."""
        self._on_idle = on_idle
        self._tell_if_idle()

    def start(self) -> None:
        """Run on a thread of its own from now on."""
        self._thread = threading.Thread(target=self.run, name="ninfer-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in. Requests that are open get no more events: drain first."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _require_places(self, count: int) -> None:
        if self._failure is not None:
            raise OverloadedError(f"the engine has failed: {self._failure}", kind="unavailable")
        if self.is_draining:
            raise OverloadedError("the server is shutting down", kind="unavailable", retry_after_s=1.0)
        if count > self.capacity:
            raise RequestError(
                f"the request asks for {count} answers and this server holds {self.capacity} at a time", param="n"
            )
        if self._num_open + count > self.capacity:
            position = max(0, self._num_open - self._engine.plan.max_concurrency)
            raise OverloadedError(
                f"all {self.capacity} places are taken, {position} requests are waiting; try again later",
                kind="queue_full",
                position=position,
                retry_after_s=self._retry_after_s(position),
            )

    def _retry_after_s(self, position: int) -> float:
        """Seconds until the requests in front should be done, from the mean of those that have ended."""
        mean = self._ended_seconds / self._num_ended if self._num_ended else 1.0
        return min(MAX_RETRY_AFTER_S, max(1.0, mean * (position + 1) / self._engine.plan.max_concurrency))

    def _tell_if_idle(self) -> None:
        if self._on_idle is not None and self._num_open == 0:
            self._on_idle()

    def _send(self, command: _Command) -> None:
        with self._wake:
            if self._failure is None:
                self._inbox.append(command)
                self._wake.notify()
                return
        if command.verb is _Verb.SUBMIT and command.ticket is not None:
            self._deliver([(command.ticket, _failed(command.ticket, self._failure))])

    def _hand_over(self, batch: Sequence[tuple[Ticket, GenerationEvent]]) -> None:
        for ticket, event in batch:
            if not isinstance(event, Delta):
                self._num_ended += 1
                self._ended_seconds += event.timings.total
            ticket.listener(event)

    # Engine's thread

    def run(self) -> None:
        """Step while there is something to do and wait while there is not, until `stop`."""
        try:
            while self._wait_for_work():
                self.step()
        except BaseException as error:  # the top of the thread: whatever comes here must reach every open request
            self._break(error)

    def step(self) -> None:
        """Take commands, let deadlines pass, run one step of the engine, hand its events over."""
        batch: list[tuple[Ticket, GenerationEvent]] = []
        for command in self._take():
            self._obey(command, batch)
        self._expire()
        for event in self._engine.step():
            ticket = self._tickets[event.request_id]
            if isinstance(event, Delta):
                ticket.num_output += len(event.ids)
            else:
                del self._tickets[event.request_id]
            batch.append((ticket, event))
        self._deliver(batch)

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._inbox or self._stopping or self._engine.has_work):
                self._wake.wait()
            return not self._stopping

    def _take(self) -> list[_Command]:
        with self._wake:
            commands, self._inbox = self._inbox, []
        return commands

    def _obey(self, command: _Command, batch: list[tuple[Ticket, GenerationEvent]]) -> None:
        match command:
            case _Command(_Verb.SUBMIT, ticket=Ticket() as ticket):
                try:
                    ticket.request_id = self._engine.submit(ticket.request, timeline=ticket.timeline)
                except RequestError as error:
                    batch.append((ticket, _failed(ticket, error)))
                    return
                self._tickets[ticket.request_id] = ticket
                self._next_deadline_ns = min(self._next_deadline_ns, ticket.deadline_ns())
            case _Command(_Verb.CANCEL, ticket=Ticket(request_id=int() as request_id)):
                self._engine.cancel(request_id)
            case _Command(_Verb.FAIL_ALL, error=NInferError() as error):
                for request_id in list(self._tickets):
                    self._engine.fail(request_id, error)

    def _expire(self) -> None:
        """Fail what has passed a deadline. A look at the clock is all it costs while none is due."""
        now = now_ns()
        if now < self._next_deadline_ns:
            return
        self._next_deadline_ns = math.inf
        for request_id, ticket in list(self._tickets.items()):
            deadline = ticket.deadline_ns()
            if deadline <= now:
                self._engine.fail(request_id, _late(ticket, now))
            else:
                self._next_deadline_ns = min(self._next_deadline_ns, deadline)

    def _deliver(self, batch: Sequence[tuple[Ticket, GenerationEvent]]) -> None:
        if batch:
            self._post(partial(self._hand_over, batch))

    def _break(self, error: BaseException) -> None:
        """The end of the service by an exception: every open request fails, none is forgotten."""
        failure = error if isinstance(error, NInferError) else _unexpected(error)
        with self._wake:
            self._failure = failure
            commands, self._inbox = self._inbox, []
        open_tickets = [c.ticket for c in commands if c.verb is _Verb.SUBMIT and c.ticket is not None]
        open_tickets += self._tickets.values()
        self._deliver([(ticket, _failed(ticket, failure)) for ticket in open_tickets])
        self._post(partial(self._on_failure, error))


def _unexpected(error: BaseException) -> EngineFailedError:
    failure = EngineFailedError(f"the engine has failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _late(ticket: Ticket, now: int) -> OverloadedError:
    seconds = (now - ticket.timeline.arrival_ns) * 1e-9
    if ticket.timeline.admitted_ns is None:
        return OverloadedError(
            f"no place became free within {seconds:.1f} s; nothing was computed",
            kind="queue_timeout",
            retry_after_s=1.0,
        )
    return OverloadedError(f"the request was not finished after {seconds:.1f} s", kind="request_timeout")


def _failed(ticket: Ticket, error: NInferError) -> Failed:
    """The ending of a request that no engine can account for any more: a prompt counts as computed if it led to a
    token.
    """
    num_prompt = len(ticket.request.prompt_ids)
    ticket.timeline.ended_ns = now_ns()
    usage = Usage(
        prompt=num_prompt, cached=0, completion=ticket.num_output, computed=num_prompt if ticket.num_output else 0
    )
    return Failed(-1 if ticket.request_id is None else ticket.request_id, error, usage, ticket.timeline.phases())
