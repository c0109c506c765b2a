"""Any server that speaks OpenAI's chat completions: everything is timed here, at the client.

A token's time is that of the first chunk that brings text, reasoning or a part of a tool call. Chunks with a role, an
empty text or usage only are none. How many tokens came is what the server says; chunks are never counted as tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from ninfer.bench.load.target import Outcome
from ninfer.bench.records.schema import RowSeconds, RowUsage
from ninfer.errors import ConfigError

MAX_LINE_BYTES = 16 << 20
"""A server that sends more without an end of line is not followed any further."""


class _ServerError(Exception):
    """What a server or the way to it did wrong: kind and message."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    """reasoning_content, reasoning: servers disagree about the name."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What is read of a chunk; other members are none of our business."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class Stream:
    """What a streamed answer has brought so far; times count from `sent`, on whatever clock the caller reads.

    counts: tokens of each stamp's chunk, None where the server did not say.
    """

    sent: float
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    has_tool_call: bool = False
    finish: str | None = None
    usage: _Usage = field(default_factory=_Usage)
    first_answer: float | None = None
    stamps: list[float] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=list)
    timings: dict[str, Any] | None = None
    is_done: bool = False

    def take_line(self, line: bytes, now: float) -> None:
        """One line that came at `now`. Comments, event names and empty lines mean nothing here."""
        if line.startswith(b"data:"):
            data = line[len(b"data:") :].strip()
            if data == b"[DONE]":
                self.is_done = True
            else:
                self._take(data, now)

    def _take(self, data: bytes, now: float) -> None:
        try:
            chunk = _decode(data)
        except msgspec.MsgspecError as error:
            raise _ServerError("protocol", f"an event is no chunk: {error}") from error
        if chunk.error is not None:
            words = chunk.error.get("message") if isinstance(chunk.error, dict) else None
            raise _ServerError("stream_error", str(words or chunk.error))
        count = None
        if chunk.usage is not None:
            if chunk.usage.completion_tokens is not None:
                count = chunk.usage.completion_tokens - (self.usage.completion_tokens or 0)
            self.usage = chunk.usage
        self.timings = chunk.timings or self.timings
        brought = False
        for choice in chunk.choices:
            brought |= self._take_delta(choice.delta or _Delta(), now)
            self.finish = choice.finish_reason or self.finish
        if brought:
            self.stamps.append(now - self.sent)
            self.counts.append(count)

    def _take_delta(self, delta: _Delta, now: float) -> bool:
        """Whether it brings a token or more."""
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning:
            self.reasoning.append(reasoning)
        if delta.content:
            self.text.append(delta.content)
        if delta.tool_calls:
            self.has_tool_call = True
        is_answer = bool(delta.content or delta.tool_calls)
        if is_answer and self.first_answer is None:
            self.first_answer = now - self.sent
        return is_answer or bool(reasoning)

    def outcome(self, ended: float, max_new: int | None, error: tuple[str, str] | None) -> Outcome:
        prompt, completion = self.usage.prompt_tokens, self.usage.completion_tokens
        cached = (self.usage.prompt_tokens_details or _Details()).cached_tokens
        counts = [count for count in self.counts if count is not None]
        return Outcome(
            usage=RowUsage(
                prompt_tokens=prompt,
                cached_tokens=cached,
                computed_tokens=None if prompt is None or cached is None or error else prompt - cached,
                completion_tokens=completion,
                reasoning_tokens=(self.usage.completion_tokens_details or _Details()).reasoning_tokens,
            ),
            seconds=RowSeconds(
                ttft=self.stamps[0] if self.stamps else None,
                first_answer=self.first_answer,
                decode=self.stamps[-1] - self.stamps[0] if self.stamps else None,
                total=ended - self.sent,
            ),
            finish=None if error else _finish(self.finish, completion, max_new),
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            has_tool_call=self.has_tool_call,
            token_seconds=tuple(self.stamps),
            chunk_tokens=tuple(counts) if counts and len(counts) == len(self.counts) else None,
            error=error,
            extra=None if self.timings is None else {"server_timings": self.timings},
        )


class HttpTarget:
    """One model of one server.

    model: its name there. fields: what every request asks for besides, such as temperature and seed. timeout_s: the
    longest silence, and the longest wait for a connection.
    """

    def __init__(
        self,
        url: str,
        model: str,
        fields: Mapping[str, Any],
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        max_connections: int = 4096,
    ) -> None:
        self._model = model
        self._fields = dict(fields)
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
            trust_env=False,
        )

    async def answer(self, body: Any, max_new: int | None) -> Outcome:
        request = {
            "model": self._model,
            "messages": body,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if max_new is None else {"max_tokens": max_new}),
            **self._fields,
        }
        stream = Stream(time.perf_counter())
        error: tuple[str, str] | None = None
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=request) as response:
                await self._read(response, stream)
        except _ServerError as problem:
            error = (problem.args[0], problem.args[1])
        except httpx.TimeoutException as problem:
            error = ("timeout", type(problem).__name__)
        except httpx.HTTPError as problem:
            error = ("connection", f"{type(problem).__name__}: {problem}")
        return stream.outcome(time.perf_counter(), max_new, error)

    async def _read(self, response: httpx.Response, stream: Stream) -> None:
        if response.status_code != 200:
            text = (await response.aread())[:2000].decode("utf-8", "replace")
            raise _ServerError(f"http_{response.status_code}", text)
        rest = b""
        async for data in response.aiter_bytes():
            now = time.perf_counter()
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise _ServerError("protocol", f"a line of more than {MAX_LINE_BYTES} bytes")
            for line in lines:
                stream.take_line(line, now)
        if not stream.is_done and stream.finish is None:
            raise _ServerError("cut", "the stream ended without a finish reason")

    async def close(self) -> None:
        await self._client.aclose()


async def only_model(url: str, *, api_key: str | None = None) -> str:
    """The one model of a server. ConfigError when it has several or none, or does not answer."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=10.0, trust_env=False) as client:
        try:
            response = await client.get("/v1/models")
            names = [entry["id"] for entry in response.raise_for_status().json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{url} does not list its models: {type(error).__name__}: {error}") from error
    if len(names) != 1:
        raise ConfigError(f"{url} has {len(names)} models ({', '.join(names)}); name one")
    return str(names[0])


def _finish(word: str | None, completion: int | None, max_new: int | None) -> str | None:
    """A finish reason in our words where they say the same; no stop strings are sent, so `stop` is a stop token."""
    if word == "stop":
        return "stop_token"
    if word == "length" and completion is not None and completion == max_new:
        return "output_limit"
    return word
