"""How long push, pull and ack take. Leaf noun; there is one only where times are measured."""

from __future__ import annotations

from collections.abc import Callable

from ..model.spread import Distribution, Spread, distribution
from ..sync import LEAF, make_lock

UNIT_NS = 6_250
BUCKETS = 22
"""Bounds from 6.25 microseconds to 13.1 s, 0.1 ms among them."""
SAMPLE = 16
"""Of so many calls in a row one is timed: looking at the clock twice, and noting the difference,
would cost each call a tenth of what it does itself."""


class Timed:
    """The durations of one operation, of which one call in 16 is timed, the first one too."""

    __slots__ = ("_calls", "_elapsed_ns", "_lock", "_spread")

    def __init__(self, name: str, elapsed_ns: Callable[[], int]) -> None:
        self._elapsed_ns = elapsed_ns
        self._lock = make_lock(f"latencies of {name}", LEAF)
        self._spread = Spread()
        self._calls = -1

    def begin(self) -> int:
        """A call begins: when, for `end`, or 0 if it is not to be timed."""
        # two threads may count one call for both: it is a sample
        self._calls = calls = self._calls + 1
        return 0 if calls % SAMPLE else self._elapsed_ns()

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

    __slots__ = ("ack", "pull", "push")

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        self.push, self.pull, self.ack = (
            Timed(name, elapsed_ns) for name in ("push", "pull", "ack")
        )

    def read(self) -> dict[str, Distribution]:
        """What was measured so far, by operation."""
        return {"push": self.push.read(), "pull": self.pull.read(), "ack": self.ack.read()}
