"""Bit-equality of answers with drafts and without, on native kernels: attention models, recurrent ones by both ways of
keeping state, both KV formats, alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from harness import Outcome, collect, run

from make import tiny_hybrid, tiny_llama
from ninfer.artifact import Artifact
from ninfer.cache import StateLayout
from ninfer.decoding import SamplingParams
from ninfer.engine import (
    Engine,
    EngineConfig,
    EnginePlan,
    GenerationRequest,
    StopRules,
    detect_hardware,
    load_engine,
    plan_engine,
)
from ninfer.engine.drafting import make_proposer
from ninfer.engine.plan import StatePlan
from ninfer.engine.testing import ScriptedProposer, known_drafts, random_drafts
from ninfer.engine.window import RoundCosts
from ninfer.models import load_model
from ninfer.text.frontend import load_frontend

ENDLESS = StopRules(model_end_tokens=False)
MAX_NEW = 40
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
SAMPLINGS = (SamplingParams(), SAMPLED, SamplingParams(temperature=1.1, top_k=20, frequency_penalty=0.7, seed=3))
PROMPTS = [(5, 6, 7) * 8, (9,), (8,) * 61, tuple(i * 7 % 60 for i in range(70)), (1, 2, 3, 4), tuple(range(40))]
REQUESTS = [
    GenerationRequest(prompt, max_new=MAX_NEW, stop=ENDLESS, sampling=SAMPLINGS[(i + offset) % 3])
    for offset in (0, 1)
    for i, prompt in enumerate(PROMPTS)
]
MODELS = ("llama", "hybrid slots", "hybrid replay")
KINDS = ("ngram", "auto", "random", "right", "wrong", "half right")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Artifact]]:
    folder: Path = tmp_path_factory.mktemp("drafts")
    llama, hybrid = tiny_llama.CONFIGS["uneven"], tiny_hybrid.CONFIG
    tiny_llama.write_artifact(folder / "llama.ninfer", llama, tiny_llama.random_weights(llama), "q4g32")
    tiny_hybrid.write_artifact(folder / "hybrid.ninfer", hybrid, tiny_hybrid.random_weights(hybrid), "q8g32")
    with Artifact.open(folder / "llama.ninfer") as first, Artifact.open(folder / "hybrid.ninfer") as second:
        yield {"llama": first, "hybrid": second}


def planned(artifact: Artifact, model: str, kv_dtype: str, lanes: int, kind: str) -> EnginePlan:
    settings = {} if kind == "off" else {"spec": "ngram", "draft_tokens": "auto" if kind == "auto" else 4}
    config = EngineConfig.from_dict(
        {"max_context": 128, "kv_dtype": kv_dtype, "max_concurrency": lanes, "threads": 1, **settings}
    )
    plan = plan_engine(config, artifact, detect_hardware())
    _, _, rollback = model.partition(" ")
    if not rollback or kind == "off":
        return plan
    state = StatePlan(StateLayout(rollback, plan.verify_rows))  # type: ignore[arg-type]  # a word of MODELS
    options = replace(
        plan.options,
        num_state_slots=state.num_slots(lanes),
        num_journals=state.num_journals(lanes),
        journal_rows=state.journal_rows,
    )
    return replace(plan, state=state, options=options)


def engine_of(artifact: Artifact, plan: EnginePlan, kind: str, texts: list[list[int]]) -> Engine:
    window, vocab_size = plan.verify_rows - 1, 60
    if kind in ("off", "ngram", "auto"):
        proposer = make_proposer(plan)
    elif kind == "random":
        proposer = ScriptedProposer(random_drafts(vocab_size, seed=2), window)
    else:
        right = {"right": 0, "wrong": 1, "half right": 2}[kind]
        proposer = ScriptedProposer(
            known_drafts(texts, lambda position: right == 0 or (right == 2 and position % 2 == 0), plan.vocab_size),
            window,
        )
    costs = RoundCosts({64: {1: 1.0, 9: 1.4}}) if kind == "auto" else None
    return Engine(plan, load_model(artifact, plan.options), proposer=proposer, costs=costs)


@pytest.fixture(scope="module")
def plain(artifacts: dict[str, Artifact]):  # type: ignore[no-untyped-def]  # a function of model and format
    """What each request gives alone and without drafts."""

    @cache
    def answers(family: str, kv_dtype: str) -> list[list[int]]:
        artifact = artifacts[family]
        plan = planned(artifact, family, kv_dtype, 1, "off")
        with engine_of(artifact, plan, "off", []) as engine:
            return [run(engine, request).ids for request in REQUESTS]

    return answers


def together(engine: Engine, lanes: int) -> list[Outcome]:
    if lanes == 1:
        return [run(engine, request) for request in REQUESTS]
    ids = [engine.submit(request) for request in REQUESTS]
    outcomes = collect(engine.drain())
    return [outcomes[request_id] for request_id in ids]


@pytest.mark.parametrize("lanes", [1, 6])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_drafts_change_no_bit_of_an_answer(
    artifacts: dict[str, Artifact],
    plain,
    model: str,
    kind: str,
    kv_dtype: str,
    lanes: int,  # type: ignore[no-untyped-def]
) -> None:
    """C135."""
    family = model.partition(" ")[0]
    expected = plain(family, kv_dtype)
    artifact = artifacts[family]
    plan = planned(artifact, model, kv_dtype, lanes, kind)
    texts = [[*request.prompt_ids, *ids] for request, ids in zip(REQUESTS, expected, strict=True)]
    with engine_of(artifact, plan, kind, texts) as engine:
        outcomes = together(engine, lanes)
        assert [outcome.ids for outcome in outcomes] == expected
        accepted = sum(outcome.finished.rounds.counts.accepted for outcome in outcomes)
        drafted = sum(outcome.finished.rounds.counts.drafted for outcome in outcomes)
        assert drafted > 0
        if kind in ("right", "wrong"):  # nearly: two requests with one prompt go on differently
            assert (accepted > 0.8 * drafted) == (kind == "right")
        assert engine.num_free_pages == plan.num_pages


def test_the_answers_are_not_trivial(plain) -> None:  # type: ignore[no-untyped-def]
    """Greedy texts of random weights may repeat one token; most of these do not."""
    for family in ("llama", "hybrid"):
        assert sum(len(set(ids)) > 5 for ids in plain(family, "int8")) > len(REQUESTS) / 2
    assert plain("hybrid", "bf16") != plain("hybrid", "int8")


TEXTS = [
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog near the wide river.",
    "List the numbers from 1 to 30, separated by commas.",
    "Write a JSON array of five objects with the fields id, name and colour.",
    "Tell me about the sea.",
]


@pytest.mark.real_model
def test_copy_drafts_change_no_answer_of_smollm2(smollm2: Path) -> None:
    with Artifact.open(smollm2) as artifact:
        tokenizer, template = load_frontend(artifact.find_resource)
        assert tokenizer is not None
        assert template is not None
        prompts = [template.encode([{"role": "user", "content": text}]) for text in TEXTS]
        requests = [
            GenerationRequest(tuple(prompt), max_new=MAX_NEW, sampling=sampling)
            for prompt, sampling in zip(prompts, (SamplingParams(), SAMPLED) * 2, strict=True)
        ]
        found = []
        for settings in ({}, {"spec": "ngram", "draft_tokens": 5}, {"spec": "ngram", "max_concurrency": 6}):
            config = EngineConfig.from_dict({"max_context": 256, "threads": 1, **settings})
            with load_engine(plan_engine(config, artifact, detect_hardware()), artifact, tokenizer) as engine:
                ids = [engine.submit(request) for request in requests]
                outcomes = collect(engine.drain())
                found.append([outcomes[request_id] for request_id in ids])
        plain, *others = found
        for other in others:
            assert [(outcome.ids, outcome.text) for outcome in other] == [(o.ids, o.text) for o in plain]
            assert sum(outcome.finished.rounds.counts.accepted for outcome in other) > 5
