"""Thinking is told from the answer, counted, limited and switched off; a stream and a body say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.chatting import TEMPLATE, UNOPENED_TEMPLATE, chat_server, pair, whole
from server.harness import Live, tiny_tokenizer

THINKING = "2 and 3 <make> 5,\n\nI think"
ANSWER = "It is 5.\n"
TEXT = f"{THINKING}\n</think>\n\n{ANSWER}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with chat_server(tmp_path_factory.mktemp("thinking"), TEXT, template=TEMPLATE) as server:
        yield server
    assert server.error is None


def num_tokens(text: str) -> int:
    return len(tiny_tokenizer().encode(text))


def reasoning(choice: dict[str, Any]) -> int:
    found = choice["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert isinstance(found, int)
    return found


def test_thinking_and_answer_are_two_texts(live: Live) -> None:
    """C097: tags count as thinking, and the count is the decoder's."""
    choice = pair(live)
    assert choice["message"] == {
        "role": "assistant",
        "content": ANSWER,
        "refusal": None,
        "reasoning_content": THINKING,
    }
    assert choice["finish_reason"] == "stop"
    assert reasoning(choice) == num_tokens(f"{THINKING}\n</think>")
    assert live.rows("request_done")[-1]["result"]["reasoning_tokens"] == reasoning(choice)


def test_no_limit_lets_a_tag_through(live: Live) -> None:
    """C093, C024: whatever the limit, thinking and answer are beginnings of the full ones."""
    for limit in range(1, num_tokens(TEXT) + 1):
        choice = pair(live, max_tokens=limit)
        message = choice["message"]
        assert choice["usage"]["completion_tokens"] == limit
        assert choice["finish_reason"] == "length"
        assert THINKING.startswith(message.get("reasoning_content", ""))
        assert ANSWER.startswith(message["content"])
        assert not re.search("</?think>", message["content"] + message.get("reasoning_content", ""))
        if message["content"]:
            assert message["reasoning_content"] == THINKING


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking_budget": 0},
    ],
    ids=str,
)
def test_thinking_switched_off(tmp_path: Path, fields: dict[str, Any]) -> None:
    """C095: no thinking, no empty deltas of it."""
    with chat_server(tmp_path, ANSWER, template=TEMPLATE) as live:
        choice = pair(live, **fields)
        assert "reasoning_content" not in choice["message"]
        assert choice["message"]["content"] == ANSWER
        assert reasoning(choice) == 0


@pytest.mark.parametrize("budget", [1, 2, 7, 16])
def test_a_budget_ends_thinking_exactly(live: Live, budget: int) -> None:
    """C095: as many tokens as allowed, then the closing tag; the answer follows."""
    choice = pair(live, thinking_budget=budget)
    closing = tiny_tokenizer().encode("\n</think>\n\n")
    ids = whole(live, thinking_budget=budget, return_token_ids=True)["token_ids"]
    script = tiny_tokenizer().encode(TEXT)
    assert ids[: budget + len(closing)] == script[:budget] + closing
    # The scripted model does not know that it was interrupted and goes on where it was.
    assert ids[budget + len(closing) :][:3] == script[budget + len(closing) :][:3]
    assert reasoning(choice) == budget + num_tokens("\n</think>")
    assert choice["message"]["reasoning_content"] == tiny_tokenizer().decode(script[:budget]).rstrip("\n")


def test_a_budget_that_is_not_reached_changes_nothing(live: Live) -> None:
    assert pair(live, thinking_budget=300)["message"] == pair(live)["message"]


def test_the_server_has_a_budget_for_requests_without_one(tmp_path: Path) -> None:
    with chat_server(tmp_path, TEXT, template=TEMPLATE, default_thinking_budget=3) as live:
        assert reasoning(pair(live)) == 3 + num_tokens("\n</think>")
        assert reasoning(pair(live, thinking_budget=5)) == 5 + num_tokens("\n</think>")


def test_a_stop_string_acts_on_the_answer_only(live: Live) -> None:
    """C018."""
    choice = pair(live, stop=["think", "\n\n", " 5"])
    assert choice["message"]["reasoning_content"] == THINKING
    assert choice["message"]["content"] == "It is"
    assert choice["finish_reason"] == "stop"


def test_a_model_that_opens_the_block_itself(tmp_path: Path) -> None:
    with chat_server(tmp_path, f"<think>\n{TEXT}", template=UNOPENED_TEMPLATE) as live:
        choice = pair(live)
        assert choice["message"]["content"] == ANSWER
        assert choice["message"]["reasoning_content"] == THINKING
        assert reasoning(choice) == num_tokens(f"<think>\n{THINKING}\n</think>")
        assert reasoning(pair(live, thinking_budget=4)) == 1 + 4 + num_tokens("\n</think>")


def test_an_answer_without_a_block_is_given_as_it_is(tmp_path: Path) -> None:
    text = "\n <b>plain</b> <think>not at the start</think> "
    with chat_server(tmp_path, text, template=UNOPENED_TEMPLATE) as live:
        choice = pair(live)
        assert choice["message"]["content"] == text
        assert reasoning(choice) == 0


def test_a_block_that_never_closes_is_thinking_and_is_logged(tmp_path: Path) -> None:
    """C096: the row says that there was no answer."""
    with chat_server(tmp_path, "and so on and on", template=TEMPLATE) as live:
        choice = pair(live)
        assert choice["message"]["content"] == ""
        assert choice["message"]["reasoning_content"] == "and so on and on"
        assert choice["finish_reason"] == "stop"
        for row in live.rows("request_done"):
            assert [c["has_answer"] for c in row["choices"]] == [False]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "enable_thinking"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking_budget": "many"}, "thinking_budget"),
    ],
    ids=str,
)
def test_wishes_that_cannot_be_fulfilled_are_named(live: Live, fields: dict[str, Any], param: str) -> None:
    response = live.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_history_may_bring_its_thinking(live: Live) -> None:
    """C100: `reasoning_content`, or `reasoning` as other servers call it, reaches the template."""
    lengths = []
    for extra in ({}, {"reasoning_content": "because"}, {"reasoning": "because"}):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", **extra},
            {"role": "user", "content": "c"},
        ]
        lengths.append(live.chat(messages=messages).json()["usage"]["prompt_tokens"])
    assert lengths[0] < lengths[1] == lengths[2]
