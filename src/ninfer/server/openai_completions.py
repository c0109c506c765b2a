"""`/v1/completions` of the OpenAI API: prompts of text or token ids, continued as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ninfer.decoding import TokenLogprobs
from ninfer.engine import Delta
from ninfer.errors import RequestError
from ninfer.server import sse
from ninfer.server.answer import Answer, AnswerHead, Call, Choice
from ninfer.server.constraints import read_rule
from ninfer.server.faults import Fault, openai_error
from ninfer.server.fields import read_fields, shape
from ninfer.server.inputs import MAX_PROMPTS, AnswerOptions, TextInput, check_choices
from ninfer.server.model import ServedModel
from ninfer.server.openai_fields import (
    FINISH,
    NEUTRAL,
    Logprobs,
    SharedFields,
    output_limit,
    read_sampling,
    read_stop,
    timings_block,
    usage_block,
)
from ninfer.server.pieces import Piece
from ninfer.server.settings import ServerSettings

OPENAI_DEFAULT_MAX_TOKENS = 16
"""What the protocol says for a request without `max_tokens`."""


PROMPT = shape(
    anyOf=[
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": ["string", "integer", "array"]}},
    ]
)


class CompletionFields(SharedFields, kw_only=True):
    """Fields of a completion request beside the shared ones."""

    prompt: Annotated[Any, PROMPT] = None
    logprobs: Logprobs | None = None
    echo: bool | None = None


COMPLETION_NEUTRAL: Mapping[str, tuple[Any, ...]] = {**NEUTRAL, "suffix": ("",), "add_special_tokens": (True,)}


def parse(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> Call:
    """A completion request. RequestError names the field that is wrong."""
    fields, ignored = read_fields(CompletionFields, body, neutral=COMPLETION_NEUTRAL)
    model.require(fields.model)
    if fields.echo and fields.logprobs is not None:
        raise RequestError(
            "logprobs of an echoed prompt are not computed; leave out echo or logprobs",
            kind="unsupported_field",
            param="echo",
        )
    if fields.stream_options is not None and not fields.stream:
        ignored.append("stream_options")
    max_new, source = output_limit(settings, max_tokens=fields.max_tokens)
    prompts = read_prompts(fields.prompt)
    return Call(
        source=TextInput(prompts),
        options=AnswerOptions(
            num_choices=check_choices(1 if fields.n is None else fields.n),
            max_new=OPENAI_DEFAULT_MAX_TOKENS if max_new is None else max_new,
            sampling=read_sampling(fields, model),
            stop=read_stop(fields),
            logprobs=fields.logprobs,
        ),
        rule=read_rule(fields.response_format, fields.structured_outputs),
        stream=bool(fields.stream),
        max_tokens_source="protocol_default" if max_new is None else source,
        ignored=ignored,
        facts={"prompt_count": len(prompts)},
        make_writer=lambda head: CompletionWriter(
            head,
            model,
            with_usage=bool(fields.stream_options and fields.stream_options.include_usage),
            with_logprobs=fields.logprobs is not None,
            with_ids=bool(fields.return_token_ids),
            echo=bool(fields.echo),
        ),
    )


def read_prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """The prompts in any of the protocol's forms: a text, token ids, or a list of either. RequestError (`prompt`)."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise RequestError("prompt must be a text, token ids, or a list of either", param="prompt")
    if all(type(item) is int for item in value):
        return (tuple(value),)
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"prompt has {len(value)} prompts, at most {MAX_PROMPTS}", param="prompt")
    return tuple(_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))


def _prompt(item: Any, place: str) -> str | tuple[int, ...]:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return tuple(item)
    raise RequestError("a prompt must be a text or a non-empty list of token ids", param=place)


class CompletionWriter:
    """Writes `text_completion` objects, whole or in parts of the same shape."""

    def __init__(
        self,
        head: AnswerHead,
        model: ServedModel,
        *,
        with_usage: bool,
        with_logprobs: bool,
        with_ids: bool,
        echo: bool,
    ) -> None:
        self._head = head
        self._tokenizer = model.tokenizer
        self._with_usage = with_usage
        self._with_logprobs = with_logprobs
        self._with_ids = with_ids
        self._echo = echo
        self._offsets: dict[int, int] = {}

    def whole(self, answer: Answer) -> dict[str, Any]:
        choices = [
            {
                **self._choice(choice, self._echoed(choice) + choice.text),
                **self._finish(choice),
                "logprobs": self._logprobs(choice, choice.ids, choice.logprobs, choice.texts),
                **self._prompt_ids(choice),
                **({"token_ids": choice.ids} if self._with_ids else {}),
            }
            for choice in answer.choices
        ]
        return {
            **self._common(),
            "choices": choices,
            "usage": usage_block(answer.usage),
            "timings": timings_block(answer),
        }

    def opening(self, choices: Sequence[Choice]) -> bytes:
        if not (self._echo or self._with_ids):
            return b""
        return b"".join(
            self._part({**self._choice(choice, self._echoed(choice)), **self._prompt_ids(choice)}) for choice in choices
        )

    def delta(self, choice: Choice, delta: Delta, pieces: Sequence[Piece]) -> bytes:
        part = self._choice(choice, delta.text)
        has_more = bool(delta.ids) and (self._with_ids or self._with_logprobs)
        if not (delta.text or has_more):
            return b""
        if self._with_ids:
            part["token_ids"] = delta.ids
        part["logprobs"] = self._logprobs(choice, delta.ids, delta.logprobs, [delta.text])
        return self._part(part)

    def choice_end(self, choice: Choice, pieces: Sequence[Piece], answer: Answer | None) -> bytes:
        timings = {} if answer is None or self._with_usage else {"timings": timings_block(answer)}
        return self._part({**self._choice(choice, ""), **self._finish(choice)}, **timings)

    def closing(self, answer: Answer) -> bytes:
        if not self._with_usage:
            return sse.DONE
        last = {"choices": [], "usage": usage_block(answer.usage), "timings": timings_block(answer)}
        return sse.event({**self._common(), **last}) + sse.DONE

    def failure(self, fault: Fault) -> bytes:
        return sse.event(openai_error(fault))

    def _common(self) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    def _part(self, choice: dict[str, Any], **top: Any) -> bytes:
        usage = {"usage": None} if self._with_usage else {}
        return sse.event({**self._common(), "choices": [choice], **usage, **top})

    def _choice(self, choice: Choice, text: str) -> dict[str, Any]:
        return {"index": choice.index, "text": text, "logprobs": None, "finish_reason": None}

    def _finish(self, choice: Choice) -> dict[str, Any]:
        reason = choice.finished.reason
        return {"finish_reason": FINISH[reason], "ninfer_finish_reason": reason.value}

    def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_token_ids": choice.prompt.ids} if self._with_ids else {}

    def _echoed(self, choice: Choice) -> str:
        if not self._echo:
            return ""
        if choice.prompt.text is not None or self._tokenizer is None:
            return choice.prompt.text or ""
        return self._tokenizer.decode(choice.prompt.ids)

    def _logprobs(
        self, choice: Choice, ids: Sequence[int], logprobs: Sequence[TokenLogprobs], texts: Sequence[str]
    ) -> dict[str, Any] | None:
        """Lists with one member per token. `text_offset`: characters of the answer that were shown before it."""
        if not (self._with_logprobs and ids):
            return None
        offset = self._offsets.get(choice.index, 0)
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[choice.index] = offset
        return {
            "tokens": [self._text(token) for token in ids],
            "token_logprobs": [found.chosen for found in logprobs],
            "top_logprobs": [{self._text(t): logprob for t, logprob in reversed(found.top)} for found in logprobs],
            "text_offset": offsets[: len(ids)],
        }

    def _text(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        return self._tokenizer.token_bytes(token).decode("utf-8", errors="replace")
