"""`/metrics` as JSON: the figures of the request log, live."""

from __future__ import annotations

from typing import Any

import ninfer
from ninfer.metrics import speculation_report
from ninfer.server.exchange import Server


def panel(server: Server, start_unix_s: float) -> dict[str, Any]:
    """History, last request, peaks and totals, engine, server; keys as in docs/serving.md, "Metrics"."""
    accounts, service, plan = server.accounts, server.service, server.model.plan
    counters, totals = accounts.counters, accounts.totals
    engine, slots = service.engine, plan.options.num_state_slots
    names = ("interval_seconds", "prefill_tokens", "decode_tokens", "cache_hit_tokens")
    return {
        "history": {name: [interval[name] for interval in accounts.history] for name in names},
        "last": accounts.last,
        "performance": {
            "peak_prefill_tok_s": accounts.peak_prefill,
            "peak_tok_s": accounts.peak_decode,
            "totals": {
                "requests": {outcome.value: count for outcome, count in totals.outcomes.items()},
                "prompt_tokens": totals.prompt_tokens,
                "cached_tokens": totals.cached_tokens,
                "computed_tokens": totals.computed_tokens,
                "recomputed_tokens": totals.recomputed_tokens,
                "completion_tokens": totals.completion_tokens,
                "speculative": speculation_report(totals.rounds, totals.decode_seconds),
                "engine": {
                    "steps": counters.steps,
                    "prefill_tokens": counters.prefill,
                    "cached_tokens": counters.cached,
                    "recomputed_tokens": counters.recomputed,
                    "completion_tokens": counters.completion,
                    "decode_tokens": counters.decode,
                },
            },
        },
        "engine": {
            "plan_digest": plan.digest,
            "max_concurrency": plan.max_concurrency,
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "places": {"taken": service.num_open, "all": service.capacity},
            "kv_pages": {
                "used": plan.num_pages - engine.num_free_pages,
                "kept": engine.num_kept_pages,
                "all": plan.num_pages,
            },
            "state_slots": {
                "used": slots - engine.num_free_state_slots,
                "kept": engine.num_kept_snapshots,
                "all": slots,
            },
            "preemptions": engine.num_preemptions,
        },
        "server": {
            "instance_id": accounts.instance,
            "start_unix_s": start_unix_s,
            "version": ninfer.__version__,
            "stored_responses": {
                "count": len(server.responses),
                "bytes": server.responses.num_bytes,
                "max_bytes": server.settings.response_store_bytes,
            },
        },
    }
