"""MTP drafts against a float64 model of the oracles: alignment of columns, chaining, any order of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from make import tiny_drafts, tiny_hybrid, tiny_llama
from make.mtp_oracle import MTPOracle
from make.op_runs import BACKENDS
from ninfer.artifact import Artifact
from ninfer.decoding import SamplingParams, distribution
from ninfer.decoding.proposer import Committed, Draft, DraftTask
from ninfer.decoding.proposers.columns import MAX_PENDING
from ninfer.decoding.proposers.mtp import MTPProposer
from ninfer.decoding.random import Purpose, uniform
from ninfer.errors import ArtifactError, ConfigError
from ninfer.models import RuntimeOptions, load_model
from ninfer.models.companion import SHORTLIST_IDS, DraftHeadConfig
from ninfer.models.drafts import DraftSource, find_mtp, load_draft, plan_draft_memory
from ninfer.models.mtp import MTPModule

LLAMA = tiny_llama.CONFIGS["uneven"]
HYBRID = replace(tiny_hybrid.CONFIG, num_mtp_layers=1, tied_head=False)
KINDS = ("own", "plain", "gated")
NUM_PAGES = 12
LANES = 5


@dataclass
class Files:
    """A target, perhaps a companion, and all float32 weights of both."""

    target: Path
    draft: Path | None
    weights: dict[str, np.ndarray]


def write(kind: str, directory: Path, *, shortlist: int | None = None, format: str = "f32") -> Files:
    if kind == "own":
        weights = tiny_hybrid.random_weights(HYBRID)
        target = tiny_hybrid.write_artifact(directory / "target.ninfer", HYBRID, weights, format)
        if shortlist is None:
            return Files(target, None, weights)
        config: Any = DraftHeadConfig(tiny_drafts.target_in(target), shortlist)
    else:
        weights = tiny_llama.random_weights(LLAMA)
        target = tiny_llama.write_artifact(directory / "target.ninfer", LLAMA, weights, format)
        config = tiny_drafts.mtp_config(tiny_drafts.target_in(target), kind, shortlist)
    added = tiny_drafts.random_weights(config)
    draft = tiny_drafts.write_companion(directory / "draft.ninfer", config, added, format)
    return Files(target, draft, weights | added)


def options(backend: str, **changes: Any) -> RuntimeOptions:
    where = {"backend": "reference"} if backend == "reference" else {"isa": backend, "threads": 2}
    exact = {"numerics": "f32", "kv_format": "bf16", "num_pages": NUM_PAGES, "max_rows": 40, "max_logit_rows": 5}
    return RuntimeOptions(**{**exact, "num_state_slots": 1, **where, **changes})


class GivenRows:
    """A target whose rows are what a test says."""

    def __init__(self) -> None:
        self.rows = np.empty((0, 0), np.float32)

    def feature(self, feature: object) -> np.ndarray:
        assert feature == "final"
        return self.rows


@contextmanager
def proposer(
    files: Files, backend: str, *, shortlist: bool = False, **changes: Any
) -> Iterator[tuple[MTPProposer, GivenRows, DraftSource]]:
    target_file = Artifact.open(files.target)
    draft_file = None if files.draft is None else Artifact.open(files.draft)
    source = find_mtp(target_file, draft_file, shortlist=shortlist)
    model = load_model(target_file, options(backend, **changes))
    rows = GivenRows()
    drafts = MTPProposer(rows, load_draft(source, model, LANES))
    try:
        yield drafts, rows, source
    finally:
        drafts.close()
        model.close()


def oracle_of(files: Files, source: DraftSource) -> MTPOracle:
    module = source.module
    assert isinstance(module, MTPModule)
    weights = {name: files.weights[name] for name in module.tensor_shapes()}
    head = files.weights[source.head.weight][: source.head.num_logits]
    return MTPOracle(module, weights, files.weights["embed"], head)


@dataclass
class Text:
    """A sequence of which `done` tokens are final: all its tokens to come, and rows of the target for each."""

    id: int
    tokens: np.ndarray
    rows: np.ndarray
    pages: np.ndarray
    done: int = 0
    known: int = field(default=0)

    def advance(self, count: int, known: int) -> Committed:
        """The next `count` tokens become final; the first `known` are there then."""
        position, self.done, self.known = self.done, self.done + count, known
        return Committed(self.id, self.tokens[:known], self.pages, position, count, 0)

    def task(self, window: int, **more: Any) -> DraftTask:
        sampling = more.pop("sampling", SamplingParams())
        return DraftTask(self.id, self.tokens[: self.known], self.pages, window, sampling, **more)


def texts(count: int, vocab: int, hidden: int, length: int = 90) -> list[Text]:
    rng = np.random.default_rng(6)
    ids = rng.permutation(NUM_PAGES).astype(np.int32)
    return [
        Text(
            id=10 + i,
            tokens=rng.integers(0, vocab, length).astype(np.int32),
            rows=rng.standard_normal((length, hidden)).astype(np.float32),
            pages=ids[2 * i : 2 * i + 2],
        )
        for i in range(count)
    ]


def observe(drafts: MTPProposer, given: GivenRows, steps: Sequence[tuple[Text, int, int]]) -> None:
    """One step of the engine: (text, tokens that become final, tokens known then); rejected rows lie in between."""
    committed, rows = [], []
    for text, count, known in steps:
        start = sum(len(part) for part in rows)
        rows.append(text.rows[text.done : text.done + count])
        rows.append(np.full((3, text.rows.shape[1]), np.nan, np.float32))
        committed.append(replace(text.advance(count, known), row=start))
    given.rows = np.concatenate(rows)
    drafts.observe(committed)
    given.rows[:] = np.nan  # what is needed later must have been copied


def assert_drafts(oracle: MTPOracle, text: Text, draft: Draft, window: int, ids: np.ndarray | None = None) -> None:
    want, logits = oracle.draft(text.rows[: text.done], text.tokens[: text.known], window)
    for token, best, row in zip(draft.ids, want, logits, strict=True):
        top = np.sort(row)[-2:]
        if top[1] - top[0] > 1e-2:  # else rounded keys and values may decide otherwise, also for all that follow
            assert token == best
        elif token != best:
            return


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_float64_model(kind: str, backend: str, tmp_path: Path) -> None:
    """Prompts in chunks of any size beside decoding, every accept count, windows of any length."""
    files = write(kind, tmp_path)
    with proposer(files, backend) as (drafts, given, source):
        oracle = oracle_of(files, source)
        hidden, vocab = files.weights["embed"].shape[1], source.target_config.num_decodable
        first, second, third = texts(3, vocab, hidden)
        observe(drafts, given, [(first, 5, 6)])
        observe(drafts, given, [(first, 1, 7), (second, 33, 60)])
        compared = 0
        rng = np.random.default_rng(2)
        for step in range(12):
            windows = [(step % 8) + 1, int(rng.integers(1, 9)), 3]
            live = [text for text in (first, second, third) if text.done and text.known == text.done + 1]
            tasks = [text.task(window) for text, window in zip(live, windows, strict=False)]
            for task, text, draft in zip(tasks, live, drafts.propose(tasks), strict=True):
                assert len(draft.ids) == task.window
                assert draft.distributions is None
                assert_drafts(oracle, text, draft, task.window)
                compared += 1
            steps = [(text, 1 + step % 5, text.done + 1 + step % 5 + 1) for text in live]
            if second.done < 59:
                count = min(20, 59 - second.done)
                steps.append((second, count, 60))
            if step == 4:
                steps.append((third, 17, 18))
            observe(drafts, given, steps)
        assert compared > 24


@pytest.mark.parametrize("isa", [name for name in BACKENDS if name != "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_company_chunks_and_windows_change_no_draft(kind: str, isa: str, tmp_path: Path) -> None:
    """The determinism law for drafts, under the arithmetic that runs by default."""
    files = write(kind, tmp_path, format="q8g32")
    changes = {"numerics": "a8", "kv_format": "int8"}
    with proposer(files, isa, **changes) as (drafts, given, source):
        hidden, vocab = files.weights["embed"].shape[1], source.target_config.num_decodable
        found = []
        for chunks in ([70], [69, 1], [7] * 10, [1] * 70, [40, 30]):
            (text, other) = texts(2, vocab, hidden)
            for i, count in enumerate(chunks):
                steps = [(text, count, 71 if i == len(chunks) - 1 else text.done + count + 1)]
                if len(chunks) == 10:
                    steps.insert(0, (other, 2, 3 + 2 * i))
                observe(drafts, given, steps)
                if len(chunks) == 70 and i % 9 == 0:
                    drafts.propose([text.task(4)])
            tasks = [text.task(8)] if len(chunks) != 10 else [other.task(2), text.task(8)]
            found.append(drafts.propose(tasks)[-1])
            drafts.forget(text.id)
            drafts.forget(other.id)
        assert len(set(found)) == 1
        assert len(found[0].ids) == 8


@pytest.mark.parametrize("kind", ["own", "plain"])
def test_a_shortlist_restricts_drafts_to_its_tokens(kind: str, tmp_path: Path) -> None:
    files = write(kind, tmp_path, shortlist=23)
    ids = files.weights[SHORTLIST_IDS].astype(int)
    if kind == "own":
        ids %= HYBRID.num_decodable
    with proposer(files, BACKENDS[-1], shortlist=True) as (drafts, given, source):
        oracle = oracle_of(files, source)
        (text,) = texts(1, source.target_config.num_decodable, files.weights["embed"].shape[1])
        observe(drafts, given, [(text, 30, 31)])
        draft = drafts.propose([text.task(1)])[0]
        (best,), _ = oracle.draft(text.rows[:30], text.tokens[:31], 1)
        assert draft.ids == (ids[best],)


def test_sampled_drafts_say_what_they_were_drawn_from(tmp_path: Path) -> None:
    files = write("plain", tmp_path, shortlist=40)
    ids = files.weights[SHORTLIST_IDS].astype(int)
    sampling = SamplingParams(temperature=0.9, top_k=12, top_p=0.95, frequency_penalty=1.0, seed=4)
    with proposer(files, BACKENDS[-1], shortlist=True) as (drafts, given, source):
        oracle = oracle_of(files, source)
        (text,) = texts(1, LLAMA.vocab_size, LLAMA.hidden_size)
        observe(drafts, given, [(text, 30, 31)])
        draft = drafts.propose([text.task(3, sampling=sampling, seed=4)])[0]
    assert draft.distributions is not None
    _, logits = oracle.draft(text.rows[:30], text.tokens[:31], 1)
    want = distribution(logits[0].astype(np.float32), SamplingParams(temperature=0.9, top_k=12, top_p=0.95), None)
    np.testing.assert_array_equal(draft.distributions[0].ids, ids[want.ids])
    np.testing.assert_allclose(draft.distributions[0].probabilities, want.probabilities, rtol=1e-2)
    for i, (token, drawn_from) in enumerate(zip(draft.ids, draft.distributions, strict=True)):
        assert token == drawn_from.draw(uniform(4, 31 + i, Purpose.DRAFT))
        assert set(drawn_from.ids) <= set(ids)


def test_a_sequence_without_new_rows_gets_no_draft(tmp_path: Path) -> None:
    files = write("plain", tmp_path)
    with proposer(files, BACKENDS[-1]) as (drafts, given, source):
        text, other = texts(2, LLAMA.vocab_size, LLAMA.hidden_size)
        assert drafts.propose([replace(text.task(2), tokens=text.tokens[:1])])[0].ids == ()
        observe(drafts, given, [(text, 30, 31), (other, 3, 4)])
        assert len(drafts.propose([text.task(2)])[0].ids) == 2
        assert [len(draft.ids) for draft in drafts.propose([text.task(2), other.task(5)])] == [0, 5]
        observe(drafts, given, [(text, 1, 32)])
        draft = drafts.propose([text.task(4)])[0]
        assert_drafts(oracle_of(files, source), text, draft, 4)
        drafts.forget(text.id)
        assert drafts.propose([text.task(2)])[0].ids == ()


@pytest.mark.parametrize("length", [60, 63, 64, 65, 70])
def test_a_settled_page_is_complete_and_never_written_again(length: int, tmp_path: Path) -> None:
    """What lies behind the last full page goes on waiting for its draft."""
    files = write("plain", tmp_path)
    with proposer(files, BACKENDS[-1]) as (drafts, given, source):
        oracle = oracle_of(files, source)
        (text,) = texts(1, LLAMA.vocab_size, LLAMA.hidden_size)
        observe(drafts, given, [(text, 55, 56)])
        for _ in range(length - 55):
            observe(drafts, given, [(text, 1, text.done + 2)])
        drafts.settle(text.id)
        assert drafts._backlog.count(text.id) == (length - 54 if length < 64 else length - 64)
        ran: list[int] = []
        run, module = drafts._module.run, drafts._module
        drafts._module = SimpleNamespace(  # type: ignore[assignment]
            max_rows=module.max_rows,
            executable=module.executable,
            run=lambda batch, rows: ran.extend(batch.positions()) or run(batch, rows),
        )
        draft = drafts.propose([text.task(3)])[0]
        if length == 64:
            assert draft.ids == ()
        else:
            assert_drafts(oracle, text, draft, 3)
        observe(drafts, given, [(text, 1, length + 2)])
        assert_drafts(oracle, text, drafts.propose([text.task(5)])[0], 5)
        assert min(ran) >= (64 if length >= 64 else 0)
        drafts._module = module


def test_rows_kept_without_drafting_are_bounded(tmp_path: Path) -> None:
    files = write("plain", tmp_path)
    with proposer(files, BACKENDS[-1]) as (drafts, given, source):
        (text,) = texts(1, LLAMA.vocab_size, LLAMA.hidden_size)
        for count in [40, *[1] * 30]:
            observe(drafts, given, [(text, count, text.done + count + 1)])
            assert 1 <= drafts._backlog.count(text.id) <= MAX_PENDING
        assert_drafts(oracle_of(files, source), text, drafts.propose([text.task(5)])[0], 5)


@pytest.mark.parametrize("weights_memory", ["mapped", "auto"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_what_is_held_and_shared_weights_are_held_once(
    kind: str, backend: str, weights_memory: str, tmp_path: Path
) -> None:
    files = write(kind, tmp_path, format="q8g32")
    changes: dict[str, Any] = {"weights_memory": weights_memory}
    with proposer(files, backend, **changes) as (drafts, _, source):
        plan = plan_draft_memory(source, options(backend, **changes), LANES)
        assert drafts._draft.memory == plan
        own = sum(file.tensors[name].nbytes for name, file in source.files.items())
        if backend != "reference":
            assert plan["weights"] == own


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    bare = write("plain", tmp_path)
    assert bare.draft is not None
    with Artifact.open(bare.target) as target, Artifact.open(bare.draft) as draft:
        with pytest.raises(ConfigError, match=r"spec mtp: .*target\.ninfer has no MTP module"):
            find_mtp(target, None, shortlist=False)
        with pytest.raises(ConfigError, match=r"lm_head_draft .*draft\.ninfer has none"):
            find_mtp(target, draft, shortlist=True)
    config = tiny_drafts.dflash_config(tiny_drafts.target_in(bare.target))
    other = tiny_drafts.write_companion(tmp_path / "other.ninfer", config, tiny_drafts.random_weights(config))
    refusal = pytest.raises(ConfigError, match=r"spec mtp: .*other\.ninfer is one of architecture 'dflash'")
    with Artifact.open(bare.target) as target, Artifact.open(other) as draft, refusal:
        find_mtp(target, draft, shortlist=False)


@pytest.mark.parametrize("wrong", [[3, 2, 9], [0, 1, 1], [5, 6, 211], [-1, 3, 4], [1.5, 2, 3], [np.nan, 2, 3]])
def test_a_wrong_shortlist_is_refused(wrong: list[float], tmp_path: Path) -> None:
    files = write("plain", tmp_path)
    config = tiny_drafts.mtp_config(tiny_drafts.target_in(files.target), shortlist_size=3)
    weights = tiny_drafts.random_weights(config) | {SHORTLIST_IDS: np.array(wrong, np.float32)}
    path = tiny_drafts.write_companion(tmp_path / "wrong.ninfer", config, weights)
    with Artifact.open(files.target) as target, Artifact.open(path) as draft:
        model = load_model(target, options(BACKENDS[-1]))
        with pytest.raises(ArtifactError, match=r"wrong\.ninfer: shortlist\.ids"):
            load_draft(find_mtp(target, draft, shortlist=True), model, LANES)
        model.close()


def test_more_pending_columns_than_a_pass_has_rows_give_the_same_drafts(tmp_path: Path) -> None:
    files = write("plain", tmp_path)
    with proposer(files, BACKENDS[-1]) as (drafts, given, _):
        found = []
        for together in (True, False):
            live = texts(3, LLAMA.vocab_size, LLAMA.hidden_size)
            for _ in range(MAX_PENDING):
                observe(drafts, given, [(text, 1, text.done + 2) for text in live])
            tasks = [text.task(3) for text in live]
            assert sum(drafts._backlog.count(text.id) for text in live) > drafts._module.max_rows
            found.append(drafts.propose(tasks) if together else [drafts.propose([task])[0] for task in tasks])
            for text in live:
                drafts.forget(text.id)
    assert found[0] == found[1]
