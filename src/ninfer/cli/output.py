"""What commands print: answers and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any


class ReaderGoneError(Exception):
    """Whoever read stdout has closed it. Not a BrokenPipeError, because click ends the process itself on that."""


def notice(text: str) -> None:
    """One line for a person, on stderr."""
    print(f"ninfer: {text}", file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """One error line on stderr, whatever the message contains."""
    print("ninfer: error:", " ".join(message.split()), file=sys.stderr, flush=True)


def write_answer(text: str) -> None:
    """A piece of the answer on stdout, visible at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def write_json(data: dict[str, Any]) -> None:
    """One JSON object on stdout. ASCII, so that no locale changes it; NaN and infinity are bugs, not values."""
    write_answer(json.dumps(data, allow_nan=False) + "\n")


def bytes_text(count: int) -> str:
    """A byte count for people, exact and readable: `98,362,432 (93.8 MiB)`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count:,} ({count / size:.1f} {unit})"
    return f"{count:,}"
