"""Log, metrics, usage and timings are the same numbers; checked as identities over mixed traffic."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ninfer.engine.plan import PrefixPlan
from ninfer.engine.testing import FaultyModel, FormulaModel, ScriptedProposer, formula_drafts
from ninfer.metrics import FinishReason
from server.harness import Live, live_server, plan_of, sse_events, wait_until
from server.test_load import leave, raw_request

REQUESTS: list[dict[str, Any]] = [
    {"max_tokens": 1},
    {"max_tokens": 17, "ignore_eos": True},
    {"max_tokens": 9, "n": 3, "temperature": 1},
    {"max_tokens": 30, "stop": ["a", "b"]},
    {"max_tokens": 5, "prompt": ["x" * 70, "yy"], "n": 2},
    {"max_tokens": 0},
    {"prompt": "z" * 1000},
    {"model": "nope"},
    {"max_tokens": 3, "prompt": [7, 8, 9]},
]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, list[dict[str, Any]]]]:
    """A server after 60 requests: ended in every way, several at once; and the bodies of those that were answered.

    It drafts, rightly for two positions of three where the request is greedy; and it has few pages.
    """
    plan = plan_of(max_concurrency=8, prefill_chunk=16, num_pages=9, verify_rows=5, prefix=PrefixPlan())
    proposer = ScriptedProposer(formula_drafts(plan.vocab_size, lambda position: position % 3 != 0), 4)

    def model(plan: Any) -> FaultyModel:
        return FaultyModel(FormulaModel(plan), replace_at={40: (0, math.nan)})

    folder = tmp_path_factory.mktemp("accounts")
    with live_server(folder, model, plan=plan, proposer=proposer, log_stats_interval_ms=100) as live:
        first = live.metrics()
        assert first["last"] is None
        assert first["performance"]["peak_tok_s"] is None

        def send(number: int) -> dict[str, Any] | None:
            if number % 10 == 9:
                raw = raw_request(live, stream=True, max_tokens=200)
                raw.recv(200)
                leave(raw, "close")
                return None
            fields = {"temperature": 0, **REQUESTS[number % len(REQUESTS)], "stream": number % 3 == 0}
            fields["stream_options"] = {"include_usage": True} if fields["stream"] else None
            response = live.complete(fields.pop("prompt", "hello"), **fields)
            if response.status_code != 200:
                return None
            if not fields["stream"]:
                body = response.json()
                assert isinstance(body, dict)
                return body
            events = sse_events(response.text)
            if "error" in events[-1]:
                return None
            return {**events[-2], "choices": [{}] * (len(REQUESTS) and fields.get("n", 1))}

        with ThreadPoolExecutor(6) as clients:
            bodies = [body for body in clients.map(send, range(60)) if body is not None]
        live.alive()
        wait_until(lambda: len(live.rows("request_start")) == len(ended(live)))
        yield live, bodies


Traffic = tuple[Live, list[dict[str, Any]]]


def ended(live: Live) -> list[dict[str, Any]]:
    return [row for row in live.rows() if row["event"] in ("request_done", "request_error")]


def test_every_start_has_one_end_and_every_request_one_line(traffic: Traffic) -> None:
    live, _ = traffic
    starts = [row["request"]["id"] for row in live.rows("request_start")]
    ends = [row["request"]["id"] for row in ended(live)]
    rejected = [row["request"]["id"] for row in live.rows("request_rejected")]
    assert sorted(starts) == sorted(ends)
    assert len({*starts, *rejected}) == len(starts) + len(rejected) == 61
    numbers = [row["request"]["request_id"] for row in live.rows() if "request" in row]
    assert sorted(set(numbers)) == list(range(1, 62))
    assert live.rows()[0]["event"] == "server_start"
    outcomes = {row["outcome"] for row in ended(live)}
    assert outcomes == {"completed", "cancelled", "failed"}


def test_answers_show_the_numbers_of_their_rows(traffic: Traffic) -> None:
    live, bodies = traffic
    rows = {row["request"]["id"]: row for row in live.rows("request_done")}
    assert len(bodies) > 20
    for body in bodies:
        row = rows[body["id"]]
        usage, timings, result = body["usage"], body["timings"], row["result"]
        assert usage["prompt_tokens"] == result["prompt_tokens"]
        assert usage["completion_tokens"] == result["completion_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == result["cached_tokens"]
        assert timings["seconds"] == row["timings_seconds"]
        assert timings["rates"] == row["rates"]
        assert timings["prompt_n"] == result["computed_prefill_tokens"]
        assert timings["prompt_per_second"] == row["rates"]["prefill_tok_per_s"]
        assert timings["predicted_per_second"] == row["rates"]["decode_tok_per_s"]
        assert timings["speculative"] == row["speculative"]


def adds_up(row: dict[str, Any]) -> None:
    """The numbers of a row of a request that has ended, with one another."""
    result, seconds, choices = row["result"], row["timings_seconds"], row["choices"]
    assert result["completion_tokens"] == sum(c["completion_tokens"] for c in choices)
    assert result["computed_prefill_tokens"] == sum(c["computed_tokens"] for c in choices)
    assert {c["finish_reason"] for c in choices} <= {reason.value for reason in FinishReason} | {"error"}
    phases = sum(seconds[name] for name in ("load", "prepare", "queue", "prefill", "decode"))
    assert 0 <= phases <= seconds["total"] + 1e-9
    if row["rates"]["decode_tok_per_s"] is not None and len(choices) == 1:
        assert row["rates"]["decode_tok_per_s"] == (result["completion_tokens"] - 1) / seconds["decode"]
    if len(choices) == 1:
        assert choices[0]["timings_seconds"] == seconds
        assert choices[0]["rates"] == row["rates"]
        if seconds["ttft"] is not None:
            assert math.isclose(seconds["ttft"], sum(seconds[n] for n in ("prepare", "queue", "prefill")), abs_tol=1e-9)
    for choice in choices:
        if choice["finish_reason"] not in ("cancelled", "error"):
            assert choice["computed_tokens"] + choice["cached_tokens"] == choice["prompt_tokens"]


def test_rows_add_up_in_themselves(traffic: Traffic) -> None:
    live, _ = traffic
    for row in ended(live):
        adds_up(row)


def test_metrics_are_the_sums_of_the_rows(traffic: Traffic) -> None:
    """C160."""
    live, _ = traffic
    found = live.metrics()
    totals, rows = found["performance"]["totals"], ended(live)
    choices = [choice for row in rows for choice in row["choices"]]
    for outcome in ("completed", "cancelled", "failed"):
        assert totals["requests"][outcome] == sum(row["outcome"] == outcome for row in rows)
    assert totals["requests"]["rejected"] == len(live.rows("request_rejected"))
    for key in ("prompt_tokens", "cached_tokens", "computed_tokens", "recomputed_tokens", "completion_tokens"):
        assert totals[key] == sum(choice[key] for choice in choices)
    engine = totals["engine"]
    assert engine["prefill_tokens"] == totals["computed_tokens"]
    assert engine["cached_tokens"] == totals["cached_tokens"] > 0
    assert engine["recomputed_tokens"] == totals["recomputed_tokens"]
    assert engine["completion_tokens"] == totals["completion_tokens"]
    assert engine["decode_tokens"] == sum(max(0, choice["completion_tokens"] - 1) for choice in choices)
    assert found["engine"]["running"] == found["engine"]["waiting"] == found["engine"]["places"]["taken"] == 0
    assert found["engine"]["kv_pages"]["used"] == 0
    last = live.rows("request_done")[-1]
    assert all(last[key] == value for key, value in found["last"].items())


SPECULATIVE_SUMS = ("rounds", "drafted_tokens", "accepted_tokens", "fallback_steps")


def test_rounds_of_every_row_add_up(traffic: Traffic) -> None:
    """C138, and spec/speculative.md section 4."""
    live, _ = traffic
    for row in ended(live):
        for found, tokens in [
            (row["speculative"], sum(max(0, c["completion_tokens"] - 1) for c in row["choices"])),
            *((c["speculative"], max(0, c["completion_tokens"] - 1)) for c in row["choices"]),
        ]:
            assert (found["backend"], found["draft_window"]) == ("ngram", 4)
            assert found["rounds"] + found["accepted_tokens"] == tokens
            assert 0 <= found["accepted_tokens"] <= found["drafted_tokens"]
            assert sum(found["windows"]) == found["rounds"]
            assert sum(k * n for k, n in enumerate(found["windows"])) == found["drafted_tokens"]
            assert found["windows"][0] == found["fallback_steps"]
            assert sum(found["accepted_per_position"]) == found["accepted_tokens"]
            assert found["accepted_per_position"] == sorted(found["accepted_per_position"], reverse=True)
        rate, one = row["rates"]["decode_tok_per_s"], row["speculative"]
        if rate is not None and len(row["choices"]) == 1:
            assert rate == pytest.approx(one["tokens_per_round"] / one["round_seconds"], rel=1e-12)
            parts = one["seconds"]
            assert sum(parts.values()) > 0
    assert any(row["speculative"]["accepted_tokens"] for row in ended(live))
    assert any(row["speculative"]["accepted_tokens"] < row["speculative"]["drafted_tokens"] for row in ended(live))


def test_rounds_in_metrics_are_the_sums_of_the_rows(traffic: Traffic) -> None:
    """C139, in both forms."""
    live, _ = traffic
    found = live.metrics()["performance"]["totals"]["speculative"]
    rows = [row["speculative"] for row in ended(live)]
    text = exposition(live)
    for name in SPECULATIVE_SUMS:
        assert found[name] == sum(row[name] for row in rows)
    assert (
        found["rounds"] + found["accepted_tokens"] == live.metrics()["performance"]["totals"]["engine"]["decode_tokens"]
    )
    for name, value in (
        ("decode_rounds_total", found["rounds"]),
        ("spec_decode_draft_tokens_total", found["drafted_tokens"]),
        ("spec_decode_accepted_tokens_total", found["accepted_tokens"]),
        ("spec_decode_fallback_steps_total", found["fallback_steps"]),
        ("spec_decode_draft_window", 4),
    ):
        assert text[f"ninfer_{name}{{}}"] == value
    for i, count in enumerate(found["accepted_per_position"]):
        assert count == sum((row["accepted_per_position"] + [0] * 4)[i] for row in rows)
        assert text[f'ninfer_spec_decode_accepted_tokens_per_position_total{{"position": "{i}"}}'] == count
    for window, count in enumerate(found["windows"]):
        assert text[f'ninfer_spec_decode_window_rounds_total{{"window": "{window}"}}'] == count
    for part, seconds in found["seconds"].items():
        assert seconds == pytest.approx(sum(row["seconds"][part] for row in rows), rel=1e-9)
        assert text[f'ninfer_round_seconds_total{{"part": "{part}"}}'] == seconds


def test_peaks_are_the_best_rows(traffic: Traffic) -> None:
    live, _ = traffic
    performance = live.metrics()["performance"]
    choices = [choice for row in live.rows("request_done") for choice in row["choices"]]
    for name, rate in (("peak_prefill_tok_s", "prefill_tok_per_s"), ("peak_tok_s", "decode_tok_per_s")):
        best = max(c["rates"][rate] for c in choices if c["rates"][rate] is not None)
        assert performance[name]["tok_per_s"] == best


def test_intervals_hold_every_token_once(traffic: Traffic) -> None:
    live, _ = traffic
    counters = live.engine.counters

    def is_complete() -> bool:
        history = live.metrics()["history"]
        return (sum(history["prefill_tokens"]), sum(history["decode_tokens"])) == (counters.prefill, counters.decode)

    wait_until(is_complete)
    history = live.metrics()["history"]
    lines = live.rows("throughput")
    assert [line["interval_seconds"] for line in lines] == history["interval_seconds"]
    assert [line["tokens"]["committed_decode"] for line in lines] == history["decode_tokens"]
    assert [line["tokens"]["computed_prefill"] for line in lines] == history["prefill_tokens"]
    assert all(seconds > 0 for seconds in history["interval_seconds"])


def exposition(live: Live, **headers: str) -> dict[str, float]:
    response = live.client.get("/metrics?format=prometheus" if not headers else "/metrics", headers=headers)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    samples = {}
    for family in families:
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            assert not math.isnan(sample.value)
            samples[sample.name + json.dumps(sample.labels, sort_keys=True)] = sample.value
    return samples


def test_both_forms_agree_and_reading_changes_nothing(traffic: Traffic) -> None:
    """C158, C159."""
    live, _ = traffic
    before = live.metrics()
    text = exposition(live)
    assert exposition(live, accept="text/plain") == text
    assert exposition(live, accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5") == text
    totals = before["performance"]["totals"]
    for outcome, count in totals["requests"].items():
        assert text[f'ninfer_requests_total{{"outcome": "{outcome}"}}'] == count
    for name, value in (
        ("prompt_tokens_total", totals["prompt_tokens"]),
        ("prefill_tokens_total", totals["engine"]["prefill_tokens"]),
        ("generation_tokens_total", totals["engine"]["completion_tokens"]),
        ("decode_tokens_total", totals["engine"]["decode_tokens"]),
        ("engine_steps_total", totals["engine"]["steps"]),
        ("requests_open", 0),
        ("engine_ready", 1),
    ):
        assert text[f"ninfer_{name}{{}}"] == value
    rows = ended(live)
    seconds = [row["timings_seconds"] for row in rows]
    for name, key in (
        ("request_duration_seconds", "total"),
        ("request_queue_seconds", "queue"),
        ("time_to_first_token_seconds", "ttft"),
    ):
        values = [found[key] for found in seconds if found[key] is not None]
        assert text[f"ninfer_{name}_count{{}}"] == len(values)
        assert text[f"ninfer_{name}_sum{{}}"] == pytest.approx(sum(values), rel=1e-12)
        assert text[f'ninfer_{name}_bucket{{"le": "+Inf"}}'] == len(values)
        assert text[f'ninfer_{name}_bucket{{"le": "0.256"}}'] == sum(value <= 0.256 for value in values)
    after = live.metrics()
    assert after == before


def test_names_in_labels_are_escaped(tmp_path: Path) -> None:
    with live_server(tmp_path, model_id='a"b\\c\nd') as live:
        text = live.client.get("/metrics?format=prometheus").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families["ninfer_model_info"].samples[0].labels["model_name"] == 'a"b\\c\nd'
        assert live.client.get("/metrics?format=xml").status_code == 400


def test_an_idle_server_writes_nothing(tmp_path: Path) -> None:
    with live_server(tmp_path, log_stats_interval_ms=100) as live:
        live.alive()
        wait_until(lambda: len(live.rows("throughput")) >= 1)
        before = live.log_path.stat().st_size
        wait_until(lambda: True)
        assert live.metrics()["history"]["interval_seconds"]
        assert live.log_path.stat().st_size == before
