"""A late pass judges nobody: who was silent was as frozen as the pass itself."""

from __future__ import annotations

PERIOD_MS = 5_000
"""The precision of the stall check; a pass later than half of it is late."""

MAX_IN_A_ROW = 3


class LatePasses:
    """How many passes in a row came late. Used by the scheduler's thread alone.

    A pass on time ends the row only where the last late one is a period ago: what a late pass
    leaves undone is done right after it, on time, and says nothing about the next freeze.
    """

    __slots__ = ("in_a_row", "last_ms")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.last_ms = 0

    def forgives(self, late_ms: int, now: int) -> bool:
        """Notes a pass that comes `late_ms` after it was due; says whether it judges nobody."""
        if late_ms * 2 > PERIOD_MS:
            self.in_a_row += 1
            self.last_ms = now
            if self.in_a_row <= MAX_IN_A_ROW:
                return True
            self.in_a_row = 0
        elif now - self.last_ms >= PERIOD_MS:
            self.in_a_row = 0
        return False
