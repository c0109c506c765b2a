"""One generation from request to ending, with its text handed out as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninfer.cli.interrupt import InterruptFlag
from ninfer.engine import Delta, Engine, Failed, Finished, GenerationRequest
from ninfer.errors import InvariantError
from ninfer.metrics import FinishReason, RequestTimeline, request_rates, speculation_report


@dataclass(frozen=True, slots=True)
class Answer:
    """All of one generation. `text` is None when the model has no tokenizer."""

    ids: tuple[int, ...]
    text: str | None
    ending: Finished

    @property
    def was_cancelled(self) -> bool:
        return self.ending.reason is FinishReason.CANCELLED

    def rates(self) -> dict[str, float | None]:
        """Tokens per second by the definitions of `ninfer.metrics`; None where one has no meaning."""
        return request_rates(self.ending.usage, self.ending.timings)

    def speculation(self) -> dict[str, Any]:
        """What drafts gave, by the definitions of `ninfer.metrics`."""
        return speculation_report(self.ending.rounds, self.ending.timings.decode)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, seconds unrounded."""
        return {
            "output_ids": list(self.ids),
            "text": self.text,
            "finish": self.ending.reason.value,
            "stop": self.ending.stop,
            "seed": self.ending.seed,
            "usage": self.ending.usage.to_dict(),
            "seconds": self.ending.timings.to_dict(),
            "rates": self.rates(),
            "speculative": self.speculation(),
        }

    def summary(self) -> str:
        """One line for a person."""
        usage, timings, rates = self.ending.usage, self.ending.timings, self.rates()
        parts = [
            f"{self.ending.reason.value}",
            f"load {timings.load:.3f} s",
            f"prefill {usage.computed} tokens in {timings.prefill:.3f} s{_rate(rates['prefill_tok_per_s'])}",
            f"decode {usage.completion} tokens in {timings.decode:.3f} s{_rate(rates['decode_tok_per_s'])}",
            f"total {timings.total:.3f} s",
        ]
        counts = self.ending.rounds.counts
        if counts.drafted:
            report = self.speculation()
            parts.append(
                f"drafts by {report['backend']}: {counts.accepted} of {counts.drafted} accepted in windows up to "
                f"{len(counts.windows) - 1}, {report['tokens_per_round']:.2f} tokens per round of "
                f"{1e3 * report['round_seconds']:.1f} ms"
            )
        if self.ending.seed is not None:
            parts.append(f"seed {self.ending.seed}")
        return ", ".join(parts)


def _rate(value: float | None) -> str:
    return "" if value is None else f" ({value:.1f} tok/s)"


def generate(
    engine: Engine,
    request: GenerationRequest,
    *,
    timeline: RequestTimeline,
    on_text: Callable[[str], None],
) -> Answer:
    """Runs a request to its end; Ctrl-C ends it as `cancelled`. Raises the error of a request that failed."""
    ids: list[int] = []
    pieces: list[str] = []
    with InterruptFlag() as interrupt:
        request_id = engine.submit(request, timeline=timeline)
        while engine.has_work:
            if interrupt.is_set:
                engine.cancel(request_id)
            for event in engine.step():
                match event:
                    case Delta():
                        ids.extend(event.ids)
                        pieces.append(event.text)
                        on_text(event.text)
                    case Finished():
                        text = None if engine.tokenizer is None else "".join(pieces)
                        return Answer(tuple(ids), text, event)
                    case Failed():
                        raise event.error
    raise InvariantError("a request ended without an ending")
