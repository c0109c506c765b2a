"""Checks of answers. A prompt's `options["check"]` says how; so whoever has the record can check again.

| kind | right when |
|---|---|
| `number` | the last number of the answer is `answer` |
| `json` | the answer, or its one code block, is JSON of `schema` |
| `matches` | the whole answer, without space around it, matches the regular expression `pattern` |
| `python` | its one code block (or all of it) passes `tests` in a room without network (sandbox.py) |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema

from ninfer.bench.tasks.sandbox import run_python
from ninfer.errors import ConfigError

Judgement = Literal["right", "wrong", "unjudged"]

_NUMBER = re.compile(r"-?\d[\d,\u202f\u00a0]*(?:\.\d+)?")
_BLOCK = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """reason: what is wrong with the answer, or why nothing can be said of it."""

    judgement: Judgement
    reason: str = ""


RIGHT = Verdict("right")


def check_answer(check: Mapping[str, Any], text: str) -> Verdict:
    """Judge the text of an answer. ConfigError for a check of an unknown kind."""
    match check:
        case {"kind": "number", "answer": int() | float() as answer}:
            return _number(answer, text)
        case {"kind": "json", "schema": schema}:
            return _json(schema, text)
        case {"kind": "matches", "pattern": str() as pattern}:
            matches = re.fullmatch(pattern, text.strip()) is not None
            return RIGHT if matches else Verdict("wrong", f"does not match {pattern}")
        case {"kind": "python", "tests": str() as tests}:
            return _python(tests, text)
    raise ConfigError(f"a check of no known kind: {dict(check)}")


def _number(answer: float, text: str) -> Verdict:
    found = _NUMBER.findall(text)
    if not found:
        return Verdict("wrong", "there is no number in it")
    last = float(re.sub(r"[^\d.-]", "", found[-1]))
    return RIGHT if last == answer else Verdict("wrong", f"the last number is {found[-1]}, not {answer:g}")


def _json(schema: Any, text: str) -> Verdict:
    try:
        value = json.loads(_block(text))
    except ValueError as error:
        return Verdict("wrong", f"no JSON: {error}")
    try:
        jsonschema.Draft202012Validator(schema).validate(value)
    except jsonschema.ValidationError as error:
        return Verdict("wrong", f"{error.json_path}: {error.message}")
    return RIGHT


def _python(tests: str, text: str) -> Verdict:
    result = run_python(f"{_block(text)}\n\n{tests}\n")
    if result.problem is None:
        return RIGHT
    return Verdict("wrong" if result.has_run else "unjudged", result.problem)


def _block(text: str) -> str:
    """The one code block of an answer; all of it if there is none or more than one."""
    blocks = _BLOCK.findall(text)
    return str(blocks[0]) if len(blocks) == 1 else text.strip()
