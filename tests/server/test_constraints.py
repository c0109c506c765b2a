"""Answers held to a form: by a model that would say anything, so that only the constraint can be the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.engine import EnginePlan
from ninfer.engine.testing import FaultyModel, FormulaModel
from server.chatting import TEMPLATE, UNOPENED_TEMPLATE, XML_TEMPLATE, chat_server, pair, tool, whole
from server.harness import Live, live_server, plan_of, tiny_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["kind", "count", "flags"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["zq1", "zq2"]}},
}


def random_server(tmp_path: Path, template: str = TEMPLATE, **settings: Any) -> Any:
    """A server whose model's logits are a hash of the tokens before: as little sense as there can be."""
    plan = plan_of(max_context=2048, prefill_chunk=2048)
    return live_server(tmp_path, FormulaModel, plan=plan, template=template, **settings)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with random_server(tmp_path_factory.mktemp("constraints")) as server:
        yield server
    assert server.error is None


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def check(value: Any) -> None:
    assert set(value) == {"kind", "count", "flags"}
    assert value["kind"] in ("zq1", "zq2")
    assert type(value["count"]) is int
    assert 0 <= value["count"] <= 99
    assert len(value["flags"]) <= 3
    assert all(isinstance(flag, bool) for flag in value["flags"])


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_fits_its_schema(live: Live, seed: int) -> None:
    """C086, C087: whatever the sampling, and nothing but an end behind it."""
    for fields in ({"temperature": 1.5}, {"temperature": 2, "top_k": 3}, {"temperature": 1, "logit_bias": {"40": 90}}):
        choice = whole(live, response_format=schema_format(SCHEMA), seed=seed, enable_thinking=False, **fields)
        assert choice["finish_reason"] == "stop"
        check(json.loads(choice["message"]["content"]))


def test_a_stream_fits_too_and_greedy(live: Live) -> None:
    choice = pair(live, response_format=schema_format(SCHEMA), enable_thinking=False)
    check(json.loads(choice["message"]["content"]))


@pytest.mark.parametrize("budget", [0, 1, 9])
def test_thinking_is_free_and_the_answer_is_not(live: Live, budget: int) -> None:
    """C088."""
    fields = {"thinking_budget": budget, "enable_thinking": True, "temperature": 1.2, "seed": 3}
    choice = pair(live, response_format=schema_format(SCHEMA), **fields)
    check(json.loads(choice["message"]["content"]))
    assert choice["finish_reason"] == "stop"
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] >= budget


def test_thinking_that_ends_by_itself(tmp_path: Path) -> None:
    """The script is not JSON: from the closing tag on only the constraint speaks; before it, nothing is changed."""
    with chat_server(tmp_path, "well {\n</think>\n\nno json", template=TEMPLATE) as live:
        choice = pair(live, response_format={"type": "json_schema", "json_schema": {"schema": {"const": 7}}})
        assert choice["message"]["reasoning_content"] == "well {"
        assert choice["message"]["content"] == "7"
        assert choice["finish_reason"] == "stop"


def test_a_model_may_open_a_block_itself(tmp_path: Path) -> None:
    fields = {"response_format": schema_format({"const": 7})}
    with chat_server(tmp_path, "<think>a</think>\n\nb", template=UNOPENED_TEMPLATE) as live:
        message = pair(live, **fields)["message"]
        assert (message["reasoning_content"], message["content"]) == ("a", "7")
        message = pair(live, **fields, enable_thinking=False)["message"]
        assert message["content"] == "7"


def test_any_json_object_is_one_without_white_space_runs(live: Live) -> None:
    """C090: no run of white space between values; a stop means that it is complete."""
    for seed in range(4):
        choice = whole(
            live,
            response_format={"type": "json_object"},
            enable_thinking=False,
            temperature=1,
            seed=seed,
            max_tokens=200,
        )
        text = choice["message"]["content"]
        assert text.startswith("{")
        outside = re.sub(r'"(?:[^"\\]|\\.)*"?', "", text)
        assert not re.search(r"\s\s|[\n\t]", outside)
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


def test_text_is_no_constraint(live: Live) -> None:
    """C092."""
    assert pair(live, response_format={"type": "text"})["message"] == pair(live)["message"]


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ({"type": "xml"}, "response_format"),
        ({}, "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        (schema_format(5), "response_format.json_schema.schema"),
        (schema_format({"$ref": "#/$defs/none"}), "response_format.json_schema.schema"),
        (schema_format({"$ref": "https://example.com/schema"}), "response_format.json_schema.schema"),
        (schema_format({"type": "colour"}), "response_format.json_schema.schema"),
        (schema_format({"type": "string", "pattern": "("}), "response_format.json_schema.schema"),
        (schema_format({"not": {"type": "string"}}), "response_format.json_schema.schema"),
        (schema_format(False), "response_format.json_schema.schema"),
    ],
    ids=str,
)
def test_a_wrong_format_is_named(live: Live, response_format: Any, param: str) -> None:
    """C086, C092."""
    response = live.chat(response_format=response_format)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("schema", [True, {}, {"type": "array", "maxItems": 2}, {"type": "string", "maxLength": 5}])
def test_roots_need_not_be_objects(live: Live, schema: Any) -> None:
    choice = whole(live, response_format=schema_format(schema), enable_thinking=False, max_tokens=300)
    if choice["finish_reason"] == "stop":
        json.loads(choice["message"]["content"])


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        ({"regex": "[ab]{3}-[0-9]{2}"}, "[ab]{3}-[0-9]{2}"),
        ({"choice": ["yes", "no \u00e9"]}, "yes|no \u00e9"),
        ({"grammar": 'root ::= ("x" | "y") tail\ntail ::= "1" "2"?'}, "[xy]12?"),
        ({"grammar": 'start: "p" /[0-9]/ "q"'}, "p[0-9]q"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("endpoint", ["chat", "complete"])
def test_other_forms(live: Live, endpoint: str, structured: dict[str, Any], pattern: str) -> None:
    thinking = {"enable_thinking": False} if endpoint == "chat" else {}
    for seed in range(3):
        fields = {"structured_outputs": structured, "max_tokens": 40, "temperature": 1, "seed": seed, **thinking}
        (choice,) = getattr(live, endpoint)(**fields).json()["choices"]
        text = choice["message"]["content"] if endpoint == "chat" else choice["text"]
        assert re.fullmatch(pattern, text)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= missing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": 5}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a"}, "tools": [tool()]}, "structured_outputs.regex"),
    ],
    ids=str,
)
def test_wrong_forms_are_named(live: Live, fields: dict[str, Any], param: str) -> None:
    response = live.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


TOOLS = [
    tool("a", x={"type": "integer", "maximum": 5, "minimum": 0}),
    {
        "type": "function",
        "function": {
            "name": "b",
            "parameters": {
                "type": "object",
                "properties": {
                    "mode": {"enum": ["on", "off"]},
                    "level": {"$ref": "#/$defs/Level"},
                    "on": {"type": "boolean"},
                },
                "required": ["mode", "level", "on"],
                "additionalProperties": False,
                "$defs": {"Level": {"type": "integer", "minimum": 1, "maximum": 3}},
            },
        },
    },
]


def check_calls(calls: list[dict[str, Any]]) -> None:
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "b":
            assert set(arguments) == {"mode", "level", "on"}
            assert arguments["mode"] in ("on", "off")
            assert arguments["level"] in (1, 2, 3)
            assert isinstance(arguments["on"], bool)


@pytest.mark.parametrize("template", [TEMPLATE, XML_TEMPLATE], ids=["hermes", "qwen-xml"])
def test_required_and_named_calls_are_made(tmp_path: Path, template: str) -> None:
    """C071, C077."""
    named = {"type": "function", "function": {"name": "b"}}
    with random_server(tmp_path, template) as live:
        for seed in range(3):
            fields = {"tools": TOOLS, "temperature": 1, "seed": seed, "thinking_budget": seed, "max_tokens": 900}
            single = {"tool_choice": "required", "parallel_tool_calls": False}
            for choice in (
                whole(live, tool_choice=named, enable_thinking=True, **fields),
                whole(live, **single, enable_thinking=False, **fields),
            ):
                calls = choice["message"]["tool_calls"]
                assert len(calls) == 1
                check_calls(calls)
                assert choice["finish_reason"] == "tool_calls"
                assert choice["message"]["content"] is None
            assert whole(live, tool_choice=named, **fields)["message"]["tool_calls"][0]["function"]["name"] == "b"
        choice = pair(live, tools=TOOLS[1:], tool_choice="required", enable_thinking=False, max_tokens=900)
        check_calls(choice["message"]["tool_calls"])


def test_a_wrong_schema_of_a_required_tool_is_named(live: Live) -> None:
    bad = tool("c", x={"type": "colour"})
    response = live.chat(tools=[TOOLS[0], bad], tool_choice="required")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[1].function.parameters"
    assert live.chat(tools=[TOOLS[0], bad]).status_code == 200


def test_a_format_beside_tools_leaves_both_open(live: Live) -> None:
    """An answer of the format or calls, never free text."""
    kinds = set()
    for seed in range(12):
        choice = whole(
            live,
            tools=TOOLS[1:],
            response_format=schema_format(SCHEMA),
            enable_thinking=False,
            temperature=2,
            seed=seed,
            max_tokens=900,
            parallel_tool_calls=True,
        )
        calls = choice["message"].get("tool_calls", [])
        kinds.add(bool(calls))
        check_calls(calls)
        if not calls:
            check(json.loads(choice["message"]["content"]))
    assert kinds == {True, False}


def test_logits_that_are_not_finite_fail_here_too(tmp_path: Path) -> None:
    """C141: a constraint hides no fault of the model."""

    def faulty(plan: EnginePlan) -> FaultyModel:
        return FaultyModel(FormulaModel(plan), replace_at={1: (0, float("nan"))})

    with live_server(tmp_path, faulty, template=TEMPLATE) as live:
        response = live.chat(response_format={"type": "json_object"}, enable_thinking=False)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "generation_failed"
        live.alive()


def test_the_same_request_gives_the_same_answer_in_any_company(live: Live) -> None:
    fields = {"response_format": schema_format(SCHEMA), "temperature": 1.5, "seed": 9, "enable_thinking": False}
    alone = whole(live, **fields)["message"]
    body = live.chat(n=3, max_tokens=400, **fields).json()
    assert body["choices"][0]["message"] == alone
    assert tiny_tokenizer().encode(alone["content"])
