"""How long push, pull and ack take. Leaf noun; there is one only where times are measured."""

from __future__ import annotations

from collections.abc import Callable

from ..model.spread import Distribution, Spread, distribution
from ..sync import LEAF, make_lock

UNIT_NS = 6_250
BUCKETS = 22
"""Bounds from 6.25 microseconds to 13.1 s, 0.1 ms among them."""
SAMPLED = 31
"""A call is timed when no bit of this is set in the number of such calls so far, as a counter of
the queue tells it: one in 32, the first one too. To look at the clock twice, and to note the
difference, costs a tenth of what the call itself does."""


class Timed:
    """The durations of one operation, as far as its calls are timed."""

    __slots__ = ("_elapsed_ns", "_lock", "_spread")

    def __init__(self, name: str, elapsed_ns: Callable[[], int]) -> None:
        self._elapsed_ns = elapsed_ns
        self._lock = make_lock(f"latencies of {name}", LEAF)
        self._spread = Spread()

    def end(self, began_ns: int) -> None:
        """The call that began then ends."""
        units = (self._elapsed_ns() - began_ns) // UNIT_NS
        with self._lock:
            self._spread.note(units)

    def read(self) -> Distribution:
        """What was measured so far."""
        with self._lock:
            pair = list(self._spread.counts), self._spread.total
        return distribution([pair], UNIT_NS / 1e9, BUCKETS)


class Timings:
    """One of each operation."""

    __slots__ = ("ack", "now_ns", "pull", "push")

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        self.now_ns = elapsed_ns
        self.push, self.pull, self.ack = (
            Timed(name, elapsed_ns) for name in ("push", "pull", "ack")
        )

    def read(self) -> dict[str, Distribution]:
        """What was measured so far, by operation."""
        return {"push": self.push.read(), "pull": self.pull.read(), "ack": self.ack.read()}
