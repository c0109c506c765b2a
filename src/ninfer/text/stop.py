"""Stop strings found in streamed text, wherever the pieces are cut.

The rule does not depend on how the text is cut: the first place at which some stop string is complete ends the text,
and of those complete at that place the longest counts. The text before it is the result; the rest is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer.errors import RequestError


@dataclass
class _Node:
    """A prefix of some stop string, `depth` characters long."""

    depth: int
    following: dict[str, _Node] = field(default_factory=dict)
    shorter: _Node | None = None  # its longest proper suffix that is a prefix of a stop string too; None at the root
    complete: str | None = None  # the longest stop string that ends here


class StopMatcher:
    """Watches one stream of text: Aho and Corasick's automaton, two steps per character whatever the stop strings are.

    Only text that may still become a stop string is held back: the longest end of the text that is a beginning of one.
    """

    def __init__(self, stop_strings: Sequence[str] = ()) -> None:
        """Raises `RequestError` (param `stop`) for a stop string that is empty, not text or not valid Unicode."""
        self._root = _automaton(stop_strings)
        self._node = self._root
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text: (what may be shown now, the stop string that ended the text or None).

        After a match nothing more comes out and the match is reported again.
        """
        if self.matched is not None:
            return "", self.matched
        pending = self._held + text
        node = self._node
        for end, char in enumerate(text, start=len(self._held) + 1):
            while char not in node.following and node.shorter is not None:
                node = node.shorter
            node = node.following.get(char, node)
            if node.complete is not None:
                self._held, self.matched = "", node.complete
                return pending[: end - len(node.complete)], node.complete
        shown = len(pending) - node.depth
        self._node, self._held = node, pending[shown:]
        return pending[:shown], None

    def flush(self) -> str:
        """The end of the stream: what was held back and is not a stop string after all."""
        held, self._held, self._node = self._held, "", self._root
        return held


def _automaton(stop_strings: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stop_strings:
        _require_usable(stop)
        node = root
        for char in stop:
            node = node.following.setdefault(char, _Node(depth=node.depth + 1))
        node.complete = stop
    waiting = deque([root])
    while waiting:  # by depth, so that every shorter node is finished before it is needed
        node = waiting.popleft()
        for char, child in node.following.items():
            suffix = node.shorter
            while suffix is not None and char not in suffix.following:
                suffix = suffix.shorter
            child.shorter = root if suffix is None else suffix.following[char]
            child.complete = child.complete or child.shorter.complete
            waiting.append(child)
    return root


def _require_usable(stop: object) -> None:
    if not isinstance(stop, str):
        raise RequestError(f"a stop string must be text, not {type(stop).__name__}", param="stop")
    if not stop:
        raise RequestError("a stop string must not be empty", param="stop")
    if any("\ud800" <= char <= "\udfff" for char in stop):
        raise RequestError(f"the stop string {stop!r} has a lone surrogate; send valid Unicode", param="stop")
