"""Where those who mark and the one who writes meet: what waits, since when, and who waits for it.

Moments and durations here are seconds of the real monotonic clock, as floats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import ceil, inf

from ...clock import Clock
from ...errors import StorageError
from ...sync import LEAF, make_lock

CUT_ROWS = 1000
"""As many rows are written at once, before the interval is over."""

MIN_ROOM = 250
"""As many rows may always be unwritten, however slow the disk."""

FIRST_RETRY = 0.1
LAST_RETRY = 30.0
IDLE_AFTER = 1.0

GROUP_WAIT = 0.002
"""How long a commit waits for as many to join it as the last one served."""

WRITE, TIDY = range(2)

_GROWTH = 1.25
"""How many times the room may become after a commit that was quick. A slow one is believed at once:
where the writer is starved at times, the mean would let more through than it can write in time."""

_MIN_ROWS = 64
"""A smaller commit says nothing about how many rows could be written."""


class Ticket:
    """A wait for a cut to be on disk. `tell` is called once, with no lock held; `error` says by
    then why it is not there (`None`: it is). An attempt before `tried_from` does not decide."""

    __slots__ = ("cut", "error", "tell", "tried_from")

    def __init__(self, cut: int, tell: Callable[[], object], tried_from: int = 0) -> None:
        self.cut = cut
        self.tell = tell
        self.tried_from = tried_from
        self.error: StorageError | None = None


class Desk:
    """What marking threads and the writer know of each other. Leaf: locks itself, and may be told
    of a mark under a shard's lock.

    `cut` is the number of the cut that what is marked now will be in, `committed` that of the last
    one on disk. `first_at`: when the oldest mark was made that is in no cut yet; `flight_at`: the
    same of those that are in a cut and not on disk. `room`: how many rows may be unwritten before
    whoever marks has to wait: as many as are written in half of `max_lag`, found by trial.
    `failing` is what went wrong with the last commit.
    """

    __slots__ = (
        "_asleep",
        "_attempt",
        "_backoff",
        "_bell",
        "_expected",
        "_expected_until",
        "_forced",
        "_held_up",
        "_hurry",
        "_interval",
        "_landed_at",
        "_lock",
        "_pause",
        "_retry_at",
        "_rung",
        "_tickets",
        "_tidy_at",
        "closing",
        "committed",
        "cut",
        "failing",
        "first_at",
        "flight_at",
        "max_lag",
        "room",
    )

    def __init__(self, interval: float, max_lag: float) -> None:
        self._lock = make_lock("storage desk", LEAF)
        self._bell = threading.Lock()
        self._bell.acquire()
        self._rung = False
        #: the writer sleeps because there is nothing to write
        self._asleep = False
        self._interval = interval
        self._landed_at = -inf
        self._pause = min(interval, max_lag / 4)
        self.max_lag = max_lag
        self.cut = 1
        self.committed = 0
        self.first_at: float | None = None
        self.flight_at: float | None = None
        # for a start: one cut is under way and the next one gathers
        self.room = 2.0 * CUT_ROWS
        self._hurry = False
        self._attempt = 0
        self._tickets: list[Ticket] = []
        self._expected = 0
        self._expected_until = 0.0
        self._held_up: list[threading.Lock] = []
        self.failing: StorageError | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._forced = False
        self._tidy_at: float | None = None
        self.closing = False

    # -- for those who mark ------------------------------------------------------------------

    def marked(self, now: float) -> None:
        """Something was marked, for the first time since the last cut."""
        with self._lock:
            if self.first_at is None:
                # in this order: an exception between must not leave changes and a writer asleep
                if self._asleep:
                    self._ring()
                self.first_at = now

    def age(self, now: float) -> float:
        """How old the oldest unwritten change is; 0 without any."""
        flight, first = self.flight_at, self.first_at
        oldest = first if flight is None else flight
        return 0.0 if oldest is None else max(0.0, now - oldest)

    def hurry(self) -> None:
        """There is so much to write that the interval need not be over."""
        with self._lock:
            if not self._hurry:
                self._hurry = True
                self._ring()

    def hold_up(self, rows: int, now: float) -> threading.Lock | None:
        """What whoever has marked must wait for, with that many rows unwritten: a lock that is
        released when things have changed. `None` if it need not wait."""
        with self._lock:
            if rows <= self.room and self.age(now) <= self.max_lag:
                return None
            if self.failing is not None or self.closing:
                return None
            bell = threading.Lock()
            bell.acquire()
            self._held_up.append(bell)
            self._hurry = True
            self._ring()
            return bell

    def watch(self, cut: int, tell: Callable[[], object], *, force: bool) -> Ticket | None:
        """A ticket for that cut; `None` if it is on disk already. While writing fails its error
        says so at once, unless `force` has it tried again now, whatever becomes of the commit that
        is under way."""
        with self._lock:
            if self.committed >= cut:
                return None
            ticket = Ticket(cut, tell, self._attempt + 1 if force else 0)
            if self.failing is not None and not force:
                ticket.error = self.failing
                return ticket
            self._tickets.append(ticket)
            self._forced = self._forced or force
            if self._asleep or force or len(self._tickets) >= self._expected:
                self._ring()
            return ticket

    def everything(self) -> int:
        """The number of the cut after which all is written that is marked by now."""
        with self._lock:
            return self.cut - (self.first_at is None)

    def close(self) -> bool:
        """The writer writes once more and ends; nobody is held up any longer. `False` if it was
        closed before."""
        with self._lock:
            first = not self.closing
            self.closing = True
            self._release()
            self._ring()
            return first

    # -- for the writer ----------------------------------------------------------------------

    def due(self, now: float) -> tuple[int, float | None]:
        """What to do next, WRITE or TIDY, and in how many seconds; `None`: not before the bell."""
        with self._lock:
            self._asleep = False
            if self._expected and now >= self._expected_until:
                self._expected = 0
            if self.failing is not None:
                return WRITE, 0.0 if self._forced else max(0.0, self._retry_at - now)
            if self._tickets:
                if len(self._tickets) >= self._expected:
                    return WRITE, 0.0
                return WRITE, max(0.0, self._expected_until - now)
            if self.first_at is not None:
                # not upon the end of the last commit: in a flood they would follow one another,
                # and the more there are, the fewer jobs take one row from their push to their end
                ready = max(self.first_at + self._interval, self._landed_at + self._pause)
                if self._expected:
                    # those who were served may be back by then
                    ready = min(ready, self._expected_until)
                return WRITE, 0.0 if self._hurry else max(0.0, ready - now)
            self._asleep = True
            return TIDY, None if self._tidy_at is None else max(0.0, self._tidy_at - now)

    def sleep(self, clock: Clock, seconds: float | None) -> None:
        """Blocks until the bell rings, or for so long; less, where the clock cuts waits."""
        # round() first: a float's last digit must not cost a millisecond
        clock.wait(self._bell, None if seconds is None else ceil(round(seconds * 1000, 3)))
        with self._lock:
            self._asleep = False
            if self._rung:
                # if the wait ended by time, the bell may still be free: take it back
                self._bell.acquire(False)
                self._rung = False

    def begin_attempt(self) -> None:
        """Writing is tried from here on."""
        with self._lock:
            self._attempt += 1

    def begin_cut(self) -> None:
        """What is marked from here on is in the next cut; with all shards held."""
        with self._lock:
            self.cut += 1
            if self.flight_at is None:
                self.flight_at = self.first_at
            self.first_at = None
            self._hurry = False

    def landed(self, cut: int, rows: int, began: float, now: float) -> list[Ticket]:
        """That cut is on disk, after work since `began`; returns whom to tell."""
        with self._lock:
            self.committed = cut
            self.flight_at = None
            self.failing = None
            self._backoff = 0.0
            self._forced = False
            took, quarter = now - began, self.max_lag / 4
            slow = took > quarter
            # a starved writer has no time to lose
            self._landed_at = -inf if slow else now
            # Whoever was held up waited for this commit; what they mark from here on can gather.
            self._hurry = False
            # What is unwritten is in two commits, the one under way and the next, so each may take
            # half of the time. Most of a small commit's it waits for the disk and the GIL, so its
            # rate says nothing; that it was slow does, and that a great one was quick.
            if rows >= _MIN_ROWS and (slow or rows >= self.room / 4):
                # a unit may be greater than the room, and is then what the time was spent on
                fits = max(self.room, rows) * quarter / max(took, 0.001)
                self.room = max(MIN_ROOM, min(self.room * _GROWTH, fits))
            if rows:
                self._tidy_at = now + IDLE_AFTER
            served = [ticket for ticket in self._tickets if ticket.cut <= cut]
            self._tickets = [ticket for ticket in self._tickets if ticket.cut > cut]
            # whoever was served may come again at once, and those that came too late are here
            self._expected = len(served) + len(self._tickets) if len(served) > 1 else 0
            self._expected_until = now + GROUP_WAIT
            self._release()
            return served

    def failed(self, error: StorageError, now: float, *, last: bool = False) -> list[Ticket]:
        """Nothing of what is in flight is on disk; returns whom to tell: everybody, if it was the
        last attempt."""
        with self._lock:
            self.failing = error
            self._backoff = min(LAST_RETRY, self._backoff * 2 or FIRST_RETRY)
            self._retry_at = now + self._backoff
            until = self._attempt + last
            refused = [ticket for ticket in self._tickets if ticket.tried_from <= until]
            self._tickets = [ticket for ticket in self._tickets if ticket.tried_from > until]
            self._forced = bool(self._tickets)
            for ticket in refused:
                ticket.error = error
            self._release()
            return refused

    def tidied(self, now: float, *, more: bool) -> None:
        """The tidying is done, or there is more of it."""
        with self._lock:
            self._tidy_at = now + IDLE_AFTER if more else None

    def may_retry(self, now: float) -> bool:
        """Whether writing does not fail, or it is time to try again."""
        return self.failing is None or now >= self._retry_at

    def _release(self) -> None:
        for bell in self._held_up:
            bell.release()
        self._held_up.clear()

    def _ring(self) -> None:
        if not self._rung:
            # in this order, for the same reason; it may leave the bell free and unmarked
            if self._bell.locked():
                self._bell.release()
            self._rung = True
