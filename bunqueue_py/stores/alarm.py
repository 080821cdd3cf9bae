"""The next moment at which a background loop must look. Leaf noun."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import Clock
from ..sync import LEAF, make_lock

NEVER = 1 << 62


def _nothing() -> None:
    """The start of an alarm that its owner serves by hand."""


class Alarm:
    """A due moment that anybody may move earlier, and one thread that sleeps until it.

    What is due already is set to the present, never to the past: by how much a pass comes after
    its moment is how long the process was frozen.

    `due_ms` may be read without the lock to skip a needless `set`. While `served` is False no
    thread serves it: whoever sets it then calls `start`, after releasing every lock. Where one
    thread does it all and `sleeps` is False, nobody is to be woken, or to be kept out.
    """

    __slots__ = ("_bell", "_lock", "_rung", "due_ms", "served", "sleeps", "start")

    def __init__(self) -> None:
        self._lock = make_lock("alarm", LEAF)
        self._bell = threading.Lock()
        self._bell.acquire()
        self._rung = False
        self.due_ms = NEVER
        self.served = True
        self.sleeps = True
        self.start: Callable[[], None] = _nothing

    def set(self, due_ms: int) -> None:
        """Moves the moment to `due_ms` if that is earlier, and wakes the sleeper."""
        if not self.sleeps:
            if due_ms < self.due_ms:
                self.due_ms = due_ms
            return
        with self._lock:
            if due_ms < self.due_ms:
                # in this order: an exception between must not leave it moved and nobody woken.
                # The sleeper looks at it only after this lock is free
                self._ring()
                self.due_ms = due_ms

    def move(self, due_ms: int) -> None:
        """The moment is that one, whatever it was. Where no thread sleeps until it."""
        self.due_ms = due_ms

    def ring(self) -> None:
        """Wakes the sleeper whatever the moment."""
        with self._lock:
            self._ring()

    def clear(self) -> None:
        """Begins a pass: the moment is whatever is set from now on."""
        with self._lock:
            self.due_ms = NEVER

    def sleep(self, clock: Clock) -> None:
        """Blocks until the moment, or until it moved."""
        due = self.due_ms
        clock.wait(self._bell, None if due >= NEVER else max(0, due - clock.timeline_ms()))
        with self._lock:
            if self._rung:
                # if the wait ended by time, the bell may still be free: take it back
                self._bell.acquire(False)
                self._rung = False

    def _ring(self) -> None:
        if not self._rung:
            # in this order, for the same reason; it may leave the bell free and unmarked
            if self._bell.locked():
                self._bell.release()
            self._rung = True
