"""Every way a run can end, and what it says about it."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.real_model

QUESTION = "What is the capital of France?"
STORY = "Write a long story about the sea."


def run(ninfer, smollm2, *arguments: object) -> dict:
    return ninfer("run", smollm2, "--prompt", QUESTION, "--json", "--numerics", "f32", *arguments).json()


def test_stop_token(ninfer, smollm2) -> None:
    assert run(ninfer, smollm2)["finish"] == "stop_token"


def test_output_limit(ninfer, smollm2) -> None:
    found = run(ninfer, smollm2, "--max-new", 3)
    assert (found["finish"], found["text"], len(found["output_ids"])) == ("output_limit", "The capital of", 3)


def test_stop_string_cuts_the_text_and_is_named(ninfer, smollm2) -> None:
    found = run(ninfer, smollm2, "--stop", "never written", "--stop", "e is Pa")
    assert (found["finish"], found["stop"], found["text"]) == ("stop_string", "e is Pa", "The capital of Franc")


def test_context_capacity(ninfer, smollm2) -> None:
    found = run(ninfer, smollm2, "--max-context", 40)
    assert (found["finish"], len(found["output_ids"])) == ("context_capacity", 3)


def test_cancelled_by_an_interrupt_tells_what_there_was(start_ninfer, smollm2) -> None:
    process = start_ninfer("run", smollm2, "--prompt", STORY)
    start = process.stdout.read(8)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(start + rest) > 8
    assert b"cancelled" in err
    assert b"Traceback" not in err


def test_reader_that_goes_away_is_no_error(start_ninfer, smollm2) -> None:
    process = start_ninfer("run", smollm2, "--prompt", STORY)
    process.stdout.read(8)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in err
    assert b"error" not in err.lower()


def test_json_has_every_documented_field(ninfer, smollm2) -> None:
    found = run(ninfer, smollm2)
    assert set(found) == {
        *("model", "prompt_ids", "output_ids", "text", "finish", "stop", "seed", "usage", "seconds", "rates", "plan"),
        "speculative",
    }
    usage, seconds, rates = found["usage"], found["seconds"], found["rates"]
    assert usage == {
        "prompt_tokens": 37,
        "cached_tokens": 0,
        "computed_tokens": 37,
        "recomputed_tokens": 0,
        "completion_tokens": 8,
    }
    assert set(seconds) == {"load", "prepare", "queue", "prefill", "decode", "total", "ttft"}
    phases = sum(seconds[phase] for phase in ("load", "prepare", "queue", "prefill", "decode"))
    assert 0 < phases <= seconds["total"] * (1 + 1e-9)
    assert rates == {
        "prefill_tok_per_s": 37 / seconds["prefill"],
        "decode_tok_per_s": 7 / seconds["decode"],
        "end_to_end_tok_per_s": 8 / seconds["total"],
    }
    assert sum(item["num_bytes"] for item in found["plan"]["memory"]) == found["plan"]["total_bytes"]
    assert os.path.exists(found["model"]["file"])
