"""Lines that carry a digest of themselves and of the line before."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ninfer.metrics.line_file import LineFile, whole_lines

_DIGEST_BYTES = 16
_MARK, _END = b',"chain":"', b'"}'
_SUFFIX_BYTES = len(_MARK) + 2 * _DIGEST_BYTES + len(_END)


class ChainError(ValueError):
    """A line that is not what was appended; the message says what is wrong with it."""


def link(previous: str, body: bytes) -> str:
    """The digest of a line: hex, 16 bytes."""
    return blake2b(previous.encode() + body, digest_size=_DIGEST_BYTES).hexdigest()


def read_chain(path: Path, start: str) -> Iterator[bytes]:
    """The JSON objects of a chained file as they were appended; ChainError at the first one that was not.

    A file that does not exist has none. start: what the first line is chained to.
    """
    previous = start
    for line in whole_lines(path) if path.exists() else []:
        body, suffix = line[:-_SUFFIX_BYTES] + b"}", line[-_SUFFIX_BYTES:]
        previous = link(previous, body)
        if suffix != _MARK + previous.encode() + _END:
            has_digest = suffix.startswith(_MARK) and suffix.endswith(_END)
            raise ChainError(
                "it or a line before it was changed, removed or moved" if has_digest else "it has no digest at its end"
            )
        yield body


class ChainFile:
    """Appends to a chained file, going on where it ends."""

    def __init__(self, path: Path, start: str) -> None:
        """OSError when the file cannot be appended to; ChainError when what is in it was changed."""
        self._file = LineFile(path)
        self._last = start
        try:
            for body in read_chain(path, start):
                self._last = link(self._last, body)
        except ChainError:
            self.close()
            raise

    def append(self, body: bytes) -> None:
        """Add a non-empty JSON object and wait until it is on the disk; OSError when it could not be written."""
        digest = link(self._last, body)
        self._file.append(body[:-1] + _MARK + digest.encode() + _END)
        self._file.sync()
        self._last = digest

    def close(self) -> None:
        self._file.close()
