"""Who owns which of a fixed number of things: recurrent-state slots, journals."""

from __future__ import annotations

import heapq

from ninfer.errors import InvariantError


class Allocator:
    """Things `0 .. size`, each free or owned once; `noun` names one in errors.

    Two levels: a *claim* promises a number of things without naming them, and `take` hands one out under a claim, the
    free one with the lowest id, so ids depend only on the history of calls. Claims never exceed what exists, so `take`
    under a claim cannot fail and running sequences can never block each other.
    """

    def __init__(self, size: int, noun: str) -> None:
        if size < 0:
            raise InvariantError(f"an allocator of {size} {noun}s")
        self.size = size
        self._noun = noun
        self._free = list(range(size))  # a heap, as any sorted list is
        self._owned = bytearray(size)
        self._claimed = 0

    @property
    def num_free(self) -> int:
        """Things nobody owns; some may be promised."""
        return len(self._free)

    @property
    def num_claimed(self) -> int:
        """Things promised, taken or not."""
        return self._claimed

    @property
    def num_claimable(self) -> int:
        """Things nobody was promised."""
        return self.size - self._claimed

    def claim(self, count: int) -> None:
        """Promise `count` things. InvariantError if fewer are claimable: the caller looks at `num_claimable` first."""
        if not 0 <= count <= self.num_claimable:
            raise InvariantError(
                f"cannot claim {count} {self._noun}s, {self.num_claimable} of {self.size} are claimable"
            )
        self._claimed += count

    def unclaim(self, count: int) -> None:
        """Take back a promise of `count` things that are not taken."""
        if not 0 <= count <= self._claimed - (self.size - self.num_free):
            raise InvariantError(f"cannot unclaim {count} {self._noun}s: {self._claimed} claimed, {self.num_free} free")
        self._claimed -= count

    def take(self) -> int:
        """The id of the lowest free thing, now owned by the caller, who must have claimed it."""
        if self.size - self.num_free >= self._claimed:
            raise InvariantError(f"{self._noun} taken without a claim: {self._claimed} claimed, all of them taken")
        taken = heapq.heappop(self._free)
        self._owned[taken] = 1
        return taken

    def give_back(self, thing: int) -> None:
        """Free a thing; the claim it was taken under stays. InvariantError if it is free already or does not exist."""
        if not 0 <= thing < self.size or not self._owned[thing]:
            raise InvariantError(f"{self._noun} {thing} was given back but is not owned")
        self._owned[thing] = 0
        heapq.heappush(self._free, thing)
