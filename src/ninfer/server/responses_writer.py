"""A `response` and the events that build one: items one after the other, never two open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ninfer.engine import Delta
from ninfer.metrics import FinishReason
from ninfer.server import sse
from ninfer.server.answer import Answer, AnswerHead, Choice
from ninfer.server.faults import Fault
from ninfer.server.openai_fields import logprob_entries, timings_block
from ninfer.server.pieces import Called, Piece, Thought, joined
from ninfer.server.responses_input import new_id, reasoning_item
from ninfer.text.tokenizer import Tokenizer

INCOMPLETE = {FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY}
"""Endings that cut an answer; the protocol has one word for both."""

Event = tuple[str, dict[str, Any]]


class ResponseWriter:
    """Writes one answer. `keep` is given a response that has ended and says whether there was room to store it."""

    def __init__(
        self,
        head: AnswerHead,
        echo: Mapping[str, Any],
        *,
        logprob_tokenizer: Tokenizer | None,
        keep: Callable[[dict[str, Any]], bool] | None,
    ) -> None:
        """echo: members that come from the request. logprob_tokenizer: None where no logprobs were asked for."""
        self._head = head
        self._echo = echo
        self._logprob_tokenizer = logprob_tokenizer
        self._keep = keep
        self._num_events = 0
        self._items: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the last item while it grows, which it does with its first text

    def whole(self, answer: Answer) -> dict[str, Any]:
        (choice,) = answer.choices
        for piece in joined(choice.pieces):
            self._build(piece)
        self._close(_item_status(choice), self._logprobs(choice))
        return self._ended(answer)

    def opening(self, choices: Sequence[Choice]) -> bytes:
        members = {"response": self._response("in_progress")}
        return self._written([("response.created", members), ("response.in_progress", members)])

    def delta(self, choice: Choice, delta: Delta, pieces: Sequence[Piece]) -> bytes:
        return b"".join(self._written(self._build(piece)) for piece in pieces)

    def choice_end(self, choice: Choice, pieces: Sequence[Piece], answer: Answer | None) -> bytes:
        events = [event for piece in pieces for event in self._build(piece)]
        return self._written(events + self._close(_item_status(choice), self._logprobs(choice)))

    def closing(self, answer: Answer) -> bytes:
        response = self._ended(answer)
        return self._written([(f"response.{response['status']}", {"response": response})])

    def failure(self, fault: Fault) -> bytes:
        """The error with its own words, then the state of the response, whose errors have few."""
        closed = self._close("incomplete")
        error = {"code": fault.code, "message": fault.message, "param": fault.param}
        response = self._response("failed", error={"code": "server_error", "message": fault.message})
        return self._written([*closed, ("error", error), ("response.failed", {"response": response})])

    def _written(self, events: Sequence[Event]) -> bytes:
        parts = []
        for kind, members in events:
            parts.append(sse.named(kind, {"type": kind, "sequence_number": self._num_events, **members}))
            self._num_events += 1
        return b"".join(parts)

    # Items

    def _build(self, piece: Piece) -> list[Event]:
        """Take a piece; the events that tell of it."""
        if isinstance(piece, Called):
            return self._close() + self._call(piece)
        kind = "reasoning" if isinstance(piece, Thought) else "message"
        events = []
        if not self._texts or self._items[-1]["type"] != kind:
            events = self._close() + self._begin(kind)
        self._texts.append(piece.text)
        extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, (f"response.{PARTS[kind]}.delta", {**self._part(), "delta": piece.text, **extra})]

    def _begin(self, kind: str) -> list[Event]:
        if kind == "reasoning":
            item = {**reasoning_item(new_id("rs"), "", "in_progress"), "content": []}
        else:
            item = {"id": new_id("msg"), **_MESSAGE, "content": [], "status": "in_progress"}
        return [*self._added(item), ("response.content_part.added", {**self._part(), "part": _part(kind, "")})]

    def _close(self, status: str = "completed", logprobs: Sequence[Mapping[str, Any]] = ()) -> list[Event]:
        """End the item that grows, if one does."""
        if not self._texts:
            return []
        text = "".join(self._texts)
        self._texts = []
        item = self._items[-1]
        kind = item["type"]
        part = _part(kind, text, logprobs)
        extra = {"logprobs": logprobs} if kind == "message" else {}
        return [
            (f"response.{PARTS[kind]}.done", {**self._part(), "text": text, **extra}),
            ("response.content_part.done", {**self._part(), "part": part}),
            *self._done({**item, "content": [part], "status": status}),
        ]

    def _call(self, call: Called) -> list[Event]:
        """A call comes complete."""
        item = {
            "id": f"fc_{call.key}",
            "type": "function_call",
            "call_id": f"call_{call.key}",
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        added = self._added(item)
        name = "response.function_call_arguments"
        return [
            *added,
            (f"{name}.delta", {**self._place(), "delta": call.arguments}),
            (f"{name}.done", {**self._place(), "name": call.name, "arguments": call.arguments}),
            *self._done({**item, "arguments": call.arguments, "status": "completed"}),
        ]

    def _added(self, item: dict[str, Any]) -> list[Event]:
        self._items.append(item)
        return [("response.output_item.added", {"output_index": len(self._items) - 1, "item": item})]

    def _done(self, item: dict[str, Any]) -> list[Event]:
        self._items[-1] = item
        return [("response.output_item.done", {"output_index": len(self._items) - 1, "item": item})]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _part(self) -> dict[str, Any]:
        return {**self._place(), "content_index": 0}

    def _logprobs(self, choice: Choice) -> list[dict[str, Any]]:
        """Of the tokens behind the thinking, which are counted when the answer has ended."""
        if self._logprob_tokenizer is None:
            return []
        start = choice.end.usage.thinking
        return logprob_entries(self._logprob_tokenizer, choice.ids[start:], choice.logprobs[start:])

    # Responses

    def _ended(self, answer: Answer) -> dict[str, Any]:
        """The response of an answer that has ended, stored where that was asked for."""
        (choice,) = answer.choices
        reason = choice.finished.reason
        usage = answer.usage
        response = self._response(
            "incomplete" if reason in INCOMPLETE else "completed",
            incomplete_details={"reason": "max_output_tokens"} if reason in INCOMPLETE else None,
            usage={
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": usage.thinking},
                "total_tokens": usage.prompt + usage.completion,
            },
            completed_at=None if reason in INCOMPLETE else int(time.time()),
            ninfer_finish_reason=reason.value,
            timings=timings_block(answer),
        )
        if self._keep is not None and (reason is FinishReason.CANCELLED or not self._keep(response)):
            response["store"] = False
        return response

    def _response(self, status: str, **members: Any) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "completed_at": None,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(self._items),
            "usage": None,
            **self._echo,
            **members,
        }


PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""Items that hold text -> the kind of their only part."""

_MESSAGE = {"type": "message", "role": "assistant"}


def _part(kind: str, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    extra = {"annotations": [], "logprobs": logprobs} if kind == "message" else {}
    return {"type": PARTS[kind], "text": text, **extra}


def _item_status(choice: Choice) -> str:
    """Of the item that an answer ended in."""
    return "incomplete" if choice.finished.reason in INCOMPLETE else "completed"
