"""A server in this process on a free loopback port, in front of models whose every token is known."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from make.tiny_tokenizer import tiny_metadata
from ninfer.decoding.proposer import Proposer
from ninfer.engine import Engine, EnginePlan
from ninfer.engine.step import ForwardModel, Logits
from ninfer.engine.testing import FormulaModel, ScriptedModel, make_plan
from ninfer.models.batch import ForwardBatch
from ninfer.server.model import ServedModel
from ninfer.server.request_log import RequestLog
from ninfer.server.run import RunningServer, bind, serve
from ninfer.server.settings import ServerSettings
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

TIMEOUT_S = 30.0
TEMPLATE = (
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MODEL_ID = "tiny"


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata()))


def end_token() -> int:
    return tiny_tokenizer().control_tokens["<|im_end|>"]


def plan_of(**changes: Any) -> EnginePlan:
    settings: dict[str, Any] = {"vocab_size": tiny_tokenizer().vocab_size, "end_token_ids": (end_token(),), **changes}
    return make_plan(**settings)


def scripted(text: str, *, plan: EnginePlan, ends: bool = True) -> ScriptedModel:
    """A model that answers every prompt with `text`, then ends, or repeats its last token."""
    ids = tiny_tokenizer().encode(text)
    return ScriptedModel(plan.vocab_size, [*ids, end_token()] if ends else ids)


class GatedModel:
    """Another model that runs one step per permission: a test decides when time passes."""

    def __init__(self, model: ForwardModel) -> None:
        self._model = model
        self._permissions = threading.Semaphore(0)
        self._open = threading.Event()
        self.num_waiting = 0

    def allow(self, steps: int) -> None:
        self._permissions.release(steps)

    def open(self) -> None:
        """No gate any more."""
        self._open.set()
        self._permissions.release()

    def forward(self, batch: ForwardBatch) -> Logits:
        self.num_waiting += 1
        if not self._open.is_set():
            self._permissions.acquire()
        self.num_waiting -= 1
        return self._model.forward(batch)

    def close(self) -> None:
        self._model.close()


@dataclass
class Live:
    """A running server. error: what `serve` raised, once it has ended."""

    url: str
    running: RunningServer
    engine: Engine
    thread: threading.Thread
    log_path: Path
    client: httpx.Client
    error: BaseException | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
        return self.client.post("/v1/completions", json=body)

    def metrics(self) -> dict[str, Any]:
        found = self.client.get("/metrics").json()
        assert isinstance(found, dict)
        return found

    def rows(self, event: str | None = None) -> list[dict[str, Any]]:
        lines = self.log_path.read_bytes().splitlines(keepends=True)
        assert all(line.endswith(b"\n") for line in lines)
        rows = [json.loads(line) for line in lines]
        return rows if event is None else [row for row in rows if row["event"] == event]

    def alive(self) -> None:
        """It still answers, and nothing is left over from before."""
        assert self.client.get("/health").status_code == 200
        answer = self.chat(max_tokens=4)
        assert answer.status_code == 200, answer.text
        wait_until(lambda: self.metrics()["engine"]["places"]["taken"] == 0)
        assert self.engine.num_free_pages == self.engine.plan.num_pages

    def stop(self) -> None:
        self.running.end()
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive(), "the server did not end"

    def socket(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT_S) -> None:
    """Until something that happens on another thread has happened."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen in time")


@contextmanager
def live_server(
    tmp_path: Path,
    model: Callable[[EnginePlan], ForwardModel] = FormulaModel,
    *,
    plan: EnginePlan | None = None,
    sampling: Mapping[str, Any] | None = None,
    has_tokenizer: bool = True,
    template: str | None = TEMPLATE,
    proposer: Proposer | None = None,
    **settings: Any,
) -> Iterator[Live]:
    """Starts a server and ends it; its end must be clean unless the test says what it expects (`live.error`)."""
    plan = plan or plan_of()
    tokenizer = tiny_tokenizer() if has_tokenizer else None
    log_path = tmp_path / "requests.jsonl"
    server_settings = ServerSettings(**{"port": 0, "request_log_jsonl": str(log_path), **settings})
    engine = Engine(plan, model(plan), tokenizer, proposer=proposer)
    served = ServedModel(
        id=server_settings.model_id or MODEL_ID,
        plan=plan,
        tokenizer=tokenizer,
        template=None if template is None or tokenizer is None else ChatTemplate(template, tokenizer),
        sampling={"temperature": 1.0, **(sampling or {})},
        identity={"file": "none"},
    )
    ready = threading.Event()
    started: list[RunningServer] = []
    errors: list[BaseException] = []

    def on_ready(running: RunningServer) -> None:
        started.append(running)
        ready.set()

    def body() -> None:
        try:
            serve(server_settings, served, engine, bound, log, on_ready=on_ready)
        except BaseException as error:
            errors.append(error)

    with bind(server_settings) as bound:
        log = RequestLog(server_settings.request_log_jsonl)
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        assert ready.wait(TIMEOUT_S), "the server did not start"
        with httpx.Client(base_url=started[0].url, timeout=TIMEOUT_S) as client:
            live = Live(started[0].url, started[0], engine, thread, log_path, client)
            try:
                yield live
            finally:
                live.stop()
                live.error = errors[0] if errors else None
    engine.close()


def sse_events(text: str) -> list[Any]:
    """The data of all events of a stream, `[DONE]` as that word; comments are skipped, anything else is an error."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        data = block.removeprefix("data: ")
        assert "\n" not in data
        found.append(data if data == "[DONE]" else json.loads(data))
    return found
