"""Answers of the Responses protocol that clients may come back to, in memory, bounded in number and bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ninfer.errors import RequestError


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer with all that it was given, as JSON texts, so that their sizes are exact.

    body: the response object. items: the items of its whole conversation before the answer, those of earlier responses
    included, so that a chain does not break when an earlier one is deleted or falls out. item_ids: of `items` and of
    the answer's own.
    """

    body: bytes
    items: bytes
    item_ids: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.items) + sum(map(len, self.item_ids))

    def response(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    def input_items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = msgspec.json.decode(self.items)
        return found

    def conversation(self) -> list[dict[str, Any]]:
        """What a next turn continues: the items it was given, then its answer."""
        return self.input_items() + list(self.response()["output"])


class ResponseStore:
    """Keeps the responses used last. Lives in the event loop's thread; nothing survives the process."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owners: dict[str, set[str]] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def put(self, body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> bool:
        """Keep an answer, and forget those used longest ago that it leaves no room for.

        False, and nothing is forgotten, for an answer that is larger than the whole store.
        """
        record = StoredResponse(
            msgspec.json.encode(body),
            msgspec.json.encode(items),
            tuple(item["id"] for item in (*items, *body["output"])),
        )
        if self._max_records == 0 or record.num_bytes > self._max_bytes:
            return False
        while len(self._records) >= self._max_records or self.num_bytes + record.num_bytes > self._max_bytes:
            self._forget(next(iter(self._records)))
        self._records[body["id"]] = record
        self.num_bytes += record.num_bytes
        for item_id in record.item_ids:
            self._owners.setdefault(item_id, set()).add(body["id"])
        return True

    def get(self, response_id: str, *, param: str | None = None) -> StoredResponse:
        """A stored answer, which is now the one used last. RequestError (`response_not_found`) if there is none."""
        record = self._records.get(response_id)
        if record is None:
            raise RequestError(
                f"there is no response {response_id!r}: it was never stored, was deleted, or has made room for others",
                kind="response_not_found",
                param=param,
            )
        self._records.move_to_end(response_id)
        return record

    def delete(self, response_id: str) -> None:
        """RequestError (`response_not_found`) if there is none."""
        self.get(response_id)
        self._forget(response_id)

    def find_item(self, item_id: str) -> dict[str, Any] | None:
        """An item of a stored answer or of what it was given."""
        for owner in self._owners.get(item_id, ()):
            return next(item for item in self._records[owner].conversation() if item["id"] == item_id)
        return None

    def _forget(self, response_id: str) -> None:
        record = self._records.pop(response_id)
        self.num_bytes -= record.num_bytes
        for item_id in record.item_ids:
            owners = self._owners.get(item_id, set())
            owners.discard(response_id)
            if not owners:
                self._owners.pop(item_id, None)
