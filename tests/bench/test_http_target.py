"""What a client sees of a server: times of scripted events exactly, and every way an answer can go wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from make.mock_server import DONE, Step, delta, event, serving, usage
from ninfer.bench.load.http_target import HttpTarget, Stream, only_model
from ninfer.bench.load.latency import seconds_per_token, token_gaps
from ninfer.bench.load.target import Outcome
from ninfer.bench.records.schema import RequestRow, Response
from ninfer.errors import ConfigError

BODY = [{"role": "user", "content": "hi"}]


def seen(*events: tuple[float, bytes], max_new: int | None = None) -> Outcome:
    """The outcome of events that come at given seconds after sending."""
    stream = Stream(100.0)
    for seconds, data in events:
        for line in data.splitlines():
            stream.take_line(line, 100.0 + seconds)
    return stream.outcome(100.0 + events[-1][0], max_new, None)


def judged(outcome: Outcome) -> tuple[float | None, list[float]]:
    """Seconds per token and the gaps of an outcome."""
    row = RequestRow(prompt="p", repeat=0, usage=outcome.usage, seconds=outcome.seconds)
    response = Response(
        token_seconds=list(outcome.token_seconds),
        chunk_tokens=None if outcome.chunk_tokens is None else list(outcome.chunk_tokens),
    )
    return seconds_per_token(row, response), token_gaps(response)


def ask(script: list[Step], status: int = 200, **settings: Any) -> Outcome:
    async def run() -> Outcome:
        async with serving([script], status) as mock:
            target = HttpTarget(mock.url, "m", {"temperature": 0.0}, **settings)
            try:
                return await target.answer(BODY, 16)
            finally:
                await target.close()

    return asyncio.run(run())


def test_first_token_is_not_the_role_chunk_and_reasoning_is_one() -> None:
    outcome = seen(
        (0.010, delta(role="assistant", content="")),
        (0.300, delta(reasoning_content="hm")),
        (0.900, delta(content="yes")),
        (0.950, delta("stop")),
        (0.950, usage(2)),
        (1.000, DONE),
    )
    assert outcome.seconds.ttft == pytest.approx(0.3)
    assert outcome.seconds.first_answer == pytest.approx(0.9)
    assert outcome.seconds.decode == pytest.approx(0.6)
    assert outcome.seconds.total == pytest.approx(1.0)
    assert (outcome.reasoning, outcome.text, outcome.finish) == ("hm", "yes", "stop_token")


def test_a_tool_call_is_an_answer_and_whitespace_is_a_token() -> None:
    outcome = seen((0.2, delta(content=" ")), (0.5, delta("tool_calls", tool_calls=[{"index": 0}])), (0.5, usage(9)))
    assert outcome.seconds.ttft == pytest.approx(0.2)
    assert outcome.has_tool_call
    assert outcome.finish == "tool_calls"
    only_usage = seen((0.2, usage(0)), (0.3, DONE))
    assert only_usage.seconds.ttft is None
    assert only_usage.token_seconds == ()


def test_chunks_are_never_counted_as_tokens() -> None:
    chunks = [(0.1 * (i + 1), delta(content="four tokens!")) for i in range(32)]
    outcome = seen(*chunks, (3.3, delta("length")), (3.3, usage(128)), max_new=128)
    assert outcome.usage.completion_tokens == 128
    assert outcome.finish == "output_limit"
    assert judged(outcome) == (None, []), "how many the first chunk had is not known"
    assert seen(*chunks).usage.completion_tokens is None


def test_a_first_chunk_of_five_tokens_has_no_part_in_the_time_per_token() -> None:
    later = [(0.5 + 0.1 * i, delta(content="x", usage=5 + i)) for i in range(1, 21)]
    outcome = seen((0.5, delta(content="five", usage=5)), *later, (2.5, delta("stop", usage=25)))
    assert outcome.chunk_tokens == (5, *[1] * 20)
    seconds, gaps = judged(outcome)
    assert seconds == pytest.approx(0.1)
    assert gaps == pytest.approx([0.1] * 20)


def test_tokens_of_one_chunk_share_its_gap() -> None:
    outcome = seen((0.5, delta(content="a", usage=1)), (0.9, delta(content="bcde", usage=5)), (0.9, delta("stop")))
    assert judged(outcome)[1] == pytest.approx([0.1] * 4)


def test_one_token_per_chunk_needs_no_counts_of_chunks() -> None:
    outcome = seen((0.5, delta(content="a")), (0.7, delta(content="b")), (0.8, delta("stop")), (0.8, usage(2)))
    assert judged(outcome)[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([delta(content="a"), event(error={"message": "boom"}), DONE], "stream_error"),
        ([delta(content="a")], "cut"),
        ([delta(content="a"), None], "connection"),
        ([delta(content="a"), b"data: {oops\n\n"], "protocol"),
        ([b'data: {"choices": "no list"}\n\n'], "protocol"),
        ([b"data: 7\n\n"], "protocol"),
    ],
)
def test_a_failure_inside_a_stream_is_no_answer_and_keeps_what_was_seen(script: list[Step], kind: str) -> None:
    outcome = ask(script)
    assert outcome.error is not None
    assert outcome.error[0] == kind
    assert outcome.finish is None
    assert outcome.text == ("a" if script[0] == delta(content="a") else "")


def test_refusals_silence_and_closed_doors_are_told_apart() -> None:
    refused = ask([b'{"error": {"message": "full"}}'], status=429)
    assert refused.error == ("http_429", '{"error": {"message": "full"}}')
    silent = ask([delta(content="a"), 30.0], timeout_s=0.2)
    assert silent.error is not None
    assert silent.error[0] == "timeout"

    async def nobody() -> Outcome:
        async with serving([[DONE]]) as mock:
            target = HttpTarget(mock.url, "m", {})
        outcome = await target.answer(BODY, 16)
        await target.close()
        return outcome

    closed = asyncio.run(nobody())
    assert closed.error is not None
    assert closed.error[0] == "connection"


def test_an_event_may_come_in_pieces_and_several_in_one() -> None:
    whole = delta(content="é") + delta(content="b") + delta("stop") + usage(2, cached=4) + DONE
    outcome = ask([whole[i : i + 7] for i in range(0, len(whole), 7)])
    assert (outcome.text, outcome.finish, outcome.error) == ("éb", "stop_token", None)
    assert (outcome.usage.cached_tokens, outcome.usage.computed_tokens) == (4, 3)


def test_a_request_asks_for_what_was_said() -> None:
    async def run() -> Any:
        async with serving([[delta("stop"), DONE]]) as mock:
            target = HttpTarget(mock.url, "m", {"temperature": 0.5, "seed": 3})
            await target.answer(BODY, 16)
            await target.close()
            return mock.bodies[0]

    body = asyncio.run(run())
    wanted = {"model": "m", "messages": BODY, "max_tokens": 16, "temperature": 0.5, "seed": 3, "stream": True}
    assert body == {**wanted, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(("names", "words"), [(["a", "b"], "2 models"), ([], "0 models")])
def test_a_server_with_several_models_must_be_told_which(names: list[str], words: str) -> None:
    page = json.dumps({"data": [{"id": name} for name in names]}).encode()

    async def run() -> None:
        async with serving([[page]]) as mock:
            await only_model(mock.url)

    with pytest.raises(ConfigError, match=words):
        asyncio.run(run())
