"""Keeps user text from becoming control tokens, through any chat template.

Control tokens are found in the rendered text, so a user who writes one would get one. Before rendering, the guard puts
stand-ins (private-use characters that occur nowhere else) in the place of dangerous characters of user strings, and
puts the originals back after the rendered text has been cut at its control tokens.

**What is covered.** Let P be the first and last characters of all control tokens. In every user string each character
of P is covered, except inside the template's own harmless words (below). A user string that as a whole is a part of
some control token (`im_end` of `<|im_end|>`) is covered in every character, in case the template writes the rest.

**Why it is sound.** Suppose a control token T stands in the rendered text. Its first character is in P. If a user
string had brought it, it would be a stand-in, which T does not contain; so the template wrote it. The same holds for
the last. This needs nothing of the template but that it does not cut one of its own harmless words in two: it may trim,
slice, split, join and replace (and change case, unless a control token begins or ends with a letter). So no token
forms inside a user string, across its border, or from pieces of it.

**Harmless words.** Templates look for their own words in user text (`'</think>' in content`), and those must stay as
they are to be found. A constant of the template is harmless if no control token can overlap it: neither contains the
other, and no end of one is a beginning of the other. Then no character of it can be the first or last of a T.

Exempt are `OwnText` (roles: a closed set, of which templates build control tokens) and strings that equal a harmless
constant or one without any character of P (`string`, `function`: what templates compare with).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer.errors import RequestError

# Planes 15 and 16 are private use throughout: no text in the wild gives their characters a meaning.
_FIRST_STAND_IN, _LAST_STAND_IN = 0xF0000, 0x10FFFD
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")
# Nesting of tool schemas and arguments; real ones stay under 20.
MAX_DEPTH = 64


class OwnText(str):
    """Text of the engine among user values."""

    __slots__ = ()


@dataclass(frozen=True)
class Covered:
    """User values with stand-ins, and the way back."""

    values: dict[str, Any]
    changed: bool
    originals: Mapping[int, str]  # code point of each stand-in -> character

    def uncover(self, text: str) -> str:
        return text.translate(self.originals) if self.changed else text


class TextGuard:
    """The covering rule for one set of control tokens and one template."""

    def __init__(self, control_tokens: Collection[str], constants: Collection[str], source: str) -> None:
        """`constants`: text constants and attribute names of the template; `source`: its text."""
        self._tokens = tuple(control_tokens)
        self._letters = sorted(set("".join(self._tokens)))
        borders = {char for token in self._tokens for char in (token[0], token[-1])}
        harmless = [word for word in constants if not borders.isdisjoint(word) and self._is_apart(word)]
        self._exempt = frozenset(word for word in constants if borders.isdisjoint(word)).union(harmless)
        words = sorted(harmless, key=lambda word: (-len(word), word))
        # Words first: at the place where one begins it is taken whole, and its characters are skipped.
        self._pattern = re.compile("|".join(map(re.escape, [*words, *sorted(borders)]))) if borders else None
        self._borders = frozenset(borders)
        self._reserved = frozenset(_PRIVATE.findall(source + "".join(self._tokens)))

    def cover(self, values: Mapping[str, Any]) -> Covered:
        """The variables of a template with every text in them covered; their own names stay.

        `values`: JSON-like: text, numbers, booleans, None, lists, mappings. Raises `RequestError` for other types and
        for nesting deeper than `MAX_DEPTH`.
        """
        taken = set(self._reserved)
        for text in _texts(values):
            taken.update(_PRIVATE.findall(text))
        stand_ins = self._choose(taken)
        covered = {name: self._cover(value, stand_ins) for name, value in values.items()}
        originals = {ord(stand_in): char for char, stand_in in stand_ins.items()}
        return Covered(covered, changed=covered != values, originals=originals)

    def _is_apart(self, word: str) -> bool:
        """Whether no control token can share a character with this word in any text."""
        return not any(
            word in token
            or token in word
            or any(word.endswith(token[:n]) or word.startswith(token[-n:]) for n in range(1, len(token)))
            for token in self._tokens
        )

    def _choose(self, taken: Collection[str]) -> dict[str, str]:
        free = (chr(code) for code in range(_FIRST_STAND_IN, _LAST_STAND_IN + 1))
        chosen = dict(zip(self._letters, (char for char in free if char not in taken), strict=False))
        if len(chosen) < len(self._letters):
            raise RequestError("the text uses up the private-use characters of Unicode", kind="invalid_text")
        return chosen

    def _cover(self, value: Any, stand_ins: Mapping[str, str]) -> Any:
        if isinstance(value, str):
            return self._cover_text(value, stand_ins)
        if isinstance(value, Mapping):
            return {self._cover_text(key, stand_ins): self._cover(item, stand_ins) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cover(item, stand_ins) for item in value]
        return value

    def _cover_text(self, text: str, stand_ins: Mapping[str, str]) -> str:
        if self._pattern is None or isinstance(text, OwnText) or text in self._exempt:
            return text
        core = text.strip()
        if core and any(core in token for token in self._tokens):
            return "".join(stand_ins.get(char, char) for char in text)
        return self._pattern.sub(
            lambda match: stand_ins[match.group()] if match.group() in self._borders else match.group(), text
        )


def _texts(value: Any, depth: int = 0) -> list[str]:
    """Every text in a JSON-like value, mapping keys included."""
    if isinstance(value, str):
        return [value]
    if value is None or isinstance(value, bool | int | float):
        return []
    if depth >= MAX_DEPTH:
        raise RequestError(f"messages, tools or variables are nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise RequestError(f"messages, tools or variables hold the key {wrong!r}, which is not text")
        return [*value, *(text for item in value.values() for text in _texts(item, depth + 1))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item, depth + 1)]
    raise RequestError(f"messages, tools or variables hold a {type(value).__name__}, which is not JSON")
