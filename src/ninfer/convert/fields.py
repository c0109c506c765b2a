"""Typed, bounded reads of named values that came out of a file; every complaint names the file and the key."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ninfer.errors import ArtifactError, ConversionError, UnsupportedError


class Fields:
    """Values by key: GGUF metadata or the object of a JSON file. A value that is absent or None counts as absent.

    `place`: names the object inside the file, `outer.`, in front of every key that a complaint names.
    """

    def __init__(self, values: Mapping[str, object], file: Path, place: str = "") -> None:
        self.values = values
        self.file = file
        self.place = place

    def fail(self, key: str, message: str) -> NoReturn:
        """The value is wrong: ArtifactError."""
        raise ArtifactError(message, file=self.file, field=repr(self.place + key))

    def refuse(self, key: str, why: str) -> NoReturn:
        """The value is legal but asks for something we do not do: ConversionError."""
        raise ConversionError(f"{self.file}: {self.place + key!r} is {self.values.get(key)!r:.80}: {why}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        """An integer from `low` to `high`. Equal integers in a list (GGUF may store sizes per layer) count as one."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be an integer, not {type(value).__name__} {value!r:.60}")
        if not low <= value <= high:
            self.fail(key, f"is {value}; allowed is {low} to {high}")
        return value

    def find_integer(self, key: str, low: int, high: int) -> int | None:
        """As `integer`, None where absent."""
        return self.integer(key, low, high) if self.has(key) else None

    def number(self, key: str, *, above: float = 0, default: float | None = None) -> float:
        """A finite number above `above`."""
        value = self._number(key, default)
        if not above < value <= sys.float_info.max:
            self.fail(key, f"is {value!r:.60}; a finite number above {above} is needed")
        return float(value)

    def number_in(self, key: str, low: float, high: float, *, default: float | None = None) -> float:
        """A number from `low` to `high`."""
        value = self._number(key, default)
        if not low <= value <= high:
            self.fail(key, f"is {value!r:.60}; allowed is {low} to {high}")
        return float(value)

    def _number(self, key: str, default: float | None) -> float:
        value = self.values.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"must be a number, not {type(value).__name__} {value!r:.60}")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return default
        if not isinstance(value, str):
            self.fail(key, f"must be text, not {type(value).__name__} {value!r:.60}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {value!r:.60}")
        return value

    def table(self, key: str) -> Fields:
        """A nested object, its members by their own names; absent counts as empty."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.fail(key, f"must be an object, not {type(value).__name__}")
        return Fields(value, self.file, f"{self.place}{key}.")


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Put the file's name in front of errors from code that was only given the content."""
    try:
        yield
    except ArtifactError as error:
        if error.file is not None:
            raise
        named = ArtifactError(str(error), file=file)
        named.field = error.field
        raise named from error
    except UnsupportedError as error:
        raise ConversionError(f"{file}: {error}") from error
