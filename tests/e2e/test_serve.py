"""`ninfer serve` as people run it: a process, a real model, the official client, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ninfer.cli.exit_codes import ExitCode

pytestmark = pytest.mark.real_model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
READY = re.compile(r"^ninfer: serving (\S+) at (http://127\.0\.0\.1:\d+) \(.*plan [0-9a-f]{16}\)\n$")
Start = Callable[..., "subprocess.Popen[bytes]"]


def ready(process: subprocess.Popen[bytes]) -> str:
    """The URL of a server that has just started."""
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    found = READY.match(line)
    if found is None:
        _, err = process.communicate(timeout=20)
        pytest.fail(f"no server: {line!r} {err.decode()}")
    assert found.group(1) == "smollm2"
    return found.group(2)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> str:
    """stderr of a server that ends by a signal, as it should."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == b"", "one line on stdout and no more"
    assert process.returncode == ExitCode.OK, err.decode()
    return err.decode()


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(URL, request log) of a server of four lanes, its key in the environment."""
    log = tmp_path_factory.mktemp("serve") / "requests.jsonl"
    command = [sys.executable, "-m", "ninfer", "serve", str(smollm2), "--port", "0", "--model-id", "smollm2"]
    command += ["--max-concurrency", "4", "--request-log-jsonl", str(log)]
    env = {**os.environ, "NINFER_API_KEY": "k3y"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        try:
            yield ready(process), log
            assert "Traceback" not in end(process)
        finally:
            process.kill()


@pytest.fixture
def client(served: tuple[str, Path]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="k3y", max_retries=0, timeout=60) as found:
        yield found


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    answer = client.chat.completions.create(**fields)
    text = answer.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage == answer.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert {c.id for c in chunks} == {chunks[0].id} != {answer.id}


def test_logprobs_and_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, n=3, seed=4, temperature=1, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        data = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
        assert data.decode("utf-8", errors="replace") == choice.message.content


def test_completions(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_tokens": 12, "stop": ["\n"]}
    whole = client.completions.create(prompt=["The capital of France is", "1 2 3 4"], **fields)
    parts = list(client.completions.create(prompt=["The capital of France is", "1 2 3 4"], stream=True, **fields))
    for choice in whole.choices:
        assert "".join(c.choices[0].text for c in parts if c.choices[0].index == choice.index) == choice.text
    assert "Paris" in whole.choices[0].text


def test_responses_whole_streamed_and_continued(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 40}
    question = str(QUESTION[0]["content"])
    whole = client.responses.create(input=question, **fields)
    assert "Paris" in whole.output_text
    events = list(client.responses.create(input=question, stream=True, **fields))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    chained = client.responses.create(input="And of Spain?", previous_response_id=whole.id, **fields)
    assert whole.usage is not None
    assert chained.usage is not None
    assert chained.usage.input_tokens > whole.usage.total_tokens
    assert client.responses.retrieve(chained.id).output_text == chained.output_text


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, served: tuple[str, Path]) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=3)
    with pytest.raises(openai.NotFoundError, match="nope"):
        client.chat.completions.create(model="nope", messages=QUESTION)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served[0]}/v1", api_key="wrong", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_answers_do_not_depend_on_company(client: openai.OpenAI) -> None:
    """C038: alone, and with seven others of other lengths."""

    def ids(number: int) -> list[int]:
        answer = client.completions.create(
            model="smollm2",
            prompt=f"Story {number}: once upon a time",
            temperature=0.9,
            seed=number,
            max_tokens=8 + number,
            extra_body={"return_token_ids": True},
        )
        found = answer.choices[0].model_extra
        assert found is not None
        return list(found["token_ids"])

    alone = [ids(number) for number in range(8)]
    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(ids, range(8))) == alone


def test_the_plan_is_the_one_of_the_plan_command(served: tuple[str, Path]) -> None:
    url, log = served
    headers = {"x-api-key": "k3y"}
    plan = httpx.get(f"{url}/plan", headers=headers).json()
    start = json.loads(log.read_bytes().splitlines()[0])
    assert start["event"] == "server_start"
    assert start["engine"] == plan
    assert start["server"]["api_key_configured"] is True
    assert httpx.get(f"{url}/metrics", headers=headers).json()["engine"]["plan_digest"] == plan["digest"]
    assert b"k3y" not in log.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_an_answer_end(start_ninfer: Start, smollm2: Path, tmp_path: Path, number: int) -> None:
    process = start_ninfer("serve", smollm2, "--port", 0, "--model-id", "smollm2")
    url = ready(process)
    body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(number)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    _, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.OK, err.decode()


BREAKING = """
from ninfer.cli.main import main
from ninfer.engine import loading
from ninfer.engine.testing import FaultyModel
load = loading.load_model
loading.load_model = lambda *found: FaultyModel(load(*found), raise_at={3: ValueError("broken")})
main()
"""


def test_an_engine_that_breaks_ends_the_process_and_tells_its_clients(smollm2: Path) -> None:
    """C119: a supervisor sees it, and every client does."""
    command = [sys.executable, "-c", BREAKING, "serve", str(smollm2), "--port", "0", "--model-id", "smollm2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}
            answer = httpx.post(f"{ready(process)}/v1/completions", json=body, timeout=60).text
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    *parts, last = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    assert parts
    assert last["error"]["code"] == "engine_failed"
    assert process.returncode == ExitCode.BUG, err.decode()


def test_a_killed_server_leaves_whole_lines_and_the_next_one_goes_on(
    start_ninfer: Start, smollm2: Path, tmp_path: Path
) -> None:
    log = tmp_path / "requests.jsonl"
    arguments = ("serve", smollm2, "--port", 0, "--model-id", "smollm2", "--request-log-jsonl", log)
    for run in (1, 2):
        process = start_ninfer(*arguments)
        url = ready(process)
        for _ in range(3):
            httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2}, timeout=60).raise_for_status()
        process.kill()
        process.wait()
        rows = [json.loads(line) for line in log.read_bytes().splitlines()]
        assert sum(row["event"] == "server_start" for row in rows) == run
        assert sum(row["event"] == "request_done" for row in rows) == 3 * run


def test_a_start_that_cannot_be_says_why_before_it_loads(ninfer: Callable[..., Any], smollm2: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in ninfer("serve", smollm2, "--port", port).refusal(ExitCode.USAGE)
    assert "port" in ninfer("serve", smollm2, "--port", 70000).refusal(ExitCode.USAGE)
    assert "request_log_jsonl" in ninfer("serve", smollm2, "--port", 0, "--request-log-jsonl", "/nowhere/log").refusal(
        ExitCode.USAGE
    )
    too_much = ninfer("serve", smollm2, "--port", 0, "--kv-capacity", 10**9).refusal(ExitCode.DOES_NOT_FIT)
    assert "kv_capacity" in too_much
