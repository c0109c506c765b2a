"""`/v1/chat/completions` of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ninfer.decoding import TokenLogprobs
from ninfer.engine import Delta
from ninfer.errors import RequestError
from ninfer.server import sse
from ninfer.server.answer import Answer, AnswerHead, Call, Choice
from ninfer.server.constraints import read_rule
from ninfer.server.conversation import (
    ordered_history,
    read_budget,
    read_tools,
    read_variables,
    stop_rules,
    visible_ids,
)
from ninfer.server.faults import Fault, openai_error
from ninfer.server.fields import Count, Objects, conversation, read_fields, shape
from ninfer.server.inputs import AnswerOptions, ChatInput, check_choices
from ninfer.server.model import ServedModel
from ninfer.server.openai_fields import (
    FINISH,
    NEUTRAL,
    Logprobs,
    SharedFields,
    ToolChoice,
    logprob_entries,
    output_limit,
    read_sampling,
    read_stop,
    read_top_logprobs,
    timings_block,
    usage_block,
)
from ninfer.server.pieces import Called, Piece, Said, Thought, called, said, thought
from ninfer.server.settings import ServerSettings
from ninfer.text.messages import ROLES
from ninfer.text.tokenizer import Tokenizer


class ChatFields(SharedFields, kw_only=True):
    """Fields of a chat request beside the shared ones."""

    messages: Annotated[Any, conversation(*ROLES)] = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    thinking_budget: Annotated[int, shape(minimum=0)] | None = None
    tools: Objects = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None


CHAT_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
    "documents": ([],),
    "chat_template": (),
}


def parse(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> Call:
    """A chat request. RequestError names the field that is wrong."""
    fields, ignored = read_fields(ChatFields, body, neutral=CHAT_NEUTRAL)
    model.require(fields.model)
    max_new, source = output_limit(
        settings, max_tokens=fields.max_tokens, max_completion_tokens=fields.max_completion_tokens
    )
    variables = read_variables(
        model,
        ignored,
        given=fields.chat_template_kwargs,
        enable_thinking=fields.enable_thinking,
        effort=fields.reasoning_effort,
        budget=fields.thinking_budget,
    )
    use = read_tools(
        model, settings, tools=fields.tools, choice=fields.tool_choice, parallel=fields.parallel_tool_calls
    )
    if fields.stream_options is not None and not fields.stream:
        ignored.append("stream_options")
    messages = fields.messages
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    return Call(
        source=ChatInput(ordered_history(messages), tools=None if use is None else use.declared, variables=variables),
        options=AnswerOptions(
            num_choices=check_choices(1 if fields.n is None else fields.n),
            max_new=max_new,
            sampling=read_sampling(fields, model),
            stop=stop_rules(model, read_stop(fields), use),
            logprobs=_logprobs(fields),
            thinking_budget=read_budget(model, settings, ignored, fields.thinking_budget),
            visible_ids=visible_ids(model, use),
        ),
        tools=use,
        rule=read_rule(fields.response_format, fields.structured_outputs),
        stream=bool(fields.stream),
        max_tokens_source=source,
        ignored=ignored,
        facts={
            "message_count": len(messages),
            "template_variables": sorted(variables),
            "tool_count": 0 if use is None else len(use.schemas),
        },
        make_writer=lambda head: ChatWriter(
            head,
            model.require_tokenizer(),
            with_usage=bool(fields.stream_options and fields.stream_options.include_usage),
            with_logprobs=bool(fields.logprobs),
            with_ids=bool(fields.return_token_ids),
        ),
    )


def _logprobs(fields: ChatFields) -> int | None:
    if fields.logprobs:
        return read_top_logprobs(fields.top_logprobs)
    if fields.top_logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _message(pieces: Sequence[Piece]) -> dict[str, Any]:
    calls = [
        {"id": f"call_{c.key}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in called(pieces)
    ]
    text, thinking = said(pieces), thought(pieces)
    return {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
        **({"reasoning_content": thinking} if thinking else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _deltas(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """`delta` objects. A call comes in two: who is called, then with what."""
    found: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case Thought(text):
                found.append({"reasoning_content": text})
            case Said(text):
                found.append({"content": text})
            case Called(index, key, name, arguments):
                head = {"id": f"call_{key}", "type": "function", "function": {"name": name, "arguments": ""}}
                found.append({"tool_calls": [{"index": index, **head}]})
                found.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    return found


def _finish(choice: Choice) -> dict[str, str]:
    reason = choice.finished.reason
    word = FINISH[reason]
    return {
        "finish_reason": "tool_calls" if word == "stop" and called(choice.pieces) else word,
        "ninfer_finish_reason": reason.value,
    }


class ChatWriter:
    """Writes `chat.completion` and `chat.completion.chunk` objects."""

    def __init__(
        self, head: AnswerHead, tokenizer: Tokenizer, *, with_usage: bool, with_logprobs: bool, with_ids: bool
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._with_usage = with_usage
        self._with_logprobs = with_logprobs
        self._with_ids = with_ids

    def whole(self, answer: Answer) -> dict[str, Any]:
        return {
            **self._common("chat.completion"),
            "choices": [self._choice(choice) for choice in answer.choices],
            "usage": usage_block(answer.usage),
            "timings": timings_block(answer),
        }

    def opening(self, choices: Sequence[Choice]) -> bytes:
        return b"".join(
            self._chunk(choice.index, {"role": "assistant", "content": ""}, **self._prompt_ids(choice))
            for choice in choices
        )

    def delta(self, choice: Choice, delta: Delta, pieces: Sequence[Piece]) -> bytes:
        extra: dict[str, Any] = {}
        if self._with_ids and delta.ids:
            extra["token_ids"] = delta.ids
        if self._with_logprobs and delta.ids:
            extra["logprobs"] = self._logprobs(delta.ids, delta.logprobs)
        parts = _deltas(pieces) or ([{"content": ""}] if extra else [])
        return b"".join(self._chunk(choice.index, part, **({} if n else extra)) for n, part in enumerate(parts))

    def choice_end(self, choice: Choice, pieces: Sequence[Piece], answer: Answer | None) -> bytes:
        timings = {} if answer is None or self._with_usage else {"timings": timings_block(answer)}
        last = self._chunk(choice.index, {}, **_finish(choice), top=timings)
        return b"".join(self._chunk(choice.index, part) for part in _deltas(pieces)) + last

    def closing(self, answer: Answer) -> bytes:
        if not self._with_usage:
            return sse.DONE
        last = {
            **self._common("chat.completion.chunk"),
            "choices": [],
            "usage": usage_block(answer.usage),
            "timings": timings_block(answer),
        }
        return sse.event(last) + sse.DONE

    def failure(self, fault: Fault) -> bytes:
        return sse.event(openai_error(fault))

    def _common(self, kind: str) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], *, top: Mapping[str, Any] | None = None, **members: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **members}
        usage = {"usage": None} if self._with_usage else {}
        return sse.event({**self._common("chat.completion.chunk"), "choices": [choice], **usage, **(top or {})})

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": _message(choice.pieces),
            "logprobs": self._logprobs(choice.ids, choice.logprobs) if self._with_logprobs else None,
            **_finish(choice),
            **self._prompt_ids(choice),
            **({"token_ids": choice.ids} if self._with_ids else {}),
        }

    def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_token_ids": choice.prompt.ids} if self._with_ids else {}

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {"content": logprob_entries(self._tokenizer, ids, logprobs), "refusal": None}
