"""Message forms: equal meaning gives equal messages, anything else is an error that names the place."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.text.messages import normalized_messages, normalized_tools


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def assistant(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [call("{}")], **more}


def test_three_forms_of_no_content_are_one() -> None:
    forms = [assistant(content=None), assistant(), assistant(content="")]
    results = [normalized_messages([form])[0] for form in forms]
    assert results[0] == results[1] == results[2]
    assert results[0]["content"] == ""
    assert results[0]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_their_joined_text(role: str) -> None:
    parts = [{"type": "text", "text": "My cat is Tom."}, {"type": "text", "text": " Name of my cat?"}]
    (message,) = normalized_messages([{"role": role, "content": parts}])
    assert message == {"role": role, "content": "My cat is Tom. Name of my cat?"}
    assert normalized_messages([{"role": role, "content": []}])[0]["content"] == ""


def test_developer_is_system() -> None:
    assert normalized_messages([{"role": "developer", "content": "x"}]) == [{"role": "system", "content": "x"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"path":"/a"}', {"path": "/a"}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('"x"', '"x"'),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_become_an_object_where_they_are_one(given: Any, expected: Any) -> None:
    message = {"role": "assistant", "tool_calls": [call(given)]}
    assert normalized_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == expected


def test_other_members_are_kept_and_the_input_is_not_changed() -> None:
    message = {"role": "assistant", "content": "a", "reasoning_content": "r", "name": None, "tool_calls": []}
    before = dict(message)
    assert normalized_messages((message,)) == [{"role": "assistant", "content": "a", "reasoning_content": "r"}]
    assert message == before


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("hi", "messages"),
        ([None], "messages[0]"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"content": "a"}], "messages[1].role"),
        ([{"role": "foo", "content": "a"}], "messages[0].role"),
        ([{"role": "Function", "content": "a"}], "messages[0].role"),
        ([{"role": 5, "content": "a"}], "messages[0].role"),
        ([{"role": ["user"], "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "a"}}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": "a"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
            "messages[0].tool_calls[0].function",
        ),
    ],
)
def test_anything_else_names_its_place(messages: object, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalized_messages(messages)
    assert caught.value.param == place


def test_unknown_role_lists_the_allowed_ones() -> None:
    with pytest.raises(RequestError, match="role is 'foo'; allowed roles: system, developer, user, assistant, tool"):
        normalized_messages([{"role": "foo"}])


def test_no_tools_is_an_empty_list_of_tools() -> None:
    assert normalized_tools(None) is None
    assert normalized_tools([]) is None
    odd = [{"type": "function", "function": {"name": "f", "description": None, "parameters": {"type": "array"}}}]
    assert normalized_tools(odd) == odd


@pytest.mark.parametrize(("tools", "place"), [("a", "tools"), ({}, "tools"), ([1], "tools[0]")])
def test_wrong_tools_name_their_place(tools: object, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalized_tools(tools)
    assert caught.value.param == place
