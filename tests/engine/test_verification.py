"""Drafts change how many tokens a step gives and nothing else: endings, text and accounts inside verified blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import (
    DRAFT_KINDS,
    Outcome,
    assert_all_memory_is_free,
    collect,
    draft_kinds,
    expected,
    formula_engine,
    formula_model,
    run,
)

from make.tiny_tokenizer import tiny_metadata
from ninfer.cache import StateLayout
from ninfer.decoding import Candidates, SamplingParams
from ninfer.decoding.grammar import GrammarCompiler
from ninfer.decoding.proposer import Draft, DraftTask
from ninfer.decoding.random import Purpose, uniform
from ninfer.engine import Delta, Engine, GenerationRequest, StopRules, Thinking
from ninfer.engine.config import DraftRule
from ninfer.engine.plan import SpeculationPlan, StatePlan
from ninfer.engine.testing import (
    FaultyModel,
    FormulaModel,
    ScriptedModel,
    ScriptedProposer,
    known_drafts,
    make_plan,
    random_drafts,
)
from ninfer.errors import BackendError, InvariantError
from ninfer.metrics import FinishReason
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer

END = 2
WINDOWS = range(1, 9)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata()))


def always(position: int) -> bool:
    return True


def says(
    tokenizer: Tokenizer, script: Sequence[int], request: GenerationRequest, window: int, right: object = always
) -> Outcome:
    """What comes out of a model that emits `script`; with a window its drafts are right where `right` says so."""
    plan = make_plan(vocab_size=400, max_context=512, end_token_ids=(END,), verify_rows=1 + window)
    texts = [[*request.prompt_ids, *script, END, END]]
    proposer = ScriptedProposer(known_drafts(texts, right, 400), window) if window else None  # type: ignore[arg-type]
    return run(Engine(plan, ScriptedModel(400, [*script, END]), tokenizer, proposer=proposer), request)


def assert_same_answer(got: Outcome, want: Outcome) -> None:
    assert (got.ids, got.text, got.finished.reason, got.finished.stop) == (
        want.ids, want.text, want.finished.reason, want.finished.stop
    )  # fmt: skip
    assert got.finished.usage == want.finished.usage


@pytest.mark.parametrize("stop", [(","), (" 7"), ("12, 13"), ("8, 9, 10", "3, 4"), ("never",), ()])
def test_a_stop_string_early_inside_an_accepted_block_is_found(tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    """C016."""
    script = tokenizer.encode(", ".join(map(str, range(1, 20))))
    request = GenerationRequest((7,), stop=StopRules(strings=tuple(stop)))
    plain = says(tokenizer, script, request, 0)
    for window in WINDOWS:
        drafted = says(tokenizer, script, request, window)
        assert_same_answer(drafted, plain)
        counts = drafted.finished.rounds.counts
        assert counts.accepted == counts.drafted, "drafts behind the end are not counted, all others were right"


@pytest.mark.parametrize("item", ["yellow", "green"])
def test_the_stop_string_is_tested_before_the_limit(tokenizer: Tokenizer, item: str) -> None:
    """C015."""
    script = tokenizer.encode("red orange yellow green blue red orange yellow green blue")
    stop = StopRules(strings=(item,))
    reached = len(says(tokenizer, script, GenerationRequest((7,), stop=stop), 0).ids)
    for max_new in range(max(1, reached - 2), reached + 7):
        request = GenerationRequest((7,), max_new=max_new, stop=stop)
        plain = says(tokenizer, script, request, 0)
        for window in WINDOWS:
            assert_same_answer(says(tokenizer, script, request, window), plain)


@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("max_new", [1, 2, 3, 4, 5, 40, None])
def test_limits_and_the_end_of_the_context(kind: str, max_new: int | None) -> None:
    for window in (1, 4, 8):
        plan = make_plan(vocab_size=50, max_context=96, verify_rows=1 + window)
        request = GenerationRequest(tuple(range(40)), max_new=max_new)
        outcome = run(formula_engine(plan, draft_kinds(plan, [request])[kind]), request)
        assert (outcome.ids, outcome.finished.reason) == expected(request, plan)


@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
def test_every_accept_count_leaves_the_state_of_plain_decoding(rollback: str | None) -> None:
    """C135. Drafts are wrong at every k-th position, for every k; the watching model sees each page and each state."""
    for window in (1, 3, 8):
        state = None if rollback is None else StatePlan(StateLayout(rollback, 1 + window))  # type: ignore[arg-type]
        plan = make_plan(vocab_size=50, max_context=300, verify_rows=1 + window, state=state)
        request = GenerationRequest((1, 2, 3), max_new=150)
        ids, _ = expected(request, plan)
        for every in range(2, window + 3):
            drafts = known_drafts([[1, 2, 3, *ids]], lambda position, every=every: position % every != 0, 50)  # type: ignore[misc]
            engine = formula_engine(plan, drafts)
            outcome = run(engine, request)
            assert outcome.ids == ids
            counts = outcome.finished.rounds.counts
            assert counts.accepted_per_position[0] > 0
            assert_all_memory_is_free(engine)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(frequency_penalty=2.0),
        SamplingParams(frequency_penalty=-2.0, presence_penalty=2.0),
        SamplingParams(temperature=1.2, seed=5, top_k=20, top_p=0.9, repetition_penalty=1.3),
        SamplingParams(temperature=0.8, seed=6, min_p=0.02, logit_bias=((3, 5.0),)),
    ],
)
@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_penalties_and_sampling_see_the_tokens_of_the_block(kind: str, sampling: SamplingParams) -> None:
    """C050."""
    plan = make_plan(vocab_size=30, max_context=200, max_concurrency=6, verify_rows=6)
    requests = [GenerationRequest((4, 4, i + 1), max_new=60, sampling=sampling) for i in range(6)]
    engine = formula_engine(plan, draft_kinds(plan, requests)[kind])
    ids = [engine.submit(request) for request in requests]
    outcomes = collect(engine.drain())
    for request_id, request in zip(ids, requests, strict=True):
        assert outcomes[request_id].ids == expected(request, plan)[0]


def test_logprobs_are_those_of_each_token() -> None:
    plain, drafted = (make_plan(vocab_size=30, max_context=100, verify_rows=rows) for rows in (1, 5))
    request = GenerationRequest((1, 2), max_new=30, logprobs=3)
    alone = run(formula_engine(plain), request)
    together = run(formula_engine(drafted, draft_kinds(drafted, [request])["half right"]), request)
    assert together.ids == alone.ids
    found = [[logprob for delta in outcome.deltas for logprob in delta.logprobs] for outcome in (together, alone)]
    assert found[0] == found[1]
    assert len(together.deltas) < len(alone.deltas)


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 7, 8])
def test_a_thinking_budget_runs_out_inside_a_block(tokenizer: Tokenizer, budget: int) -> None:
    """C137: same text. The closing tag is forced wherever it falls, so that drafts of the model's words are wrong."""
    script = tokenizer.encode("so much to think about, and no end of it; red orange yellow")
    request = GenerationRequest((7,), max_new=60, thinking=Thinking("open", budget))
    plain = says(tokenizer, script, request, 0)
    for window in WINDOWS:
        assert_same_answer(says(tokenizer, script, request, window), plain)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.5, seed=8, top_k=40)])
@pytest.mark.parametrize("kind", ["random", "right", "wrong", "half right"])
def test_a_grammar_holds_at_every_row_of_a_block(tokenizer: Tokenizer, kind: str, sampling: SamplingParams) -> None:
    """Each row's mask is that behind the drafted tokens before it; a drafted token that is not allowed is refused."""
    grammar = GrammarCompiler(tokenizer, [END]).regex("[a-e]{3,9}(, [0-9]{1,4}){8,14}", param="grammar")
    vocab_size = tokenizer.vocab_size
    request = GenerationRequest((7, 8), max_new=80, constraint=grammar, sampling=sampling)
    settings = {"vocab_size": vocab_size, "max_context": 128, "end_token_ids": (END,)}
    plan = make_plan(**settings)  # type: ignore[arg-type]  # settings are of many types
    plain = run(Engine(plan, FormulaModel(plan), tokenizer), request)
    assert re.fullmatch("[a-e]{3,9}(, [0-9]{1,4}){8,14}", plain.text)
    text = [*request.prompt_ids, *plain.ids]
    for window in (1, 3, 8):
        plan = make_plan(**settings, verify_rows=1 + window)  # type: ignore[arg-type]
        right = {"right": always, "wrong": lambda position: False, "half right": lambda position: position % 3 > 0}
        drafts = random_drafts(vocab_size, 3) if kind == "random" else known_drafts([text], right[kind], vocab_size)
        drafted = run(Engine(plan, FormulaModel(plan), tokenizer, proposer=ScriptedProposer(drafts, window)), request)
        assert_same_answer(drafted, plain)
        assert drafted.finished.rounds.counts.drafted > 0


def test_always_right_drafts_fill_every_window() -> None:
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=5)
    request = GenerationRequest((1, 2, 3), max_new=41)
    outcome = run(formula_engine(plan, draft_kinds(plan, [request])["right"]), request)
    counts = outcome.finished.rounds.counts
    assert (counts.rounds, counts.drafted, counts.accepted) == (8, 32, 32)
    assert counts.accepted_per_position == counts.rounds_with_draft == (8, 8, 8, 8)
    assert counts.fallback_steps == 0


def test_always_wrong_drafts_give_a_token_a_round() -> None:
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=5)
    request = GenerationRequest((1, 2, 3), max_new=41)
    outcome = run(formula_engine(plan, draft_kinds(plan, [request])["wrong"]), request)
    counts = outcome.finished.rounds.counts
    assert (counts.rounds, counts.accepted) == (40, 0)
    assert counts.windows == (1, 1, 1, 1, 36), "the last rounds have less to say than the window holds"


def test_bad_logits_inside_a_block_keep_the_tokens_before_them() -> None:
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=5)
    request = GenerationRequest((1, 2, 3), max_new=40)
    ids, _ = expected(request, plan)
    model = FaultyModel(FormulaModel(plan), replace_at={2: (2, float("nan"))})
    proposer = ScriptedProposer(draft_kinds(plan, [request])["right"], 4)
    engine = Engine(plan, model, proposer=proposer)
    outcome = run(engine, request)
    assert isinstance(outcome.failed.error, BackendError)
    assert outcome.ids == ids[:8], "one of the prompt, five of the first block, two of the second"
    assert outcome.failed.usage.completion == 8
    assert_all_memory_is_free(engine)
    assert run(engine, request).ids == ids


class DrawingProposer(ScriptedProposer):
    """Draws its drafts from the same three tokens, if it is asked to."""

    proposal = Candidates(np.array([3, 5, 8]), np.array([0.5, 0.25, 0.25]))

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        drafts = []
        for task in tasks:
            seed = 0 if task.seed is None else task.seed
            start = len(task.tokens)
            ids = [self.proposal.draw(uniform(seed, start + i, Purpose.DRAFT)) for i in range(task.window)]
            drafts.append(Draft(tuple(ids), (self.proposal,) * task.window))
            assert task.seed == self.expected_seed
        return drafts

    expected_seed: int | None = None


def with_drawn_drafts(rule: DraftRule, sampling: SamplingParams) -> tuple[Outcome, list[int]]:
    """What a request gives, and what it gives without drafts."""
    base = make_plan(vocab_size=10, max_context=400, verify_rows=4)
    plan = replace(base, speculation=SpeculationPlan("mtp", 3, rule=rule))
    request = GenerationRequest((1, 2, 3), max_new=300, sampling=sampling)
    proposer = DrawingProposer(lambda tokens, k: [], 3)
    proposer.expected_seed = sampling.seed if rule == "rejection" and not sampling.is_greedy else None
    engine = Engine(plan, FormulaModel(plan), proposer=proposer)
    outcome = run(engine, request)
    assert run(engine, request).ids == outcome.ids, "the same request gives the same text by every rule"
    return outcome, expected(request, plan)[0]


def test_drawn_drafts_change_nothing_by_replay() -> None:
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=4)):
        outcome, plain = with_drawn_drafts("replay", sampling)
        assert outcome.ids == plain


def test_the_rejection_rule_leaves_greedy_text_alone() -> None:
    outcome, plain = with_drawn_drafts("rejection", SamplingParams())
    assert outcome.ids == plain


def test_the_rejection_rule_accepts_more_of_drafts_that_were_drawn() -> None:
    """Nearly uniform targets: a draft of probability q holds with probability p by replay, and min(1, p / q) here."""
    sampling = SamplingParams(temperature=2.0, seed=4)
    replayed, _ = with_drawn_drafts("replay", sampling)
    outcome, plain = with_drawn_drafts("rejection", sampling)
    assert outcome.ids != plain
    assert outcome.finished.rounds.counts.accepted > 1.3 * replayed.finished.rounds.counts.accepted


class FailingProposer(ScriptedProposer):
    """Raises at one of its calls."""

    def __init__(self, method: str, call: int, error: BaseException, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._method, self._call, self._error = method, call, error

    def _count(self, method: str) -> None:
        if method == self._method:
            self._call -= 1
            if self._call < 0:
                self._method = ""
                raise self._error

    def propose(self, tasks):  # type: ignore[no-untyped-def]
        self._count("propose")
        return super().propose(tasks)

    def observe(self, committed):  # type: ignore[no-untyped-def]
        self._count("observe")
        super().observe(committed)


@pytest.mark.parametrize(("method", "call"), [("propose", 0), ("propose", 3), ("observe", 0), ("observe", 3)])
@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
def test_a_proposer_that_fails_ends_the_step_s_requests(method: str, call: int, rollback: str | None) -> None:
    state = None if rollback is None else StatePlan(StateLayout(rollback, 5))  # type: ignore[arg-type]
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=5, max_concurrency=2, state=state)
    requests = [GenerationRequest((i, 2, 3), max_new=40) for i in range(3)]
    error = BackendError("draft memory")
    drafts = draft_kinds(plan, requests)["half right"]
    engine = Engine(plan, formula_model(plan), proposer=FailingProposer(method, call, error, drafts, 4))
    for request in requests:
        engine.submit(request)
    outcomes = collect(engine.drain())
    for i in (0, 1):
        assert outcomes[i].failed.error is error
        assert outcomes[i].ids == expected(requests[i], plan)[0][: len(outcomes[i].ids)]
    assert outcomes[2].ids == expected(requests[2], plan)[0]
    assert_all_memory_is_free(engine)


@pytest.mark.parametrize("rollback", [None, "slots", "replay"])
def test_any_other_exception_of_a_proposal_leaves_the_step_undone(rollback: str | None) -> None:
    state = None if rollback is None else StatePlan(StateLayout(rollback, 5))  # type: ignore[arg-type]
    plan = make_plan(vocab_size=50, max_context=160, verify_rows=5, state=state)
    request = GenerationRequest((3,) * 62, max_new=40)
    drafts = draft_kinds(plan, [request])["right"]
    proposer = FailingProposer("propose", 1, KeyboardInterrupt(), drafts, 4)
    engine = Engine(plan, formula_model(plan), proposer=proposer)
    engine.submit(request)
    events = [event for _ in range(2) for event in engine.step()]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    events += engine.drain()
    assert collect(events)[0].ids == expected(request, plan)[0]
    assert_all_memory_is_free(engine)


def test_a_draft_longer_than_its_window_is_our_bug() -> None:
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=3)
    engine = formula_engine(plan, lambda tokens, k: [1] * (k + 1))
    engine.submit(GenerationRequest((1, 2), max_new=9))
    engine.step()
    with pytest.raises(InvariantError, match="3 tokens drafted"):
        engine.step()


def test_a_cancel_between_rounds_ends_one_request_and_its_drafts() -> None:
    plan = make_plan(vocab_size=50, max_context=96, verify_rows=5, max_concurrency=2)
    requests = [GenerationRequest((i, 2, 3), max_new=40) for i in range(2)]
    engine = formula_engine(plan, draft_kinds(plan, requests)["right"])
    for request in requests:
        engine.submit(request)
    events = [event for _ in range(3) for event in engine.step()]
    assert engine.cancel(0)
    outcomes = collect([*events, *engine.drain()])
    assert outcomes[0].finished.reason is FinishReason.CANCELLED
    assert outcomes[0].ids == expected(requests[0], plan)[0][:11]
    assert outcomes[1].ids == expected(requests[1], plan)[0]
    assert all(isinstance(delta, Delta) for delta in outcomes[1].deltas)
    assert_all_memory_is_free(engine)
