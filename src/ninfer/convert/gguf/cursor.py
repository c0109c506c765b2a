"""A reading position in a mapped file; no value is taken before its bytes are known to exist."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NoReturn

from ninfer.errors import ArtifactError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian values from `data[pos:end]`; running past `end` is an `ArtifactError` naming the field.

    `limit` caps how far a header may reach: what lies beyond cannot be part of a sensible header, so a file made to
    exhaust memory is refused while it is still cheap.
    """

    def __init__(self, data: mmap.mmap, size: int, limit: int, file: Path) -> None:
        self._data = data
        self._size = size
        self._end = min(size, limit)
        self.file = file
        self.pos = 0

    @property
    def remaining(self) -> int:
        """Bytes that a header may still use."""
        return self._end - self.pos

    def fail(self, field: str, message: str, *, at: int | None = None) -> NoReturn:
        """Raise the error for `field`, pointing at file offset `at` (default: the current position)."""
        raise ArtifactError(message, file=self.file, field=f"{field} at offset {self.pos if at is None else at}")

    def need(self, count: int, field: str) -> None:
        """Check that `count` more bytes exist."""
        if count <= self.remaining:
            return
        if self._end < self._size:
            self.fail(field, f"needs {count} bytes, which goes past the header limit of {self._end} bytes")
        self.fail(field, f"truncated: needs {count} bytes, the file has {self.remaining} left")

    def take(self, count: int, field: str) -> bytes:
        """The next `count` bytes."""
        self.need(count, field)
        start = self.pos
        self.pos = start + count
        return self._data[start : self.pos]

    def scalar(self, decoder: struct.Struct, field: str) -> int | float:
        """One value of a fixed-size type."""
        self.need(decoder.size, field)
        (value,) = decoder.unpack_from(self._data, self.pos)
        self.pos += decoder.size
        return value

    def scalars(self, code: str, count: int, field: str) -> list[int | float]:
        """`count` values back to back; `code` is a struct format character."""
        decoder = struct.Struct(f"<{code}")
        self.need(count * decoder.size, field)
        end = self.pos + count * decoder.size
        values = [item for (item,) in decoder.iter_unpack(self._data[self.pos : end])]
        self.pos = end
        return values

    def u32(self, field: str) -> int:
        return int(self.scalar(_U32, field))

    def u64(self, field: str) -> int:
        return int(self.scalar(_U64, field))

    def string(self, field: str, max_bytes: int) -> str:
        """A length-prefixed UTF-8 string of at most `max_bytes` bytes."""
        start = self.pos
        length = self.u64(field)
        if length > max_bytes:
            self.fail(field, f"string length {length} is over the limit of {max_bytes} bytes", at=start)
        raw = self.take(length, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(field, f"not valid UTF-8 ({error.reason} at byte {error.start})", at=start + _U64.size)

    def strings(self, count: int, field: str, max_bytes: int) -> list[str]:
        """`count` strings back to back; errors name the item.

        A vocabulary has a hundred thousand of them, so this is `string` written out as one loop.
        """
        data, end, unpack, width = self._data, self._end, _U64.unpack_from, _U64.size
        items: list[str] = []
        pos = self.pos
        for _ in range(count):
            start = pos + width
            stop = start + unpack(data, pos)[0] if start <= end else end + 1
            if stop > end or stop - start > max_bytes:
                break
            try:
                items.append(data[start:stop].decode("utf-8"))
            except UnicodeDecodeError:
                break
            pos = stop
        self.pos = pos
        if len(items) < count:
            self.string(f"{field}[{len(items)}]", max_bytes)  # the same checks again: raises, with the reason
        return items
