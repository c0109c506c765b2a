"""Files of other programs become records: what they state has our names, what they do not is unrecorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.bench.compare.comparison import compare
from ninfer.bench.compare.quantities import DECODE_RATE, PREFILL_RATE, TTFT
from ninfer.bench.compare.split import rounds_of
from ninfer.bench.imports.importing import Additions, import_file
from ninfer.bench.records.facts import Declaration
from ninfer.bench.records.reader import RunRecord, read_run
from ninfer.bench.records.verify import verify_run
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import run
from ninfer.errors import ConfigError, RecordError


def log_line(event: str, version: int = 2, instance: str = "serve-1-1", ms: int = 100_000, **members: Any) -> Any:
    return {
        "artifact_type": "ninfer_serve_request_log", "schema_version": version, "event": event,
        "timestamp_unix_ms": ms, "server_instance_id": instance, **members,
    }  # fmt: skip


def start(version: int = 2, instance: str = "serve-1-1", **engine: Any) -> Any:
    return log_line(
        "server_start", version, instance, 1_000,
        artifact={"path": "F:\\models\\m27b.ninfer", "size_bytes": 1234, "target": "x", "load_seconds": 70.8},
        engine={
            "device": 0, "max_context": 8192, "prefill_chunk": 1024, "kv_cache": "int8-group64", "vision": False,
            "prefix_reuse": False, "speculative_backend": "mtp", "speculative_draft_window": 3,
            "proposal_head": "optimized", **engine,
        },
        environment={"gpu_name": "Card", "compute_capability_major": 7}, argv=["ninfer-serve", "m27b.ninfer"],
        brand_new={"member": 1},
    )  # fmt: skip


def request(number: int, **sampling: Any) -> dict[str, Any]:
    given = {"temperature": 0.0, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "seed": 0, **sampling}
    return {"request_id": number, "protocol": "chat", "requested_output_tokens": 256, "sampling": given}


def done(number: int, version: int = 2, instance: str = "serve-1-1", decode_s: float = 1.0, **sampling: Any) -> Any:
    return log_line(
        "request_done", version, instance, 10_000 * (number + 1),
        request=request(number, **sampling),
        result={"finish_reason": "output_limit", "prompt_tokens": 131, "completion_tokens": 101,
                "prefix_cache_hit_tokens": 0, "tool_call_count": 0},
        timings_seconds={"prepare": 0.01, "vision": 0.0, "prefill": 0.36, "decode": decode_s, "total": decode_s + 0.4},
        speculative={"backend": "mtp", "draft_window": 3, "rounds": 40, "drafted_tokens": 120, "accepted_tokens": 60,
                     "fallback_steps": 0, "accepted_per_position": [30, 20, 10]},
    )  # fmt: skip


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def import_one(path: Path, out: Path, **more: Any) -> RunRecord:
    (directory,) = import_file(path, out, **more)
    assert verify_run(directory) == []
    return read_run(directory)


def test_a_request_log_of_version_2(tmp_path: Path) -> None:
    error = log_line("request_error", request=request(2), error={"message": "client went away"})
    path = write_lines(tmp_path / "server.jsonl", start(), done(0), done(1), error)
    record = import_one(path, tmp_path / "run")
    facts = {name: fact.value for name, fact in record.run.facts.items()}
    assert facts["draft.backend"] == "mtp"
    assert (facts["draft.tokens"], facts["draft.head"], facts["settings.kv_dtype"]) == (3, "optimized", "int8-group64")
    assert (facts["artifact.name"], facts["artifact.bytes"], facts["settings.vision"]) == ("m27b", 1234, False)
    assert (facts["sampling.greedy"], facts["sampling.top_p"]) == (True, None)  # a temperature of 0
    assert (facts["machine.accelerators"], facts["engine.name"]) == ("Card", "NInfer")
    assert "settings.kv_capacity" not in facts
    assert "machine.processor" not in facts
    assert record.run.command == ["ninfer-serve", "m27b.ninfer"]
    assert record.run.extra["server_start"]["brand_new"] == {"member": 1}
    assert [event.seconds for event in record.events if event.event == "load"] == [70.8]
    row = record.rows[0]
    assert DECODE_RATE.of([row]) == 100.0
    assert PREFILL_RATE.of([row]) == pytest.approx(131 / 0.36)
    assert row.speculation is not None
    assert row.speculation.accepted_per_position == [30, 20, 10]
    assert row.extra["result"] == {"tool_call_count": 0}
    assert row.extra["timings_seconds"] == {"vision": 0.0}
    assert row.stamps is not None
    assert row.stamps.ended_unix_ns - row.stamps.sent_unix_ns == 1_400_000_000
    assert record.rows[2].error == {"kind": "request_error", "message": "client went away"}
    rounds = rounds_of(record.run, record.rows[:1])
    assert rounds is not None
    assert (rounds.tokens_per_round, rounds.round_s) == (2.5, 0.025)


def test_members_of_later_versions(tmp_path: Path) -> None:
    line = done(0, version=25, temperature=0.7)
    line["result"] |= {
        "computed_prefill_tokens": 100,
        "prefix_cache_hit_tokens": 31,
        "generated_token_ids": [7] * 101,
        "model_thinking_tokens": 40,
        "thinking_control_tokens": 2,
        "prefix_reuse_path": "checkpoint",
    }
    line["timings_seconds"]["ttft"] = 0.4
    line["engine_timing"] = {"queue_wait_seconds": 0.02, "device_wait_exposed_seconds": 0.5}
    path = write_lines(tmp_path / "log", start(25, kv_capacity=16384, max_concurrency=2), line)
    record = import_one(path, tmp_path / "run")
    row = record.rows[0]
    assert (row.usage.cached_tokens, row.usage.computed_tokens, row.usage.reasoning_tokens) == (31, 100, 42)
    assert (row.seconds.queue, row.seconds.ttft) == (0.02, 0.4)
    response = record.response(row)
    assert response is not None
    assert response.output_ids == [7] * 101
    assert row.ids_digest is not None
    assert row.extra["engine_timing"] == {"queue_wait_seconds": 0.02, "device_wait_exposed_seconds": 0.5}
    assert record.run.facts["settings.kv_capacity"].value == 16384
    assert (record.run.facts["sampling.greedy"].value, record.run.facts["sampling.temperature"].value) == (False, 0.7)


def test_sampling_that_varies_is_unrecorded(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", start(), done(0, temperature=0.7), done(1, temperature=0.7, seed=5))
    facts = import_one(path, tmp_path / "run").run.facts
    assert facts["sampling.temperature"].value == 0.7
    assert "sampling.seed" not in facts


def test_a_log_of_two_servers_is_two_runs(tmp_path: Path) -> None:
    off = start(instance="serve-2-2", speculative_backend="none", speculative_draft_window=0, proposal_head="full")
    path = write_lines(tmp_path / "log.jsonl", start(), done(0), off, done(0, instance="serve-2-2", decode_s=1.25))
    directories = import_file(path, tmp_path / "runs", additions=Additions({}, [Declaration(label="Y", by="me")]))
    assert [directory.name for directory in directories] == ["log-1", "log-2"]
    records = [read_run(directory) for directory in directories]
    assert {name: records[1].run.facts[name].value for name in ("draft.backend", "draft.tokens", "draft.head")} == {
        "draft.backend": "off", "draft.tokens": 0, "draft.head": None
    }  # fmt: skip
    (pair,) = compare(records).pairs
    assert pair.differences.kind == "controlled"
    assert pair.decode.change == pytest.approx(-0.2)


def test_two_logs_are_not_comparable_without_a_word_on_what_they_lack(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", start(), done(0))
    records = [import_one(path, tmp_path / name, name=name) for name in ("l", "r")]
    found = compare(records)
    assert found.pairs == ()
    missing = {difference.fact for difference in found.apart[0].differences.unrecorded}
    assert {"inputs.digest", "machine.processor", "artifact.digest", "engine.build"} <= missing


def test_requests_before_the_measurement_are_set_apart(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", start(), done(0, decode_s=50.0), done(1))
    record = import_one(path, tmp_path / "run", additions=Additions({}, [], num_warmups=1))
    assert DECODE_RATE.of(record.measured) == 100.0
    assert len(record.rows) == 2


LLAMA: dict[str, Any] = {
    "build_commit": "95b8e33e1", "build_number": 10597, "cpu_info": "Chip 9", "gpu_info": "", "backends": "CPU",
    "model_filename": "m.gguf", "model_type": "llama 0.1B Q4_1", "model_size": 97_000_000, "n_threads": 2,
    "type_k": "f16", "type_v": "f16", "flash_attn": True, "n_depth": 0, "test_time": "2026-11-30T20:00:00Z",
}  # fmt: skip


def llama_tests(**changes: Any) -> list[dict[str, Any]]:
    shapes = ((512, 0, [500_000_000, 520_000_000]), (0, 64, [640_000_000]), (512, 64, [1_200_000_000]))
    return [{**LLAMA, **changes, "n_prompt": p, "n_gen": g, "samples_ns": ns, "avg_ts": 1.0} for p, g, ns in shapes]


def test_tests_of_llama_bench(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(llama_tests()))
    record = import_one(path, tmp_path / "run")
    assert list(record.prompts) == ["pp512", "tg64", "pp512+tg64"]
    assert [(row.prompt, row.repeat) for row in record.rows] == [
        ("pp512", 0), ("pp512", 1), ("tg64", 0), ("pp512+tg64", 0)
    ]  # fmt: skip
    assert PREFILL_RATE.of(record.rows[:2]) == 1024 / 1.02
    assert DECODE_RATE.of([record.rows[2]]) == 100.0  # llama-bench's own 64 / 0.64 s
    assert PREFILL_RATE.of([record.rows[3]]) is DECODE_RATE.of([record.rows[3]]) is None
    facts = {name: fact.value for name, fact in record.run.facts.items()}
    assert (facts["machine.processor"], facts["machine.accelerators"]) == ("Chip 9", None)
    assert (facts["settings.flash_attn"], facts["settings.kv_dtype"]) == (True, "f16")
    assert record.run.extra["tests"][0]["avg_ts"] == 1.0


def test_settings_of_llama_bench_make_runs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "bench.jsonl", *llama_tests(), *llama_tests(type_k="q8_0"))
    directories = import_file(path, tmp_path / "runs")
    assert [read_run(d).run.facts["settings.kv_dtype"].value for d in directories] == ["f16", "q8_0"]


VLLM: dict[str, Any] = {
    "date": "20261130-200000", "backend": "openai-chat", "model_id": "m", "tokenizer_id": "m", "num_prompts": 3,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": 3.0, "completed": 2,
    "total_output_tokens": 30, "input_lens": [10, 12, 9], "output_lens": [11, 21, 0], "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.1] * 10, [0.05] * 20, []], "generated_texts": ["hello", "  ", ""], "errors": ["", "", "reset"],
    "p99_ttft_ms": 199.0,
}  # fmt: skip


def test_a_result_of_vllm(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(VLLM))
    record = import_one(path, tmp_path / "run")
    assert DECODE_RATE.of([record.rows[0]]) == pytest.approx(10.0)
    assert TTFT.of(record.rows[:2]) == pytest.approx(0.15)
    assert [row.is_empty for row in record.rows] == [False, True, None]
    assert record.rows[2].error == {"kind": "request failed", "message": "reset"}
    facts = {name: fact.value for name, fact in record.run.facts.items()}
    assert (facts["load.pattern"], facts["load.rate"], facts["load.concurrency"]) == ("closed", None, 2)
    assert (facts["engine.measured_at"], facts["artifact.model"]) == ("client", "m")
    assert "engine.name" not in facts
    assert record.run.extra["p99_ttft_ms"] == 199.0
    response = record.response(record.rows[0])
    assert response is not None
    assert response.token_seconds is not None
    assert response.token_seconds[:2] == pytest.approx([0.1, 0.2])
    path.write_text(json.dumps({**VLLM, "request_rate": 4.0}))
    open_load = import_one(path, tmp_path / "open").run.facts
    assert (open_load["load.pattern"].value, open_load["load.rate"].value) == ("open", 4.0)


BAD: dict[str, tuple[str, str]] = {
    "no kind": ('{"a": 1}', "of no kind that can be imported"),
    "no JSON": ("hello", "neither JSON nor JSON lines"),
    "an empty list": ("[]", "of no kind"),
    "no requests": (json.dumps(start()), "no finished request"),
    "too old": (json.dumps(start(1)) + "\n" + json.dumps(done(0)), "older than 2"),
    "a cut event": (json.dumps({**done(0), "timings_seconds": None}), "is no ninfer_serve_request_log"),
    "a count that is none": (
        json.dumps({**done(0), "result": {"finish_reason": "x", "completion_tokens": "many"}}),
        "completion_tokens",
    ),
    "sums only": (json.dumps({k: v for k, v in VLLM.items() if k not in ("itls", "ttfts")}), "--save-detailed"),
    "unequal lists": (json.dumps({**VLLM, "ttfts": [0.1]}), "differ in number"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_imported_says_why(tmp_path: Path, what: str) -> None:
    text, message = BAD[what]
    (tmp_path / "file").write_text(text)
    with pytest.raises(RecordError, match=message):
        import_file(tmp_path / "file", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_import_makes_new_records_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", start(), done(0))
    import_file(path, tmp_path / "out")
    with pytest.raises(ConfigError, match="not empty"):
        import_file(path, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"draft\.tokens itself"):
        import_file(path, tmp_path / "new", additions=Additions({"draft.tokens": 4}, []))
    with pytest.raises(RecordError, match="cannot be read"):
        import_file(tmp_path / "none", tmp_path / "new")


def test_the_command_adds_what_a_person_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "log.jsonl", start(), done(0), done(1))
    out = tmp_path / "run"
    added = ("--fact", "machine.num_cpus=8", "--fact", "machine.processor=Xeon 9", "--declare", "Y", "--by", "Ann")
    assert run(["bench", "import", str(path), str(out), *added, "--warmups", "1", "--name", "mine"]) == ExitCode.OK
    assert capsys.readouterr().out == f"{out}\n"
    record = read_run(out)
    assert (record.name, len(record.measured)) == ("mine", 1)
    fact = record.run.facts["machine.num_cpus"]
    assert (fact.value, fact.origin) == (8, "declared")
    assert record.run.facts["machine.processor"].value == "Xeon 9"
    assert record.run.declarations == [Declaration(label="Y", by="Ann")]
    assert run(["bench", "import", str(path), str(tmp_path / "x"), "--fact", "nonsense"]) == ExitCode.USAGE
