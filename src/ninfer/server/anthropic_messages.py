"""`/v1/messages` and `/v1/messages/count_tokens` of the Anthropic API. What stands in messages: anthropic_input.py."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request

from ninfer.engine import Delta, StopRules
from ninfer.errors import RequestError
from ninfer.metrics import FinishReason
from ninfer.server import sse
from ninfer.server.answer import Answer, AnswerHead, Call, Choice
from ninfer.server.anthropic_input import chat_messages, chat_tools, name_as_sent, read_thinking, read_tool_choice
from ninfer.server.bodies import read_object
from ninfer.server.constraints import Rule
from ninfer.server.conversation import read_budget, read_tools, read_variables, stop_rules, visible_ids
from ninfer.server.exchange import Server
from ninfer.server.faults import Fault
from ninfer.server.fields import Count, Objects, conversation, read_fields, shape, unsupported
from ninfer.server.inputs import AnswerOptions, ChatInput, encode_prompts
from ninfer.server.model import ServedModel
from ninfer.server.openai_fields import Form, SamplingFields, StopString, output_limit, read_sampling
from ninfer.server.pieces import Called, Piece, Said, Thought, called, joined
from ninfer.server.settings import ServerSettings
from ninfer.server.tools import ToolUse


class OutputConfig(msgspec.Struct):
    """`output_config`."""

    effort: str | None = None
    format: Form = None


class MessageFields(SamplingFields, kw_only=True):
    """Fields of a request. Of those of sampling the protocol has `temperature`, `top_p` and `top_k`; the others are
    extensions, under the names of our other endpoints.
    """

    model: str | None = None
    messages: Annotated[Any, conversation("user", "assistant", "system")] = None
    system: Annotated[Any, shape(anyOf=[{"type": ["string", "null"]}, {"type": "array"}])] = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stop_sequences: list[StopString] | None = None
    thinking: Form = None
    tools: Objects = None
    tool_choice: Form = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "mcp_servers": ([],),
    "container": (),
    "context_management": (),
    "output_format": (),
}
"""Fields we know and do not honour -> values that ask for nothing. See `fields`."""


def parse(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> Call:
    """A request. RequestError names the field that is wrong."""
    fields, ignored = read_fields(MessageFields, body, neutral=NEUTRAL)
    model.require(fields.model)
    max_new, source = output_limit(settings, max_tokens=fields.max_tokens)
    chat, use, budget = _conversation(fields, model, settings, ignored)
    stop = StopRules(tuple(fields.stop_sequences or ()))
    return Call(
        source=chat,
        options=AnswerOptions(
            num_choices=1,
            max_new=max_new,
            sampling=read_sampling(fields, model),
            stop=stop_rules(model, stop, use),
            logprobs=None,
            thinking_budget=budget,
            visible_ids=visible_ids(model, use),
        ),
        tools=use,
        rule=_rule(fields.output_config),
        stream=bool(fields.stream),
        max_tokens_source=source,
        ignored=ignored,
        facts={
            "message_count": len(fields.messages),
            "template_variables": sorted(chat.variables),
            "tool_count": 0 if use is None else len(use.schemas),
        },
        make_writer=MessageWriter,
    )


async def count_tokens(server: Server, request: Request) -> dict[str, Any]:
    """Tokens of the prompt that the same request to `/v1/messages` would have."""
    body = await read_object(request, server.settings.max_request_mib << 20)
    chat = parse(body, server.model, server.settings).source
    loop = asyncio.get_running_loop()
    (prompt,) = await loop.run_in_executor(server.encoders, encode_prompts, chat, server.model)
    return {"input_tokens": len(prompt.ids)}


def _conversation(
    fields: MessageFields, model: ServedModel, settings: ServerSettings, ignored: list[str]
) -> tuple[ChatInput, ToolUse | None, int | None]:
    """The conversation for the chat template, what may be called, and the thinking budget."""
    enable, budget = read_thinking(fields.thinking, fields.max_tokens)
    choice, parallel = read_tool_choice(fields.tool_choice)
    variables = read_variables(
        model,
        ignored,
        given=fields.chat_template_kwargs,
        enable_thinking=enable,
        effort=None if fields.output_config is None else fields.output_config.effort,
        budget=budget,
        effort_param="output_config.effort",
    )
    use = read_tools(model, settings, tools=chat_tools(fields.tools), choice=choice, parallel=parallel)
    messages = chat_messages(fields.messages, fields.system)
    chat = ChatInput(messages, tools=None if use is None else use.declared, variables=variables)
    return chat, use, read_budget(model, settings, ignored, budget)


def _rule(config: OutputConfig | None) -> Rule | None:
    if config is None or config.format is None:
        return None
    form = config.format
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise unsupported("output_config.format")
    if "schema" not in form:
        raise RequestError("a format must have a schema", param="output_config.format.schema")
    return Rule("schema", form["schema"], "output_config.format.schema")


STOP_REASONS = {
    FinishReason.STOP_TOKEN: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.OUTPUT_LIMIT: "max_tokens",
    FinishReason.CONTEXT_CAPACITY: "model_context_window_exceeded",
    FinishReason.CANCELLED: "end_turn",  # nobody is left to read it
}

ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(fault: Fault) -> dict[str, object]:
    """The error body of this protocol, which has no place for a field's name but the message."""
    message = fault.message
    if fault.param is not None and (name := name_as_sent(fault.param)) not in message:
        message = f"{name}: {message}"
    kind = ERROR_TYPES.get(fault.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message, "code": fault.code}}


class MessageWriter:
    """Writes a `message`, or the events that build one: blocks one after the other, never two open."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._num_blocks = 0
        self._open: type[Piece] | None = None

    def whole(self, answer: Answer) -> dict[str, Any]:
        (choice,) = answer.choices
        blocks = [_block(piece) for piece in joined(choice.pieces)]
        return {**self._message(blocks), **_stop(choice), "usage": _usage(answer)}

    def opening(self, choices: Sequence[Choice]) -> bytes:
        (choice,) = choices
        usage = {
            "input_tokens": len(choice.prompt.ids) - choice.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": choice.cached,
            "output_tokens": 0,
        }
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def delta(self, choice: Choice, delta: Delta, pieces: Sequence[Piece]) -> bytes:
        return b"".join(self._piece(piece) for piece in pieces)

    def choice_end(self, choice: Choice, pieces: Sequence[Piece], answer: Answer | None) -> bytes:
        usage = {} if answer is None else {"usage": _usage(answer)}
        last = b"".join(self._piece(piece) for piece in pieces) + self._close()
        return last + _event("message_delta", delta=_stop(choice), **usage)

    def closing(self, answer: Answer) -> bytes:
        return _event("message_stop")

    def failure(self, fault: Fault) -> bytes:
        return sse.named("error", error_body(fault))

    def _message(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head
        return {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": blocks}

    def _piece(self, piece: Piece) -> bytes:
        out = b""
        if self._open is not type(piece) or isinstance(piece, Called):
            out += self._close()
            self._open = type(piece)
            out += _event("content_block_start", index=self._num_blocks, content_block=_empty_block(piece))
        return out + _event("content_block_delta", index=self._num_blocks, delta=_block_delta(piece))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._num_blocks += 1
        return _event("content_block_stop", index=self._num_blocks - 1)


def _event(name: str, **members: Any) -> bytes:
    return sse.named(name, {"type": name, **members})


def _block(piece: Piece) -> dict[str, Any]:
    match piece:
        case Thought(text):
            return {"type": "thinking", "thinking": text, "signature": ""}
        case Said(text):
            return {"type": "text", "text": text}
        case Called(_, key, name, arguments):
            return {"type": "tool_use", "id": f"toolu_{key}", "name": name, "input": msgspec.Raw(arguments.encode())}


def _empty_block(piece: Piece) -> dict[str, Any]:
    match piece:
        case Thought():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case Said():
            return {"type": "text", "text": ""}
        case Called(_, key, name, _):
            return {"type": "tool_use", "id": f"toolu_{key}", "name": name, "input": {}}


def _block_delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Thought(text):
            return {"type": "thinking_delta", "thinking": text}
        case Said(text):
            return {"type": "text_delta", "text": text}
        case Called(_, _, _, arguments):
            return {"type": "input_json_delta", "partial_json": arguments}


def _stop(choice: Choice) -> dict[str, Any]:
    end = choice.finished
    reason = STOP_REASONS[end.reason]
    if reason == "end_turn" and called(choice.pieces):
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": end.stop}


def _usage(answer: Answer) -> dict[str, int]:
    """What was read from the cache is not part of `input_tokens` here."""
    usage = answer.usage
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
