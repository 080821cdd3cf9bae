"""Where the jobs of one queue stand, and what may start. Guarded by its shard's lock."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ..model.job import JobRecord
from ..model.settings import StallSettings
from ..types import ANY, GroupChoice
from .dead_letters import DeadLetters
from .delayed import DelayedIndex
from .dirty import GROUP_KIND, HELD_KIND, group_name, held_name
from .finished import Finished
from .groups import Groups
from .keys import departed_key, seq_of
from .limiter import UNBOUNDED, Limits
from .ready_queue import Arrivals, ReadyQueue
from .tally import Tally
from .unique_keys import UniqueKeys
from .waiters import Waiter, Waiters

if TYPE_CHECKING:
    from ..model.options import Options
    from .shard import Shard

MAX_PROMOTED = 512
"""How many due jobs one pull moves to the ready queue."""


class Places:
    """The half of a queue's state (`QueueState`) that moves jobs: its jobs by where they stand,
    its waiters, its settings, its counters.

    `delayed` runs by the timeline, `anchored` (run_at given as a moment) by the wall clock.
    `admitted` minus `departed` is always the number of records that the queue has.
    """

    __slots__ = (
        "active",
        "admitted",
        "admitted_shift",
        "anchored",
        "arrivals",
        "completed",
        "completed_total",
        "counted",
        "custom_ids",
        "dead",
        "delayed",
        "departed",
        "empty_waiters",
        "event_seq",
        "failed_total",
        "gated",
        "groups",
        "limits",
        "lock",
        "look_ms",
        "name",
        "paused",
        "ready",
        "seq",
        "shard",
        "stalls",
        "started_ms",
        "tally",
        "unique_keys",
        "waiters",
    )

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self.shard = shard
        self.lock = shard.lock
        self.paused = False
        self.seq = 0
        #: not emptied either: walks under way go by it
        self.arrivals = Arrivals()
        self.event_seq = 0
        #: when a job was handed out last
        self.started_ms = 0
        self.admitted = 0
        self.departed = 0
        #: what to add to `admitted` for the number of jobs added since the manager was opened
        self.admitted_shift = 0
        self.completed_total = 0
        self.failed_total = 0
        #: made with the first job that ends; no end before `look_ms` needs to look at it
        self.tally: Tally | None = None
        self.look_ms = 0
        #: both are made with the first grouped job or setting; most queues have neither
        self.groups: Groups | None = None
        self.limits: Limits | None = None
        self.waiters = Waiters()
        self.empty_waiters: list[Waiter] = []
        # not among what clear() empties: it knows keys whose records are gone
        self.unique_keys = UniqueKeys(None if shard.dirty is None else self._key_freed)
        self.stalls = StallSettings()
        self.dead = DeadLetters()
        self.clear()

    def clear(self) -> None:
        """Empties every structure that can be made anew from the records."""
        self.ready = ReadyQueue(self.arrivals)
        self.delayed = DelayedIndex()
        self.anchored = DelayedIndex()
        self.active: dict[str, JobRecord] = {}
        self.gated: dict[str, JobRecord] = {}
        self.completed = Finished()
        self.counted: OrderedDict[str, JobRecord] = OrderedDict()
        self.dead = DeadLetters(self.dead.settings)
        self.custom_ids: dict[str, JobRecord] = {}
        if self.groups is not None:
            self.groups.clear_jobs()

    def _key_freed(self, key: str) -> None:
        """A job that is gone holds the key no longer."""
        if self.shard.dirty is not None:
            self.shard.dirty.keep(HELD_KIND, held_name(self.name, key), None)

    def _group_gone(self, name: str) -> None:
        """A group of which the storage knows has no settings any more."""
        if self.shard.dirty is not None:
            self.shard.dirty.keep(GROUP_KIND, group_name(self.name, name), None)

    # -- pending jobs ------------------------------------------------------------------------

    def place(
        self, record: JobRecord, now: int, seq: int | None = None, *, in_order: bool = False
    ) -> bool:
        """Puts a pending record where it waits; says whether it is ready. `seq` is its old
        admission number where it shall have its old place again. `in_order`: it has stood nowhere
        in here, and no record that has is of a later number or moment."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        side = record.side
        grouped = side is not None and side.group is not None
        anchored = side is not None and side.anchored
        if anchored or record.run_at_ms > now:
            if grouped:
                self.need_groups().count_in(record)
            (self.anchored if anchored else self.delayed).push(record, seq)
            return False
        if not in_order:
            self.put_ready(record, seq, now)
        elif grouped:
            self.need_groups().admit(record, seq, now)
        else:
            self.ready.admit(record, seq)
        return True

    def put_ready(self, record: JobRecord, seq: int, now: int, *, by_time: bool = False) -> None:
        """Puts a ready record where it waits for its turn."""
        if record.side is not None and record.side.group is not None:
            self.need_groups().push(record, seq, now, by_time=by_time)
        else:
            self.ready.push(record, seq, by_time=by_time)

    def gate(self, record: JobRecord) -> None:
        """Takes in a record that waits for other jobs, with a new admission number."""
        self.seq += 1
        record.key = departed_key(self.seq)
        self.gated[record.id] = record

    def unplace(self, record: JobRecord, now: int) -> None:
        """Takes a pending record out from where it waits."""
        groups = None
        if record.side is not None and record.side.group is not None:
            groups = self.need_groups()
        for index in (self.delayed, self.anchored):
            if index.holds(record):
                index.remove(record)
                if groups is not None:
                    groups.count_out(record)
                break
        else:
            if groups is None:
                self.ready.remove(record)
            else:
                groups.remove(record, now)
        if groups is not None:
            groups.forget_bare(groups.of(record), now)

    def need_groups(self) -> Groups:
        """The groups, made on first need."""
        if self.groups is None:
            marked = self.shard.dirty is not None
            self.groups = Groups(self.arrivals, self._group_gone if marked else None)
        return self.groups

    # -- what may start ----------------------------------------------------------------------

    def next_record(self, group: GroupChoice) -> JobRecord | None:
        """The next ready record of that choice that may start, out of its place; it must then
        start or be put back. The queue's own limits are the caller's to ask, and so are the
        groups whose time has come (`Groups.open_due`)."""
        if group is ANY or group is None:
            record = self.ready.pop()
            if record is not None or group is None or self.groups is None:
                return record
            return self.groups.pop()
        assert isinstance(group, str)
        return None if self.groups is None else self.groups.pop_from(group)

    def put_back(self, record: JobRecord, group: GroupChoice, now: int) -> None:
        """Puts a record back that `next_record` returned for that choice and that did not start;
        its group has its turn again."""
        seq = seq_of(record) or 0
        if record.side is not None and record.side.group is not None:
            self.need_groups().put_back(record, seq, now, first=group is ANY)
        else:
            self.ready.push(record, seq)

    def room(self, now: int) -> int:
        """How many jobs the queue's own limits let start now."""
        if self.paused:
            return 0
        if self.limits is None:
            return UNBOUNDED
        if self.limits.is_idle(now):
            # their time has passed: the queue is a plain one again
            self.limits = None
            return UNBOUNDED
        return self.limits.room(len(self.active), now)

    def can_serve(self, group: GroupChoice) -> bool:
        """Whether a ready job of that choice may start, as far as its group goes."""
        if group is ANY:
            return bool(len(self.ready) or (self.groups is not None and self.groups.line))
        if group is None:
            return bool(len(self.ready))
        return self.groups is not None and group in self.groups.line

    def wake(self, n: int, now: int, *, timer: bool = True) -> None:
        """n jobs have become available: wakes as many waiters as can be served. If none can, but
        time will change that, the head of the line minds the moment (unless `timer` is False)."""
        waiters = self.waiters
        if not waiters.line or self.paused:
            return
        if self.limits is None and self.groups is None and not waiters.picky:
            waiters.wake(n)
            return
        if self.groups is not None:
            n += self.groups.open_due(now)
        n = min(n, self.room(now))
        before = len(waiters)
        if n > 0:
            waiters.wake_eligible(n, self.can_serve)
        if timer and len(waiters) == before:
            opens = self.opens_ms(now)
            if opens is not None:
                waiters.due(opens)

    def opens_ms(self, now: int) -> int | None:
        """When time alone lets a ready job start that limits hold back; `None` if it does not."""
        moments = []
        if self.groups is not None and self.groups.ready:
            moments.append(self.groups.next_ms())
        if self.limits is not None and self.ready_count:
            moments.append(self.limits.opens_ms(now))
        return min((m for m in moments if m is not None), default=None)

    def leave_active(self, record: JobRecord, now: int) -> None:
        """Takes an active record out, and gives back the capacity that it held: the one way out
        of active."""
        del self.active[record.id]
        if record.side is not None and record.side.group is not None:
            self.need_groups().ended(record.side.group, now)

    def freed(self, now: int) -> None:
        """A job has left active: if limits hold others back, one more may start."""
        if self.limits is not None or self.groups is not None:
            self.wake(1, now)

    def promote_due(self, now: int, wall: int) -> int:
        """Moves what is due to the ready queue, at most 512; returns how many."""
        due = self.delayed.take_due(now, MAX_PROMOTED) if self.delayed.members else []
        if self.anchored.members and len(due) < MAX_PROMOTED:
            for record in self.anchored.take_due(wall, MAX_PROMOTED - len(due)):
                # from here on it lives by the timeline, in its place by how long it is due
                record.run_at_ms = max(0, now - (wall - record.run_at_ms))
                record.need_side().anchored = False
                due.append(record)
        # in the order in which they came due, which is that in which listings show them
        for record in sorted(due, key=_run_at):
            record.entered_ms = record.run_at_ms
            if record.side is not None and record.side.group is not None:
                self.need_groups().count_out(record)
            self.put_ready(record, seq_of(record) or 0, now, by_time=True)
        return len(due)

    def next_due(self, now: int, wall: int) -> int | None:
        """The timeline moment at which the next job becomes ready by time alone."""
        moments = []
        if self.delayed.members:
            moments.append(self.delayed.next_ms())
        if self.anchored.members:
            due = self.anchored.next_ms()
            moments.append(None if due is None else now + max(0, due - wall))
        if self.groups is not None or self.limits is not None:
            moments.append(self.opens_ms(now))
        return min((m for m in moments if m is not None), default=None)

    @property
    def ready_count(self) -> int:
        """How many jobs are ready, grouped ones too, as far as they have been moved."""
        return len(self.ready) + (0 if self.groups is None else self.groups.ready)

    @property
    def pending(self) -> int:
        """How many jobs wait, ready or delayed."""
        ready, groups = self.ready, self.groups
        # as `len(ready)` has it: at the end of a job somebody may ask whether it was the last
        size = len(ready.lane.records) - ready.lane.stale + ready.heaped
        if ready.lanes is not None:
            size += len(ready.lanes)
        if groups is not None:
            size += groups.ready
        return size + len(self.delayed.members) + len(self.anchored.members)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending, gated or active."""
        return not self.active and not self.gated and not self.pending

    def settle_idle(self) -> None:
        """Wakes those who wait for the queue to be empty, if it is."""
        if self.empty_waiters and self.is_idle:
            for waiter in self.empty_waiters:
                waiter.wake()
            self.empty_waiters.clear()

    def move_to(self, record: JobRecord, run_at_ms: int, now: int, step: str) -> bool:
        """Gives a pending record another moment, behind those that have the same; says whether
        it is ready then. `step` is what its timeline calls it."""
        self.unplace(record, now)
        record.reschedule(run_at_ms, now, step)
        return self.place(record, now)

    def reprioritize(self, record: JobRecord, priority: int, options: Options, now: int) -> None:
        """Gives a pending record another priority (and options that differ in `lifo` only). One
        that is ready counts as having become so now; its group keeps its turn."""
        grouped = record.side is not None and record.side.group is not None
        for index in (self.delayed, self.anchored):
            if index.holds(record):
                if grouped:
                    self.need_groups().count_out(record)
                index.reprioritize(record, priority)
                record.options = options
                if grouped:
                    self.need_groups().count_in(record)
                return
        record.entered_ms = now
        if grouped:
            self.need_groups().reprioritize(record, priority, options, now)
            return
        seq = seq_of(record) or 0
        self.ready.remove(record)
        record.priority, record.options = priority, options
        self.ready.push(record, seq)


def _run_at(record: JobRecord) -> int:
    return record.run_at_ms
