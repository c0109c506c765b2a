"""The sequences behind one HTTP request: submitted together, their events merged in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ninfer.engine import Delta, Failed, GenerationEvent, GenerationRequest
from ninfer.engine.service import EngineService, Ticket
from ninfer.metrics import RequestTimeline
from ninfer.server.answer import Answer, Choice
from ninfer.server.inputs import Prompt
from ninfer.server.pieces import Piece, PieceReader

Batch = list[tuple[Choice, GenerationEvent, list[Piece]]]


class Generation:
    """Runs until every choice has its ending, also when it is cancelled: nothing is left behind in the engine.

    Lives in the event loop's thread; one reader.
    """

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._tickets: list[Ticket] = []
        self._events: deque[tuple[Choice, GenerationEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._wakes_for_deltas = True
        self._num_events = 0
        self._silence_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.answer = Answer([], 1)
        self.is_cancelled = False

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        prompts: Sequence[Prompt],
        new_reader: Callable[[], PieceReader],
        *,
        arrival_ns: int,
        admission_deadline_ns: int,
        end_deadline_ns: int | None,
    ) -> None:
        """Queue `requests`, equally many for each of `prompts`. RequestError, before any is queued, for one that this
        model can never run.
        """
        for request in requests:
            self._service.engine.check(request)
        per_prompt = len(requests) // len(prompts)
        choices = [
            Choice(index, prompts[index // per_prompt], RequestTimeline(arrival_ns), reader=new_reader())
            for index in range(len(requests))
        ]
        self.answer = Answer(choices, per_prompt)
        self._tickets = [
            self._service.submit(
                request,
                partial(self._take, choice),
                timeline=choice.timeline,
                admission_deadline_ns=admission_deadline_ns,
                end_deadline_ns=end_deadline_ns,
            )
            for request, choice in zip(requests, choices, strict=True)
        ]

    def cancel(self) -> None:
        """End what still runs; the endings come as events."""
        self.is_cancelled = True
        for ticket, choice in zip(self._tickets, self.answer.choices, strict=False):
            if choice.ending is None:
                self._service.cancel(ticket)

    def close(self) -> None:
        """Cancel what still runs and look at nothing any more."""
        self.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def next_batch(self, silence_s: float) -> Batch:
        """The events since the last call, already part of `answer`: at least one, or none after silence.

        Silence is noticed after `silence_s` seconds, at most twice that: one timer serves many calls.
        """
        self._silence_s = silence_s
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            if self._timer is None:
                self._arm()
            await self._waiter
        return self._taken()

    async def finish(self) -> None:
        """Wait until every choice has ended; nothing wakes for deltas meanwhile."""
        self._wakes_for_deltas = False
        self._taken()
        while not self.answer.has_ended:
            if not self._events:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self._taken()

    def _taken(self) -> Batch:
        """The events that have come, made part of `answer`."""
        batch: Batch = []
        while self._events:
            choice, event = self._events.popleft()
            batch.append((choice, event, choice.add(event)))
            if isinstance(event, Failed) and not self.is_cancelled:
                self.cancel()  # an answer with a choice missing is none
        return batch

    def _take(self, choice: Choice, event: GenerationEvent) -> None:
        self._events.append((choice, event))
        self._num_events += 1
        if self._wakes_for_deltas or not isinstance(event, Delta):
            self._wake()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._silence_s, self._look, self._num_events)

    def _look(self, num_events: int) -> None:
        """Wake the reader if nothing has come since the timer was set."""
        self._timer = None
        if self._num_events == num_events:
            self._wake()
        else:
            self._arm()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
