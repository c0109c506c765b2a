"""A conversation file is read strictly: what is wrong is named with the file, nothing is dropped."""

from __future__ import annotations

import io
import json

import pytest

from ninfer.cli.messages import read_conversation
from ninfer.errors import RequestError

USER = {"role": "user", "content": "Hello"}


@pytest.fixture
def conversation(tmp_path):
    """Writes bytes or JSON to a file and reads it back as a conversation."""

    def read(content: object):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / "m.json").write_bytes(data)
        return read_conversation(str(tmp_path / "m.json"))

    return read


def test_array_and_object_are_the_same(conversation) -> None:
    assert conversation([USER]) == conversation({"messages": [USER]}) == ([USER], None)


def test_tools_travel_with_the_messages(conversation) -> None:
    assert conversation({"messages": [USER], "tools": [{"type": "function"}]}) == ([USER], [{"type": "function"}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Hello", "expected an array of messages"),
        ({}, "expected an array of messages"),
        ({"messages": [USER], "tools": "search"}, "expected an array of messages"),
        ({"messages": [USER], "tolls": []}, "unsupported field 'tolls'"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_refused(conversation, content, words) -> None:
    with pytest.raises(RequestError, match=rf"m\.json: {words}"):
        conversation(content)


def test_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(RequestError, match=r"m\.json: No such file"):
        read_conversation(str(tmp_path / "m.json"))


def test_dash_is_stdin(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([USER])))
    assert read_conversation("-") == ([USER], None)
