"""Which job is next: a lane for the plain ones, a heap for the rest. Guarded."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, merge

from ..model.job import NOWHERE, PENDING, JobRecord
from .keys import HIGH, LIMIT, SEQ_BITS, heap_place, seq_of
from .lanes import COMPACT_AT, Lane, PriorityLanes

Stamped = tuple[int, int, JobRecord]
"""When a record entered its state (ms), its admission number, the record."""


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

    `lane` takes FIFO jobs of priority 0 as they are pushed, and `lanes` those of other
    priorities: their order is that of admission, and a record's `key` there is its bare admission
    number. Everything else, and whatever comes back, goes to the heap of integer keys. They are
    resolved by `members` (priority above 0) and `low` (0 and below) or, where time alone made the
    job ready, by `promoted` and `low_promoted`: each of the four is in the order in which its
    jobs became ready. `arrived` has the keys of the heap in the order in which they came, stale
    ones included, for walks that go on later. `heaped` is how many jobs the heap has,
    `heap_tally` how many of each priority, `heap_high` how many above 0.

    `append`, `admit`, and `pop` from a lane, are O(1); `push`, and `pop` from the heap, O(log n);
    `remove` is O(1) and leaves a stale mark behind: when there are too many, all are swept out.
    """

    __slots__ = (
        "arrivals",
        "arrived",
        "heap",
        "heap_high",
        "heap_tally",
        "heaped",
        "lane",
        "lanes",
        "low",
        "low_promoted",
        "members",
        "promoted",
    )

    def __init__(self, arrivals: Arrivals | None = None) -> None:
        self.lane = Lane()
        #: made with the first job of another priority; the groups' queues have none
        self.lanes: PriorityLanes | None = None
        self.heap: list[int] = []
        self.members: dict[int, JobRecord] = {}
        self.promoted: dict[int, JobRecord] = {}
        self.low: dict[int, JobRecord] = {}
        self.low_promoted: dict[int, JobRecord] = {}
        self.arrived: list[int] = []
        self.arrivals = Arrivals() if arrivals is None else arrivals
        self.heaped = 0
        self.heap_high = 0
        self.heap_tally: dict[int, int] = {}

    def __len__(self) -> int:
        size = len(self.lane.records) - self.lane.stale + self.heaped
        return size if self.lanes is None else size + len(self.lanes)

    @property
    def prioritized(self) -> int:
        """How many have a priority above 0."""
        return self.heap_high + (0 if self.lanes is None else len(self.lanes.high))

    def tally(self) -> Counter[int]:
        """How many there are of each priority. O(distinct priorities)."""
        counts = Counter(self.heap_tally)
        if len(self.lane):
            counts[0] += len(self.lane)
        if self.lanes is not None:
            counts.update(self.lanes.tally())
        return counts

    def append(self, record: JobRecord, seq: int) -> None:
        """Takes a record that was just admitted, is of priority 0 and FIFO."""
        record.key = seq
        self.lane.records.append(record)

    def admit(self, record: JobRecord, seq: int) -> None:
        """Takes a record that has stood nowhere yet: no earlier one has a greater `seq`, or a
        later `run_at_ms` if it was FIFO."""
        if record.options.lifo:
            self.push(record, seq)
        elif record.priority == 0:
            record.key = seq
            self.lane.records.append(record)
        else:
            if self.lanes is None:
                self.lanes = PriorityLanes()
            if not self.lanes.push(record, seq):
                self.push(record, seq)

    def push(self, record: JobRecord, seq: int, *, by_time: bool = False) -> None:
        """Takes any other ready record; `seq` is its admission number, `by_time` says that its
        moment has come (and not somebody put it here)."""
        priority = record.priority
        self.arrivals.last = arrival = self.arrivals.last + 1
        key = record.key = heap_place(record, seq) << SEQ_BITS | arrival
        if priority > 0:
            self.heap_high += 1
            (self.promoted if by_time else self.members)[key] = record
        else:
            (self.low_promoted if by_time else self.low)[key] = record
        self.heaped += 1
        self.heap_tally[priority] = self.heap_tally.get(priority, 0) + 1
        self.arrived.append(key)
        heappush(self.heap, key)

    def pop(self) -> JobRecord | None:
        """The next record, no longer in here; `None` if there is none. Its key still tells its
        admission number, should it be given back."""
        lanes = self.lanes
        if lanes is None or not lanes.order:
            lane = self.lane
            records = lane.records
            while records:
                record = records[0]
                if 0 < record.key < LIMIT:
                    if self.heap and self._heap_first(record):
                        break
                    records.popleft()
                    return record
                records.popleft()
                lane.stale -= 1
        else:
            if not self.heap:
                # nearly always the first of the first lane is live
                first = lanes.pop_high()
                if first is not None:
                    return first
            first = self._first_in_lanes()
            if first is not None and not (self.heap and self._heap_first(first)):
                if first.priority:
                    lanes.take(first)
                else:
                    self.lane.records.popleft()
                return first
        heap = self.heap
        while heap:
            key = heappop(heap)
            found = self._take(key)
            if found is not None:
                if self._passed_many():
                    self._compact()
                return found
        return None

    def _first_in_lanes(self) -> JobRecord | None:
        """The record that is next but for the heap, still in here."""
        lanes = self.lanes
        if lanes is not None:
            found = lanes.first(below=False)
            if found is not None:
                return found
        lane = self.lane
        records = lane.records
        while records:
            record = records[0]
            if 0 < record.key < LIMIT:
                return record
            records.popleft()
            lane.stale -= 1
        return None if lanes is None else lanes.first(below=True)

    def _passed_many(self) -> bool:
        """Whether listings and walks pass over more than half as much as there is."""
        return len(self.arrived) > COMPACT_AT + self.heaped + (self.heaped >> 1)

    def _take(self, key: int) -> JobRecord | None:
        """Takes the record of that key of the heap out; `None` if the key is stale."""
        high = key < HIGH
        found = (self.members if high else self.low).pop(key, None)
        if found is None:
            later = self.promoted if high else self.low_promoted
            found = later.pop(key, None) if later else None
            if found is None:
                return None
        self.heaped -= 1
        self.heap_high -= high
        left = self.heap_tally[found.priority] - 1
        if left:
            self.heap_tally[found.priority] = left
        else:
            del self.heap_tally[found.priority]
        return found

    def _at(self, key: int) -> JobRecord | None:
        """The record of that key of the heap; `None` if the key is stale."""
        if key < HIGH:
            return self.members.get(key) or self.promoted.get(key)
        return self.low.get(key) or self.low_promoted.get(key)

    def peek(self) -> JobRecord | None:
        """The record that `pop` would return, still in here."""
        if not self.heap and self.lanes is None:
            # nearly always the first of the lane is live
            records = self.lane.records
            if not records:
                return None
            if 0 < records[0].key < LIMIT:
                return records[0]
        first = self._first_in_lanes()
        if first is not None and not (self.heap and self._heap_first(first)):
            return first
        self._drop_stale_head()
        return self._at(self.heap[0]) if self.heap else None

    def remove(self, record: JobRecord) -> None:
        """Takes the record out from wherever it stands in here."""
        key = record.key
        if 0 < key < LIMIT:
            if record.priority:
                assert self.lanes is not None
                self.lanes.remove(record)
            else:
                record.key = NOWHERE
                self.lane.stale += 1
                self.lane.sweep(5)
        else:
            self._take(key)
            record.key = NOWHERE
            stale = len(self.heap) - self.heaped
            if (stale > COMPACT_AT and stale * 5 > len(self.heap)) or self._passed_many():
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
        return self.heap[0] < heap_place(record, record.key) << SEQ_BITS

    def entered(
        self, *, prioritized: bool, newest_first: bool = False
    ) -> list[Iterator[JobRecord]]:
        """The records of priority above 0 or not, as streams that are each in the order in which
        they became ready. O(1) a record, but for what is stale."""

        def records(of: Collection[JobRecord]) -> Iterator[JobRecord]:
            return reversed(of) if newest_first else iter(of)  # type: ignore[call-overload]

        shelves = (self.members, self.promoted) if prioritized else (self.low, self.low_promoted)
        streams = [records(shelf.values()) for shelf in shelves if shelf]
        lanes = [] if prioritized else [self.lane]
        if self.lanes is not None:
            lanes.append(self.lanes.high if prioritized else self.lanes.low)
        streams += [lane.live(newest_first=newest_first) for lane in lanes if len(lane)]
        return streams

    # -- walks that go on later --------------------------------------------------------------

    def standing(self) -> tuple[Lane, ...]:
        """What is in the order of admission, in three lanes: of priority 0, above, below."""
        if self.lanes is None:
            return self.lane, Lane(), Lane()
        return self.lane, self.lanes.high, self.lanes.low

    def heaped_after(self, arrival: int, limit: int) -> tuple[list[JobRecord], int | None]:
        """The records of the heap among the next `limit` arrivals after that one, and the number
        of the last of these; `None` if there are no more."""
        start = bisect_right(self.arrived, arrival, key=_arrival)
        keys = self.arrived[start : start + limit]
        found = [record for key in keys if (record := self._at(key)) is not None]
        return found, _arrival(keys[-1]) if keys else None

    def check(self) -> None:
        """Asserts its invariants."""
        self.lane.check()
        assert all(r.priority == 0 for r in self.lane.live()), "wrong job in the lane"
        if self.lanes is not None:
            self.lanes.check()
        shelves = (self.members, self.promoted, self.low, self.low_promoted)
        heaped = {key: r for shelf in shelves for key, r in shelf.items()}
        assert len(heaped) == sum(map(len, shelves)) == self.heaped, "how many are in the heap"
        high = {*self.members, *self.promoted}
        assert all((key in high) is (r.priority > 0) for key, r in heaped.items()), "wrong shelf"
        numbers = [_arrival(key) for key in self.arrived]
        assert numbers == sorted(set(numbers)), "arrivals out of order"
        assert set(heaped) <= set(self.arrived), "a member that never arrived"
        assert not self._passed_many(), "too much that is stale"
        assert self.heap_tally == Counter(r.priority for r in heaped.values()), "tally"
        assert set(heaped) <= set(self.heap), "a member without a place in the heap"
        assert len(self.heap) == len(set(self.heap)), "a key twice in the heap"
        assert all(r.key == key for key, r in heaped.items()), "key of a member"
        assert self.heap_high == sum(r.priority > 0 for r in heaped.values())
        assert all(r.state == PENDING for r in heaped.values()), "a member not pending"
        assert all(self.heap[(i - 1) >> 1] <= key for i, key in enumerate(self.heap) if i), (
            "heap order"
        )


def _arrival(key: int) -> int:
    return key & (LIMIT - 1)


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
