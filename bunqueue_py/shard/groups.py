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
from .limiter import UNBOUNDED
from .ready_queue import Arrivals, ReadyQueue

_TIDY_AT = 64
"""Fewer numbers of groups that are gone than this are let be."""


class Groups:
    """All groups of one queue.

    `line` holds, in the order of their turns, just the groups that have a ready job and may start
    one: a blocked group stands aside and costs the others nothing. What time alone will unblock
    stands in a lazy heap of timers; `passing` are groups that have nothing but a setting that
    ends by time, to be let go then; `bounded` names those with a limit. `ready` and `prioritized`
    count the ready jobs over all groups, `others` those of each priority but 0. `numbered` has the
    numbers of the groups in order, for walks that go on later; some may be of groups that are
    gone. Every call is O(1) or O(log n), in jobs and in groups, but for `update_all`.
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
        "others",
        "passing",
        "prioritized",
        "ready",
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
        self.bounded = {g.name for g in self.by_name.values() if g.limits and g.limits.is_bound}
        self.line: OrderedDict[str, Group] = OrderedDict()
        self.timers: list[tuple[int, int, Group]] = []
        self.passing: list[tuple[int, int, Group]] = []
        self.ready = 0
        self.prioritized = 0
        self.others: dict[int, int] = {}

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
        """A job of the group is delayed from now on."""
        group = self.of(record)
        if group.delayed is None:
            group.delayed = {}
        group.delayed[record.priority] = group.delayed.get(record.priority, 0) + 1

    def count_out(self, record: JobRecord) -> None:
        """A job of the group is delayed no longer."""
        delayed = self.of(record).delayed
        assert delayed is not None
        _take_one(delayed, record.priority)

    def tally(self) -> Counter[int]:
        """How many ready jobs there are of each priority, over all groups."""
        counts = Counter(self.others)
        plain = self.ready - sum(self.others.values())
        if plain:
            counts[0] = plain
        return counts

    def of(self, record: JobRecord) -> Group:
        """The group of a record that has one."""
        assert record.side is not None and record.side.group is not None
        group = self.by_name.get(record.side.group)
        return self.get(record.side.group) if group is None else group

    def admit(self, record: JobRecord, seq: int, now: int) -> None:
        """Takes a ready record of a group as `ReadyQueue.admit` does: one that has stood nowhere
        yet, and comes behind all that have."""
        if record.priority or record.options.lifo:
            # a lane for each priority of each group would cost too much memory
            self.push(record, seq, now)
            return
        group = self.of(record)
        group.ready.append(record, seq)
        self.ready += 1
        if group.limits is None and not group.paused and not self.defaults:
            self.line.setdefault(group.name, group)
        else:
            self.update(group, now)

    def push(self, record: JobRecord, seq: int, now: int, *, by_time: bool = False) -> None:
        """Takes any other ready record of a group."""
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
        record = group.ready.pop()
        assert record is not None
        self.ready -= 1
        if record.priority:
            self._uncount(record.priority)
        return record

    def pop_from(self, name: str) -> JobRecord | None:
        """The next record of that group, if it may start one."""
        group = self.line.get(name)
        record = None if group is None else group.ready.pop()
        if record is not None:
            self._uncount_ready(record.priority)
        return record

    def peek(self) -> JobRecord | None:
        """The record that `pop` would return, still in here."""
        for group in self.line.values():
            return group.ready.peek()
        return None

    def _count_ready(self, priority: int) -> None:
        self.ready += 1
        if priority:
            self.prioritized += priority > 0
            self.others[priority] = self.others.get(priority, 0) + 1

    def _uncount_ready(self, priority: int) -> None:
        self.ready -= 1
        if priority:
            self._uncount(priority)

    def _uncount(self, priority: int) -> None:
        self.prioritized -= priority > 0
        _take_one(self.others, priority)

    def remove(self, record: JobRecord, now: int) -> None:
        """Takes a ready record out."""
        group = self.of(record)
        group.ready.remove(record)
        self._uncount_ready(record.priority)
        self.update(group, now)

    def reprioritize(self, record: JobRecord, priority: int, options: Options, now: int) -> None:
        """Gives a ready record another priority; its group keeps its turn."""
        group, seq = self.of(record), seq_of(record) or 0
        group.ready.remove(record)
        self._uncount_ready(record.priority)
        record.priority, record.options = priority, options
        group.ready.push(record, seq)
        self._count_ready(priority)
        self.update(group, now)

    def start(self, name: str, now: int) -> None:
        """A record of that group, which was popped, runs from now on."""
        group = self.by_name[name]
        group.active += 1
        if group.limits is not None:
            group.limits.started(now)
        elif not group.paused and not self.defaults:
            # nothing bounds it, as most: what `update` does, in line
            ready = group.ready
            if ready.heaped or len(ready.lane.records) > ready.lane.stale:
                self.line[name] = group
            else:
                self.line.pop(name, None)
            return
        self.update(group, now)

    def ended(self, name: str, now: int) -> None:
        """A record of that group runs no longer."""
        group = self.by_name[name]
        group.active -= 1
        if group.limits is not None or self.defaults:
            self.update(group, now)
        # without a limit it may start one more or not, however many run
        if not group.active:
            self.forget_bare(group, now)

    # -- whose turn --------------------------------------------------------------------------

    @property
    def default_concurrency(self) -> int | None:
        """The smallest concurrency that a running worker asks for each group."""
        return min(self.defaults.values(), default=None)

    def may_start(self, group: Group, now: int) -> bool:
        """Whether the group may start a job now."""
        return not group.paused and self._room(group, now) > 0

    def _room(self, group: Group, now: int) -> int:
        if group.limits is not None:
            return group.limits.room(group.active, now, self.default_concurrency)
        bound = self.default_concurrency
        return UNBOUNDED if bound is None else max(0, bound - group.active)

    def update(self, group: Group, now: int) -> None:
        """Puts the group into the line or takes it out, whatever has just changed."""
        if group.limits is not None and group.limits.is_idle(now):
            # its time has passed: it is a plain one again
            group.limits = None
            self.bounded.discard(group.name)
        if not len(group.ready):
            self.line.pop(group.name, None)
            return
        if self.may_start(group, now):
            self.line.setdefault(group.name, group)
            return
        self.line.pop(group.name, None)
        if group.paused or group.limits is None:
            return
        opens = group.limits.opens_ms(now)
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
        if group.limits is not None and group.limits.is_bound:
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
                    opened += min(self._room(group, now), len(group.ready))
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
        """Lets a group go that has neither jobs nor settings; later, where all that it has is a
        setting that ends by time."""
        if self.by_name.get(group.name) is not group:
            return
        if group.is_bare(now):
            if group.stored and self.let_go is not None:
                self.let_go(group.name)
            # a timer that is left may not touch the next group of that name
            group.timer_ms = None
            self.bounded.discard(group.name)
            del self.by_name[group.name], self.by_number[group.number]
            if len(self.numbered) > _TIDY_AT + 2 * len(self.by_number):
                self.numbered = list(self.by_number)
        elif group.limits is not None and not (group.paused or group.pending_total or group.active):
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
            if group.limits is not None:
                group.limits.check()
                assert name in self.bounded or not group.limits.is_bound, "groups with a limit"
            assert group.active == running.pop(name, 0), "active jobs of a group"
            assert all(n > 0 for n in (group.delayed or {}).values()), "delayed jobs of a group"
            assert group.ready.lanes is None, "a group with a lane for each priority"
            self._check_place(group, now)
            ready += len(group.ready)
            tally.update(group.ready.tally())
            assert group.ready.arrivals is self.arrivals, "numbers of arrival of its own"
            prioritized += sum(1 for s in group.ready.entered(prioritized=True) for _ in s)
        assert not running, "an active job of a group that is not there"
        assert (self.ready, self.prioritized) == (ready, prioritized), "counts over all groups"
        assert self.tally() == tally, "tally over all groups"
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
        opens: int | None = now
        if not self.may_start(group, now):
            opens = None if group.limits is None else group.limits.opens_ms(now)
        assert opens is None or (group.timer_ms is not None and group.timer_ms <= opens), (
            "a group that nobody will put in line"
        )


def _take_one(counts: dict[int, int], priority: int) -> None:
    left = counts[priority] - 1
    if left:
        counts[priority] = left
    else:
        del counts[priority]
