"""The engine law on native models: a request's ids and logprobs are the same bits alone and in any company.

Seventeen requests whose prompts share beginnings run with room for a part of them only, so that they reuse pages, wait,
overtake and give way; chunks, threads and lanes differ. Two rounds: the second one is warm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Outcome, assert_all_memory_is_free, collect, run

from make import tiny_hybrid, tiny_llama
from ninfer.artifact import Artifact
from ninfer.decoding import SamplingParams
from ninfer.engine import (
    Engine,
    EngineConfig,
    GenerationRequest,
    StopRules,
    detect_hardware,
    load_engine,
    plan_engine,
)

CONTEXT = 320


def text(length: int, salt: int) -> tuple[int, ...]:
    return tuple((i * i * 7 + i + salt * (i > 150)) % 70 for i in range(length))


def request(number: int) -> GenerationRequest:
    sampling = SamplingParams(temperature=1.0, seed=number, frequency_penalty=0.3) if number % 3 else SamplingParams()
    return GenerationRequest(
        text((40, 130, 200, 257, 64)[number % 5], number // 5),
        max_new=(5, 150, 17, 100)[number % 4],
        sampling=sampling,
        stop=StopRules(model_end_tokens=False),
        logprobs=2,
    )


REQUESTS = [request(number) for number in range(17)]


def write_llama(path: Path) -> None:
    config = tiny_llama.CONFIGS["uneven"]
    tiny_llama.write_artifact(path, config, tiny_llama.random_weights(config), "q4g32")


def write_hybrid(path: Path) -> None:
    tiny_hybrid.write_artifact(path, tiny_hybrid.CONFIG, tiny_hybrid.random_weights(tiny_hybrid.CONFIG), "q8g32")


def load(artifact: Artifact, **settings: object) -> Engine:
    config = EngineConfig.from_dict({"max_context": CONTEXT, **settings})
    return load_engine(plan_engine(config, artifact, detect_hardware()), artifact)


@pytest.fixture(scope="module", params=[write_llama, write_hybrid], ids=["llama", "hybrid"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    write: Callable[[Path], None] = request.param
    path = tmp_path_factory.mktemp("law") / "model.ninfer"
    write(path)
    with Artifact.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(artifact: Artifact) -> list[Outcome]:
    with load(artifact, threads=1, prefix_reuse=False) as engine:
        return [run(engine, each) for each in REQUESTS]


def test_the_answers_differ(alone: list[Outcome]) -> None:
    assert len({tuple(outcome.ids) for outcome in alone}) == len(REQUESTS)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_concurrency": 17, "threads": 2},
        {"max_concurrency": 6, "kv_capacity": 640, "prefill_chunk": 100, "mixed_chunk": 9, "threads": 1},
        {"max_concurrency": 4, "kv_capacity": CONTEXT, "prefill_chunk": 64, "mixed_chunk": 64, "threads": 2},
        {"max_concurrency": 5, "kv_capacity": 576, "prefill_chunk": 33, "mixed_chunk": 1, "prefix_reuse": False},
    ],
    ids=["room for all", "some room", "one context", "nothing reused"],
)
def test_company_reuse_and_preemption_change_no_bit(
    artifact: Artifact, alone: list[Outcome], settings: dict[str, object]
) -> None:
    """C128."""
    with load(artifact, **settings) as engine:
        for _ in range(2):
            ids = [engine.submit(each) for each in REQUESTS]
            outcomes = collect(engine.drain())
            for own, number in zip(alone, ids, strict=True):
                assert outcomes[number].ids == own.ids
                assert logprobs(outcomes[number]) == logprobs(own)
                usage = outcomes[number].finished.usage
                assert usage.cached + usage.computed == usage.prompt
        assert_all_memory_is_free(engine)
        if settings.get("kv_capacity") == CONTEXT:
            assert engine.num_preemptions > 0
        assert (engine.counters.cached > 0) == bool(settings.get("prefix_reuse", True))


def logprobs(outcome: Outcome) -> list[object]:
    return [each for delta in outcome.deltas for each in delta.logprobs]
