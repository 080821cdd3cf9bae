"""Jobs in the order of their admission, which is the order in which they run. Guarded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from ..model.job import NOWHERE, PENDING, JobRecord
from .keys import LIMIT

COMPACT_AT = 64

MAX_LANES = 1024
"""A lane costs about a kilobyte; jobs of more priorities than that at once stand in the heap."""

SPARE_LANES = 16
"""So many empty lanes may wait for a job of their priority."""


class Lane:
    """Records by admission number, which is their `key` while they stand here.

    One that leaves otherwise than from the front gets another key and leaves a stale mark behind,
    which `stale` counts.
    """

    __slots__ = ("records", "stale")

    def __init__(self) -> None:
        self.records: deque[JobRecord] = deque()
        self.stale = 0

    def __len__(self) -> int:
        return len(self.records) - self.stale

    def live(self, *, newest_first: bool = False) -> Iterator[JobRecord]:
        """The records in the order of their admission, or against it."""
        records = reversed(self.records) if newest_first else iter(self.records)
        return (record for record in records if 0 < record.key < LIMIT)

    def drop_stale_first(self) -> None:
        """Lets go what is stale before the first record. O(1) amortised."""
        records = self.records
        while records and not 0 < records[0].key < LIMIT:
            records.popleft()
            self.stale -= 1

    def sweep(self, share: int) -> None:
        """Sweeps the stale marks out, if they are more than one in `share`; O(1) amortised."""
        stale = self.stale
        if stale > COMPACT_AT and stale * share > len(self.records):
            self.records = deque(self.live())
            self.stale = 0

    def after(self, seq: int, limit: int) -> list[JobRecord]:
        """Up to `limit` records with an admission number above `seq`, in order; none only if
        there is none. The way there is a bisection, and half a millisecond where a million stand
        here. The caller has marked the gate: the lane is turned and turned back.
        """
        lane, end = self.records, len(self.records)
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
            found = [r for r in window if 0 < r.key < LIMIT]
            start = stop
        return found

    def check(self) -> None:
        """Asserts its invariants."""
        live = list(self.live())
        assert len(self.records) - len(live) == self.stale, "stale marks of a lane"
        keys = [r.key for r in live]
        assert keys == sorted(set(keys)), "lane out of order"
        assert not any(r.options.lifo for r in live), "wrong job in a lane"
        assert all(r.state == PENDING for r in live), "a job in a lane that is not pending"
        waits = [r.run_at_ms for r in live]
        assert waits == sorted(waits), "lane against time"


class PriorityLanes:
    """A lane for each priority but 0, of jobs that have stood nowhere else.

    `order` is a lazy heap of the negated priorities whose lane is not empty; a few that are empty
    stay, for the next of their priority. What waits with a priority
    above 0, and what does with one below, also stands in the order of admission, whatever its
    priority, in `high` and `low`: for listings and walks. `prioritized` counts the former.
    `removed` counts what left otherwise than by its turn: by priority, stale marks of its lane.

    `push` and `pop` cost O(log lanes), and nearly always O(1); `remove` is O(1).
    """

    __slots__ = ("high", "lanes", "low", "order", "removed")

    def __init__(self) -> None:
        self.lanes: dict[int, deque[JobRecord]] = {}
        self.order: list[int] = []
        self.high = Lane()
        self.low = Lane()
        self.removed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.high) + len(self.low)

    def push(self, record: JobRecord, seq: int) -> bool:
        """Takes the record, if its priority has a lane or there is room for one more."""
        priority, lanes = record.priority, self.lanes
        if priority in lanes:
            lane = lanes[priority]
        elif len(lanes) < MAX_LANES:
            lane = lanes[priority] = deque()
        else:
            return False
        if not lane:
            order = self.order
            heappush(order, -priority)
            if len(order) > COMPACT_AT and len(order) > 2 * len(lanes) + COMPACT_AT:
                self.order = sorted(-p for p, each in lanes.items() if each or p == priority)
        record.key = seq
        lane.append(record)
        (self.high if priority > 0 else self.low).records.append(record)
        return True

    def first(self, *, below: bool) -> JobRecord | None:
        """The record whose turn it is, still in here: of priority above 0, or with `below` of
        any. Lets go what is stale before it."""
        order = self.order
        while order and (below or order[0] < 0):
            priority = -order[0]
            lane = self.lanes.get(priority)
            while lane:
                record = lane[0]
                if 0 < record.key < LIMIT:
                    return record
                lane.popleft()
                self._uncount_removed(priority)
            self.lanes.pop(priority, None)
            heappop(order)
        return None

    def pop_high(self) -> JobRecord | None:
        """Takes out the record whose turn it is, if it has a priority above 0 and nothing stale
        stands before it. Its key still tells its number."""
        order, lanes = self.order, self.lanes
        top = order[0]
        if top >= 0 or -top not in lanes:
            return None
        lane = lanes[-top]
        if not lane:
            return None
        record = lane[0]
        if not 0 < record.key < LIMIT:
            return None
        lane.popleft()
        if not lane:
            # what _end_lane does, in line, as what follows: a lane is short where jobs are few
            heappop(order)
            if len(lanes) - len(order) > SPARE_LANES:
                del lanes[-top]
        shelf = self.high
        records = shelf.records
        if not shelf.stale and records[0] is record:
            records.popleft()
        else:
            self._leave_shelf(shelf, record)
        return record

    def take(self, record: JobRecord) -> None:
        """Takes out the record that `first` has returned. Its key still tells its number."""
        lane = self.lanes[record.priority]
        lane.popleft()
        if not lane:
            self._end_lane()
        self._leave_shelf(self.high if record.priority > 0 else self.low, record)

    def _end_lane(self) -> None:
        """The first lane of the order has run empty."""
        priority = -heappop(self.order)
        if len(self.lanes) - len(self.order) > SPARE_LANES:
            del self.lanes[priority]

    def _leave_shelf(self, shelf: Lane, record: JobRecord) -> None:
        if shelf.records[0] is record:
            shelf.records.popleft()
            if shelf.stale:
                shelf.drop_stale_first()
        else:
            record.key |= LIMIT
            shelf.stale += 1
            if shelf.stale > COMPACT_AT:
                shelf.sweep(2)

    def remove(self, record: JobRecord) -> None:
        """Takes the record out from wherever it stands in here."""
        priority = record.priority
        record.key = NOWHERE
        shelf = self.high if priority > 0 else self.low
        shelf.stale += 1
        shelf.sweep(2)
        stale = self.removed[priority] = self.removed.get(priority, 0) + 1
        lane = self.lanes[priority]
        if len(lane) == stale:
            # the last one of its priority: a lane for each that ever was would fill the room
            del self.lanes[priority], self.removed[priority]
        elif stale > COMPACT_AT and stale * 5 > len(lane):
            self.lanes[priority] = deque(r for r in lane if 0 < r.key < LIMIT)
            del self.removed[priority]

    def _uncount_removed(self, priority: int) -> None:
        left = self.removed[priority] - 1
        if left:
            self.removed[priority] = left
        else:
            del self.removed[priority]

    def tally(self) -> Counter[int]:
        """How many wait of each priority."""
        counts = Counter({p: len(lane) - self.removed.get(p, 0) for p, lane in self.lanes.items()})
        return +counts

    def check(self) -> None:
        """Asserts its invariants."""
        self.high.check()
        self.low.check()
        waiting = {-p for p, lane in self.lanes.items() if lane}
        assert waiting <= set(self.order), "a lane that is never looked at"
        assert len(self.order) <= 2 * MAX_LANES + COMPACT_AT, "stale entries of the order"
        assert all(self.order[(i - 1) >> 1] <= p for i, p in enumerate(self.order) if i), (
            "heap order"
        )
        assert len(self.lanes) <= MAX_LANES
        assert self.removed.keys() <= self.lanes.keys(), "stale marks of a lane that is gone"
        found: list[JobRecord] = []
        for priority, lane in self.lanes.items():
            live = [r for r in lane if 0 < r.key < LIMIT]
            assert all(r.priority == priority for r in live) and priority, "a job of another lane"
            keys = [r.key for r in live]
            assert keys == sorted(set(keys)), "priority lane out of order"
            assert len(lane) - len(live) == self.removed.get(priority, 0), "removed from a lane"
            found += live
        shelved = [*self.high.live(), *self.low.live()]
        assert {id(r) for r in found} == {id(r) for r in shelved}, "lanes and listings"
        assert len(found) == len(shelved), "a job twice in a lane"
        assert all(r.priority > 0 for r in self.high.live()), "priority in the wrong listing"
        assert all(r.priority < 0 for r in self.low.live()), "priority in the wrong listing"


def _first_live(lane: deque[JobRecord], start: int, stop: int) -> int:
    """Where in that part of the lane the first stands that is not stale; `stop` if none does."""
    for i in range(start, min(start + 64, stop)):
        if 0 < lane[i].key < LIMIT:
            return i
    # a long stale stretch: an index costs more in the middle of a deque than a step
    for i, record in enumerate(islice(lane, start, stop), start):
        if 0 < record.key < LIMIT:
            return i
    return stop
