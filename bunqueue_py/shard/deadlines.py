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


class Deadlines:
    """A lazy heap of (due, number, kind, subject).

    Nothing is taken out when its subject is done with: `drop` counts it, a pop passes over it,
    and when half of the heap is stale it is swept. A renewed lease is pushed again only when its
    old moment comes. So every verb costs O(1) amortised but for the O(log n) of a push.
    """

    __slots__ = ("heap", "numbers", "stale")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.numbers = count(1)
        self.stale = 0

    def __len__(self) -> int:
        return len(self.heap)

    def push(self, due_ms: int, kind: int, subject: Subject) -> None:
        """Has the subject judged at that moment."""
        heappush(self.heap, (due_ms, next(self.numbers), kind, subject))

    def drop(self, entries: int = 1) -> None:
        """Says that so many entries no longer matter."""
        self.stale += entries
        if self.stale > SWEEP_AT:
            self.sweep()

    def sweep(self) -> None:
        """Takes the stale entries out, if they are half of the heap."""
        if self.stale * 2 > len(self.heap):
            # nearly all are leases of runs that have ended: no call for these
            self.heap = [
                entry
                for entry in self.heap
                if (entry[2] or entry[3].record.delivery is entry[3])  # type: ignore[union-attr]
                and not is_stale(entry)
            ]
            heapify(self.heap)
            self.stale = 0

    def sweep_some(self, at: int, limit: int) -> tuple[int, int]:
        """`sweep` in bites: takes out what is stale among up to `limit` entries, from position `at`
        of the heap downwards; returns how many, and the next position (below 0 at the end).
        O(limit log n)."""
        heap, gone = self.heap, 0
        at = min(at, len(heap) - 1)
        end = max(-1, at - limit)
        while at > end:
            # again, as another one has come to stand here
            while at < len(heap) and is_stale(heap[at]):
                _take_out(heap, at)
                gone += 1
            at -= 1
        self.stale = max(0, self.stale - gone)
        if at < 0 and not gone:
            # the count is a guess where an entry has been dropped twice
            self.stale = min(self.stale, SWEEP_AT)
        return gone, at

    def next_ms(self) -> int | None:
        """When the earliest that still matters is due; sweeps stale heads."""
        heap = self.heap
        while heap and is_stale(heap[0]):
            heappop(heap)
            self.stale = max(0, self.stale - 1)
        return heap[0][0] if heap else None

    def pop_due(self, now: int) -> Entry | None:
        """Takes the earliest entry that still matters, if it is due."""
        due = self.next_ms()
        if due is None or due > now:
            return None
        return heappop(self.heap)

    def check(self) -> None:
        """Asserts its invariants."""
        heap = self.heap
        assert all(heap[(i - 1) >> 1][:2] <= e[:2] for i, e in enumerate(heap) if i), "heap order"


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


def _take_out(heap: list[Entry], at: int) -> None:
    """Takes the entry at that position out; the rest is a heap again. O(log n)."""
    last = heap.pop()
    if at == len(heap):
        return
    while at:
        parent = (at - 1) >> 1
        if heap[parent] < last:
            break
        heap[at] = heap[parent]
        at = parent
    end = len(heap)
    child = 2 * at + 1
    while child < end:
        if child + 1 < end and heap[child + 1] < heap[child]:
            child += 1
        if last < heap[child]:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = last
