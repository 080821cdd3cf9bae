"""The sliding window of a rate limit."""

from __future__ import annotations

from collections import deque

MAX_PER_WINDOW = 100_000


class RateWindow:
    """At most `max` starts in any window of `per_ms`.

    It keeps the moments of the last `max` starts: the next may start when the oldest of them is
    `per_ms` old. A counter for each fixed window, or a bucket of tokens, would let nearly twice as
    many through around an edge. O(1) a start.
    """

    __slots__ = ("max", "per_ms", "starts")

    def __init__(self, max_starts: int, per_ms: int) -> None:
        self.max = max_starts
        self.per_ms = per_ms
        self.starts: deque[int] = deque()

    def room(self, now: int) -> int:
        """How many may start now."""
        starts = self.starts
        while starts and starts[0] + self.per_ms <= now:
            starts.popleft()
        return self.max - len(starts)

    def next_ms(self) -> int:
        """When the oldest start leaves the window; only where there is no room."""
        return self.starts[0] + self.per_ms

    def take(self, now: int) -> None:
        """A job starts now."""
        self.starts.append(now)

    def check(self) -> None:
        """Asserts its invariants."""
        assert len(self.starts) <= self.max, "more starts than the window allows"
        assert list(self.starts) == sorted(self.starts), "starts out of order"
