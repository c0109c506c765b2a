"""Counts of observed seconds by size, as Prometheus histograms define them."""

from __future__ import annotations

from bisect import bisect_left

SECONDS_BUCKETS = tuple(0.001 * 2.0**power for power in range(21))
"""Upper bounds: 1 ms, doubled up to 1,048.576 s."""


class Histogram:
    """How many observations were at most each bound; `total` is their sum, in the order they came."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BUCKETS) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Observations at most each bound, and last all of them."""
        found, running = [], 0
        for count in self._counts:
            running += count
            found.append(running)
        return found
