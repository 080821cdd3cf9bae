"""The groups of a queue: a ready queue each, taken in turn. Guarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from ..model.job import ACTIVE, JobRecord
from .limiter import Limits
from .ready_queue import ReadyQueue


class Group:
    """One group: its ready jobs, what runs of it, its settings. `pending` counts its waiting
    jobs, the delayed ones too, by priority."""

    __slots__ = ("active", "limits", "name", "paused", "pending", "ready", "timer_ms")

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.limits = Limits()
        self.clear()

    def clear(self) -> None:
        """Empties what can be made anew from the records."""
        self.ready = ReadyQueue()
        self.active = 0
        self.pending: dict[int, int] = {}
        self.timer_ms: int | None = None

    @property
    def pending_total(self) -> int:
        """How many of its jobs wait, ready or delayed."""
        return sum(self.pending.values())

    def is_bare(self, now: int) -> bool:
        """Whether it has neither jobs nor settings."""
        return not self.pending and not self.active and not self.paused and self.limits.is_idle(now)


class Groups:
    """All groups of one queue.

    `line` holds, in the order of their turns, just the groups that have a ready job and may start
    one: a blocked group stands aside and costs the others nothing. What time alone will unblock
    stands in a lazy heap of timers. `ready` and `prioritized` count over all groups. Every call is
    O(1) or O(log n), in jobs and in groups.
    """

    __slots__ = ("_numbers", "by_name", "defaults", "line", "prioritized", "ready", "timers")

    def __init__(self) -> None:
        self.by_name: dict[str, Group] = {}
        #: the concurrency that running workers ask for, by worker
        self.defaults: dict[str, int] = {}
        self._numbers = count(1)
        self.clear_jobs()

    def clear_jobs(self) -> None:
        """Empties what can be made anew from the records; settings stay."""
        for group in self.by_name.values():
            group.clear()
        self.line: OrderedDict[str, Group] = OrderedDict()
        self.timers: list[tuple[int, int, Group]] = []
        self.ready = 0
        self.prioritized = 0

    @property
    def limited(self) -> bool:
        """Whether any group has a limit."""
        return bool(self.defaults) or any(
            g.limits.concurrency is not None or g.limits.window is not None
            for g in self.by_name.values()
        )

    def get(self, name: str) -> Group:
        """The group of that name; made if it is new."""
        group = self.by_name.get(name)
        if group is None:
            group = self.by_name[name] = Group(name)
        return group

    # -- jobs --------------------------------------------------------------------------------

    def count_in(self, record: JobRecord) -> None:
        """A job of the group waits from now on, ready or delayed."""
        pending = self.of(record).pending
        pending[record.priority] = pending.get(record.priority, 0) + 1

    def count_out(self, record: JobRecord) -> None:
        """A job of the group waits no longer."""
        pending = self.of(record).pending
        left = pending[record.priority] - 1
        if left:
            pending[record.priority] = left
        else:
            del pending[record.priority]

    def of(self, record: JobRecord) -> Group:
        """The group of a record that has one."""
        assert record.side is not None and record.side.group is not None
        return self.get(record.side.group)

    def push(self, record: JobRecord, seq: int, now: int, *, by_time: bool = False) -> None:
        """Takes a ready record of a group."""
        group = self.of(record)
        group.ready.push(record, seq, by_time=by_time)
        self.ready += 1
        self.prioritized += record.priority > 0
        self.update(group, now)

    def pop(self, now: int) -> JobRecord | None:
        """The next record of the group whose turn it is; the group goes to the end of the line."""
        self.open_due(now)
        while self.line:
            _, group = self.line.popitem(last=False)
            record = self._pop(group)
            # a group that turned out blocked or empty has left the line; others take their turn
            if record is not None:
                return record
        return None

    def pop_from(self, name: str, now: int) -> JobRecord | None:
        """The next record of that group, if it may start one."""
        self.open_due(now)
        group = self.by_name.get(name)
        if group is None or not self.may_start(group, now):
            return None
        return self._pop(group)

    def _pop(self, group: Group) -> JobRecord | None:
        record = group.ready.pop()
        if record is not None:
            self.ready -= 1
            self.prioritized -= record.priority > 0
        return record

    def remove(self, record: JobRecord, now: int) -> None:
        """Takes a ready record out."""
        group = self.of(record)
        group.ready.remove(record)
        self.ready -= 1
        self.prioritized -= record.priority > 0
        self.update(group, now)

    def started(self, record: JobRecord, now: int) -> None:
        """The record runs from now on."""
        group = self.of(record)
        group.active += 1
        group.limits.started(now)
        self.update(group, now)

    def ended(self, record: JobRecord, now: int) -> None:
        """The record runs no longer."""
        group = self.of(record)
        group.active -= 1
        self.update(group, now)
        self.forget_bare(group, now)

    # -- whose turn --------------------------------------------------------------------------

    @property
    def default_concurrency(self) -> int | None:
        """The smallest concurrency that a running worker asks for each group."""
        return min(self.defaults.values(), default=None)

    def may_start(self, group: Group, now: int) -> bool:
        """Whether the group may start a job now."""
        if group.paused:
            return False
        return group.limits.room(group.active, now, self.default_concurrency) > 0

    def update(self, group: Group, now: int) -> None:
        """Puts the group into the line or takes it out, whatever has just changed."""
        if not len(group.ready):
            self.line.pop(group.name, None)
            return
        if self.may_start(group, now):
            self.line.setdefault(group.name, group)
            return
        self.line.pop(group.name, None)
        opens = None if group.paused else group.limits.opens_ms(now)
        if opens is not None and (group.timer_ms is None or opens < group.timer_ms):
            group.timer_ms = opens
            heappush(self.timers, (opens, next(self._numbers), group))

    def update_all(self, now: int) -> None:
        """After a change that concerns every group."""
        for group in list(self.by_name.values()):
            self.update(group, now)
            self.forget_bare(group, now)

    def open_due(self, now: int) -> None:
        """Puts the groups into the line whose time has come."""
        timers = self.timers
        while timers and timers[0][0] <= now:
            due, _, group = heappop(timers)
            if group.timer_ms == due:
                group.timer_ms = None
                self.update(group, now)

    def next_ms(self) -> int | None:
        """When time alone lets a group start; `None` if it is not time that is waited for."""
        timers = self.timers
        while timers and (timers[0][2].timer_ms != timers[0][0] or not len(timers[0][2].ready)):
            due, _, group = heappop(timers)
            if group.timer_ms == due:
                group.timer_ms = None
        return timers[0][0] if timers else None

    def forget_bare(self, group: Group, now: int) -> None:
        """Lets a group go that has neither jobs nor settings."""
        if group.is_bare(now) and self.by_name.get(group.name) is group:
            del self.by_name[group.name]

    def streams(self) -> Iterator[ReadyQueue]:
        """The ready queues of all groups that have ready jobs."""
        return (group.ready for group in self.by_name.values() if len(group.ready))

    def check(self, active: dict[str, JobRecord]) -> None:
        """Asserts its invariants, against the active jobs of the queue."""
        running: dict[str, int] = {}
        for record in active.values():
            assert record.state == ACTIVE
            if record.side is not None and record.side.group is not None:
                running[record.side.group] = running.get(record.side.group, 0) + 1
        ready = prioritized = 0
        for name, group in self.by_name.items():
            assert group.name == name
            group.ready.check()
            group.limits.check()
            assert group.active == running.pop(name, 0), "active jobs of a group"
            assert all(n > 0 for n in group.pending.values()), "pending jobs of a group"
            assert group.pending_total >= len(group.ready), "ready jobs of a group"
            ready += len(group.ready)
            prioritized += sum(1 for s in group.ready.entered(prioritized=True) for _ in s)
        assert not running, "an active job of a group that is not there"
        assert (self.ready, self.prioritized) == (ready, prioritized), "counts over all groups"
        for name, group in self.line.items():
            assert self.by_name.get(name) is group and len(group.ready), (
                "a group in line for nothing"
            )
