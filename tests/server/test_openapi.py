"""The server is what `/openapi.json` says: generated requests, right and wrong, find no fault and no other shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from server.chatting import TEMPLATE
from server.harness import MODEL_ID, Live, live_server, plan_of

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is a dev dependency")

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

EXAMPLES = 20
"""Requests of each kind to each operation: seconds altogether."""
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
}
BESIDES: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True, "include": ["message.output_text.logprobs"]},
}
"""Fields that a field needs beside it."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    plan = plan_of(max_context=2048, prefill_chunk=2048, max_concurrency=4)
    folder = tmp_path_factory.mktemp("api")
    with live_server(folder, plan=plan, template=TEMPLATE, max_pending_requests=128) as server:
        yield server
        server.alive()
    assert server.error is None


@pytest.fixture(scope="module")
def description(live: Live) -> dict[str, Any]:
    found = live.client.get("/openapi.json")
    assert found.status_code == 200
    body: dict[str, Any] = found.json()
    return body


def statuses(operation: Any, mode: str) -> Counter[int]:
    """Send generated requests to an operation and hold each answer to the description. The statuses that came.

    Of all that schemathesis checks one is left out: a body of the right shape may be refused for what it says.
    """
    seen: Counter[int] = Counter()

    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        seen[case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code] += 1

    send()
    return seen


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_generated_requests_find_no_fault_and_no_other_shape(live: Live, mode: str) -> None:
    found = [
        operation.ok() for operation in schemathesis.openapi.from_url(f"{live.url}/openapi.json").get_all_operations()
    ]
    if mode == "negative":  # of the others nothing can be wrong
        found = [operation for operation in found if operation.method == "post" or list(operation.query)]
    seen = {operation.path: statuses(operation, mode) for operation in found}
    assert all(seen[path].total() >= EXAMPLES for path in GENERATING)
    if mode == "positive":
        assert all(seen[path][200] for path in GENERATING)


def numbers(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of a body that have limits, with their schemas."""
    for name, found in schema["properties"].items():
        for part in found.get("anyOf", [found]):
            if part.get("type") in ("integer", "number") and ("minimum" in part or "maximum" in part):
                yield name, part


@pytest.mark.parametrize("path", GENERATING)
def test_limits_are_where_the_description_has_them(live: Live, description: dict[str, Any], path: str) -> None:
    """On them is taken, beyond them is refused by name: the description cannot drift from the parsers."""
    reference = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = description["components"]["schemas"][reference.rpartition("/")[2]]
    fields = dict(numbers(schema))
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"} <= set(fields)
    for name, limits in fields.items():
        for word, beyond in (("minimum", -1), ("maximum", 1)):
            if word not in limits:
                continue
            body = {**BODIES[path], **{k: v for k, v in BESIDES.get(name, {}).items() if k in schema["properties"]}}
            taken = live.client.post(path, json={**body, name: limits[word]})
            assert taken.status_code == 200, (name, word, taken.text)
            refused = live.client.post(path, json={**body, name: limits[word] + beyond})
            assert refused.status_code == 400, (name, word, refused.text)
            assert name in refused.json()["error"]["message"]


def test_every_route_is_described_and_the_key_is_asked_for(live: Live, description: dict[str, Any]) -> None:
    assert set(description["paths"]) == {
        *GENERATING,
        "/v1/responses/input_tokens",
        "/v1/responses/{id}",
        "/v1/responses/{id}/input_items",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/models/{id}",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/plan",
        "/openapi.json",
    }
    fields = description["components"]["schemas"]["ChatFields"]["properties"]
    assert fields["model"] == {"enum": [MODEL_ID, None]}
    assert fields["modalities"] == {"enum": [None, ["text"]]}
    assert "security" not in description["paths"]["/plan"]["get"]
