"""Many clients at once, some of which break off or send nonsense: no answer is lost, doubled or another's.

NINFER_STORM_REQUESTS=2000 makes it the load that a release has to stand.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from engine.harness import expected
from ninfer.decoding import SamplingParams
from ninfer.engine import EnginePlan, GenerationRequest
from server.harness import Live, live_server, plan_of, sse_events, wait_until
from server.test_accounts import adds_up

NUM_CLIENTS = 64
NUM_REQUESTS = int(os.environ.get("NINFER_STORM_REQUESTS", "640"))
WARM_UP = 128
"""Requests after which everything that is made once has been made."""
MAX_NEW_OBJECTS = 5 * NUM_REQUESTS
"""What may stay: connections' buffers, what libraries remember. A request that stayed would be dozens of objects."""
KINDS = ("whole", "stream", "whole", "stream", "leave", "leave later", "nonsense", "bad field")


def wanted(number: int) -> GenerationRequest:
    prompt = tuple(6 + (number * 7 + i) % 200 for i in range(1 + number % 90))
    return GenerationRequest(prompt, 1 + number % 12, SamplingParams(temperature=1, seed=number))


def body_of(number: int, kind: str) -> bytes:
    if kind == "nonsense":
        return b'{"prompt": [1, 2' * (1 + number % 5)
    request = wanted(number)
    body: dict[str, Any] = {
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_new if kind in ("whole", "stream") else 100,
        "temperature": -1 if kind == "bad field" else 1,
        "seed": number,
        "stream": kind in ("stream", "leave later"),
        "return_token_ids": True,
    }
    return json.dumps(body).encode()


async def exchange(live: Live, number: int) -> tuple[int, str, int, Any]:
    """(number, kind, status, JSON or stream events); status 0 for a client that left."""
    kind = KINDS[number % len(KINDS)]
    host, port = live.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    body = body_of(number, kind)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        if kind == "leave":
            await asyncio.sleep(Random(number).uniform(0, 0.02))
            return number, kind, 0, None
        if kind == "leave later":
            await reader.read(Random(number).randrange(1, 400))
            return number, kind, 0, None
        answer = await reader.read()
    finally:
        writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    top = top.lower()
    if b"transfer-encoding: chunked" in top:
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            count = int(size, 16)
            parts.append(rest[:count])
            rest = rest[count + 2 :]
        rest = b"".join(parts)
    status = int(top.split()[1])
    found = sse_events(rest.decode()) if b"event-stream" in top else json.loads(rest)
    return number, kind, status, found


async def storm(live: Live, count: int) -> list[tuple[int, str, int, Any]]:
    numbers = iter(range(count))

    async def client() -> list[tuple[int, str, int, Any]]:
        return [await exchange(live, number) for number in numbers]

    results = await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return [one for found in results for one in found]


def token_ids(kind: str, found: Any) -> list[int]:
    if kind == "whole":
        ids = found["choices"][0]["token_ids"]
        assert isinstance(ids, list)
        return ids
    assert found[-1] == "[DONE]"
    return [token for event in found[:-1] for token in event["choices"][0].get("token_ids", [])]


def check_answers(results: list[tuple[int, str, int, Any]], plan: EnginePlan) -> Counter[tuple[str, int]]:
    """Each request has its own answer, or the refusal it asked for. How many there are of each kind and status."""
    assert sorted(number for number, *_ in results) == list(range(len(results)))
    statuses: Counter[tuple[str, int]] = Counter()
    for number, kind, status, found in results:
        statuses[kind, status] += 1
        if kind in ("nonsense", "bad field"):
            assert status == 400
        elif status == 429:
            assert found["error"]["code"] == "server_overloaded"
        elif status:
            assert status == 200
            assert token_ids(kind, found) == expected(wanted(number), plan)[0]
    return statuses


def num_objects() -> int:
    """Python objects of this process, which holds server and clients."""
    gc.collect()
    return len(gc.get_objects())


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_a_storm_loses_doubles_and_leaks_nothing(tmp_path: Path) -> None:
    """C118, C160, C162."""
    plan = plan_of(max_concurrency=8, prefill_chunk=32)
    with live_server(tmp_path, plan=plan, max_pending_requests=40) as live:
        asyncio.run(storm(live, WARM_UP))
        live.alive()
        files, objects, memory = len(os.listdir("/proc/self/fd")), num_objects(), resident_mib()
        statuses = check_answers(asyncio.run(storm(live, NUM_REQUESTS)), plan)
        assert statuses["whole", 200] > 20
        assert statuses["stream", 200] > 20
        live.alive()
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)
        assert num_objects() <= objects + MAX_NEW_OBJECTS
        print(f"{statuses}; {num_objects() - objects} objects and {resident_mib() - memory} MiB more than before")
        rows = live.rows()
        starts = [row["request"]["id"] for row in rows if row["event"] == "request_start"]
        ends = [row for row in rows if row["event"] == "request_done"]
        rejected = [row for row in rows if row["event"] == "request_rejected"]
        assert [row for row in rows if row["event"] == "request_error"] == []
        assert sorted(starts) == sorted(row["request"]["id"] for row in ends)
        assert len({*starts, *(row["request"]["id"] for row in rejected)}) == len(starts) + len(rejected)
        for row in ends:
            adds_up(row)
        totals = live.metrics()["performance"]["totals"]
        assert sum(totals["requests"].values()) == len(starts) + len(rejected) == WARM_UP + NUM_REQUESTS + 2
        assert totals["completion_tokens"] == sum(row["result"]["completion_tokens"] for row in ends)
        assert totals["engine"]["completion_tokens"] == totals["completion_tokens"]
        answered = sum(count for (_, status), count in statuses.items() if status == 200)
        assert totals["requests"]["completed"] >= answered
    assert live.error is None
