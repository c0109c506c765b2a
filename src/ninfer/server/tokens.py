"""`/tokenize` and `/detokenize`: the served model's own ids, as generation would see them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request

from ninfer.errors import RequestError
from ninfer.server.bodies import read_object
from ninfer.server.exchange import Server
from ninfer.server.fields import Objects, read_fields


class TokenizeFields(msgspec.Struct, kw_only=True):
    """Exactly one of `prompt`, `content` (another name for it) and `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Objects = None
    tools: Objects = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """`tokens` to text."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


async def tokenize(server: Server, request: Request) -> dict[str, Any]:
    """Ids of a text, beginning with what the vocabulary begins prompts with, or of a conversation."""
    body = await read_object(request, server.settings.max_request_mib << 20)
    fields, _ = read_fields(TokenizeFields, body, neutral={})
    model = server.model
    model.require(fields.model)
    given = [name for name in ("prompt", "content", "messages") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise RequestError("give exactly one of prompt, content and messages", param="prompt")

    def encode() -> list[int]:
        if fields.messages is not None:
            variables = fields.chat_template_kwargs
            return model.require_template().encode(fields.messages, tools=fields.tools, variables=variables)
        text = fields.prompt if fields.prompt is not None else fields.content or ""
        tokenizer = model.require_tokenizer()
        return tokenizer.encode(text) if fields.add_special_tokens is False else tokenizer.encode_prompt(text)

    ids = await asyncio.get_running_loop().run_in_executor(server.encoders, encode)
    return {"tokens": ids, "count": len(ids), "max_model_len": model.plan.max_context}


async def detokenize(server: Server, request: Request) -> dict[str, Any]:
    """Text of ids; control tokens are left out unless `skip_special_tokens` is false."""
    body = await read_object(request, server.settings.max_request_mib << 20)
    fields, _ = read_fields(DetokenizeFields, body, neutral={})
    server.model.require(fields.model)
    skip = fields.skip_special_tokens is not False
    text = server.model.require_tokenizer().decode(fields.tokens, skip_control=skip)
    return {"prompt": text, "content": text}
