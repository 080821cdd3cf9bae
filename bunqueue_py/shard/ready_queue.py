"""Which job is next: a lane for the plain ones, a heap for the rest. Guarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, merge

from ..model.job import NOWHERE, PENDING, JobRecord
from ..model.options import MAX_PRIORITY

SEQ_BITS = 44
"""Admission numbers and milliseconds both fit 44 bits for the next 400 years."""

_FIFO = 1 << (2 * SEQ_BITS)
_RANK_SHIFT = 2 * SEQ_BITS + 1
_LIMIT = 1 << SEQ_BITS
_TOP = MAX_PRIORITY + 1
_COMPACT_AT = 64


def heap_key(record: JobRecord, seq: int) -> int:
    """The place of a record as one integer, smaller first: priority descending; then LIFO before
    FIFO; LIFO newest first, FIFO by run_at and admission number."""
    rank = (_TOP - record.priority) << _RANK_SHIFT
    if record.options.lifo:
        return rank | (_LIMIT - 1 - seq)
    return rank | _FIFO | record.run_at_ms << SEQ_BITS | seq


def seq_of(record: JobRecord) -> int | None:
    """The admission number in the record's key; `None` if it has no key."""
    key = record.key
    if key < 0:
        return None
    seq = key & (_LIMIT - 1)
    return _LIMIT - 1 - seq if key >> _RANK_SHIFT and record.options.lifo else seq


class ReadyQueue:
    """Ready jobs in the order they will run.

    The lane takes jobs of priority 0, FIFO, as they are pushed: its order is that of admission,
    and a record's `key` there is its bare admission number. Everything else, and whatever comes
    back, goes to the heap of integer keys, resolved by `members`. `push` and `pop` are O(1) in
    the lane, O(log n) in the heap; `remove` is O(1) and leaves a stale mark behind, and
    more than 20% of stale marks are swept out at once.
    """

    __slots__ = ("heap", "lane", "lane_stale", "members", "prioritized")

    def __init__(self) -> None:
        self.lane: deque[JobRecord] = deque()
        self.lane_stale = 0
        self.heap: list[int] = []
        self.members: dict[int, JobRecord] = {}
        self.prioritized = 0

    def __len__(self) -> int:
        return len(self.lane) - self.lane_stale + len(self.members)

    def append(self, record: JobRecord, seq: int) -> None:
        """Takes a record that was just admitted, is of priority 0 and FIFO."""
        record.key = seq
        self.lane.append(record)

    def push(self, record: JobRecord, seq: int) -> None:
        """Takes any other ready record; `seq` is fresh."""
        key = record.key = heap_key(record, seq)
        self.members[key] = record
        heappush(self.heap, key)
        if record.priority > 0:
            self.prioritized += 1

    def pop(self) -> JobRecord | None:
        """The next record, no longer in here; `None` if there is none. It keeps its key, which
        tells its old place should it be given back."""
        lane = self.lane
        while lane:
            record = lane[0]
            if 0 < record.key < _LIMIT:
                if self.heap and self._heap_first(record):
                    break
                lane.popleft()
                return record
            lane.popleft()
            self.lane_stale -= 1
        heap, members = self.heap, self.members
        while heap:
            found = members.pop(heappop(heap), None)
            if found is not None:
                if found.priority > 0:
                    self.prioritized -= 1
                return found
        return None

    def peek(self) -> JobRecord | None:
        """The record that `pop` would return, still in here."""
        lane = self.lane
        while lane and not 0 < lane[0].key < _LIMIT:
            lane.popleft()
            self.lane_stale -= 1
        if lane and not (self.heap and self._heap_first(lane[0])):
            return lane[0]
        heap, members = self.heap, self.members
        while heap and heap[0] not in members:
            heappop(heap)
        return members[heap[0]] if heap else None

    def remove(self, record: JobRecord) -> None:
        """Takes the record out from wherever it stands in here."""
        key = record.key
        if 0 < key < _LIMIT:
            self.lane_stale += 1
            record.key = NOWHERE
            stale = self.lane_stale
            if stale > _COMPACT_AT and stale * 5 > len(self.lane):
                self.lane = deque(r for r in self.lane if 0 < r.key < _LIMIT)
                self.lane_stale = 0
        else:
            del self.members[key]
            record.key = NOWHERE
            if record.priority > 0:
                self.prioritized -= 1
            stale = len(self.heap) - len(self.members)
            if stale > _COMPACT_AT and stale * 5 > len(self.heap):
                self.heap = list(self.members)
                heapify(self.heap)
                # a dictionary never shrinks by itself, and its holes cost every listing
                self.members = dict(self.members)

    def _heap_first(self, record: JobRecord) -> bool:
        heap, members = self.heap, self.members
        while heap and heap[0] not in members:
            heappop(heap)
        if not heap:
            return False
        key = _TOP << _RANK_SHIFT | _FIFO | record.run_at_ms << SEQ_BITS | record.key
        return heap[0] < key

    def entered(self, *, prioritized: bool, newest_first: bool = False) -> Iterator[JobRecord]:
        """The records in the order in which they came in, of priority above 0 or not.
        O(1) a record, but for what is stale."""
        members: Iterable[JobRecord] = self.members.values()
        if newest_first:
            members = reversed(self.members.values())
        if prioritized:
            yield from (r for r in members if r.priority > 0)
            return
        lane: Iterable[JobRecord] = reversed(self.lane) if newest_first else self.lane
        plain = (r for r in lane if 0 < r.key < _LIMIT)
        rest = (r for r in members if r.priority <= 0)
        if not self.members:
            yield from plain
            return
        yield from merged(
            ((r.entered_ms, r) for r in plain),
            ((r.entered_ms, r) for r in rest),
            newest_first=newest_first,
        )

    def check(self) -> None:
        """Asserts its invariants."""
        live = [r for r in self.lane if 0 < r.key < _LIMIT]
        assert len(self.lane) - len(live) == self.lane_stale, "stale marks of the lane"
        keys = [r.key for r in live]
        assert keys == sorted(set(keys)), "lane out of order"
        assert all(r.priority == 0 and not r.options.lifo for r in live), "wrong job in the lane"
        waits = [(r.run_at_ms, r.key) for r in live]
        assert waits == sorted(waits), "lane against time"
        assert set(self.members) <= set(self.heap), "a member without a place in the heap"
        assert len(self.heap) == len(set(self.heap)), "a key twice in the heap"
        assert all(r.key == key for key, r in self.members.items()), "key of a member"
        assert self.prioritized == sum(r.priority > 0 for r in self.members.values())
        assert all(r.state == PENDING for r in self.members.values()), "a member not pending"
        assert all(r.state == PENDING for r in live), "a job in the lane that is not pending"
        assert all(self.heap[(i - 1) >> 1] <= key for i, key in enumerate(self.heap) if i), (
            "heap order"
        )


def merged(
    *streams: Iterable[tuple[int, JobRecord]], newest_first: bool = False
) -> Iterator[JobRecord]:
    """Streams of (moment, record), each in order of its moments, as one of records."""
    pairs = merge(*streams, key=_moment, reverse=newest_first)
    return (record for _, record in pairs)


def _moment(pair: tuple[int, JobRecord]) -> int:
    return pair[0]
