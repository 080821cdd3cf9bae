"""Between two bites of a long pass: whoever else works gets the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import Clock

WORK_NS = 1_000_000
"""So long a pass works before it gives way, at least."""
MOST_NS = 5 * WORK_NS
"""And at most, where many others want the interpreter: that is how long it would be left anyway."""
REST_MS = 1
"""So long it stays away where nobody else wants the interpreter."""
BUSY_REST_MS = 5
"""And so long where somebody does."""
SHARE = 10
"""Beside others it works for a tenth of the time."""


class GiveWay:
    """Called between two bites, with no lock held; used by the thread of one loop alone.

    A thread of Python that works keeps the interpreter for the switch interval, 5 ms, however
    short its holds of a lock are: beside a sweep every other call that meets it would take that
    long. So the pass rests a little after every millisecond of work. If it does not get the
    interpreter back at once then, others are at work; from then on it rests longer, so that fewer
    than one call in a hundred meets a bite, and a bite is all that such a call waits for.
    """

    __slots__ = ("_clock", "_lock", "_rest_ms", "_since", "_stopping", "_work_ns")

    def __init__(self, clock: Clock, stopping: Callable[[], bool]) -> None:
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        # nobody ever lets go of it: to wait for it is to rest
        self._lock.acquire()
        self._rest_ms = REST_MS
        self._work_ns = WORK_NS
        self._since = 0

    def begin(self) -> None:
        """A pass begins now."""
        self._since = self._clock.elapsed_ns()

    def __call__(self) -> None:
        """Rests if the pass has worked for long enough, and nobody waits for its end."""
        clock = self._clock
        now = clock.elapsed_ns()
        if now - self._since < self._work_ns or self._stopping():
            return
        clock.wait(self._lock, self._rest_ms)
        self._since = clock.elapsed_ns()
        away = self._since - now
        wanted = away > (self._rest_ms + REST_MS) * 1_000_000
        self._rest_ms = BUSY_REST_MS if wanted else REST_MS
        self._work_ns = min(max(WORK_NS, away // SHARE), MOST_NS) if wanted else WORK_NS


def press_on() -> None:
    """In place of a `GiveWay` where the caller steps: nobody else is to have a turn."""
