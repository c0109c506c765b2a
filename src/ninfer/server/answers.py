"""JSON schemas of the bodies that answer: what clients may rely on. Members beyond these may come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": "number", "minimum": 0}
OBJECT: Schema = {"type": "object"}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def constant(value: object) -> Schema:
    return {"const": value}


def one_of(*values: object) -> Schema:
    return {"enum": list(values)}


def members(optional: Mapping[str, Schema] | None = None, **required: Schema) -> Schema:
    """An object that has all of `required`."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


OPENAI_ERROR = members(error=members(message=TEXT, type=TEXT, param=maybe(TEXT), code=TEXT))
ANTHROPIC_ERROR = members(type=constant("error"), error=members(type=TEXT, message=TEXT, code=TEXT))

USAGE = members(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=members(cached_tokens=COUNT),
    completion_tokens_details=members(reasoning_tokens=COUNT),
)
TIMINGS = members(
    cache_n=COUNT,
    prompt_n=COUNT,
    prompt_ms=AMOUNT,
    prompt_per_second=maybe(AMOUNT),
    predicted_n=COUNT,
    predicted_ms=AMOUNT,
    predicted_per_second=maybe(AMOUNT),
    seconds=OBJECT,
    rates=OBJECT,
)
TOOL_CALL = members(id=TEXT, type=constant("function"), function=members(name=TEXT, arguments=TEXT))
MESSAGE = members(
    {"reasoning_content": TEXT, "tool_calls": array(TOOL_CALL)},
    role=constant("assistant"),
    content=maybe(TEXT),
    refusal=constant(None),
)
_HEAD = {"id": TEXT, "created": COUNT, "model": TEXT, "system_fingerprint": TEXT, "usage": USAGE, "timings": TIMINGS}

CHAT = members(
    object=constant("chat.completion"),
    choices=array(
        members(
            index=COUNT,
            message=MESSAGE,
            logprobs=maybe(members(content=array(OBJECT))),
            finish_reason=one_of("stop", "length", "tool_calls"),
            ninfer_finish_reason=TEXT,
        )
    ),
    **_HEAD,
)
COMPLETION = members(
    object=constant("text_completion"),
    choices=array(
        members(
            index=COUNT,
            text=TEXT,
            logprobs=maybe(OBJECT),
            finish_reason=one_of("stop", "length"),
            ninfer_finish_reason=TEXT,
        )
    ),
    **_HEAD,
)

ITEM = members(id=TEXT, type=TEXT)
RESPONSE = members(
    id=TEXT,
    object=constant("response"),
    created_at=COUNT,
    model=TEXT,
    status=one_of("completed", "incomplete"),
    error=constant(None),
    incomplete_details=maybe(members(reason=constant("max_output_tokens"))),
    instructions=maybe(TEXT),
    metadata={"type": "object", "additionalProperties": TEXT},
    output=array(ITEM),
    parallel_tool_calls=FLAG,
    previous_response_id=maybe(TEXT),
    store=FLAG,
    temperature=AMOUNT,
    text=members(format=members(type=TEXT)),
    tool_choice={"type": ["string", "object"]},
    tools=array(OBJECT),
    top_p=AMOUNT,
    truncation=constant("disabled"),
    usage=members(
        input_tokens=COUNT,
        input_tokens_details=members(cached_tokens=COUNT),
        output_tokens=COUNT,
        output_tokens_details=members(reasoning_tokens=COUNT),
        total_tokens=COUNT,
    ),
)
DELETED = members(id=TEXT, object=constant("response"), deleted=constant(True))
ITEM_LIST = members(object=constant("list"), data=array(ITEM), first_id=maybe(TEXT), last_id=maybe(TEXT), has_more=FLAG)
INPUT_TOKENS = members(object=constant("response.input_tokens"), input_tokens=COUNT)

ANTHROPIC_MESSAGE = members(
    id=TEXT,
    type=constant("message"),
    role=constant("assistant"),
    model=TEXT,
    content=array(members(type=one_of("text", "thinking", "tool_use"))),
    stop_reason=one_of("end_turn", "tool_use", "stop_sequence", "max_tokens", "model_context_window_exceeded"),
    stop_sequence=maybe(TEXT),
    usage=members(
        input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        output_tokens=COUNT,
    ),
)
COUNTED = members(input_tokens=COUNT)

MODEL = members(id=TEXT, object=constant("model"), created=COUNT, owned_by=TEXT, max_model_len=COUNT, architecture=TEXT)
MODEL_LIST = members(object=constant("list"), data=array(MODEL))
TOKENS = members(tokens=array(COUNT), count=COUNT, max_model_len=COUNT)
DETOKENIZED = members(prompt=TEXT, content=TEXT)
HEALTH = members(status=TEXT)
METRICS = members(history=OBJECT, last=maybe(OBJECT), performance=OBJECT, engine=OBJECT, server=OBJECT)
PLAN = members(digest=TEXT, memory=array(members(name=TEXT, num_bytes=COUNT, estimate=FLAG)), total_bytes=COUNT)
