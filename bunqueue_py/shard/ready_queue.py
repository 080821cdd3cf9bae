"""Which job is next: a lane for the plain ones, a heap for the rest. Guarded."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice

from ..model.job import NOWHERE, PENDING, JobRecord
from ..model.options import MAX_PRIORITY

SEQ_BITS = 44
"""Admission numbers and milliseconds both fit 44 bits for the next 400 years."""

_FIFO = 1 << (2 * SEQ_BITS)
_RANK_SHIFT = 2 * SEQ_BITS + 1
_LIMIT = 1 << SEQ_BITS
_TOP = MAX_PRIORITY + 1
_HEAPED = 1 << (_RANK_SHIFT + SEQ_BITS)
"""Keys of the heap are not below this, those of the lane and of delayed jobs are."""

_HIGH = _TOP << (_RANK_SHIFT + SEQ_BITS)
"""Keys of the heap below this are of jobs with a priority above 0."""

_COMPACT_AT = 64


def seq_of(record: JobRecord) -> int | None:
    """The admission number in the record's key; `None` if it has no key."""
    key = record.key
    if key < 0:
        return None
    if key < _HEAPED:
        return key & (_LIMIT - 1)
    seq = (key >> SEQ_BITS) & (_LIMIT - 1)
    return _LIMIT - 1 - seq if record.options.lifo else seq


def departed_key(seq: int | None) -> int:
    """The key of a record that no longer waits: it tells the admission number and is that of no
    place, in particular not that of the stale mark which the record may have left in a lane."""
    return NOWHERE if seq is None else _LIMIT | seq


class Arrivals:
    """The number of the last arrival in any heap of one queue; it only grows."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class ReadyQueue:
    """Ready jobs in the order they will run.

    A place in the heap is one integer, smaller first: priority descending; then LIFO before FIFO;
    LIFO newest first, FIFO by run_at and admission number. Its lowest bits are the number of its
    arrival in the heap, so that no key ever comes twice. `arrivals` draws it: the ready queues of
    one queue's groups have it in common with that of the ungrouped jobs.

    The lane takes jobs of priority 0, FIFO, as they are pushed: its order is that of admission,
    and a record's `key` there is its bare admission number. Everything else, and whatever comes
    back, goes to the heap of integer keys. They are resolved by `members` (priority above 0) and
    `low` (0 and below) or, where time alone made the job ready, by `promoted` and `low_promoted`:
    each of the four is in the order in which its jobs became ready. `arrived` has the keys of the
    heap in the order in which they came, stale ones included, for walks that go on later.
    `heaped` is how many jobs the heap has, `tally` how many of each priority.

    `append`, and `pop` from the lane, are O(1); `push`, and `pop` from the heap, O(log n);
    `remove` is O(1) and leaves a stale mark behind: more than 20% of those are swept out at once.
    """

    __slots__ = (
        "arrivals",
        "arrived",
        "heap",
        "heaped",
        "lane",
        "lane_stale",
        "low",
        "low_promoted",
        "members",
        "prioritized",
        "promoted",
        "tally",
    )

    def __init__(self, arrivals: Arrivals | None = None) -> None:
        self.lane: deque[JobRecord] = deque()
        self.lane_stale = 0
        self.heap: list[int] = []
        self.members: dict[int, JobRecord] = {}
        self.promoted: dict[int, JobRecord] = {}
        self.low: dict[int, JobRecord] = {}
        self.low_promoted: dict[int, JobRecord] = {}
        self.arrived: list[int] = []
        self.arrivals = Arrivals() if arrivals is None else arrivals
        self.heaped = 0
        self.prioritized = 0
        self.tally: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.lane) - self.lane_stale + self.heaped

    def append(self, record: JobRecord, seq: int) -> None:
        """Takes a record that was just admitted, is of priority 0 and FIFO."""
        record.key = seq
        self.lane.append(record)

    def push(self, record: JobRecord, seq: int, *, by_time: bool = False) -> None:
        """Takes any other ready record; `seq` is its admission number, `by_time` says that its
        moment has come (and not somebody put it here)."""
        priority = record.priority
        place = (_TOP - priority) << _RANK_SHIFT
        if record.options.lifo:
            place |= _LIMIT - 1 - seq
        else:
            place |= _FIFO | record.run_at_ms << SEQ_BITS | seq
        self.arrivals.last = arrival = self.arrivals.last + 1
        key = record.key = place << SEQ_BITS | arrival
        if priority > 0:
            self.prioritized += 1
            (self.promoted if by_time else self.members)[key] = record
        else:
            (self.low_promoted if by_time else self.low)[key] = record
        self.heaped += 1
        self.tally[priority] = self.tally.get(priority, 0) + 1
        self.arrived.append(key)
        heappush(self.heap, key)

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
        heap = self.heap
        while heap:
            key = heappop(heap)
            found = self._take(key)
            if found is not None:
                if self._passed_many():
                    self._compact()
                return found
        return None

    def _passed_many(self) -> bool:
        """Whether listings and walks pass over more than half as much as there is."""
        return len(self.arrived) > _COMPACT_AT + self.heaped + (self.heaped >> 1)

    def _take(self, key: int) -> JobRecord | None:
        """Takes the record of that key of the heap out; `None` if the key is stale."""
        high = key < _HIGH
        found = (self.members if high else self.low).pop(key, None)
        if found is None:
            later = self.promoted if high else self.low_promoted
            found = later.pop(key, None) if later else None
            if found is None:
                return None
        self.heaped -= 1
        self.prioritized -= high
        left = self.tally[found.priority] - 1
        if left:
            self.tally[found.priority] = left
        else:
            del self.tally[found.priority]
        return found

    def _at(self, key: int) -> JobRecord | None:
        """The record of that key of the heap; `None` if the key is stale."""
        if key < _HIGH:
            return self.members.get(key) or self.promoted.get(key)
        return self.low.get(key) or self.low_promoted.get(key)

    def peek(self) -> JobRecord | None:
        """The record that `pop` would return, still in here."""
        lane = self.lane
        while lane and not 0 < lane[0].key < _LIMIT:
            lane.popleft()
            self.lane_stale -= 1
        if lane and not (self.heap and self._heap_first(lane[0])):
            return lane[0]
        self._drop_stale_head()
        return self._at(self.heap[0]) if self.heap else None

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
            self._take(key)
            record.key = NOWHERE
            stale = len(self.heap) - self.heaped
            if (stale > _COMPACT_AT and stale * 5 > len(self.heap)) or self._passed_many():
                self._compact()

    def _compact(self) -> None:
        """Sweeps out what is stale in the heap and in the order of arrival."""
        # a dictionary never shrinks by itself, and its holes cost every listing
        self.members, self.promoted = dict(self.members), dict(self.promoted)
        self.low, self.low_promoted = dict(self.low), dict(self.low_promoted)
        self.heap = [*self.members, *self.promoted, *self.low, *self.low_promoted]
        self.arrived = sorted(self.heap, key=_arrival)
        heapify(self.heap)

    def _drop_stale_head(self) -> None:
        heap = self.heap
        while heap and self._at(heap[0]) is None:
            heappop(heap)

    def _heap_first(self, record: JobRecord) -> bool:
        self._drop_stale_head()
        if not self.heap:
            return False
        place = _TOP << _RANK_SHIFT | _FIFO | record.run_at_ms << SEQ_BITS | record.key
        return self.heap[0] < place << SEQ_BITS

    def entered(
        self, *, prioritized: bool, newest_first: bool = False
    ) -> list[Iterator[JobRecord]]:
        """The records of priority above 0 or not, as streams that are each in the order in which
        they became ready. O(1) a record, but for what is stale."""

        def records(of: Collection[JobRecord]) -> Iterator[JobRecord]:
            return reversed(of) if newest_first else iter(of)  # type: ignore[call-overload]

        shelves = (self.members, self.promoted) if prioritized else (self.low, self.low_promoted)
        streams = [records(shelf.values()) for shelf in shelves if shelf]
        if self.lane and not prioritized:
            streams.append(r for r in records(self.lane) if 0 < r.key < _LIMIT)
        return streams

    # -- walks that go on later --------------------------------------------------------------

    def lane_after(self, seq: int, limit: int) -> list[JobRecord]:
        """Up to `limit` records of the lane with an admission number above `seq`, in order; none
        only if there is none. The way there is a bisection, and half a millisecond where a
        million stand there. The caller has marked the gate: the lane is turned and turned back.
        """
        lane, end = self.lane, len(self.lane)
        start, stop = 0, end
        while start < stop:
            middle = (start + stop) // 2
            at = _first_live(lane, middle, stop)
            if at < stop and lane[at].key <= seq:
                start = at + 1
            else:
                stop = middle
        found: list[JobRecord] = []
        while start < end and not found:
            stop = min(end, start + limit)
            # turned to its beginning and back: a step over each record before it would touch
            # them all, and costs twenty times as much
            lane.rotate(-start)
            window = [lane[i] for i in range(stop - start)]
            lane.rotate(start)
            found = [r for r in window if 0 < r.key < _LIMIT]
            start = stop
        return found

    def heaped_after(self, arrival: int, limit: int) -> tuple[list[JobRecord], int | None]:
        """The records of the heap among the next `limit` arrivals after that one, and the number
        of the last of these; `None` if there are no more."""
        start = bisect_right(self.arrived, arrival, key=_arrival)
        keys = self.arrived[start : start + limit]
        found = [record for key in keys if (record := self._at(key)) is not None]
        return found, _arrival(keys[-1]) if keys else None

    def check(self) -> None:
        """Asserts its invariants."""
        live = [r for r in self.lane if 0 < r.key < _LIMIT]
        assert len(self.lane) - len(live) == self.lane_stale, "stale marks of the lane"
        keys = [r.key for r in live]
        assert keys == sorted(set(keys)), "lane out of order"
        assert all(r.priority == 0 and not r.options.lifo for r in live), "wrong job in the lane"
        waits = [(r.run_at_ms, r.key) for r in live]
        assert waits == sorted(waits), "lane against time"
        shelves = (self.members, self.promoted, self.low, self.low_promoted)
        heaped = {key: r for shelf in shelves for key, r in shelf.items()}
        assert len(heaped) == sum(map(len, shelves)) == self.heaped, "how many are in the heap"
        high = {*self.members, *self.promoted}
        assert all((key in high) is (r.priority > 0) for key, r in heaped.items()), "wrong shelf"
        numbers = [_arrival(key) for key in self.arrived]
        assert numbers == sorted(set(numbers)), "arrivals out of order"
        assert set(heaped) <= set(self.arrived), "a member that never arrived"
        assert not self._passed_many(), "too much that is stale"
        assert self.tally == Counter(r.priority for r in heaped.values()), "tally of priorities"
        assert set(heaped) <= set(self.heap), "a member without a place in the heap"
        assert len(self.heap) == len(set(self.heap)), "a key twice in the heap"
        assert all(r.key == key for key, r in heaped.items()), "key of a member"
        assert self.prioritized == sum(r.priority > 0 for r in heaped.values())
        assert all(r.state == PENDING for r in heaped.values()), "a member not pending"
        assert all(r.state == PENDING for r in live), "a job in the lane that is not pending"
        assert all(self.heap[(i - 1) >> 1] <= key for i, key in enumerate(self.heap) if i), (
            "heap order"
        )


def _first_live(lane: deque[JobRecord], start: int, stop: int) -> int:
    """Where in that part of the lane the first stands that is not stale; `stop` if none does."""
    for i in range(start, min(start + 64, stop)):
        if 0 < lane[i].key < _LIMIT:
            return i
    # a long stale stretch: an index costs more in the middle of a deque than a step
    for i, record in enumerate(islice(lane, start, stop), start):
        if 0 < record.key < _LIMIT:
            return i
    return stop


def _arrival(key: int) -> int:
    return key & (_LIMIT - 1)


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
