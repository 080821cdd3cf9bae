"""How measured values are spread: a histogram whose buckets double. Guarded by its owner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BUCKETS = 64


class Spread:
    """Counts of values by their `bit_length`: bucket k has those from 2**(k-1) to below 2**k, the
    first one those of 0. Noting one is O(1) and makes no object."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0

    def note(self, value: int) -> None:
        """Counts one value; what is below 0 counts as 0."""
        if value < 0:
            value = 0
        self.counts[min(value.bit_length(), BUCKETS - 1)] += 1
        self.total += value

    def counts_and(self, zeros: int) -> list[int]:
        """The counts, with that many more values of 0."""
        return [self.counts[0] + zeros, *self.counts[1:]]


@dataclass(frozen=True)
class Distribution:
    """Counts as they were read: `bounds[k]` is the upper bound of bucket k in seconds, `counts[k]`
    how many are in it, the last one without a bound; `total` is the sum in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The value that `share` of all do not exceed, in seconds, taken to lie evenly within its
        bucket; 0 if there are none."""
        count = self.count
        wanted = share * count
        seen = 0
        for k, n in enumerate(self.counts):
            if n and seen + n >= wanted:
                low = self.bounds[k - 1] if k else 0.0
                high = self.bounds[k] if k < len(self.bounds) else low
                return low + (high - low) * max(0.0, wanted - seen) / n
            seen += n
        return 0.0


def distribution(
    spreads: Iterable[tuple[list[int], int]], unit_seconds: float, buckets: int
) -> Distribution:
    """The sum of several (counts, total), in `buckets` buckets and one beyond; a value of 1 is
    `unit_seconds`."""
    sums = [0] * (buckets + 1)
    total = 0
    for counts, part in spreads:
        for k, n in enumerate(counts):
            if n:
                sums[min(k, buckets)] += n
        total += part
    bounds = tuple(round(unit_seconds * (1 << k), 9) for k in range(buckets))
    return Distribution(bounds, tuple(sums), total * unit_seconds)
