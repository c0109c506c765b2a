"""An answer as it grows, in no protocol's words, and what a protocol must be able to write of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ninfer.decoding import TokenLogprobs
from ninfer.engine import Delta, Failed, Finished, GenerationEvent, GenerationRequest
from ninfer.errors import InvariantError, NInferError
from ninfer.metrics import Phases, RequestTimeline, Rounds, Usage, joined_rounds, joined_timeline
from ninfer.server.constraints import Rule, compile_rules
from ninfer.server.faults import Fault
from ninfer.server.inputs import AnswerOptions, ChatInput, Prompt, TextInput, encode_prompts
from ninfer.server.model import ServedModel
from ninfer.server.pieces import Piece, PieceReader, Thought
from ninfer.server.tools import ToolUse


@dataclass(frozen=True, slots=True)
class WireUsage:
    """Token counts as clients are billed: a prompt counts once, however many answers it has."""

    prompt: int
    cached: int
    completion: int
    thinking: int = 0


@dataclass(slots=True)
class Choice:
    """One answer to one prompt: what has come of it so far. cached: prompt tokens reused, known with the first one."""

    index: int
    prompt: Prompt
    timeline: RequestTimeline
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    reader: PieceReader = field(default_factory=lambda: PieceReader(None))
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached: int = 0
    ending: Finished | Failed | None = None

    def add(self, event: GenerationEvent) -> list[Piece]:
        """Take an event; the pieces of the answer that are certain by it."""
        if isinstance(event, Delta):
            self.ids += event.ids
            self.cached = event.cached
            self.texts.append(event.text)
            self.logprobs += event.logprobs
            new = self.reader.push(event.thinking, event.text)
        else:
            self.ending = event
            new = self.reader.finish()
        self.pieces += new
        return new

    @property
    def text(self) -> str:
        """All text of the answer, calls as the model wrote them."""
        return "".join(self.texts)

    @property
    def has_answer(self) -> bool:
        """Whether there is anything but thinking."""
        return not all(isinstance(piece, Thought) for piece in self.pieces)

    @property
    def end(self) -> Finished | Failed:
        if self.ending is None:
            raise InvariantError(f"choice {self.index} has not ended")
        return self.ending

    @property
    def finished(self) -> Finished:
        """The ending of a choice that did not fail."""
        if not isinstance(self.ending, Finished):
            raise InvariantError(f"choice {self.index} has not finished: {self.ending}")
        return self.ending


@dataclass(slots=True)
class Answer:
    """All choices of one HTTP request, `num_choices` for each prompt, in order."""

    choices: list[Choice]
    num_choices: int

    @property
    def has_ended(self) -> bool:
        return all(choice.ending is not None for choice in self.choices)

    @property
    def error(self) -> NInferError | None:
        """Why the answer failed, if one of its choices did."""
        return next((c.ending.error for c in self.choices if isinstance(c.ending, Failed)), None)

    @property
    def usage(self) -> WireUsage:
        """Of an answer that has ended. A prompt's cached tokens are those of its first choice."""
        work = self.work
        firsts = [choice.end.usage for choice in self.choices[:: self.num_choices]]
        return WireUsage(sum(u.prompt for u in firsts), sum(u.cached for u in firsts), work.completion, work.thinking)

    @property
    def work(self) -> Usage:
        """Tokens of all choices together, prompts as often as they were worked on. Of an answer that has ended."""
        usages = [choice.end.usage for choice in self.choices]
        return Usage(
            prompt=sum(u.prompt for u in usages),
            cached=sum(u.cached for u in usages),
            completion=sum(u.completion for u in usages),
            computed=sum(u.computed for u in usages),
            thinking=sum(u.thinking for u in usages),
            recomputed=sum(u.recomputed for u in usages),
        )

    @property
    def rounds(self) -> Rounds:
        """Of all choices together. Of an answer that has ended."""
        return joined_rounds([choice.end.rounds for choice in self.choices])

    @property
    def decode_seconds(self) -> float:
        """Of all choices, each by itself: what their rounds took. Of an answer that has ended."""
        return sum(choice.end.timings.decode for choice in self.choices)

    @property
    def phases(self) -> Phases:
        """Of an answer that has ended."""
        return joined_timeline([choice.timeline for choice in self.choices]).phases()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every part of an answer repeats. created: Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


class Writer(Protocol):
    """Writes one answer in the words of one protocol. Stream parts are complete server-sent events."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """The events before the first delta, written when its choice already has it."""

    def delta(self, choice: Choice, delta: Delta, pieces: Sequence[Piece]) -> bytes:
        """The events of new output, which `choice` already has; empty if there is nothing to show."""

    def choice_end(self, choice: Choice, pieces: Sequence[Piece], answer: Answer | None) -> bytes:
        """The events of a choice that has ended, with the last `pieces`; with `answer` if it was the last one."""

    def closing(self, answer: Answer) -> bytes:
        """The last events of an answer that has ended."""

    def failure(self, fault: Fault) -> bytes:
        """The last events of an answer that failed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as a protocol module understood it.

    max_tokens_source: who set the output limit, `client`, `server_default` or `context`. ignored: names of fields that
    changed nothing. facts: more for the request log, JSON values. tools: what may be called.
    rule: what the answer must be.
    """

    source: ChatInput | TextInput
    options: AnswerOptions
    stream: bool
    max_tokens_source: str
    ignored: Sequence[str]
    facts: dict[str, Any]
    make_writer: Callable[[AnswerHead], Writer]
    tools: ToolUse | None = None
    rule: Rule | None = None

    @property
    def num_sequences(self) -> int:
        num_prompts = len(self.source.prompts) if isinstance(self.source, TextInput) else 1
        return num_prompts * self.options.num_choices

    def prepare(self, model: ServedModel) -> tuple[list[Prompt], list[GenerationRequest]]:
        """Prompts and requests for the engine. RequestError for what template, tokenizer or grammar cannot take.

        Takes time that grows with the text; the server calls it on a thread of its own.
        """
        prompts = encode_prompts(self.source, model)
        constraint = None
        if self.rule is not None or (self.tools is not None and self.tools.required):
            constraint = compile_rules(model.grammars, model.require_tokenizer(), self.rule, self.tools)
        return prompts, self.options.requests(prompts, constraint)

    def reader(self) -> PieceReader:
        """What makes pieces of one choice."""
        return PieceReader(None if self.tools is None else self.tools.parser())
