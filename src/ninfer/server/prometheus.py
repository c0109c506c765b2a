"""`/metrics` as Prometheus text; the figures are those of `panel`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ninfer.metrics import Histogram
from ninfer.server.exchange import Server

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerCollector(Collector):
    """Reads the accounts and the engine at each scrape; resets nothing."""

    def __init__(self, server: Server, start_unix_s: float) -> None:
        self._server = server
        self._start_unix_s = start_unix_s

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        accounts = self._server.accounts
        yield _histogram("time_to_first_token_seconds", "Arrival to first token.", accounts.ttft)
        yield _histogram("request_duration_seconds", "Arrival to the end.", accounts.duration)
        yield _histogram("request_queue_seconds", "Submission to admission.", accounts.queue)

    def _gauges(self) -> Iterator[Metric]:
        service, plan = self._server.service, self._server.model.plan
        engine, slots = service.engine, plan.options.num_state_slots
        figures = (
            ("engine_ready", "1 while requests are taken.", float(service.failure is None and not service.is_draining)),
            ("server_start_time_seconds", "Unix time of the start.", self._start_unix_s),
            ("max_concurrency", "Requests that run at once.", plan.max_concurrency),
            ("max_context_tokens", "Prompt and completion of one request at most.", plan.max_context),
            ("requests_running", "Requests in the engine that have memory.", engine.num_running),
            ("requests_waiting", "Requests in the engine that wait for memory.", engine.num_waiting),
            ("requests_open", "Places taken: preparing, waiting and running.", service.num_open),
            ("kv_capacity_pages", "KV pages of 64 tokens.", plan.num_pages),
            ("kv_used_pages", "KV pages that running requests hold.", plan.num_pages - engine.num_free_pages),
            ("kv_kept_pages", "KV pages kept for reuse, held or not.", engine.num_kept_pages),
            ("state_slots", "Slots of recurrent state; 0 for models without it.", slots),
            ("state_used_slots", "Slots that running requests hold.", slots - engine.num_free_state_slots),
            ("state_kept_snapshots", "Slots with snapshots kept for reuse.", engine.num_kept_snapshots),
            ("stored_responses", "Answers kept for later requests.", len(self._server.responses)),
            ("stored_response_bytes", "What they take.", self._server.responses.num_bytes),
            ("spec_decode_draft_window", "Tokens of a draft at most; 0 without drafts.", plan.verify_rows - 1),
        )
        for name, text, value in figures:
            yield GaugeMetricFamily(f"ninfer_{name}", text, value=value)
        labels = ["model_name", "plan_digest", "speculative_backend"]
        info = GaugeMetricFamily("ninfer_model_info", "The model that is served.", labels=labels)
        backend = "off" if plan.speculation is None else plan.speculation.method
        info.add_metric([self._server.model.id, plan.digest, backend], 1.0)
        yield info

    def _counters(self) -> Iterator[Metric]:
        totals, counters = self._server.accounts.totals, self._server.accounts.counters
        figures = (
            ("prompt_tokens", "Prompt tokens of ended requests.", totals.prompt_tokens),
            ("prompt_tokens_cached", "Those whose state was reused.", totals.cached_tokens),
            ("prefill_tokens", "Prompt tokens computed, each once.", counters.prefill),
            ("replayed_tokens", "Tokens computed again after their memory was taken.", counters.recomputed),
            (
                "preemptions",
                "Times a request gave its memory to an older one.",
                self._server.service.engine.num_preemptions,
            ),
            ("generation_tokens", "Tokens produced.", counters.completion),
            ("decode_tokens", "Tokens produced after the first of their request.", counters.decode),
            ("engine_steps", "Forwards that were committed.", counters.steps),
        )
        for name, text, value in figures:
            yield CounterMetricFamily(f"ninfer_{name}", text, value=value)
        yield from self._rounds()
        requests = CounterMetricFamily("ninfer_requests", "Requests that ended, by outcome.", labels=["outcome"])
        for outcome, count in totals.outcomes.items():
            requests.add_metric([outcome.value], count)
        yield requests

    def _rounds(self) -> Iterator[Metric]:
        """Of ended requests: tokens per round are 1 + accepted / rounds, round time is decode seconds / rounds."""
        totals = self._server.accounts.totals
        counts, seconds = totals.rounds.counts, totals.rounds.seconds
        figures = (
            ("decode_rounds", "Steps that gave tokens after the first, by ended request.", counts.rounds),
            ("decode_seconds", "First token to last, of ended requests.", totals.decode_seconds),
            ("spec_decode_draft_tokens", "Tokens drafted and tested.", counts.drafted),
            ("spec_decode_accepted_tokens", "Drafted tokens that held.", counts.accepted),
            ("spec_decode_fallback_steps", "Rounds without a draft.", counts.fallback_steps),
        )
        for name, text, value in figures:
            yield CounterMetricFamily(f"ninfer_{name}", text, value=value)
        by_position = CounterMetricFamily(
            "ninfer_spec_decode_accepted_tokens_per_position", "Rounds in which drafts up to a position all held.",
            labels=["position"],
        )  # fmt: skip
        for position, count in enumerate(counts.accepted_per_position):
            by_position.add_metric([str(position)], count)
        yield by_position
        by_window = CounterMetricFamily(
            "ninfer_spec_decode_window_rounds", "Rounds by the number of tokens drafted.", labels=["window"]
        )
        for window, count in enumerate(counts.windows):
            by_window.add_metric([str(window)], count)
        yield by_window
        by_part = CounterMetricFamily("ninfer_round_seconds", "Where the time of rounds went.", labels=["part"])
        for part in ("draft", "verify", "sample", "rollback"):
            by_part.add_metric([part], getattr(seconds, part))
        yield by_part


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    buckets = list(zip(bounds, found.cumulative(), strict=True))
    return HistogramMetricFamily(f"ninfer_{name}", text, buckets=buckets, sum_value=found.total)


def exposition(collector: Collector) -> bytes:
    """Everything a collector has, as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
