"""Tool calls in an answer: complete and sound or text, the same however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ninfer.text.arguments import converted
from ninfer.text.tool_calls import CallParser, JsonCalls, ToolCall, ToolSchema, XmlCalls

PROPERTIES: dict[str, Any] = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "a": {"type": "array"},
    "maybe": {"type": ["integer", "null"]},
    "text_or_null": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "ref": {"$ref": "#/$defs/Count"},
    "enum": {"enum": ["x", "y"]},
    "any": {},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "$defs": {"Count": {"type": "integer"}}}
TOOLS = {name: ToolSchema(name, SCHEMA) for name in ("f", "g.h-1")}


def call(**arguments: Any) -> ToolCall:
    return ToolCall("f", json.dumps(arguments, ensure_ascii=False))


JSON_TEXTS: list[tuple[str, list[str | ToolCall]]] = [
    ("", []),
    ("  \n", ["  \n"]),
    ("just text <tool", ["just text <tool"]),
    ('<tool_call>\n{"name": "f", "arguments": {"i": 1}}\n</tool_call>', [call(i=1)]),
    ('Sure.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n', ["Sure.", call()]),
    (
        '<tool_call>{"name":"f","arguments":{"i":1}}</tool_call>\n<tool_call>{"name":"f","arguments":{"i":2}}</tool_call>',
        [call(i=1), call(i=2)],
    ),
    (
        'a <tool_call>{"name":"f","arguments":{"i":1}}</tool_call> b <tool_call>{"name":"f"}</tool_call> c',
        ["a", call(i=1), "b", call(), "c"],
    ),
    (
        '<tool_call>{"name":"f","arguments":{"s":"</tool_call> \\" {\\n\u00e9\U0001f600","o":{"x":[{}]}}}</tool_call>',
        [call(s='</tool_call> " {\n\u00e9\U0001f600', o={"x": [{}]})],
    ),
    ('<tool_call>{"name":"f","arguments":"{\\"i\\": 1}"}</tool_call>', [call(i=1)]),
    ('<tool_call>{"name":"f","arguments":{"s":"\\ud800"}}</tool_call>', [ToolCall("f", '{"s": "\\ud800"}')]),
    ('<tool_call>\n{"name":"f","arguments":{"i":1}}\n', [call(i=1)]),  # ended by the stop token `</tool_call>`
    # Not sound: text to the letter.
    ('x \n<tool_call>{"name":"f","arguments":{"i":1', ['x \n<tool_call>{"name":"f","arguments":{"i":1']),
    ("<tool_call>{nonsense}</tool_call>\ny", ["<tool_call>{nonsense}</tool_call>\ny"]),
    (
        '<tool_call>{"name":"other","arguments":{}}</tool_call>',
        ['<tool_call>{"name":"other","arguments":{}}</tool_call>'],
    ),
    ('<tool_call>{"name":"f","arguments":[1]}</tool_call>', ['<tool_call>{"name":"f","arguments":[1]}</tool_call>']),
    (
        '<tool_call>{"name":"f","arguments":{"n":NaN}}</tool_call>',
        ['<tool_call>{"name":"f","arguments":{"n":NaN}}</tool_call>'],
    ),
    ("<tool_call>[]</tool_call>", ["<tool_call>[]</tool_call>"]),
    (
        '<tool_call>bad</tool_call>\n<tool_call>{"name":"f","arguments":{}}</tool_call>',
        ["<tool_call>bad</tool_call>", call()],
    ),
    ("<tool_call>" + "[" * 5000 + "</tool_call>", ["<tool_call>" + "[" * 5000 + "</tool_call>"]),
]


def xml(*parameters: tuple[str, str], name: str = "f") -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


XML_TEXTS: list[tuple[str, list[str | ToolCall]]] = [
    (xml(), [call()]),
    ("I will.\n\n" + xml(("s", "two\nlines"), ("i", "3")) + "\n", ["I will.", call(s="two\nlines", i=3)]),
    (xml(("i", "1")) + "\n" + xml(("i", "2")), [call(i=1), call(i=2)]),
    (xml(("s", 'a </tool_call> b </parameter> c "q" {')), [call(s='a </tool_call> b </parameter> c "q" {')]),
    (xml(("s", "\n indented\n")), [call(s="\n indented\n")]),
    (xml(("i", "1")).removesuffix("</tool_call>"), [call(i=1)]),
    ("<tool_call><function=f><parameter=i>1</parameter></function></tool_call>", [call(i=1)]),
    (xml(name="g.h-1"), [ToolCall("g.h-1", "{}")]),
    (xml(name="other"), [xml(name="other")]),
    (xml(("i", "1"), ("i", "2")), [xml(("i", "1"), ("i", "2"))]),
    ("<tool_call>\n<function=f>\n<parameter=s>\nnever", ["<tool_call>\n<function=f>\n<parameter=s>\nnever"]),
    (
        "<tool_call>\n<function=f>\ntext\n</function>\n</tool_call>",
        ["<tool_call>\n<function=f>\ntext\n</function>\n</tool_call>"],
    ),
]


def parsed(kind: type[CallParser], parts: list[str]) -> list[str | ToolCall]:
    parser = kind(TOOLS)
    joined: list[str | ToolCall] = []
    for piece in [piece for part in parts for piece in parser.push(part)] + parser.finish():
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            assert piece != "", "an empty piece"
            joined.append(piece)
    return joined


CASES = [(JsonCalls, *c) for c in JSON_TEXTS] + [(XmlCalls, *c) for c in XML_TEXTS]


@pytest.mark.parametrize(("kind", "text", "expected"), CASES)
def test_every_cut_gives_the_same_pieces(kind: type[CallParser], text: str, expected: list[str | ToolCall]) -> None:
    """C074."""
    assert parsed(kind, [text]) == expected
    if len(text) > 1000:
        return
    for cut in range(len(text) + 1):
        assert parsed(kind, [text[:cut], text[cut:]]) == expected
    for size in range(1, 17):
        assert parsed(kind, [text[i : i + size] for i in range(0, len(text), size)]) == expected


@pytest.mark.parametrize("kind", [JsonCalls, XmlCalls])
def test_no_call_comes_out_before_it_is_complete(kind: type[CallParser]) -> None:
    """C076: cut anywhere, the answer has whole calls only."""
    texts = {JsonCalls: '<tool_call>{"name":"f","arguments":{"s":"value"}}</tool_call>', XmlCalls: xml(("s", "value"))}
    text = texts[kind]
    for cut in range(len(text)):
        for piece in parsed(kind, [text[:cut]]):
            assert isinstance(piece, str) or piece == call(s="value")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("s", "123", "123"),
        ("s", "null", "null"),
        ("s", ' "quoted"\n', ' "quoted"\n'),
        ("i", "42", 42),
        ("i", "-3", -3),
        ("i", "4.0", 4),
        ("i", "2025-03-09", "2025-03-09"),
        ("i", "007", "007"),
        ("i", "true", "true"),
        ("i", "null", "null"),
        ("i", "", ""),
        ("n", "1.5", 1.5),
        ("n", "2", 2),
        ("n", "NaN", "NaN"),
        ("b", "true", True),
        ("b", "False", False),
        ("b", "yes", "yes"),
        ("b", "1", "1"),
        ("o", '{"a": 1}', {"a": 1}),
        ("o", "[1]", "[1]"),
        ("o", "{'a': 1}", "{'a': 1}"),
        ("a", "[1, [2]]", [1, [2]]),
        ("maybe", "null", None),
        ("maybe", "5", 5),
        ("text_or_null", "null", None),
        ("text_or_null", "5", "5"),
        ("ref", "9", 9),
        ("enum", "x", "x"),
        ("any", '{"a": [1]}', {"a": [1]}),
        ("any", "plain", "plain"),
        ("any", "null", None),
        ("undeclared", "1", "1"),
    ],
)
def test_text_becomes_what_the_schema_says_or_stays_text(name: str, text: str, value: Any) -> None:
    """C079."""
    found = converted(text, name, SCHEMA)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "schema", [{}, {"properties": None}, {"properties": {"x": 1}}, {"properties": {"x": {"$ref": "#/properties/x"}}}]
)
def test_odd_schemas_are_taken(schema: dict[str, Any]) -> None:
    """C065: no schema breaks the reading of a call."""
    assert converted("word", "x", schema) == "word"
