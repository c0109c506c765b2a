"""Reading a family's configuration from an artifact: every value checked, every refusal names the field."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from ninfer.errors import ArtifactError

MAX_SIZE = 1 << 24
"""Bound of every size and count in a configuration; far above any model, far below trouble."""

MAX_LAYERS = 1024
"""Bound of a model's layers."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def _is_list(value: object, most: int) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and 1 <= len(value) <= most


class ConfigFields:
    """The configuration object of one artifact, or one inside it. `file` and `place` are named by every error."""

    def __init__(
        self, config: Mapping[str, Any], known: Iterable[str], *, file: object = None, place: str = "config"
    ) -> None:
        self._config = config
        self._file = file
        self._place = place
        unknown = sorted(set(config) - set(known))
        if unknown:
            raise self.error(unknown[0], "not known to this family; ignoring it could change the result")

    def error(self, name: str, message: str) -> ArtifactError:
        return ArtifactError(message, file=self._file, field=f"{self._place}.{name}")

    def size(self, name: str, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """An integer in `least .. most`."""
        value = self._value(name)
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"must be an integer from {least} to {most}, got {value!r:.80}")
        return value

    def positive(self, name: str, *, above: float = 0) -> float:
        """A finite number above `above`."""
        value = self._value(name)
        if type(value) not in (int, float) or not above < value <= sys.float_info.max:
            raise self.error(name, f"must be a number above {above}, got {value!r:.80}")
        return float(value)

    def number(self, name: str, least: float, most: float) -> float:
        """A number in `least .. most`."""
        value = self._value(name)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.error(name, f"must be a number from {least} to {most}, got {value!r:.80}")
        return float(value)

    def find_number(self, name: str, least: float, most: float) -> float | None:
        """As `number`, or None."""
        return None if self._value(name) is None else self.number(name, least, most)

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if type(value) is not bool:
            raise self.error(name, f"must be true or false, got {value!r:.80}")
        return value

    def words(self, name: str, known: Sequence[str], *, most: int) -> tuple[str, ...]:
        """A list of 1 to `most` of the known words."""
        value = self._value(name)
        if not _is_list(value, most) or any(item not in known for item in value):
            raise self.error(name, f"must be a list of 1 to {most} of {', '.join(known)}, got {value!r:.80}")
        return tuple(value)

    def find_size(self, name: str, *, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """As `size`, or None."""
        return None if self._value(name) is None else self.size(name, least=least, most=most)

    def sizes(self, name: str, *, least: int, most: int, count: int) -> tuple[int, ...]:
        """A list of 1 to `count` integers in `least .. most`."""
        value = self._value(name)
        if not _is_list(value, count) or not all(type(item) is int and least <= item <= most for item in value):
            raise self.error(name, f"must be 1 to {count} integers from {least} to {most}, got {value!r:.80}")
        return tuple(value)

    def sizes_or_null(self, name: str, *, count: int) -> tuple[int | None, ...]:
        """A list of 1 to `count` values, each null or an integer from 1 on."""
        value = self._value(name)
        if not _is_list(value, count) or not all(
            item is None or (type(item) is int and 1 <= item <= MAX_SIZE) for item in value
        ):
            raise self.error(name, f"must be 1 to {count} of null or an integer up to {MAX_SIZE}, got {value!r:.80}")
        return tuple(value)

    def flags(self, name: str, *, count: int) -> tuple[bool, ...]:
        """A list of 1 to `count` truth values."""
        value = self._value(name)
        if not _is_list(value, count) or not all(type(item) is bool for item in value):
            raise self.error(name, f"must be 1 to {count} of true or false, got {value!r:.80}")
        return tuple(value)

    def word(self, name: str, known: Sequence[str]) -> str:
        """One of the known words."""
        value = self._value(name)
        if not isinstance(value, str) or value not in known:
            raise self.error(name, f"must be one of {', '.join(known)}, got {value!r:.80}")
        return value

    def digest(self, name: str) -> str:
        """A BLAKE2b-256 in 64 lower-case hex digits."""
        value = self._value(name)
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            raise self.error(name, f"must be 64 lower-case hex digits, got {value!r:.80}")
        return value

    def table(self, name: str, known: Iterable[str]) -> ConfigFields:
        """An object with the known members."""
        found = self.find_table(name, known)
        if found is None:
            raise self.error(name, "must be an object, got null")
        return found

    def find_table(self, name: str, known: Iterable[str]) -> ConfigFields | None:
        """An object with the known members, or None."""
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be null or an object, got {value!r:.80}")
        return ConfigFields(value, known, file=self._file, place=f"{self._place}.{name}")

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """An id in the vocabulary, or None."""
        value = self._value(name)
        if value is not None and not self._is_id(value, vocab_size):
            raise self.error(name, f"must be null or an id below {vocab_size}, got {value!r:.80}")
        return value

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        value = self._value(name)
        if not isinstance(value, list) or not all(self._is_id(item, vocab_size) for item in value):
            raise self.error(name, f"must be a list of ids below {vocab_size}, got {value!r:.80}")
        return tuple(value)

    @staticmethod
    def _is_id(value: object, vocab_size: int) -> bool:
        return type(value) is int and 0 <= value < vocab_size

    def _value(self, name: str) -> Any:
        if name not in self._config:
            raise self.error(name, "missing")
        return self._config[name]
