"""Drafts of models through the whole engine: plan, files, equal answers, and modules that are known to be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Outcome, assert_all_memory_is_free, collect, run

from make import tiny_drafts, tiny_hybrid, tiny_llama
from make.tiny_drafts import mtp_config, target_in, write_companion
from ninfer.artifact import Artifact
from ninfer.cache import StateLayout
from ninfer.cli.plan import render
from ninfer.decoding import SamplingParams
from ninfer.engine import (
    Engine,
    EngineConfig,
    GenerationRequest,
    StopRules,
    detect_hardware,
    load_engine,
    plan_engine,
    planning,
)
from ninfer.engine.plan import StatePlan
from ninfer.errors import ConfigError, NInferError
from ninfer.models.companion import DraftHeadConfig
from ninfer.models.mtp import LAYER

LLAMA = tiny_llama.CONFIGS["ragged"]
HYBRID = replace(tiny_hybrid.CONFIG, num_mtp_layers=1, tied_head=False)
ENDLESS = StopRules(model_end_tokens=False)


def chain_of_tokens(count: int) -> np.ndarray:
    """What follows each token: one round through all of them."""
    order = np.random.default_rng(3).permutation(count)
    following = np.empty(count, np.int64)
    following[order] = np.roll(order, -1)
    return following


def successor_weights(weights: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Layers that add nothing, and a head that names the token behind the one that came in: rows are embeddings."""
    rng = np.random.default_rng(2)
    made = dict(weights)
    for name, array in weights.items():
        if name.endswith((".o", ".out", ".down")):
            made[name] = np.zeros_like(array)
        elif name.rpartition(".")[2] in ("norm", "embed_norm", "hidden_norm"):
            made[name] = np.ones_like(array)
    embed = rng.standard_normal(weights["embed"].shape)
    embed /= np.sqrt((embed**2).mean(axis=1, keepdims=True))
    made["embed"] = embed.astype(np.float32)
    head = np.zeros(embed.shape)
    head[chain_of_tokens(count)] = embed[:count]
    made["head"] = head.astype(np.float32)
    return made


def successor_mtp(weights: dict[str, np.ndarray], hidden: int, *, reads: str = "embedding") -> dict[str, np.ndarray]:
    """A module that passes one half of its input on: the embedding of the next token, or the row before it."""
    made = dict(weights)
    for name in (f"{LAYER}.o", f"{LAYER}.down"):
        made[name] = np.zeros_like(weights[name])
    for name in ("mtp.embed_norm", "mtp.hidden_norm", "mtp.norm"):
        made[name] = np.ones_like(weights[name])
    halves = (np.eye(hidden), np.zeros((hidden, hidden)))
    made["mtp.fc"] = np.concatenate(halves if reads == "embedding" else halves[::-1], axis=1).astype(np.float32)
    return made


def files(kind: str, directory: Path, *, reads: str | None = None) -> dict[str, Any]:
    """Target, and settings that draft for it. With `reads` both are made by hand (`successor_mtp`)."""
    if kind.startswith("own"):
        weights = tiny_hybrid.random_weights(HYBRID)
        if reads is not None:
            weights = successor_weights(weights, HYBRID.num_decodable)
            weights |= successor_mtp(
                {name: array for name, array in weights.items() if name.startswith("mtp.")}, 32, reads=reads
            )
        target = tiny_hybrid.write_artifact(directory / "target.ninfer", HYBRID, weights, "f32")
        if kind == "own":
            return {"target": target, "spec": "mtp"}
        head = DraftHeadConfig(target_in(target), 30)
        draft = write_companion(directory / "draft.ninfer", head, head_weights(head, weights["head"]), "q8g32")
        return {"target": target, "spec": "mtp", "draft": str(draft), "lm_head_draft": True}
    weights = tiny_llama.random_weights(LLAMA)
    if reads is not None:
        weights = successor_weights(weights, LLAMA.vocab_size)
    target = tiny_llama.write_artifact(directory / "target.ninfer", LLAMA, weights, "f32")
    if kind == "dflash2":
        block = tiny_drafts.dflash_config(target_in(target), conv=None, mask_token_id=5)
        block_path = directory / "draft.ninfer"
        write_companion(block_path, block, tiny_drafts.random_weights(block), "bf16")
        return {"target": target, "spec": "dflash2", "draft": str(block_path)}
    config = mtp_config(target_in(target))
    module = tiny_drafts.random_weights(config)
    if reads is not None:
        module = successor_mtp(module, LLAMA.hidden_size, reads=reads)
    draft = write_companion(directory / "draft.ninfer", config, module)
    return {"target": target, "spec": "ngram-mtp" if kind == "ngram" else "mtp", "draft": str(draft)}


def head_weights(config: DraftHeadConfig, head: np.ndarray) -> dict[str, np.ndarray]:
    ids = np.sort(np.random.default_rng(1).permutation(HYBRID.num_decodable)[: config.shortlist_size])
    return {"shortlist.head": head[ids], "shortlist.ids": ids.astype(np.float32)}


def engine_of(made: dict[str, Any], artifact: Artifact, **changes: Any) -> Engine:
    settings = {name: value for name, value in made.items() if name != "target"}
    config = EngineConfig.from_dict({"max_context": 200, "threads": 1, **settings, **changes})
    return load_engine(plan_engine(config, artifact, detect_hardware()), artifact)


def without_drafts(made: dict[str, Any]) -> dict[str, Any]:
    return {"target": made["target"]}


@pytest.mark.parametrize("window", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["own", "attached"])
def test_a_module_that_knows_what_follows_is_always_right(kind: str, window: int, tmp_path: Path) -> None:
    """Each further token of a draft comes from the module's own row and the token before: the chain is right, too."""
    made = files(kind, tmp_path, reads="embedding")
    following = chain_of_tokens(HYBRID.num_decodable if kind == "own" else LLAMA.vocab_size)
    with Artifact.open(made["target"]) as artifact, engine_of(made, artifact, draft_tokens=window) as engine:
        outcome = run(engine, GenerationRequest((4, 9, 33), max_new=70, stop=ENDLESS))
        assert_all_memory_is_free(engine)
    ids = [33]
    for _ in range(70):
        ids.append(int(following[ids[-1]]))
    assert outcome.ids == ids[1:]
    counts = outcome.finished.rounds.counts
    assert counts.accepted == counts.drafted > 0
    assert counts.rounds == -(-69 // (1 + window))


@pytest.mark.parametrize("kind", ["own", "attached"])
def test_a_module_that_reads_the_row_before_is_one_token_behind(kind: str, tmp_path: Path) -> None:
    made = files(kind, tmp_path, reads="row")
    with Artifact.open(made["target"]) as artifact, engine_of(made, artifact, draft_tokens=3) as engine:
        counts = run(engine, GenerationRequest((4, 9, 33), max_new=40, stop=ENDLESS)).finished.rounds.counts
    assert counts.drafted > 0
    assert counts.accepted == 0


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
def test_drafts_after_every_accept_count_are_those_of_the_whole_text(
    window: int, rollback: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that is right about the tokens of its shortlist: how many of each draft hold is known beforehand."""
    made = files("own-shortlist", tmp_path, reads="embedding")
    following = chain_of_tokens(HYBRID.num_decodable)
    with Artifact.open(made["draft"]) as draft:
        known = {int(token) for token in draft.array("shortlist.ids")}
    if rollback is not None:
        layout = StateLayout(rollback, 1 + window)  # type: ignore[arg-type]  # the table has plain strings
        monkeypatch.setattr(planning, "plan_state", lambda *_, **__: (StatePlan(layout), None))
    with Artifact.open(made["target"]) as artifact, engine_of(made, artifact, draft_tokens=window) as engine:
        outcome = run(engine, GenerationRequest((4, 9, 33), max_new=120, stop=ENDLESS))
    ids, accepted = [int(following[33])], []
    while len(ids) < 120:
        room = min(window, 120 - len(ids) - 1)
        text = [ids[-1]]
        while len(text) <= room and int(following[text[-1]]) in known:
            text.append(int(following[text[-1]]))
        accepted.append(len(text) - 1)
        ids += [*text[1:], int(following[text[-1]])]
    assert outcome.ids == ids
    assert outcome.finished.rounds.counts.accepted == sum(accepted)
    assert outcome.finished.rounds.counts.rounds == len(accepted)
    assert set(accepted) >= set(range(min(window, 3) + 1))


REQUESTS = [
    GenerationRequest(tuple(i * 7 % 60 for i in range(70)), max_new=30, stop=ENDLESS),
    GenerationRequest((5, 6, 7) * 3, max_new=40, stop=ENDLESS, sampling=SamplingParams(temperature=1.0, seed=11)),
    GenerationRequest((9,), max_new=20, stop=ENDLESS, sampling=SamplingParams(frequency_penalty=1.0)),
    GenerationRequest((8,) * 63, max_new=25, stop=ENDLESS, sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=3)),
]


@pytest.mark.parametrize("kv_dtype", ["int8", "bf16"])
@pytest.mark.parametrize("kind", ["own", "own-shortlist", "attached", "ngram", "dflash2"])
def test_answers_are_those_without_drafts(kind: str, kv_dtype: str, tmp_path: Path) -> None:
    made = files(kind, tmp_path)
    with Artifact.open(made["target"]) as artifact:
        with engine_of(without_drafts(made), artifact, kv_dtype=kv_dtype) as engine:
            plain = [run(engine, request).ids for request in REQUESTS]
        shapes: tuple[dict[str, Any], ...] = (
            {"max_concurrency": 1, "draft_tokens": 4},
            {"max_concurrency": 4, "draft_tokens": 3, "prefill_chunk": 11, "threads": 2},
        )
        for shape in shapes:
            with engine_of(made, artifact, kv_dtype=kv_dtype, **shape) as engine:
                ids = [engine.submit(request) for request in REQUESTS]
                outcomes: dict[int, Outcome] = collect(engine.drain())
                assert_all_memory_is_free(engine)
            assert [outcomes[i].ids for i in ids] == plain
            assert all(outcomes[i].finished.rounds.counts.drafted > 0 for i in ids)


@pytest.mark.parametrize("kind", ["own", "own-shortlist", "attached", "ngram", "dflash2"])
def test_the_plan_is_what_target_and_draft_hold(kind: str, tmp_path: Path) -> None:
    made = files(kind, tmp_path)
    with Artifact.open(made["target"]) as artifact, engine_of(made, artifact, max_concurrency=2) as engine:
        planned = {item.name: item.num_bytes for item in engine.plan.memory}
        proposer: Any = engine._speculation._proposer  # type: ignore[union-attr]  # only tests look inside
        draft = getattr(proposer, "_second", proposer)._draft
        held = {name: size for name, size in engine._model.memory.items() if size}  # type: ignore[attr-defined]
        assert {name: planned[name] for name in held} == held
        assert {f"draft {name}": size for name, size in draft.memory.items() if size} == {
            name: size for name, size in planned.items() if name.startswith("draft ")
        }
        assert planned["draft weights"] > 0
        assert planned["draft kv"] > 0
        plan = engine.plan
        assert plan.speculation is not None
        assert plan.speculation.shortlist == (30 if kind == "own-shortlist" else None)
        shown = render(plan, plan.total_bytes, {"int8": 64})
        assert f"{made['spec']}, accepted by replay" in shown
        assert made.get("draft", "of the model itself") in shown
        assert ("a shortlist of 30 tokens" if kind == "own-shortlist" else "all tokens") in shown


def other_target(made: dict[str, Any], directory: Path) -> dict[str, Any]:
    weights = tiny_llama.random_weights(LLAMA, seed=9)
    return made | {"target": tiny_llama.write_artifact(directory / "other.ninfer", LLAMA, weights, "f32")}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("attached", {"spec": "off"}, "draft is .*draft.ninfer and spec is off"),
        ("attached", {"spec": "ngram"}, "draft is .*draft.ninfer and spec is ngram"),
        ("attached", {"draft": None}, r"target\.ninfer has no MTP module of its own"),
        (
            "attached",
            {"lm_head_draft": True},
            r"lm_head_draft needs a shortlist, and the draft .*draft\.ninfer has none",
        ),
        ("attached", {"spec": "dflash2"}, r"spec dflash2: the draft .*draft\.ninfer is one of architecture 'mtp'"),
        ("dflash2", {"spec": "mtp"}, r"spec mtp: the draft .*draft\.ninfer is one of architecture 'dflash'"),
        ("dflash2", {"draft": None}, "spec dflash2: no draft is attached"),
        ("dflash2", {"draft_tokens": 5}, "draft_tokens is 5; spec dflash2 gives at most 4 here"),
        ("own", {"lm_head_draft": True}, "lm_head_draft needs a shortlist, and no draft is attached"),
        ("own", {"draft_tokens": 9}, "draft_tokens is 9; spec mtp gives at most 8 here"),
        ("attached", {"draft": ""}, "draft must be the path of a file"),
        ("attached", {"draft": "missing.ninfer"}, "missing.ninfer"),
    ],
)
def test_what_does_not_fit_together_is_refused(kind: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    made = files(kind, tmp_path)
    with Artifact.open(made["target"]) as artifact, pytest.raises(NInferError, match=words):
        engine_of(made, artifact, **changes)


def test_a_draft_of_another_model_is_refused_by_both_names(tmp_path: Path) -> None:
    made = other_target(files("attached", tmp_path), tmp_path)
    words = r"the draft .*draft\.ninfer was made for a model with weights_digest \w+; .*other\.ninfer has \w+"
    with Artifact.open(made["target"]) as artifact, pytest.raises(ConfigError, match=words):
        engine_of(made, artifact)


def test_a_draft_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    made = files("attached", tmp_path)
    with Artifact.open(made["target"]) as artifact:
        config = EngineConfig(max_context=64, spec="mtp", draft=made["draft"])
        plan = plan_engine(config, artifact, detect_hardware())
        module = mtp_config(target_in(made["target"]))
        write_companion(Path(made["draft"]), module, tiny_drafts.random_weights(module, seed=77))
        with pytest.raises(ConfigError, match="plan again"):
            load_engine(plan, artifact)
