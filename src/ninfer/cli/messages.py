"""The conversation file of `--messages`; what a message may hold is judged by `ninfer.text`."""

from __future__ import annotations

import json
import sys
from typing import Any

from ninfer.errors import RequestError


def read_conversation(path: str) -> tuple[list[Any], list[Any] | None]:
    """(messages, tools) of a JSON file (`-`: stdin): an array of messages, or an object with `messages` and `tools`.

    Raises RequestError that names the file and what is wrong with it; other fields of the object are refused.
    """
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        data = json.loads(text)
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise _refusal(path, f"not UTF-8 at byte {error.start}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise _refusal(path, f"not JSON: {error}") from error
    messages, tools = data, None
    if isinstance(data, dict):
        unknown = sorted(set(data) - {"messages", "tools"})
        if unknown:
            raise _refusal(path, f"unsupported field {unknown[0]!r}; supported: messages, tools", "unsupported_field")
        messages, tools = data.get("messages"), data.get("tools")
    if not isinstance(messages, list) or not isinstance(tools, list | None):
        raise _refusal(path, "expected an array of messages, or an object with the arrays messages and tools")
    return messages, tools


def _refusal(path: str, message: str, kind: str = "bad_value") -> RequestError:
    return RequestError(f"{path}: {message}", kind=kind, param="messages")
