"""Our engine in this process: phases and rounds are the engine's own figures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ninfer.bench.load.target import Outcome
from ninfer.bench.records.schema import RoundSeconds, RowSeconds, RowSpeculation, RowUsage
from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, Engine, Failed, Finished, GenerationEvent, GenerationRequest, StopRules
from ninfer.engine.service import EngineService
from ninfer.errors import RequestError
from ninfer.metrics import RequestTimeline, Rounds, now_ns
from ninfer.text.template import ChatTemplate


@dataclass(slots=True)
class _Answer:
    """The events of one request as they come."""

    done: asyncio.Future[Finished | Failed]
    sent_ns: int
    ids: list[int] = field(default_factory=list)
    token_seconds: list[float] = field(default_factory=list)
    text: str = ""

    def take(self, event: GenerationEvent) -> None:
        if not isinstance(event, Delta):
            self.done.set_result(event)
            return
        seconds = (now_ns() - self.sent_ns) * 1e-9
        self.ids += event.ids
        self.token_seconds += [seconds] * len(event.ids)
        self.text += event.text


class EngineTarget:
    """Runs the engine on a thread of its own, as the server does, without HTTP.

    Create it inside a running event loop; it closes the engine.
    """

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate | None,
        sampling: SamplingParams,
        *,
        ignores_end: bool = False,
    ) -> None:
        """template: for prompts that are messages; token ids need none. ignores_end: answers run to their limit, for
        measurements of a fixed length."""
        self._engine = engine
        self._template = template
        self._sampling = sampling
        self._stop = StopRules(model_end_tokens=not ignores_end)
        self._service = EngineService(engine, max_pending=1 << 16, post=asyncio.get_running_loop().call_soon_threadsafe)
        self._service.start()

    async def answer(self, body: Any, max_new: int | None) -> Outcome:
        timeline = RequestTimeline(now_ns())
        answer = _Answer(asyncio.get_running_loop().create_future(), timeline.arrival_ns)
        try:
            request = GenerationRequest(self._ids(body), max_new=max_new, sampling=self._sampling, stop=self._stop)
            self._engine.check(request)
        except RequestError as error:
            return Outcome(error=(type(error).__name__, str(error)))
        with self._service.reserved(1):
            ticket = self._service.submit(request, answer.take, timeline=timeline)
            try:
                ending = await answer.done
            except asyncio.CancelledError:
                self._service.cancel(ticket)
                raise
        return Outcome(
            usage=RowUsage.of(ending.usage),
            seconds=RowSeconds.of(ending.timings),
            speculation=self._speculation(ending.rounds),
            finish=str(ending.reason) if isinstance(ending, Finished) else None,
            output_ids=tuple(answer.ids),
            text=answer.text,
            token_seconds=tuple(answer.token_seconds),
            error=(type(ending.error).__name__, str(ending.error)) if isinstance(ending, Failed) else None,
        )

    def _ids(self, body: Any) -> tuple[int, ...]:
        if body and isinstance(body[0], int):
            return tuple(body)
        if self._template is None:
            raise RequestError("this model has no chat template, so it takes token ids only", param="messages")
        return tuple(self._template.encode(body))

    def _speculation(self, rounds: Rounds) -> RowSpeculation:
        plan, seconds = self._engine.plan.speculation, rounds.seconds
        return RowSpeculation.of(
            "off" if plan is None else plan.method,
            0 if plan is None else plan.window,
            rounds.counts,
            RoundSeconds(draft=seconds.draft, verify=seconds.verify, sample=seconds.sample, rollback=seconds.rollback),
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._service.stop)
        self._engine.close()
