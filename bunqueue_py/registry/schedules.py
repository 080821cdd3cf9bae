"""The schedulers of all queues, by when they are due. Leaf noun."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, NamedTuple

from ..model.claim import AnyClaim
from ..model.options import Options
from ..model.own import Own
from ..model.schedule import Definition, Progress
from ..sync import LEAF, make_lock

SWEEP_AT = 64
"""Fewer stale entries than this are let be."""


class Template(NamedTuple):
    """What every job of a scheduler is made of. Without an `own` it has no id, key or claim."""

    name: str
    data: bytes
    options: Options
    priority: int
    own: Own | None
    custom_id: str | None
    key: str | None
    claim: AnyClaim


class Schedule:
    """One scheduler; `queue` is its queue's state (opaque here), whose shard's lock guards it.

    `definition` and `progress` are replaced, never changed. `armed_ms` is where it stands in the
    index of its clock, `None` where it stands in none. `staged` is the id of its last job while
    that is on its way to the disk.
    """

    __slots__ = (
        "armed_by_wall",
        "armed_ms",
        "definition",
        "gone",
        "id",
        "number",
        "progress",
        "queue",
        "staged",
        "template",
    )

    def __init__(
        self, queue: Any, schedule_id: str, definition: Definition, template: Template
    ) -> None:
        self.queue = queue
        self.id = schedule_id
        self.definition = definition
        self.template = template
        self.progress = Progress(None)
        self.number = 0
        self.armed_ms: int | None = None
        self.armed_by_wall = False
        self.gone = False
        self.staged: str | None = None


class Staged(NamedTuple):
    """A job that will be there when its cut is on disk, and what it was planned for, by the clock
    of its scheduler."""

    cut: int
    schedule: Schedule
    record: Any
    own: Own
    planned_ms: int


class _Index:
    """Schedulers by their next moments, of one clock: a heap of (moment, number, scheduler). Where
    one has left, its entry stays until it comes to the head, or half of the heap is of that kind;
    so the head always counts."""

    __slots__ = ("_by_wall", "heap", "stale")

    def __init__(self, *, by_wall: bool) -> None:
        self._by_wall = by_wall
        self.stale = 0
        self.heap: list[tuple[int, int, Schedule]] = []

    def _counts(self, entry: tuple[int, int, Schedule]) -> bool:
        schedule = entry[2]
        return schedule.armed_ms == entry[0] and schedule.armed_by_wall is self._by_wall

    def leave(self) -> None:
        """A scheduler has left its entry."""
        heap = self.heap
        self.stale += 1
        if self.stale > SWEEP_AT and self.stale * 2 > len(heap):
            # without those that came back to where an entry of theirs still was
            kept = list({entry[:2]: entry for entry in heap if self._counts(entry)}.values())
            heapify(kept)
            # in one go: others look at the head without the lock
            heap[:] = kept
            self.stale = 0
        self.tidy()

    def tidy(self) -> None:
        """The head counts again."""
        while self.stale and self.heap and not self._counts(self.heap[0]):
            heappop(self.heap)
            self.stale -= 1

    def due(self, clock: int, limit: int) -> list[tuple[int, Schedule]]:
        """Up to `limit` that stand at that moment or before, in order."""
        heap = self.heap
        if not heap or heap[0][0] > clock:
            return []
        taken: list[tuple[int, int, Schedule]] = []
        while heap and heap[0][0] <= clock and len(taken) < limit:
            entry = heappop(heap)
            if self._counts(entry) and not (taken and taken[-1] == entry):
                taken.append(entry)
            else:
                self.stale -= 1
        for entry in taken:
            heappush(heap, entry)
        return [(moment, schedule) for moment, _, schedule in taken]

    def only(self, clock: int) -> Schedule | None:
        """The head, if it stands at that moment or before and nothing else does; needs no lock."""
        heap = self.heap
        size = len(heap)
        try:
            if not size or heap[0][0] > clock or (size > 1 and heap[1][0] <= clock):
                return None
            return None if size > 2 and heap[2][0] <= clock else heap[0][2]
        except IndexError:  # some have just left
            return None

    def standing(self) -> list[tuple[int, Schedule]]:
        """All, in order."""
        entries = {entry[:2]: entry for entry in self.heap if self._counts(entry)}
        return [(moment, entries[moment, number][2]) for moment, number in sorted(entries)]

    def check(self) -> None:
        """Asserts its invariants."""
        heap = self.heap
        assert all(heap[(i - 1) >> 1][:2] <= e[:2] for i, e in enumerate(heap) if i), "heap order"
        assert not heap or self._counts(heap[0]), "the head does not count"
        stale = len(heap) - len(self.standing())
        assert stale == self.stale, f"{stale} are stale, and not {self.stale}"


def _place(schedule: Schedule) -> tuple[int, int]:
    assert schedule.armed_ms is not None
    return schedule.armed_ms, schedule.number


def _lateness(entry: tuple[int, Schedule]) -> int:
    return entry[0]


class Schedules:
    """Every scheduler by queue and id, and in two indexes by its next moment: one follows the
    timeline, one the wall clock. All of it is O(log n).

    `offset_ms` is how far the wall clock was ahead of the timeline when the wall's index was looked
    at last. `staged` are jobs on their way to the disk, in the order of their cuts; `asked` says
    that the storage will tell when the first of them is there. `late_ms` is by how much the
    latest firing came after its moment, `worst_late_ms` the greatest of those. What was planned
    before `missed_by_time` or `missed_by_wall`, each by its clock, and was not done by then, is
    missed: no process was up, or it was frozen, or the clock leapt over it.
    """

    __slots__ = (
        "_by_time",
        "_by_wall",
        "_lock",
        "_members",
        "_next_number",
        "asked",
        "fired",
        "late_ms",
        "missed_by_time",
        "missed_by_wall",
        "of_queue",
        "offset_ms",
        "staged",
        "worst_late_ms",
    )

    def __init__(self, offset_ms: int) -> None:
        self._lock = make_lock("schedules", LEAF)
        self._by_time = _Index(by_wall=False)
        self._by_wall = _Index(by_wall=True)
        self._members: dict[int, Schedule] = {}
        self._next_number = 0
        self.of_queue: dict[str, dict[str, Schedule]] = {}
        self.offset_ms = offset_ms
        self.staged: deque[Staged] = deque()
        self.asked = False
        self.fired = 0
        self.late_ms = 0
        self.missed_by_time = self.missed_by_wall = 0
        self.worst_late_ms = 0

    def __len__(self) -> int:
        return len(self._members)

    def find(self, queue: str, schedule_id: str) -> Schedule | None:
        """The scheduler of that queue and id."""
        return self.of_queue.get(queue, {}).get(schedule_id)

    def of(self, queue: str | None) -> list[Schedule]:
        """Those of the queue, or of all queues, by queue and id."""
        with self._lock:
            names = [queue] if queue is not None else sorted(self.of_queue)
            found = [self.of_queue.get(name, {}) for name in names]
            return [part[schedule_id] for part in found for schedule_id in sorted(part)]

    def add(self, schedule: Schedule) -> None:
        """Takes a new one, which is not armed yet."""
        with self._lock:
            self._next_number += 1
            schedule.number = self._next_number
            self._members[schedule.number] = schedule
            self.of_queue.setdefault(schedule.queue.name, {})[schedule.id] = schedule

    def remove(self, schedule: Schedule) -> None:
        """Takes it out of everything."""
        with self._lock:
            self._move(schedule, None, schedule.armed_by_wall)
            schedule.gone = True
            del self._members[schedule.number]
            name = schedule.queue.name
            del self.of_queue[name][schedule.id]
            if not self.of_queue[name]:
                del self.of_queue[name]

    def arm(self, schedule: Schedule, at_ms: int | None) -> int | None:
        """Has it stand at that moment of its timing's clock, `None` for nowhere; returns when that
        is by the timeline."""
        by_wall = schedule.definition.timing.by_wall
        with self._lock:
            index = self._by_wall if by_wall else self._by_time
            heap = index.heap
            if at_ms is not None and heap and heap[0][2] is schedule:
                # it is its turn, and it moves on
                schedule.armed_ms = at_ms
                heapreplace(heap, (at_ms, schedule.number, schedule))
                if index.stale:
                    index.tidy()
            elif schedule.armed_ms != at_ms or schedule.armed_by_wall is not by_wall:
                if at_ms is not None:
                    heappush(heap, (at_ms, schedule.number, schedule))
                self._move(schedule, at_ms, by_wall)
            if at_ms is None:
                return None
            return at_ms - self.offset_ms if by_wall else at_ms

    def _move(self, schedule: Schedule, at_ms: int | None, by_wall: bool) -> None:
        """It stands there, and no longer where it stood."""
        left = None
        if schedule.armed_ms is not None:
            left = self._by_wall if schedule.armed_by_wall else self._by_time
        schedule.armed_ms, schedule.armed_by_wall = at_ms, by_wall
        if left is not None:
            left.leave()

    def due(self, now: int, wall: int, limit: int) -> list[Schedule]:
        """Up to `limit` of those that are due, the longest due first; they stay where they are.
        Whether they are still due is for the caller to see, under their shard's lock."""
        if not self._by_wall.heap or not self._by_time.heap:
            alone = self._by_time.only(now) or self._by_wall.only(wall)
            if alone is not None:
                return [alone]
        with self._lock:
            found = self._by_time.due(now, limit) if self._by_time.heap else []
            by_wall = self._by_wall.due(wall, limit) if self._by_wall.heap else []
            if found and by_wall:
                late = [(now - moment, s) for moment, s in found]
                late += [(wall - moment, s) for moment, s in by_wall]
                late.sort(key=_lateness, reverse=True)
                return [schedule for _, schedule in late[:limit]]
            return [schedule for _, schedule in found or by_wall]

    def note_firing(self, late_ms: int) -> None:
        """A job comes in that long after its moment."""
        self.fired += 1
        self.late_ms = late_ms
        if late_ms > self.worst_late_ms:
            self.worst_late_ms = late_ms

    def by_wall(self) -> list[Schedule]:
        """Those that go by the wall clock and are armed."""
        with self._lock:
            return [schedule for _, schedule in self._by_wall.standing()]

    def next_ms(self, now: int, wall: int) -> int | None:
        """When the next is due, by the timeline; `None` if none is armed. While somebody moves one
        it may be the moment at which that stood."""
        by_time, by_wall, due = self._by_time.heap, self._by_wall.heap, None
        try:
            if by_time:
                due = by_time[0][0]
            if by_wall:
                ahead = by_wall[0][0] - (wall - now)
                if due is None or ahead < due:
                    return ahead
        except IndexError:  # the last one has just left
            return self.next_ms(now, wall)
        return due

    def moved(self, now: int, wall: int) -> bool:
        """Whether the wall clock has been moved since its index was looked at, and that matters:
        by a second or more, or so that something is due."""
        jump = wall - now - self.offset_ms
        if not jump or not self._by_wall.heap:
            return False
        if not -1000 < jump < 1000:
            return True
        try:
            return jump > 0 and self._by_wall.heap[0][0] <= wall
        except IndexError:  # the last one has just left
            return False

    def check(self) -> None:
        """Asserts its invariants."""
        with self._lock:
            known = [s for part in self.of_queue.values() for s in part.values()]
            assert {s.number for s in known} == set(self._members), "members"
            assert all(self._members[s.number] is s and not s.gone for s in known), "members"
            for by_wall, index in ((False, self._by_time), (True, self._by_wall)):
                wanted = [s for s in known if s.armed_ms is not None and s.armed_by_wall is by_wall]
                standing = [schedule for _, schedule in index.standing()]
                assert standing == sorted(wanted, key=_place), "index"
                index.check()
            for name, part in self.of_queue.items():
                assert part, "a queue without schedulers"
                assert all(s.queue.name == name and s.id == key for key, s in part.items())
