"""Text of generations: stop strings, held-back text, characters split over tokens."""

from __future__ import annotations

import pytest
from harness import Outcome, collect, run

from make.tiny_tokenizer import tiny_metadata
from ninfer.engine import Engine, GenerationRequest, StopRules
from ninfer.engine.testing import ScriptedModel, make_plan
from ninfer.errors import BackendError, RequestError
from ninfer.metrics import FinishReason
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer

END = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata()))


def engine_for(tokenizer: Tokenizer, script: list[int], vocab_size: int = 400) -> Engine:
    """An engine whose model emits a script; ids from `tokenizer.vocab_size` on are padding rows of the model."""
    plan = make_plan(vocab_size=vocab_size, max_context=512, end_token_ids=(END,))
    return Engine(plan, ScriptedModel(vocab_size, script), tokenizer)


def say(tokenizer: Tokenizer, text: str, *stop: str, max_new: int | None = None) -> Outcome:
    """What comes out of a model that says `text` and then its end token."""
    engine = engine_for(tokenizer, [*tokenizer.encode(text), END])
    return run(engine, GenerationRequest((7,), max_new=max_new, stop=StopRules(strings=stop)))


COLOURS = "red orange yellow green"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("orange yellow", "red "),
        ("ge ye", "red oran"),
        ("r", ""),
        ("red", ""),
        (COLOURS, ""),
        ("n", "red ora"),
        ("green", "red orange yellow "),
    ],
)
def test_the_text_ends_right_before_a_stop_string(tokenizer: Tokenizer, stop: str, text: str) -> None:
    outcome = say(tokenizer, COLOURS, stop)
    assert outcome.text == text == COLOURS.split(stop)[0]
    assert (outcome.finished.reason, outcome.finished.stop) == (FinishReason.STOP_STRING, stop)


@pytest.mark.parametrize("stop", ["red orange yellow green blue", "zzzz", "green.", "n blue"])
def test_a_stop_string_that_never_comes_changes_nothing(tokenizer: Tokenizer, stop: str) -> None:
    outcome, plain = say(tokenizer, COLOURS, stop), say(tokenizer, COLOURS)
    assert (outcome.text, outcome.ids, outcome.finished.reason) == (COLOURS, plain.ids, FinishReason.STOP_TOKEN)
    assert outcome.finished.stop is None


def test_text_that_may_become_a_stop_string_is_held_back_and_the_rest_is_not(tokenizer: Tokenizer) -> None:
    outcome = say(tokenizer, "abXYcXZ", "XYZ")
    assert [delta.text for delta in outcome.deltas] == ["a", "b", "", "", "XYc", "", "XZ", ""]


def test_the_token_that_completes_a_stop_string_is_counted_and_its_rest_dropped(tokenizer: Tokenizer) -> None:
    """`hello` is one token here."""
    outcome = say(tokenizer, "xhello", "el")
    assert outcome.text == "xh"
    assert outcome.ids == tokenizer.encode("xhello")
    assert outcome.finished.usage.completion == 2


def test_the_first_stop_string_of_several_counts(tokenizer: Tokenizer) -> None:
    outcome = say(tokenizer, COLOURS, "green", "yellow", "low")
    assert (outcome.text, outcome.finished.stop) == ("red orange ", "yellow")


@pytest.mark.parametrize("max_new", range(1, 24))
def test_a_stop_string_at_the_limit_is_a_stop(tokenizer: Tokenizer, max_new: int) -> None:
    """A stop string goes before the limit when the same token reaches both; below that the text is cut by the limit."""
    outcome = say(tokenizer, COLOURS, "orange", max_new=max_new)
    reached = len("red orange")
    if max_new >= reached:
        assert (outcome.text, outcome.finished.reason) == ("red ", FinishReason.STOP_STRING)
        assert outcome.finished.usage.completion == reached
    else:
        assert (outcome.text, outcome.finished.reason) == (COLOURS[:max_new], FinishReason.OUTPUT_LIMIT)
        assert outcome.finished.usage.completion == max_new


def test_stop_strings_leave_the_models_end_token_alone(tokenizer: Tokenizer) -> None:
    outcome = say(tokenizer, "Hi.", "\nResult:")
    assert (outcome.text, outcome.finished.reason) == ("Hi.", FinishReason.STOP_TOKEN)


@pytest.mark.parametrize("text", ["鱗 麓 ő 👨\u200d🌾 𝛑", "Café déjà", "สวัสดี"])
def test_no_delta_has_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    outcome = say(tokenizer, text)
    assert outcome.text == text
    assert all("\ufffd" not in delta.text for delta in outcome.deltas)


def test_an_unfinished_character_at_the_end_comes_out_as_the_ids_decode(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a鱗")
    outcome = say(tokenizer, "a鱗", max_new=len(ids) - 1)
    assert outcome.text == tokenizer.decode(ids[:-1]) == "a\ufffd"


def test_a_stop_string_that_shows_up_in_the_flushed_text_still_counts(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a鱗")
    outcome = say(tokenizer, "a鱗", "\ufffd", max_new=len(ids) - 1)
    assert (outcome.text, outcome.finished.reason) == ("a", FinishReason.STOP_STRING)


def test_a_cancel_gives_out_the_text_that_was_held_back(tokenizer: Tokenizer) -> None:
    engine = engine_for(tokenizer, [*tokenizer.encode("abXYZ"), END])
    request_id = engine.submit(GenerationRequest((7,), stop=StopRules(strings=("XYZ",))))
    events = [event for _ in range(4) for event in engine.step()]
    engine.cancel(request_id)
    outcome = collect([*events, *engine.drain()])[request_id]
    assert (outcome.text, outcome.finished.reason) == ("abXY", FinishReason.CANCELLED)
    assert outcome.finished.usage.completion == 4


def test_a_padding_row_of_the_model_fails_its_request_only(tokenizer: Tokenizer) -> None:
    engine = engine_for(tokenizer, [*tokenizer.encode("ab"), 399])
    bad = engine.submit(GenerationRequest((7,), max_new=5))
    good = engine.submit(GenerationRequest((7,), max_new=2))
    outcomes = collect(engine.drain())
    assert isinstance(outcomes[bad].failed.error, BackendError)
    assert "token 399" in str(outcomes[bad].failed.error)
    assert (outcomes[bad].text, outcomes[good].text) == ("ab", "ab")


def test_a_stop_string_that_is_no_unicode_is_refused(tokenizer: Tokenizer) -> None:
    engine = engine_for(tokenizer, [END])
    with pytest.raises(RequestError, match="surrogate"):
        engine.submit(GenerationRequest((7,), stop=StopRules(strings=("\ud800",))))
    assert not engine.has_work
