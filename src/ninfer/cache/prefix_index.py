"""Which KV pages and recurrent snapshots of earlier tokens can be used again, by the tokens themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninfer.cache.pages import PageAllocator
from ninfer.cache.state_slots import Snapshot, StateSlots
from ninfer.errors import InvariantError
from ninfer.ops.batch import PAGE_TOKENS

Ids = npt.NDArray[np.int32]

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a sequence can go on from: `num_tokens`, a whole number of pages, are in `pages`.

    snapshot: the recurrent state after them, for models that have it; None without a token. num_known: tokens whose
    pages are there. It is more than `num_tokens` where no snapshot is: a state that is saved there will be of use.
    """

    pages: tuple[int, ...] = ()
    snapshot: Snapshot | None = None
    num_known: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.pages) * PAGE_TOKENS


NO_MATCH = PrefixMatch()


@dataclass(slots=True, eq=False)
class _Node:
    """One full page behind those of its ancestors. key: its tokens, int32 as bytes."""

    key: bytes
    page: int
    parent: _Node | None
    children: dict[bytes, _Node] = field(default_factory=dict)
    snapshot: Snapshot | None = None


class PrefixIndex:
    """A tree of full pages: the path from the root to a page is the text that it belongs to.

    Tokens are compared, never hashes of them alone. Pages stay in the pool of the sequences, and give way when those
    need them: the least recently used first, of a path the last page. Recurrent snapshots have the budget of `slots`
    and are given up by their own last use. In a model with recurrent state a page is of use only below a snapshot, so
    every leaf has one; what loses it is discarded.
    """

    def __init__(self, pages: PageAllocator, slots: StateSlots | None = None) -> None:
        self._pages = pages
        self._slots = slots
        self._root = _Node(b"", -1, None)
        # Least recently used first; a node always stands behind its descendants, so the first one nobody holds is a
        # leaf. (Who holds a page holds all pages before it.)
        self._nodes: OrderedDict[_Node, None] = OrderedDict()
        self._snapshots: OrderedDict[_Node, Snapshot] = OrderedDict()

    @property
    def num_pages(self) -> int:
        """Pages that are kept, those that sequences hold too among them."""
        return len(self._nodes)

    @property
    def num_snapshots(self) -> int:
        return len(self._snapshots)

    def find(self, tokens: Ids) -> PrefixMatch:
        """The longest match of all pages of `tokens` int32 `[T]` but for the last token, which is always computed."""
        path = list(self._walk(tokens, (len(tokens) - 1) // PAGE_TOKENS))
        self._touch(path)
        depth = len(path)
        snapshot = None
        if self._slots is not None:
            depth, node = next(((d, n) for d, n in _from_the_end(path) if n.snapshot is not None), (0, self._root))
            snapshot = node.snapshot
            if snapshot is not None:
                self._snapshots.move_to_end(node)
        return PrefixMatch(tuple(node.page for node in path[:depth]), snapshot, len(path) * PAGE_TOKENS)

    def publish(self, tokens: Ids, pages: npt.NDArray[np.int32], snapshot: Snapshot | None = None) -> tuple[int, ...]:
        """Keep the full pages of committed `tokens`, all of which their sequence holds, and one hold of `snapshot`.

        The pages that are kept for these tokens: where another sequence was first, they are its own. What it wrote is
        the same, so the caller can go on with them and drop its copies.
        With recurrent state `snapshot` is the state after the last of the tokens, which end with a page.
        """
        count = len(tokens) // PAGE_TOKENS
        if count > len(pages) or (self._slots is not None and (snapshot is None or len(tokens) != count * PAGE_TOKENS)):
            raise InvariantError(f"{len(tokens)} tokens published with {len(pages)} pages and {snapshot}")
        path = list(self._walk(tokens, count))
        for index in range(len(path), count):
            parent = path[-1] if path else self._root
            node = _Node(_key(tokens, index), int(pages[index]), parent)
            self._pages.keep(node.page)
            parent.children[node.key] = node
            path.append(node)
        self._touch(path)
        if snapshot is not None and path:
            self._add(path[-1], snapshot)
        return tuple(node.page for node in path)

    def free_pages(self, count: int) -> bool:
        """Discard idle pages until `count` are free. False, and nothing has changed, if they would not be enough."""
        if count > self._pages.num_available:
            return False
        while self._pages.num_free < count:
            self._discard(next(node for node in self._nodes if not self._pages.is_held(node.page)))
        return True

    def snapshot_room(self, count: int) -> int:
        """How many of `count` new snapshots there is room for, after giving up those that nobody goes on from."""
        if self._slots is None:
            return 0
        while self._slots.num_snapshots + count > self._slots.max_snapshots:
            victim = next((node for node, s in self._snapshots.items() if not self._slots.is_shared(s.slot)), None)
            if victim is None:
                break
            self._drop_snapshot(victim)
            self._prune(victim)
        return max(0, min(count, self._slots.max_snapshots - self._slots.num_snapshots))

    def forget(self, tokens: Ids, num_kept: int) -> None:
        """Discard what is known of `tokens` beyond the first `num_kept`, and everything that follows from it."""
        path = list(self._walk(tokens, len(tokens) // PAGE_TOKENS))
        if len(path) > num_kept // PAGE_TOKENS:
            node = path[num_kept // PAGE_TOKENS]
            for each in list(_below(node)):
                self._discard(each)

    def clear(self) -> None:
        """Discard everything."""
        for child in list(self._root.children.values()):
            for each in list(_below(child)):
                self._discard(each)

    def _walk(self, tokens: Ids, most: int) -> Iterator[_Node]:
        """The nodes of the first pages of `tokens`, as far as they are there."""
        node: _Node | None = self._root
        for index in range(most):
            node = node.children.get(_key(tokens, index)) if node is not None else None
            if node is None:
                return
            yield node

    def _touch(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._nodes[node] = None
            self._nodes.move_to_end(node)

    def _add(self, node: _Node, snapshot: Snapshot) -> None:
        if node.snapshot is not None:
            self._release(snapshot)
        else:
            node.snapshot = snapshot
            self._snapshots[node] = snapshot
        self._snapshots.move_to_end(node)

    def _discard(self, node: _Node) -> None:
        """Drop a leaf, and what is of no use without it. Nothing if it is gone."""
        if node.parent is None:
            return
        if node.children:
            raise InvariantError("a page discarded before those that follow it")
        if node.snapshot is not None:
            self._drop_snapshot(node)
        parent = node.parent
        del parent.children[node.key], self._nodes[node]
        node.parent = None
        self._pages.discard(node.page)
        self._prune(parent)

    def _prune(self, node: _Node) -> None:
        """With recurrent state: discard a node that is no use, because it leads to no snapshot."""
        if self._slots is not None and not node.children and node.snapshot is None:
            self._discard(node)

    def _drop_snapshot(self, node: _Node) -> None:
        snapshot = self._snapshots.pop(node)
        node.snapshot = None
        self._release(snapshot)

    def _release(self, snapshot: Snapshot) -> None:
        if self._slots is None:
            raise InvariantError(f"{snapshot} in an index without recurrent state")
        self._slots.drop(snapshot.slot)


def _key(tokens: Ids, index: int) -> bytes:
    return tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS].astype(np.int32, copy=False).tobytes()


def _from_the_end(path: list[_Node]) -> Iterator[tuple[int, _Node]]:
    """(depth, node), the deepest first."""
    return zip(range(len(path), 0, -1), reversed(path), strict=True)


def _below(node: _Node) -> Iterator[_Node]:
    """A node and everything that follows it, children before their parents."""
    found = [node]
    for each in found:
        found.extend(each.children.values())
    return reversed(found)
