"""JSON as artifacts use it: UTF-8, bounded depth and count, no duplicate keys, no NaN, no lone surrogates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from ninfer.errors import ArtifactError, InvariantError

MAX_DEPTH = 16
MAX_CONTAINERS = 1 << 16
"""Arrays and objects of one document; what a header of `entry.MAX_OBJECTS` objects needs, and some."""
MAX_INTEGER_DIGITS = 20
MAX_FLOAT_DIGITS = 40

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_A_BRACKET = re.compile(r"[^][{}]+")


class _RuleError(ValueError):
    """A rule of ours broken while the parser runs; `parse` turns it into an ArtifactError."""


def parse(data: bytes | str, *, file: object, field: str | None) -> Any:
    """The value of a JSON document; ArtifactError naming `file` and `field` if it breaks a rule of this module.

    Time and memory are linear in the length of `data`, which the caller bounds.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        _check_nesting(text)
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, parse_int=_short
        )
        if "\\u" in text:  # only an escape can smuggle in half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"not UTF-8 at byte {error.start}", file=file, field=field) from None
    except UnicodeEncodeError:
        raise ArtifactError("a string holds half a surrogate pair", file=file, field=field) from None
    except (_RuleError, json.JSONDecodeError) as error:
        raise ArtifactError(f"not valid JSON: {error}", file=file, field=field) from None
    return value


def parse_object(data: bytes | str, *, file: object, field: str | None) -> dict[str, Any]:
    """As `parse`, and the value must be an object."""
    value = parse(data, file=file, field=field)
    if not isinstance(value, dict):
        raise ArtifactError(f"must be a JSON object, got {type(value).__name__}", file=file, field=field)
    return value


def dump(value: object, *, sort_keys: bool) -> str:
    """The shortest JSON text, the same for equal values; InvariantError for what `parse` would refuse to read back."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":"))
        parse(text.encode("utf-8"), file=None, field=None)
    except (TypeError, ValueError, ArtifactError) as error:
        raise InvariantError(f"metadata cannot be written as JSON: {error}") from error
    return text


def _check_nesting(text: str) -> None:
    """Bound depth and container count before the parser, which recurses and allocates, sees the text."""
    brackets = _NOT_A_BRACKET.sub("", _STRING.sub("", text))
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise _RuleError(f"more than {MAX_CONTAINERS} arrays and objects")
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise _RuleError(f"nested deeper than {MAX_DEPTH}")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _RuleError(f"key {key!r:.80} appears twice")
        result[key] = value
    return result


def _no_constant(word: str) -> NoReturn:
    raise _RuleError(f"{word} is not a JSON number")


def _finite(digits: str) -> float:
    if len(digits) > MAX_FLOAT_DIGITS:
        raise _RuleError(f"number of {len(digits)} characters")
    value = float(digits)
    if not math.isfinite(value):
        raise _RuleError(f"number {digits} is out of range")
    return value


def _short(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise _RuleError(f"integer of {len(digits)} digits")
    return int(digits)
