"""`/v1/responses` of the OpenAI API: what a request means. Items: responses_input.py; answers: responses_writer.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from ninfer.engine import StopRules
from ninfer.errors import RequestError
from ninfer.server.answer import AnswerHead, Call
from ninfer.server.constraints import Rule
from ninfer.server.conversation import read_budget, read_tools, read_variables, stop_rules, visible_ids
from ninfer.server.faults import Fault, openai_error
from ninfer.server.fields import Count, Objects, read_fields, shape, unsupported
from ninfer.server.inputs import AnswerOptions, ChatInput
from ninfer.server.model import ServedModel
from ninfer.server.openai_fields import (
    Form,
    Logprobs,
    SamplingFields,
    Stop,
    ToolChoice,
    output_limit,
    read_sampling,
    read_top_logprobs,
    stop_strings,
)
from ninfer.server.response_store import ResponseStore
from ninfer.server.responses_input import chat_messages, chat_tools, name_as_sent, read_items
from ninfer.server.responses_writer import ResponseWriter
from ninfer.server.settings import ServerSettings
from ninfer.server.tools import ToolUse

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
"""Pairs of `metadata` and characters of each, as the protocol has them."""

LOGPROBS = "message.output_text.logprobs"
HARMLESS_INCLUDES = frozenset(
    {
        "reasoning.encrypted_content",  # our reasoning items hold their text
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Words of `include` that ask for nothing an answer of ours could hold."""


INPUT = shape(anyOf=[{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}])


class ReasoningFields(msgspec.Struct):
    """`reasoning`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFields(msgspec.Struct):
    """`text`."""

    format: Form = None
    verbosity: str | None = None


class ResponseFields(SamplingFields, kw_only=True):
    """Fields of a request. Of those of sampling the protocol has `temperature` and `top_p`; the others, `stop` and the
    wishes for thinking are extensions, under the names of our other endpoints.
    """

    model: str | None = None
    input: Annotated[Any, INPUT] = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    reasoning: ReasoningFields | None = None
    text: TextFields | None = None
    tools: Objects = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Logprobs | None = None
    stop: Stop | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, shape(minimum=0)] | None = None


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
"""Fields we know and do not honour -> values that ask for nothing. See `fields`."""


@dataclass(frozen=True)
class Conversation:
    """What a request continues and adds. items: all of it; num_earlier: how many come from earlier responses."""

    items: list[dict[str, Any]]
    num_earlier: int
    chat: ChatInput
    use: ToolUse | None
    budget: int | None


class Responses:
    """The protocol in front of a store of its answers."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def parse(self, body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> Call:
        """A request. RequestError names the field that is wrong."""
        fields, ignored = read_fields(ResponseFields, body, neutral=NEUTRAL)
        model.require(fields.model)
        max_new, source = output_limit(settings, max_output_tokens=fields.max_output_tokens)
        _check_metadata(fields.metadata or {})
        keeps = fields.store is not False and settings.response_store_max_records > 0
        if fields.store and not keeps:
            raise unsupported("store")
        found = self._conversation(fields, model, settings, ignored)
        logprobs = _logprobs(fields, ignored)
        if logprobs is not None and found.use is not None:
            # Which tokens are text and which are calls is known for pieces of text, not for tokens.
            raise RequestError(f"{LOGPROBS} cannot be combined with tools", kind="unsupported_field", param="include")
        sampling = read_sampling(fields, model)
        echo = _echo(fields, keeps=keeps, temperature=sampling.temperature, top_p=sampling.top_p)

        def make_writer(head: AnswerHead) -> ResponseWriter:
            keep = None if not keeps else lambda response: self._store.put(response, found.items)
            tokenizer = None if logprobs is None else model.require_tokenizer()
            return ResponseWriter(head, echo, logprob_tokenizer=tokenizer, keep=keep)

        return Call(
            source=found.chat,
            options=AnswerOptions(
                num_choices=1,
                max_new=max_new,
                sampling=sampling,
                stop=stop_rules(model, StopRules(stop_strings(fields.stop)), found.use),
                logprobs=logprobs,
                thinking_budget=found.budget,
                visible_ids=visible_ids(model, found.use),
            ),
            tools=found.use,
            rule=_rule(fields.text),
            stream=bool(fields.stream),
            max_tokens_source=source,
            ignored=ignored,
            facts={
                "message_count": len(found.chat.messages),
                "template_variables": sorted(found.chat.variables),
                "tool_count": 0 if found.use is None else len(found.use.schemas),
                "previous_response_id": fields.previous_response_id,
                "store": keeps,
            },
            make_writer=make_writer,
        )

    def _conversation(
        self, fields: ResponseFields, model: ServedModel, settings: ServerSettings, ignored: list[str]
    ) -> Conversation:
        earlier = []
        if fields.previous_response_id is not None:
            stored = self._store.get(fields.previous_response_id, param="previous_response_id")
            earlier = stored.conversation()
        reasoning = fields.reasoning or ReasoningFields()
        for name in ("summary", "generate_summary"):
            if getattr(reasoning, name) is not None:
                if getattr(reasoning, name) != "auto":
                    raise unsupported(f"reasoning.{name}")
                ignored.append(f"reasoning.{name}")
        variables = read_variables(
            model,
            ignored,
            given=fields.chat_template_kwargs,
            enable_thinking=fields.enable_thinking,
            effort=reasoning.effort,
            budget=fields.thinking_budget,
            effort_param="reasoning.effort",
        )
        use = read_tools(
            model,
            settings,
            tools=chat_tools(fields.tools),
            choice=fields.tool_choice,
            parallel=fields.parallel_tool_calls,
        )
        items = earlier + read_items(fields.input, self._store.find_item)
        messages = chat_messages(items, fields.instructions, len(earlier))
        chat = ChatInput(messages, tools=None if use is None else use.declared, variables=variables)
        budget = read_budget(model, settings, ignored, fields.thinking_budget)
        return Conversation(items, len(earlier), chat, use, budget)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise RequestError(f"metadata has {len(metadata)} pairs, at most {MAX_METADATA}", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise RequestError(
                f"a key of metadata has at most {MAX_METADATA_KEY} characters and a value {MAX_METADATA_VALUE}",
                param="metadata",
            )


def _logprobs(fields: ResponseFields, ignored: list[str]) -> int | None:
    words = set(fields.include or ())
    for word in sorted(words - {LOGPROBS}):
        if word not in HARMLESS_INCLUDES:
            raise unsupported(f"include: {word}"[:100])
        ignored.append(f"include[{word}]")
    if LOGPROBS in words:
        return read_top_logprobs(fields.top_logprobs)
    if fields.top_logprobs:
        raise RequestError(f"top_logprobs needs {LOGPROBS} among include", param="top_logprobs")
    return None


def _rule(text: TextFields | None) -> Rule | None:
    if text is None:
        return None
    if text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity")
    form = text.format
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return Rule("schema", {"type": "object"}, "text.format")
    if kind != "json_schema":
        raise RequestError(
            f"text.format must have type text, json_object or json_schema, got {kind!r}",
            kind="unsupported_field",
            param="text.format",
        )
    if "schema" not in form:
        raise RequestError("a json_schema must have a schema", param="text.format.schema")
    return Rule("schema", form["schema"], "text.format.schema")


def _echo(fields: ResponseFields, *, keeps: bool, temperature: float, top_p: float) -> dict[str, Any]:
    """What a response repeats of its request, defaults filled in."""
    reasoning = fields.reasoning or ReasoningFields()
    text = fields.text or TextFields()
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "store": keeps,
        "temperature": temperature,
        "text": {"format": text.format or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
        "tools": [{"strict": False, "parameters": None, **tool} for tool in fields.tools or ()],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": top_p,
        "truncation": "disabled",
        "background": False,
        "metadata": fields.metadata or {},
    }


def error_body(fault: Fault) -> dict[str, object]:
    """The error body of this protocol: OpenAI's, with the names that its fields have here."""
    if fault.param is None:
        return openai_error(fault)
    name = name_as_sent(fault.param)
    return openai_error(replace(fault, param=name, message=fault.message.replace(fault.param, name)))
