"""The printable alphabet in which byte-level vocabularies spell bytes (spec: GPT-2 encoder, `bytes_to_unicode`).

Printable Latin-1 bytes (33..126, 161..172, 174..255) stand for themselves; the other 68 are written U+0100, U+0101, ...
in byte order, so a space is U+0120 and a newline U+010A.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))


def _alphabet() -> dict[int, str]:
    letters = {byte: chr(byte) for byte in _PRINTABLE}
    rest = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(0x100 + index) for index, byte in enumerate(rest)})
    return dict(sorted(letters.items()))


BYTE_TO_CHAR: Mapping[int, str] = MappingProxyType(_alphabet())
CHAR_TO_BYTE: Mapping[str, int] = MappingProxyType({char: byte for byte, char in BYTE_TO_CHAR.items()})


def spelled_bytes(token: str) -> bytes | None:
    """The bytes that `token` spells, or None if it has a character outside the alphabet."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in token])
    except KeyError:
        return None
