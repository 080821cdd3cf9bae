"""The schedulers of all queues, by when they are due. Leaf noun."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from ..model.claim import AnyClaim
from ..model.options import Options
from ..model.own import Own
from ..model.schedule import Definition, Progress
from ..sync import LEAF, make_lock


class Template(NamedTuple):
    """What every job of a scheduler is made of, but for its name and data."""

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
        self._by_time: SortedList[tuple[int, int]] = SortedList()
        self._by_wall: SortedList[tuple[int, int]] = SortedList()
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
            self._disarm(schedule)
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
            self._disarm(schedule)
            if at_ms is None:
                return None
            (self._by_wall if by_wall else self._by_time).add((at_ms, schedule.number))
            schedule.armed_ms, schedule.armed_by_wall = at_ms, by_wall
            return at_ms - self.offset_ms if by_wall else at_ms

    def _disarm(self, schedule: Schedule) -> None:
        if schedule.armed_ms is not None:
            index = self._by_wall if schedule.armed_by_wall else self._by_time
            index.discard((schedule.armed_ms, schedule.number))
            schedule.armed_ms = None

    def due(self, now: int, wall: int, limit: int) -> list[Schedule]:
        """Up to `limit` of those that are due, the longest due first; they stay where they are."""
        with self._lock:
            found: list[tuple[int, int]] = []
            for index, clock in ((self._by_time, now), (self._by_wall, wall)):
                for entry in index.islice(0, limit):
                    if entry[0] > clock:
                        break
                    found.append((clock - entry[0], entry[1]))
            if len(found) > limit:
                found.sort(reverse=True)
            return [self._members[number] for _, number in found[:limit]]

    def by_wall(self) -> list[Schedule]:
        """Those that go by the wall clock and are armed."""
        with self._lock:
            return [self._members[number] for _, number in self._by_wall]

    def next_ms(self, now: int, wall: int) -> int | None:
        """When the next is due, by the timeline; `None` if none is armed."""
        with self._lock:
            moments = []
            if self._by_time:
                moments.append(self._by_time[0][0])
            if self._by_wall:
                moments.append(self._by_wall[0][0] - (wall - now))
            return min(moments, default=None)

    def moved(self, now: int, wall: int) -> bool:
        """Whether the wall clock has been moved since its index was looked at, and that matters:
        by a second or more, or so that something is due."""
        if not self._by_wall:
            return False
        jump = wall - now - self.offset_ms
        if not -1000 < jump < 1000:
            return True
        try:
            return jump > 0 and self._by_wall[0][0] <= wall
        except IndexError:  # the last one has just left
            return False

    def check(self) -> None:
        """Asserts its invariants."""
        with self._lock:
            known = [s for part in self.of_queue.values() for s in part.values()]
            assert {s.number for s in known} == set(self._members), "members"
            assert all(self._members[s.number] is s and not s.gone for s in known), "members"
            armed = [s for s in known if s.armed_ms is not None]
            for by_wall, index in ((False, self._by_time), (True, self._by_wall)):
                wanted = {(s.armed_ms, s.number) for s in armed if s.armed_by_wall is by_wall}
                assert set(index) == wanted and len(index) == len(wanted), "index"
                assert list(index) == sorted(index), "order"
            for name, part in self.of_queue.items():
                assert part, "a queue without schedulers"
                assert all(s.queue.name == name and s.id == key for key, s in part.items())
