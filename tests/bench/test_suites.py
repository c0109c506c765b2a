"""Bundled suites, and prompts that are made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.bench.load.suite import bundled_suites, load_suite, log_lines, make_prompts
from ninfer.errors import ConfigError

FIVE = ["s1_geometry", "s2_impl", "s3_debug", "s4_refactor", "s5_long_context"]


def words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def test_suites_have_what_they_promise() -> None:
    assert bundled_suites() == ["scenarios", "tasks", "workloads"]
    scenarios = load_suite("scenarios").prompts
    for language in ("en", "zh"):
        assert [entry.scenario for entry in scenarios if entry.language == language] == FIVE
    kinds = {entry.scenario for entry in load_suite("workloads").prompts}
    assert kinds == {"prose", "json", "code", "enumeration", "copy"}


@pytest.mark.parametrize("context", [1500, 4001, 20_000])
def test_the_long_prompt_fills_its_share_of_the_context(context: int) -> None:
    (prompt,) = make_prompts(
        load_suite("scenarios"), context=context, count_tokens=words, languages=["en"], scenarios=FIVE[4:]
    )
    asked = int(0.6 * context)
    assert prompt.options == {"asked_prompt_tokens": asked}
    assert asked - 20 < words(prompt.body) <= asked
    assert prompt.body[0]["content"].startswith(log_lines(1)[0])


def test_prompts_are_the_same_every_time_and_chosen_by_language_scenario_and_limit() -> None:
    suite = load_suite("workloads")
    chosen = make_prompts(suite, context=None, count_tokens=words, languages=["zh"], scenarios=["json"], max_new=9)
    assert [(prompt.id, prompt.language, prompt.max_new) for prompt in chosen] == [("json.3", "zh", 9)]
    again = make_prompts(suite, context=None, count_tokens=words, languages=["zh"], scenarios=["json"], max_new=9)
    assert chosen[0].digest == again[0].digest


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("workloads", {"languages": ["fr"]}, "language 'fr' is in no prompt of this suite; there are en, zh"),
        ("workloads", {"scenarios": ["poems"]}, "scenario 'poems'"),
        ("workloads", {"context": 300}, r"prompt prose.1 and its 384 tokens need a context of \d+, not 300"),
        ("scenarios", {}, "fills a share of the context, which is not known"),
        ("nowhere", {}, "neither scenarios, tasks, workloads nor a file"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_prompts(load_suite(name), **{"context": None, "count_tokens": words, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        ([], "no prompts"),
        ([{"id": "a"}], "is no suite"),
        ([{"id": "a", "scenario": "s", "language": "en", "text": "t", "max_new": 1}] * 2, "prompt a is there twice"),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, prompts: list[dict[str, object]], problem: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"name": "n", "version": "1", "about": "", "prompts": prompts}))
    with pytest.raises(ConfigError, match=problem):
        load_suite(str(path))
