"""The groups of a queue: a ready queue each, taken in turn. Guarded."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

from ..model.job import ACTIVE, JobRecord
from ..model.options import Options
from .group import Group
from .keys import seq_of
from .ready_queue import Arrivals, ReadyQueue

_TIDY_AT = 64
"""Fewer numbers of groups that are gone than this are let be."""


class Groups:
    """All groups of one queue.

    `line` holds, in the order of their turns, just the groups that have a ready job and may start
    one: a blocked group stands aside and costs the others nothing. What time alone will unblock
    stands in a lazy heap of timers; `passing` are groups that have nothing but a setting that
    ends by time, to be let go then; `bounded` names those with a limit. `ready`, `prioritized`
    and `tally` (by priority) count the ready jobs over all groups. `numbered` has the numbers of
    the groups in order, for walks that go on later; some may be of groups that are gone. Every
    call is O(1) or O(log n), in jobs and in groups, but for `update_all`.
    """

    __slots__ = (
        "_numbers",
        "arrivals",
        "bounded",
        "by_name",
        "by_number",
        "defaults",
        "let_go",
        "line",
        "numbered",
        "passing",
        "prioritized",
        "ready",
        "tally",
        "timers",
    )

    def __init__(
        self, arrivals: Arrivals | None = None, let_go: Callable[[str], None] | None = None
    ) -> None:
        self.arrivals = Arrivals() if arrivals is None else arrivals
        #: called before a group goes whose settings, ended by time, nobody else marks
        self.let_go = let_go
        self.by_name: dict[str, Group] = {}
        #: the concurrency that running workers ask for, by worker
        self.defaults: dict[object, int] = {}
        self._numbers = count(1)
        self.clear_jobs()

    def clear_jobs(self) -> None:
        """Empties what can be made anew from the records; settings stay."""
        for group in self.by_name.values():
            group.clear()
        self.by_number = {group.number: group for group in self.by_name.values()}
        self.numbered = sorted(self.by_number)
        self.bounded = {g.name for g in self.by_name.values() if g.limits.is_bound}
        self.line: OrderedDict[str, Group] = OrderedDict()
        self.timers: list[tuple[int, int, Group]] = []
        self.passing: list[tuple[int, int, Group]] = []
        self.ready = 0
        self.prioritized = 0
        self.tally: dict[int, int] = {}

    @property
    def limited(self) -> bool:
        """Whether any group has a limit."""
        return bool(self.defaults or self.bounded)

    def get(self, name: str) -> Group:
        """The group of that name; made if it is new."""
        group = self.by_name.get(name)
        if group is None:
            group = self.by_name[name] = Group(name, next(self._numbers), self.arrivals)
            self.by_number[group.number] = group
            self.numbered.append(group.number)
        return group

    def numbered_from(self, number: int, limit: int) -> list[int]:
        """The next `limit` numbers of groups from that one on, some perhaps of groups that are
        gone."""
        start = bisect_left(self.numbered, number)
        return self.numbered[start : start + limit]

    # -- jobs --------------------------------------------------------------------------------

    def count_in(self, record: JobRecord) -> None:
        """A job of the group waits from now on, ready or delayed."""
        group = self.of(record)
        group.pending[record.priority] = group.pending.get(record.priority, 0) + 1
        group.pending_total += 1

    def count_out(self, record: JobRecord) -> None:
        """A job of the group waits no longer."""
        self._count_out(self.of(record), record.priority)

    def _count_out(self, group: Group, priority: int) -> None:
        left = group.pending[priority] - 1
        if left:
            group.pending[priority] = left
        else:
            del group.pending[priority]
        group.pending_total -= 1

    def of(self, record: JobRecord) -> Group:
        """The group of a record that has one."""
        assert record.side is not None and record.side.group is not None
        group = self.by_name.get(record.side.group)
        return self.get(record.side.group) if group is None else group

    def push(self, record: JobRecord, seq: int, now: int, *, by_time: bool = False) -> None:
        """Takes a ready record of a group."""
        group = self.of(record)
        group.ready.push(record, seq, by_time=by_time)
        self._count_ready(record.priority)
        self.update(group, now)

    def put_back(self, record: JobRecord, seq: int, now: int, *, first: bool) -> None:
        """Takes a record again that was popped and did not start; `first` gives its group the
        turn back."""
        self.push(record, seq, now)
        name = self.of(record).name
        if first and name in self.line:
            self.line.move_to_end(name, last=False)

    def pop(self) -> JobRecord | None:
        """The next record of the group whose turn it is. The group is out of the line until
        `start` or `put_back` judges it anew."""
        if not self.line:
            return None
        _, group = self.line.popitem(last=False)
        return self._pop(group)

    def pop_from(self, name: str) -> JobRecord | None:
        """The next record of that group, if it may start one."""
        group = self.line.get(name)
        return None if group is None else self._pop(group)

    def peek(self) -> JobRecord | None:
        """The record that `pop` would return, still in here."""
        for group in self.line.values():
            return group.ready.peek()
        return None

    def _pop(self, group: Group) -> JobRecord | None:
        record = group.ready.pop()
        if record is not None:
            self._uncount_ready(record.priority)
        return record

    def _count_ready(self, priority: int) -> None:
        self.ready += 1
        self.prioritized += priority > 0
        self.tally[priority] = self.tally.get(priority, 0) + 1

    def _uncount_ready(self, priority: int) -> None:
        self.ready -= 1
        self.prioritized -= priority > 0
        left = self.tally[priority] - 1
        if left:
            self.tally[priority] = left
        else:
            del self.tally[priority]

    def remove(self, record: JobRecord, now: int) -> None:
        """Takes a ready record out."""
        group = self.of(record)
        group.ready.remove(record)
        self._uncount_ready(record.priority)
        self.update(group, now)

    def reprioritize(self, record: JobRecord, priority: int, options: Options, now: int) -> None:
        """Gives a ready record another priority; its group keeps its turn."""
        group, seq = self.of(record), seq_of(record) or 0
        self.count_out(record)
        group.ready.remove(record)
        self._uncount_ready(record.priority)
        record.priority, record.options = priority, options
        group.ready.push(record, seq)
        self._count_ready(priority)
        self.count_in(record)
        self.update(group, now)

    def start(self, record: JobRecord, now: int) -> None:
        """A record that waited, and was popped, runs from now on."""
        group = self.of(record)
        self._count_out(group, record.priority)
        group.active += 1
        if group.limits.window is not None:
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
        limits = group.limits
        if (
            limits.concurrency is None
            and limits.window is None
            and limits.cool_until_ms <= now
            and not self.defaults
        ):
            # most groups: nothing bounds them, and each pull asks
            return True
        return limits.room(group.active, now, self.default_concurrency) > 0

    def update(self, group: Group, now: int) -> None:
        """Puts the group into the line or takes it out, whatever has just changed."""
        # all that it has: jobs of a group stand in no lane
        if not group.ready.heaped:
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

    def settings_changed(self, group: Group, now: int) -> None:
        """The group's limits or its pause are new."""
        if group.limits.is_bound:
            self.bounded.add(group.name)
        else:
            self.bounded.discard(group.name)
        self.update(group, now)
        self.forget_bare(group, now)

    def open_due(self, now: int) -> int:
        """Puts the groups into the line whose time has come; returns for how many jobs."""
        timers, opened = self.timers, 0
        while timers and timers[0][0] <= now:
            due, _, group = heappop(timers)
            if group.timer_ms == due:
                group.timer_ms = None
                self.update(group, now)
                if group.name in self.line:
                    room = group.limits.room(group.active, now, self.default_concurrency)
                    opened += min(room, len(group.ready))
        passing = self.passing
        while passing and passing[0][0] <= now:
            self.forget_bare(heappop(passing)[2], now)
        return opened

    def next_ms(self) -> int | None:
        """When time alone lets a group start; `None` if it is not time that is waited for."""
        timers = self.timers
        while timers and (timers[0][2].timer_ms != timers[0][0] or not len(timers[0][2].ready)):
            due, _, group = heappop(timers)
            if group.timer_ms == due:
                group.timer_ms = None
        return timers[0][0] if timers else None

    def forget_bare(self, group: Group, now: int) -> None:
        """Lets a group go that has neither jobs nor settings; later, where all
        that it has is a setting that ends by time."""
        if group.has_jobs or group.paused or self.by_name.get(group.name) is not group:
            return
        if group.limits.is_idle(now):
            if group.stored and self.let_go is not None:
                self.let_go(group.name)
            # a timer that is left may not touch the next group of that name
            group.timer_ms = None
            self.bounded.discard(group.name)
            del self.by_name[group.name], self.by_number[group.number]
            if len(self.numbered) > _TIDY_AT + 2 * len(self.by_number):
                self.numbered = list(self.by_number)
            return
        ends = group.limits.ends_ms()
        if ends is not None:
            heappush(self.passing, (ends, next(self._numbers), group))

    def streams(self) -> Iterator[ReadyQueue]:
        """The ready queues of all groups that have ready jobs."""
        return (group.ready for group in self.by_name.values() if len(group.ready))

    def check(self, active: dict[str, JobRecord], now: int) -> None:
        """Asserts its invariants, against the active jobs of the queue."""
        names = {g.number: g.name for g in self.by_name.values()}
        assert {n: g.name for n, g in self.by_number.items()} == names, "groups by number"
        assert self.numbered == sorted(self.numbered), "numbers of groups out of order"
        assert names.keys() <= set(self.numbered), "a group that no walk comes to"
        assert len(self.numbered) <= _TIDY_AT + 2 * len(names), "too many groups that are gone"
        running: dict[str, int] = {}
        for record in active.values():
            assert record.state == ACTIVE
            if record.side is not None and record.side.group is not None:
                running[record.side.group] = running.get(record.side.group, 0) + 1
        ready = prioritized = 0
        tally: Counter[int] = Counter()
        for name, group in self.by_name.items():
            assert group.name == name
            group.ready.check()
            group.limits.check()
            assert group.active == running.pop(name, 0), "active jobs of a group"
            assert all(n > 0 for n in group.pending.values()), "pending jobs of a group"
            assert group.pending_total == sum(group.pending.values()), "sum of pending jobs"
            assert group.pending_total >= len(group.ready), "ready jobs of a group"
            assert group.ready.heaped == len(group.ready), "a job of a group that is in a lane"
            assert name in self.bounded or not group.limits.is_bound, "groups with a limit"
            self._check_place(group, now)
            ready += len(group.ready)
            tally.update(group.ready.tally())
            assert group.ready.arrivals is self.arrivals, "numbers of arrival of its own"
            prioritized += sum(1 for s in group.ready.entered(prioritized=True) for _ in s)
        assert not running, "an active job of a group that is not there"
        assert (self.ready, self.prioritized) == (ready, prioritized), "counts over all groups"
        assert self.tally == tally, "tally over all groups"
        assert self.bounded <= self.by_name.keys(), "a limit of a group that is not there"
        for name, group in self.line.items():
            assert self.by_name.get(name) is group, "a group in line that is not there"

    def _check_place(self, group: Group, now: int) -> None:
        """In line just if it has a ready job and may start; aside with a timer, if time alone
        will let it start; with neither if not."""
        if group.timer_ms is not None:
            assert any(due == group.timer_ms and g is group for due, _, g in self.timers), (
                "a timer that is not set"
            )
        if group.name in self.line:
            assert len(group.ready) and self.may_start(group, now), "a group in line for nothing"
            return
        if not len(group.ready) or group.paused:
            return
        opens = now if self.may_start(group, now) else group.limits.opens_ms(now)
        assert opens is None or (group.timer_ms is not None and group.timer_ms <= opens), (
            "a group that nobody will put in line"
        )
