"""Threads that wait for a job. Guarded, but for the wait itself."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice

from ..types import ANY, GroupChoice


class Waiter:
    """One waiting thread, reusable from wait to wait: a plain lock that is released to wake it."""

    __slots__ = ("affinity", "cancelled", "lock", "woken")

    def __init__(self, affinity: GroupChoice = ANY) -> None:
        #: whose jobs it wants: anybody's, ungrouped ones (`None`), or those of one group
        self.affinity = affinity
        self.lock = threading.Lock()
        self.lock.acquire()
        self.woken = False
        self.cancelled = False

    def wake(self) -> None:
        """Ends the wait that is under way, or the next one."""
        if not self.woken:
            # in this order: an exception between must not leave it marked but asleep; it may
            # leave the lock free and unmarked, and then there is nothing to release
            with contextlib.suppress(RuntimeError):
                self.lock.release()
            self.woken = True

    def rearm(self) -> None:
        """Makes it ready for another wait; the caller knows that no wake is under way."""
        self.lock.acquire(False)
        self.woken = False


class Waiters:
    """Waiting threads, first come first served. The head alone holds the timer for the next due
    moment, `timer_ms`."""

    __slots__ = ("line", "picky", "timer_ms")

    def __init__(self) -> None:
        self.line: deque[Waiter] = deque()
        self.timer_ms: int | None = None
        #: whether any waiter ever wanted jobs of a certain group only
        self.picky = False

    def __len__(self) -> int:
        return len(self.line)

    def join(self, waiter: Waiter, *, first: bool) -> None:
        """Lines up, in front if it had been woken and found nothing."""
        waiter.rearm()
        if waiter.affinity is not ANY:
            self.picky = True
        if first:
            self.line.appendleft(waiter)
        else:
            self.line.append(waiter)

    def leave(self, waiter: Waiter) -> bool:
        """Steps out of the line; does nothing if it was woken and stands there no longer. Says
        whether it was the head."""
        if self.line and self.line[0] is waiter:
            self.line.popleft()
            self.timer_ms = None
            return True
        if waiter in self.line:
            self.line.remove(waiter)
        return False

    def wake(self, n: int = 1) -> None:
        """Wakes the first n, or all there are."""
        line = self.line
        if n > 0:
            self.timer_ms = None
        while n > 0 and line:
            line[0].wake()
            line.popleft()
            n -= 1

    def wake_eligible(self, n: int, eligible: Callable[[GroupChoice], bool]) -> None:
        """Wakes the first n whose wish can be served, or all of those that there are."""
        for waiter in list(islice((w for w in self.line if eligible(w.affinity)), n)):
            waiter.wake()
            self.leave(waiter)

    def due(self, moment_ms: int) -> None:
        """A job becomes ready at that moment: has the head look again if its timer is later."""
        if self.line and (self.timer_ms is None or moment_ms < self.timer_ms):
            self.wake(1)
