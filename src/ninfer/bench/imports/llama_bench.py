"""Results of llama-bench (`-o json` or `-o jsonl`).

A test processes a prompt of `n_prompt` tokens, or generates `n_gen` after `n_depth`, or both; every sample is the whole
test's time. Tests that differ in nothing but these three belong to one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer.bench.imports.imported import Imported, renamed, without
from ninfer.bench.records.schema import Prompt, RequestRow, Response, RowSeconds, RowUsage
from ninfer.metrics import FinishReason

SHAPE = ("n_prompt", "n_gen", "n_depth")
RESULTS = ("test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts")
NAMES = {
    "build_commit": "engine.build",
    "build_number": "engine.version",
    "cpu_info": "machine.processor",
    "gpu_info": "machine.accelerators",
    "model_filename": "artifact.name",
    "model_type": "artifact.weights",
    "model_size": "artifact.bytes",
    "n_threads": "settings.threads",
    "type_k": "settings.kv_dtype",
}
"""Members that have a name of their own here; every other one is `settings.` and its name."""


def is_of(documents: Sequence[Any]) -> bool:
    tests = _tests(documents)
    return bool(tests) and all(isinstance(t, dict) and {"n_prompt", "n_gen", "samples_ns"} <= t.keys() for t in tests)


def read(documents: Sequence[Any]) -> list[Imported]:
    """One run per set of settings, in order of appearance."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for test in _tests(documents):
        settings = without(test, (*SHAPE, *RESULTS))
        runs.setdefault(repr(sorted(settings.items())), []).append(test)
    return [_run(tests) for tests in runs.values()]


def _tests(documents: Sequence[Any]) -> list[Any]:
    return list(documents[0]) if len(documents) == 1 and isinstance(documents[0], list) else list(documents)


def _run(tests: Sequence[Mapping[str, Any]]) -> Imported:
    prompts: list[Prompt] = []
    samples: list[tuple[RequestRow, Response | None]] = []
    for test in tests:
        prompt = _prompt(test)
        prompts.append(prompt)
        samples += [(_row(prompt, repeat, ns, test), None) for repeat, ns in enumerate(test["samples_ns"])]
    settings = without(tests[0], (*SHAPE, *RESULTS))
    facts: dict[str, Any] = {
        "engine.name": "llama.cpp",
        "engine.measured_at": "engine",
        "draft.backend": "off",
        "draft.tokens": 0,
        "draft.head": None,
        "draft.digest": None,
        **renamed(settings, NAMES),
    }
    facts["machine.accelerators"] = facts.get("machine.accelerators") or None
    facts |= {
        f"settings.{name}": value
        for name, value in without(settings, NAMES).items()
        if not isinstance(value, dict | list)
    }
    return Imported(facts, prompts, samples, extra={"tests": [dict(test) for test in tests]})


def _prompt(test: Mapping[str, Any]) -> Prompt:
    """The test by the name that llama-bench prints: pp512, tg128, pp512+tg128, and @ d4096 for a depth."""
    n_prompt, n_gen, n_depth = (test.get(name, 0) for name in SHAPE)
    parts = [f"pp{n_prompt}"] * bool(n_prompt) + [f"tg{n_gen}"] * bool(n_gen)
    name = "+".join(parts) + (f" @ d{n_depth}" if n_depth else "")
    return Prompt(id=name, scenario=name, body=None, max_new=n_gen, options={"n_depth": n_depth})


def _row(prompt: Prompt, repeat: int, ns: int, test: Mapping[str, Any]) -> RequestRow:
    """A prompt alone is prefill, tokens alone are decode; of both together only the total is known.

    Generation starts from a token that is given and not timed, so it counts as the first one here and all `n_gen`
    timed ones follow it.
    """
    n_prompt, n_gen, seconds = test["n_prompt"], test["n_gen"], ns / 1e9
    if n_gen and n_prompt:
        usage, times = RowUsage(prompt_tokens=n_prompt, cached_tokens=0), RowSeconds(total=seconds)
    elif n_gen:
        usage, times = RowUsage(completion_tokens=n_gen + 1), RowSeconds(decode=seconds, total=seconds)
    else:
        usage = RowUsage(prompt_tokens=n_prompt, cached_tokens=0, computed_tokens=n_prompt)
        times = RowSeconds(prefill=seconds, total=seconds)
    return RequestRow(
        prompt=prompt.id,
        repeat=repeat,
        max_new=n_gen,
        usage=usage,
        seconds=times,
        finish=FinishReason.OUTPUT_LIMIT.value,
    )
