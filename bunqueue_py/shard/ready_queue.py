"""Which job is next: a lane for the plain ones, a heap for the rest. Guarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
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


def seq_of(record: JobRecord) -> int | None:
    """The admission number in the record's key; `None` if it has no key."""
    key = record.key
    if key < 0:
        return None
    seq = key & (_LIMIT - 1)
    return _LIMIT - 1 - seq if key >> _RANK_SHIFT and record.options.lifo else seq


class ReadyQueue:
    """Ready jobs in the order they will run.

    A place in the heap is one integer, smaller first: priority descending; then LIFO before FIFO;
    LIFO newest first, FIFO by run_at and admission number.

    The lane takes jobs of priority 0, FIFO, as they are pushed: its order is that of admission,
    and a record's `key` there is its bare admission number. Everything else, and whatever comes
    back, goes to the heap of integer keys, resolved by `members` or, where time alone made the job
    ready, by `promoted`: each of the two is in the order in which its jobs became ready.
    `append`, and `pop` from the lane, are O(1); `push`, and `pop` from the heap, O(log n);
    `remove` is O(1) and leaves a stale mark behind: more than 20% of those are swept out at once.
    """

    __slots__ = ("heap", "lane", "lane_stale", "members", "prioritized", "promoted")

    def __init__(self) -> None:
        self.lane: deque[JobRecord] = deque()
        self.lane_stale = 0
        self.heap: list[int] = []
        self.members: dict[int, JobRecord] = {}
        self.promoted: dict[int, JobRecord] = {}
        self.prioritized = 0

    def __len__(self) -> int:
        return len(self.lane) - self.lane_stale + len(self.members) + len(self.promoted)

    def append(self, record: JobRecord, seq: int) -> None:
        """Takes a record that was just admitted, is of priority 0 and FIFO."""
        record.key = seq
        self.lane.append(record)

    def push(self, record: JobRecord, seq: int, *, by_time: bool = False) -> None:
        """Takes any other ready record; `seq` is its admission number, `by_time` says that its
        moment has come (and not somebody put it here)."""
        rank = (_TOP - record.priority) << _RANK_SHIFT
        if record.options.lifo:
            key = rank | (_LIMIT - 1 - seq)
        else:
            key = rank | _FIFO | record.run_at_ms << SEQ_BITS | seq
        record.key = key
        if by_time:
            self.promoted[key] = record
        else:
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
        heap, members, promoted = self.heap, self.members, self.promoted
        while heap:
            key = heappop(heap)
            found = members.pop(key, None)
            if found is None:
                found = promoted.pop(key, None) if promoted else None
                if found is None:
                    continue
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
        self._drop_stale_head()
        if not self.heap:
            return None
        key = self.heap[0]
        return self.members.get(key) or self.promoted[key]

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
            if self.members.pop(key, None) is None:
                del self.promoted[key]
            record.key = NOWHERE
            if record.priority > 0:
                self.prioritized -= 1
            stale = len(self.heap) - len(self.members) - len(self.promoted)
            if stale > _COMPACT_AT and stale * 5 > len(self.heap):
                # a dictionary never shrinks by itself, and its holes cost every listing
                self.members, self.promoted = dict(self.members), dict(self.promoted)
                self.heap = [*self.members, *self.promoted]
                heapify(self.heap)

    def _drop_stale_head(self) -> None:
        heap, members, promoted = self.heap, self.members, self.promoted
        while heap and heap[0] not in members and heap[0] not in promoted:
            heappop(heap)

    def _heap_first(self, record: JobRecord) -> bool:
        self._drop_stale_head()
        if not self.heap:
            return False
        key = _TOP << _RANK_SHIFT | _FIFO | record.run_at_ms << SEQ_BITS | record.key
        return self.heap[0] < key

    def entered(
        self, *, prioritized: bool, newest_first: bool = False
    ) -> list[Iterator[JobRecord]]:
        """The records of priority above 0 or not, as streams that are each in the order in which
        they became ready. O(1) a record, but for what is stale or of the other priority."""

        def records(of: Collection[JobRecord]) -> Iterator[JobRecord]:
            return reversed(of) if newest_first else iter(of)  # type: ignore[call-overload]

        heaped = [records(d.values()) for d in (self.members, self.promoted) if d]
        if prioritized:
            return [_where(stream, high=True) for stream in heaped]
        streams = [_where(stream, high=False) for stream in heaped]
        if self.lane:
            streams.append(r for r in records(self.lane) if 0 < r.key < _LIMIT)
        return streams

    def check(self) -> None:
        """Asserts its invariants."""
        live = [r for r in self.lane if 0 < r.key < _LIMIT]
        assert len(self.lane) - len(live) == self.lane_stale, "stale marks of the lane"
        keys = [r.key for r in live]
        assert keys == sorted(set(keys)), "lane out of order"
        assert all(r.priority == 0 and not r.options.lifo for r in live), "wrong job in the lane"
        waits = [(r.run_at_ms, r.key) for r in live]
        assert waits == sorted(waits), "lane against time"
        heaped = {**self.members, **self.promoted}
        assert len(heaped) == len(self.members) + len(self.promoted), "a member twice"
        assert set(heaped) <= set(self.heap), "a member without a place in the heap"
        assert len(self.heap) == len(set(self.heap)), "a key twice in the heap"
        assert all(r.key == key for key, r in heaped.items()), "key of a member"
        assert self.prioritized == sum(r.priority > 0 for r in heaped.values())
        assert all(r.state == PENDING for r in heaped.values()), "a member not pending"
        assert all(r.state == PENDING for r in live), "a job in the lane that is not pending"
        assert all(self.heap[(i - 1) >> 1] <= key for i, key in enumerate(self.heap) if i), (
            "heap order"
        )


def _where(records: Iterator[JobRecord], *, high: bool) -> Iterator[JobRecord]:
    return (r for r in records if (r.priority > 0) is high)


Stamped = tuple[int, int, JobRecord]
"""When a record entered its state (ms), its admission number, the record."""


def merged(streams: list[Iterator[Stamped]], *, newest_first: bool) -> Iterator[JobRecord]:
    """Streams that are each in the order in which their records entered, as one."""
    if len(streams) == 1:
        return (record for _, _, record in streams[0])
    if newest_first:
        # so that equal stamps come in exactly the opposite order
        streams = streams[::-1]
    return (r for _, _, r in merge(*streams, key=_stamp, reverse=newest_first))


def _stamp(entry: Stamped) -> tuple[int, int]:
    return entry[0], entry[1]


def stamped(record: JobRecord) -> Stamped:
    """The record with the moment at which it entered its state and its admission number."""
    return record.entered_ms, seq_of(record) or 0, record
