"""Moments at which something must be judged: leases, timeouts, ages and their like. Guarded."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from ..model.job import COMPLETED, FAILED, GATED, PENDING, Delivery, JobRecord

LEASE, TIMEOUT, TTL, RETENTION, STALL, DEAD_EXPIRY, DEAD_RETRY = range(7)

Subject = Delivery | JobRecord
Entry = tuple[int, int, int, Subject]

SWEEP_AT = 64
"""Fewer stale entries than this are let be."""
AT_ONCE = 512
"""So many entries are swept in one go, or passed over as stale; more take several."""
BITE, EVERY = 128, 16
"""A sweep of more goes on by so many entries, whenever so many more have become stale."""


class Deadlines:
    """A lazy heap of (due, number, kind, subject).

    Nothing is taken out when its subject is done with: `drop` counts it, a look at the earliest
    passes over it, and when half of the heap is stale it is swept. A renewed lease is pushed again
    only when its old moment comes. So every verb costs O(1) but for the O(log n) of a push.

    `old` has what a sweep under way has not come to yet: a heap as well, taken from its end, so
    that it stays one. `stale` counts what was dropped since the last sweep began; a drop beyond
    `sweep_at` goes on with the sweep, or looks whether one is due.
    """

    __slots__ = ("heap", "numbers", "old", "stale", "sweep_at")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.old: list[Entry] = []
        self.numbers = count(1)
        self.stale = 0
        self.sweep_at = SWEEP_AT

    def __len__(self) -> int:
        return len(self.heap) + len(self.old)

    def entries(self) -> list[Entry]:
        """All of them, stale ones too, in no order. O(n)."""
        return self.old + self.heap

    def push(self, due_ms: int, kind: int, subject: Subject) -> None:
        """Has the subject judged at that moment."""
        heappush(self.heap, (due_ms, next(self.numbers), kind, subject))

    def drop(self, entries: int = 1) -> None:
        """Says that so many entries no longer matter. O(1), up to 512 entries apart."""
        self.stale = stale = self.stale + entries
        if stale > self.sweep_at:
            self.sweep()

    def drop_many(self, entries: int) -> None:
        """As many `drop`s, so that a sweep under way keeps pace with them."""
        while entries > 0:
            self.drop(min(entries, EVERY + 1))
            entries -= EVERY + 1

    def sweep(self) -> None:
        """Takes stale entries out, a bite of them at a time, if they are half of the heap."""
        if not self.old:
            if self.stale * 2 <= len(self.heap):
                # it has grown since it was swept
                self._rest()
                return
            self.begin_sweep()
        self.sweep_some(BITE if len(self.old) > AT_ONCE else AT_ONCE)

    def begin_sweep(self) -> None:
        """Everything is to be looked at. Not while a sweep is under way."""
        self.stale = 0
        self.old, self.heap = self.heap, []

    def sweep_some(self, limit: int) -> int:
        """Goes on with the sweep by up to so many entries; returns how many were stale."""
        old = self.old
        bite = old[-limit:]
        # nearly all are leases of runs that have ended: no call for these
        kept = [
            entry
            for entry in bite
            if (entry[2] or entry[3].record.delivery is entry[3])  # type: ignore[union-attr]
            and not is_stale(entry)
        ]
        if self.heap:
            for entry in kept:
                heappush(self.heap, entry)
        else:
            heapify(kept)
            self.heap = kept
        # an exception before this line leaves some of them twice, which is no harm
        del old[-limit:]
        self._rest()
        return len(bite) - len(kept)

    def first(self) -> Entry | None:
        """The earliest that still matters; takes stale ones before it out. With more than 512 of
        these it is one of them."""
        heap = self.heap
        if not heap and not self.old:
            return None
        for _ in range(AT_ONCE):
            if self.old:
                heap = self._first()
            if not heap or not is_stale(heap[0]):
                break
            heappop(heap)
            if self.stale:
                self.stale -= 1
        if self.old:
            heap = self._first()
        return heap[0] if heap else None

    def next_ms(self) -> int | None:
        """When `first` is due."""
        first = self.first()
        return None if first is None else first[0]

    def take_due(self, now: int, most: int) -> tuple[list[Entry], bool]:
        """Takes out the earliest `most` that are due and still matter, and says whether there may
        be more. Passes over at most 512 stale ones."""
        due: list[Entry] = []
        for _ in range(AT_ONCE):
            heap = self._first()
            if not heap or heap[0][0] > now:
                break
            if len(due) >= most:
                return due, True
            entry = heappop(heap)
            if is_stale(entry):
                self._passed_over()
            else:
                due.append(entry)
        else:
            return due, True
        if not self.old:
            # there are fewer of them, of which half are fewer
            self._rest()
        return due, False

    def _first(self) -> list[Entry]:
        """Which of the two has the earliest; an empty one if there is none."""
        heap, old = self.heap, self.old
        return old if old and (not heap or old[0] < heap[0]) else heap

    def _passed_over(self) -> None:
        self.stale = max(0, self.stale - 1)

    def _rest(self) -> None:
        """From how many stale ones on the next `drop` has something to do."""
        size = len(self.heap)
        self.sweep_at = self.stale + EVERY if self.old else max(SWEEP_AT, size // 2)

    def check(self) -> None:
        """Asserts its invariants."""
        for heap in (self.heap, self.old):
            assert all(heap[(i - 1) >> 1][:2] <= e[:2] for i, e in enumerate(heap) if i), "order"


def is_stale(entry: Entry) -> bool:
    """Whether what the entry was to judge has ended."""
    due_ms, _, kind, subject = entry
    if isinstance(subject, Delivery):
        if subject.record.delivery is not subject:
            return True
        if kind == STALL:
            return subject.armed_ms != due_ms or subject.expires_ms is not None
        # a lock that was shortened has an earlier deadline besides
        return kind == LEASE and subject.armed_ms != due_ms
    if kind == TTL:
        return subject.state not in (PENDING, GATED) or subject.started_ms is not None
    if kind == RETENTION:
        return subject.state not in (COMPLETED, FAILED)
    letter = None if subject.side is None else subject.side.letter
    if subject.state != FAILED or letter is None:
        return True
    return due_ms != (letter.expires_ms if kind == DEAD_EXPIRY else letter.next_retry_ms)
