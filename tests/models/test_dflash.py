"""Block drafts against the torch code of their authors: published directories, masks, positions, both parts of DFlash2.

The `dflash` package is part of the `dev` extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from make import dflash_torch, tiny_drafts, tiny_llama
from make.dflash_torch import TorchDraft
from make.op_runs import BACKENDS
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.decoding import SamplingParams
from ninfer.decoding.proposer import Committed, DraftTask
from ninfer.decoding.proposers.dflash import DFlashProposer, processed
from ninfer.decoding.random import Purpose, uniform
from ninfer.errors import ArtifactError, ConfigError, ConversionError
from ninfer.models import RuntimeOptions, load_model
from ninfer.models.drafts import find_dflash, load_draft, plan_draft_memory

LLAMA = tiny_llama.CONFIGS["uneven"]
HIDDEN, VOCAB = LLAMA.hidden_size, LLAMA.vocab_size
NUM_PAGES, LANES = 9, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "dflash": {"second": False},
    "dflash-both-ways": {"second": False, "is_causal": False},
    "dflash-causal": {"second": False, "is_causal": True},
    "dflash2": {"second": True},
    "dflash2-capped": {"second": True, "is_causal": False, "final_logit_softcapping": 4.0, "output_multiplier": 0.7},
}


def settings(**changes: Any) -> dict[str, Any]:
    return dflash_torch.config(hidden=HIDDEN, vocab=VOCAB, target_layers=LLAMA.num_layers, **changes)


def options(backend: str, **changes: Any) -> RuntimeOptions:
    where = {"backend": "reference"} if backend == "reference" else {"isa": backend, "threads": 2}
    exact = {"numerics": "f32", "kv_format": "bf16", "num_pages": NUM_PAGES, "max_rows": 40, "max_logit_rows": 5}
    return RuntimeOptions(**{**exact, **where, **changes})


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target") / "target.ninfer"
    return tiny_llama.write_artifact(path, LLAMA, tiny_llama.random_weights(LLAMA), "f32")


class GivenRows:
    """A target whose residuals are what a test says: two layers, side by side."""

    def __init__(self) -> None:
        self.rows = np.empty((0, 2 * HIDDEN), np.float32)

    def feature(self, layer: object) -> np.ndarray:
        return self.rows[:, :HIDDEN] if layer == 0 else self.rows[:, HIDDEN:]


@dataclass
class Loaded:
    drafts: DFlashProposer
    given: GivenRows
    torch: TorchDraft
    logits: list[np.ndarray]


class Watched:
    """A pass that keeps the logits it gave."""

    def __init__(self, inner: Any, logits: list[np.ndarray]) -> None:
        self._inner = inner
        self._logits = logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, *arguments: Any) -> np.ndarray:
        result: np.ndarray = self._inner.run(*arguments)
        self._logits.append(result.copy())
        return result


@contextmanager
def loaded(target: Path, tmp_path: Path, backend: str, **variant: Any) -> Iterator[Loaded]:
    """A published draft, imported, loaded and watched."""
    chosen = settings(**variant)
    model = dflash_torch.random_model(chosen)
    draft = tmp_path / "draft.ninfer"
    convert(dflash_torch.publish(model, chosen, tmp_path / "published"), draft, target_model=target)
    weights = tiny_llama.random_weights(LLAMA)
    with Artifact.open(target) as target_file, Artifact.open(draft) as draft_file:
        source = find_dflash(target_file, draft_file, shortlist=False)
        runs = load_model(target_file, options(backend))
        given = GivenRows()
        drafts = DFlashProposer(given, load_draft(source, runs, LANES))
        logits: list[np.ndarray] = []
        drafts._block = Watched(drafts._block, logits)  # type: ignore[assignment]
        try:
            yield Loaded(drafts, given, TorchDraft(model, weights["embed"], weights["embed"]), logits)
        finally:
            drafts.close()
            runs.close()


@dataclass
class Text:
    """Tokens to come and the target's rows; `done` of them are final."""

    id: int
    tokens: np.ndarray
    rows: np.ndarray
    pages: np.ndarray
    done: int = 0

    def task(self, window: int, **more: Any) -> DraftTask:
        needed = -(-(self.done + 1 + window) // 64)
        sampling = more.pop("sampling", SamplingParams())
        return DraftTask(self.id, self.tokens[: self.done + 1], self.pages[:needed], window, sampling, **more)


def texts(count: int, length: int = 150) -> list[Text]:
    rng = np.random.default_rng(6)
    ids = rng.permutation(NUM_PAGES).astype(np.int32)
    return [
        Text(
            id=10 + i,
            tokens=rng.integers(0, VOCAB, length).astype(np.int32),
            rows=rng.standard_normal((length, 2 * HIDDEN)).astype(np.float32),
            pages=ids[3 * i : 3 * i + 3],
        )
        for i in range(count)
    ]


def observe(on: Loaded, steps: list[tuple[Text, int]]) -> None:
    """One step of the engine, with rejected rows behind those of every text."""
    committed, rows = [], []
    for text, count in steps:
        start = sum(len(part) for part in rows)
        rows += [text.rows[text.done : text.done + count], np.full((2, 2 * HIDDEN), np.nan, np.float32)]
        known = text.tokens[: text.done + count + 1]
        committed.append(
            Committed(text.id, known, text.pages[: -(-(text.done + count) // 64)], text.done, count, start)
        )
        text.done += count
    on.given.rows = np.concatenate(rows)
    on.drafts.observe(committed)
    on.given.rows[:] = np.nan


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_drafts_are_those_of_the_authors_code(
    variant: str, backend: str, target: Path, tmp_path: Path
) -> None:
    """Prompts in chunks, every accept count, blocks over page borders with and without a page of their own."""
    errors = []
    with loaded(target, tmp_path, backend, **VARIANTS[variant]) as on:
        first, second = texts(2)
        observe(on, [(first, 30), (second, 3)])
        observe(on, [(first, 29), (second, 5)])
        for step in range(8):
            windows = (1 + step % 5, 5)
            drafts = on.drafts.propose([first.task(windows[0]), second.task(windows[1])])
            logits, row = on.logits[-1], 0
            for text, window, draft in zip((first, second), windows, drafts, strict=True):
                anchor = int(text.tokens[text.done])
                hidden = on.torch.hidden(text.rows[: text.done], anchor)
                want = on.torch.logits(hidden).numpy()[:window]
                got = processed(logits[row : row + window], on.drafts._config)
                row += window
                errors.append(np.abs(got - want).max() / np.abs(want).max())
                path = on.torch.select(hidden, anchor) if variant.startswith("dflash2") else want.argmax(axis=1)
                assert len(draft.ids) == window
                if errors[-1] < 1e-5:
                    assert draft.ids == tuple(path[:window])
            observe(on, [(first, 1 + step % 6), (second, 20 if step < 5 else 1)])
    assert max(errors) < 2e-2, "a rounded key or value may fall to the other side"
    assert np.quantile(errors, 0.2) < 1e-5
    assert np.median(errors) < 2e-3


@pytest.mark.parametrize("isa", [name for name in BACKENDS if name != "reference"])
def test_company_chunks_and_windows_change_no_draft(isa: str, target: Path, tmp_path: Path) -> None:
    found = []
    with loaded(target, tmp_path, isa, second=True) as on:
        for chunks in ([100], [99, 1], [10] * 10, [1] * 100):
            text, other = texts(2)
            for index, count in enumerate(chunks):
                observe(on, [(text, count)] if len(chunks) != 10 else [(other, 2), (text, count)])
                if len(chunks) == 100 and index % 9 == 0:
                    on.drafts.propose([text.task(4)])
            tasks = [text.task(5)] if len(chunks) != 10 else [other.task(2), text.task(5)]
            found.append(on.drafts.propose(tasks)[-1])
            assert on.drafts.propose([text.task(3)])[0].ids == found[-1].ids[:3], "a block can be filled again"
            on.drafts.settle(text.id)
            assert on.drafts.propose([text.task(5)])[0] == found[-1]
            on.drafts.forget(text.id)
            on.drafts.forget(other.id)
            assert on.drafts.propose([text.task(5)])[0].ids == ()
    assert len(set(found)) == 1


def test_sampled_drafts_say_what_they_were_drawn_from(target: Path, tmp_path: Path) -> None:
    """DFlash2 draws from the softmax of its scores alone, without the request's filters."""
    sampling = SamplingParams(temperature=0.7, top_k=2, top_p=0.5, seed=9)
    with loaded(target, tmp_path, BACKENDS[-1], second=True) as on:
        (text,) = texts(1)
        observe(on, [(text, 50)])
        draft = on.drafts.propose([text.task(5, sampling=sampling, seed=9)])[0]
        anchor = int(text.tokens[50])
        hidden = on.torch.hidden(text.rows[:50], anchor)
        logits, selector = on.torch.logits(hidden), on.torch.model.candidate_selector
        before = anchor
        assert draft.distributions is not None
        with torch.no_grad():
            factors = selector.hidden_projection(hidden[0])
            for slot, (token, drawn) in enumerate(zip(draft.ids, draft.distributions, strict=True)):
                best = torch.sort(torch.topk(logits[slot], 5).indices).values
                coupling = selector.predecessor_codebook.weight[before] * factors[slot]
                scores = logits[slot, best] + selector.successor_codebook.weight[best] @ coupling
                np.testing.assert_array_equal(drawn.ids, best.numpy())
                np.testing.assert_allclose(drawn.probabilities, torch.softmax(scores / 0.7, 0), rtol=1e-2, atol=1e-4)
                assert token == drawn.draw(uniform(9, 51 + slot, Purpose.DRAFT))
                before = token


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("second", [False, True])
def test_the_plan_is_what_is_held(second: bool, backend: str, target: Path, tmp_path: Path) -> None:
    config = tiny_drafts.dflash_config(
        tiny_drafts.target_in(target), **({} if second else {"conv": None, "selector": None})
    )
    weights = tiny_drafts.random_weights(config)
    path = tiny_drafts.write_companion(tmp_path / "draft.ninfer", config, weights, "bf16")
    with Artifact.open(target) as target_file, Artifact.open(path) as draft_file:
        source = find_dflash(target_file, draft_file, shortlist=False)
        model = load_model(target_file, options(backend))
        draft = load_draft(source, model, LANES)
        assert draft.memory == plan_draft_memory(source, model.options, LANES)
        draft.close()
        model.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"input_embedding_scale": 2.0}, "input_embedding_scale"),
        ({"dflash_config": {"mask_token_id": 3, "swa_window_size": 3}}, "dflash_config.swa_window_size"),
        ({"dflash_config": {"mask_token_id": VOCAB}}, "dflash_config.mask_token_id"),
        ({"dflash_config": {}}, "mask_token_id"),
        ({"hidden_size": 64}, "hidden_size.*the target has 96"),
        ({"vocab_size": 212}, "vocab_size.*the target has 211"),
        ({"num_target_layers": 4}, "num_target_layers.*the target has 3"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"sliding_window": 3}, "windows"),
        ({"block_size": 17, "dflash_config": {"mask_token_id": 3}}, "block_size"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
    ],
)
def test_what_is_not_understood_is_named(changes: dict[str, Any], words: str, target: Path, tmp_path: Path) -> None:
    chosen = settings(second=False)
    source = dflash_torch.publish(dflash_torch.random_model(chosen), chosen | changes, tmp_path / "published")
    with pytest.raises((ConversionError, ArtifactError), match=words):
        convert(source, tmp_path / "draft.ninfer", target_model=target)


def test_foreign_tensors_and_missing_targets_are_named(target: Path, tmp_path: Path) -> None:
    chosen = settings(second=True)
    model = dflash_torch.random_model(chosen)
    plain = settings(second=False)
    source = dflash_torch.publish(model, plain, tmp_path / "second-as-first")
    with pytest.raises(ConversionError, match=r"without a rule: .*candidate_selector"):
        convert(source, tmp_path / "draft.ninfer", target_model=target)
    source = dflash_torch.publish(model, chosen, tmp_path / "second")
    with pytest.raises(ConversionError, match="--target"):
        convert(source, tmp_path / "draft.ninfer")
    with Artifact.open(target) as target_file, pytest.raises(ConfigError, match="no draft is attached"):
        find_dflash(target_file, None, shortlist=False)


def test_layers_that_are_not_listed_are_those_of_the_authors(target: Path, tmp_path: Path) -> None:
    from dflash.model import build_target_layer_ids

    from ninfer.convert.fields import Fields
    from ninfer.convert.names.dflash import _feature_layers, _Settings

    for target_layers in (5, 24, 36, 64):
        for num_layers in (1, 2, 3, 5):
            fields = _Settings(Fields({}, Path("config.json")))
            wide = replace(tiny_drafts.target_in(target), num_layers=target_layers)
            assert _feature_layers(fields, wide, num_layers) == build_target_layer_ids(target_layers, num_layers)


@pytest.mark.parametrize("weights", ["q8g32", "bf16", None])
def test_codebooks_stay_floats_whatever_format_is_chosen(weights: str | None, target: Path, tmp_path: Path) -> None:
    chosen = settings(second=True)
    source = dflash_torch.publish(dflash_torch.random_model(chosen), chosen, tmp_path / "published")
    convert(source, tmp_path / "draft.ninfer", target_model=target, weights=weights)
    with Artifact.open(tmp_path / "draft.ninfer") as draft:
        assert draft.tensors["dflash.selector.successor"].format == "f32"
        assert draft.tensors["dflash.fc"].format == (weights or "f32")
