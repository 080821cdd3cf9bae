"""A late pass judges nobody: who was silent was as frozen as the pass itself."""

from __future__ import annotations

from ..ops.stalls import FLOOR_MS, MAX_IN_A_ROW, PERIOD_MS, Freeze


class LatePasses:
    """How many passes in a row came late, and what freeze came last. Used by the scheduler's
    thread alone.

    A pass on time ends the row only where the last late one is a period ago: what a late pass
    leaves undone is done right after it, on time, and says nothing about the next freeze.
    """

    __slots__ = ("_freeze", "_period_ms", "in_a_row", "last_ms")

    def __init__(self, period_ms: int = PERIOD_MS) -> None:
        self._period_ms = period_ms
        self.in_a_row = 0
        self.last_ms = 0
        self._freeze = Freeze(0, 0)

    def forgives(self, late_ms: int, now: int) -> bool:
        """Notes a pass that comes `late_ms` after it was due; says whether it judges nobody."""
        if late_ms * 2 > self._period_ms:
            self.in_a_row += 1
            self.last_ms = now
            if self.in_a_row <= MAX_IN_A_ROW:
                return True
            self.in_a_row = 0
        elif now - self.last_ms >= self._period_ms:
            self.in_a_row = 0
        return False

    def freezes(self, late_ms: int, beat_ms: int, now: int) -> tuple[Freeze, ...]:
        """What spares short leases in a pass that does judge, and comes `late_ms` late, with the
        heartbeats `beat_ms` behind: the longer of the two, and the longest of the last 5 s (a
        lease may expire right after a freeze, before its heartbeats are back). Nothing in a pass
        that comes too late once too often."""
        if late_ms * 2 > self._period_ms:
            return ()
        last, fresh = self._freeze, Freeze(now, max(late_ms, beat_ms))
        if last.late_ms > fresh.late_ms and now - last.ended_ms < FLOOR_MS:
            return fresh, last
        self._freeze = fresh
        return (fresh,)
