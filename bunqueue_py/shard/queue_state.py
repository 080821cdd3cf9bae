"""Everything that one queue has, in one place. Guarded by its shard's lock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from ..model.job import ACTIVE, COMPLETED, FAILED, PENDING, REMOVED, JobRecord
from ..model.settings import StallSettings
from ..types import JobCounts, JobState
from .dead_letters import DeadLetters
from .delayed import DelayedIndex
from .ready_queue import ReadyQueue, Stamped, merged, seq_of, stamped
from .stalls import check_watched
from .unique_keys import UniqueKeys
from .waiters import Waiter, Waiters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .shard import Shard

MAX_PROMOTED = 512
"""How many due jobs one pull moves to the ready queue."""


class QueueState:
    """One queue: its jobs by where they stand, its waiters, its settings, its counters.

    `delayed` runs by the timeline, `anchored` (run_at given as a moment) by the wall clock.
    `admitted` minus `departed` is always the number of records that the queue has.
    """

    __slots__ = (
        "active",
        "admitted",
        "anchored",
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
        "lock",
        "name",
        "paused",
        "ready",
        "seq",
        "shard",
        "unique_keys",
        "stalls",
        "waiters",
    )

    def __init__(self, name: str, shard: Shard) -> None:
        self.name = name
        self.shard = shard
        self.lock = shard.lock
        self.paused = False
        self.seq = 0
        self.event_seq = 0
        self.admitted = 0
        self.departed = 0
        self.completed_total = 0
        self.failed_total = 0
        self.waiters = Waiters()
        self.empty_waiters: list[Waiter] = []
        # not among what clear() empties: it knows keys whose records are gone
        self.unique_keys = UniqueKeys()
        self.stalls = StallSettings()
        self.dead = DeadLetters()
        self.clear()

    def clear(self) -> None:
        """Empties every structure that can be made anew from the records."""
        self.ready = ReadyQueue()
        self.delayed = DelayedIndex()
        self.anchored = DelayedIndex()
        self.active: dict[str, JobRecord] = {}
        self.completed: OrderedDict[str, JobRecord] = OrderedDict()
        self.counted: OrderedDict[str, JobRecord] = OrderedDict()
        self.dead = DeadLetters(self.dead.settings)
        self.custom_ids: dict[str, JobRecord] = {}

    # -- pending jobs ------------------------------------------------------------------------

    def place(self, record: JobRecord, now: int, seq: int | None = None) -> bool:
        """Puts a pending record where it waits; says whether it is ready. `seq` is its old
        admission number where it shall have its old place again."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        if record.side is not None and record.side.anchored:
            self.anchored.push(record, seq)
            return False
        if record.run_at_ms > now:
            self.delayed.push(record, seq)
            return False
        self.ready.push(record, seq)
        return True

    def unplace(self, record: JobRecord) -> None:
        """Takes a pending record out from where it waits."""
        if self.delayed.holds(record):
            self.delayed.remove(record)
        elif self.anchored.holds(record):
            self.anchored.remove(record)
        else:
            self.ready.remove(record)

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
            self.ready.push(record, seq_of(record) or 0, by_time=True)
        return len(due)

    def next_due(self, now: int, wall: int) -> int | None:
        """The timeline moment at which the next job becomes ready by time alone."""
        moments = []
        if self.delayed.members:
            moments.append(self.delayed.next_ms())
        if self.anchored.members:
            due = self.anchored.next_ms()
            moments.append(None if due is None else now + max(0, due - wall))
        return min((m for m in moments if m is not None), default=None)

    @property
    def pending(self) -> int:
        """How many jobs wait, ready or delayed."""
        return len(self.ready) + len(self.delayed.members) + len(self.anchored.members)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending or active."""
        return not self.active and not self.pending

    def settle_idle(self) -> None:
        """Wakes those who wait for the queue to be empty, if it is."""
        if self.empty_waiters and self.is_idle:
            for waiter in self.empty_waiters:
                waiter.wake()
            self.empty_waiters.clear()

    def move_to(self, record: JobRecord, run_at_ms: int, now: int, step: str) -> bool:
        """Gives a pending record another moment, behind those that have the same; says whether
        it is ready then. `step` is what its timeline calls it."""
        self.unplace(record)
        record.reschedule(run_at_ms, now, step)
        return self.place(record, now)

    # -- reading -----------------------------------------------------------------------------

    def counts_per_priority(self) -> dict[int, int]:
        """How many jobs wait, ready or delayed, of each priority that there is; highest first.
        O(distinct priorities)."""
        lane = len(self.ready) - self.ready.heaped
        sums = Counter({0: lane} if lane else {})
        for part in (self.ready.tally, self.delayed.tally, self.anchored.tally):
            sums.update(part)
        return dict(sorted(sums.items(), reverse=True))

    def not_due(self, now: int, wall: int, limit: int) -> list[JobRecord]:
        """Up to `limit` delayed jobs, soonest first."""
        ahead = [(record.run_at_ms, record) for record in self.delayed.not_due(now, limit)]
        if self.anchored.members:
            shift = now - wall
            ahead += [(r.run_at_ms + shift, r) for r in self.anchored.not_due(wall, limit)]
            ahead.sort(key=_moment)
        return [record for _, record in ahead[:limit]]

    def state_of(self, record: JobRecord, now: int, wall: int) -> JobState:
        """The state as users see it, judged now."""
        if record.state == PENDING:
            anchored = record.side is not None and record.side.anchored
            if record.run_at_ms > (wall if anchored else now):
                return JobState.DELAYED
            return JobState.PRIORITIZED if record.priority > 0 else JobState.WAITING
        return _STATES.get(record.state, JobState.UNKNOWN)

    def counts(self, now: int, wall: int) -> JobCounts:
        """Counts by state, judged now; O(log n) and moves nothing."""
        prioritized = self.ready.prioritized
        waiting = len(self.ready) - prioritized
        delayed = len(self.delayed.members) + len(self.anchored.members)
        for index, moment in ((self.delayed, now), (self.anchored, wall)):
            if index.members:
                plain, high = index.count_due(moment)
                waiting, prioritized = waiting + plain, prioritized + high
                delayed -= plain + high
        paused = 0
        if self.paused:
            paused, waiting, prioritized = waiting + prioritized, 0, 0
        return JobCounts(
            waiting=waiting,
            prioritized=prioritized,
            delayed=delayed,
            active=len(self.active),
            completed=len(self.completed),
            failed=len(self.dead),
            paused=paused,
        )

    def streams(
        self, state: JobState, now: int, wall: int, *, newest_first: bool
    ) -> list[Iterator[Stamped]]:
        """The records in that state, as streams in the order in which they entered it."""
        if state in (JobState.WAITING, JobState.PRIORITIZED):
            high = state is JobState.PRIORITIZED
            ready = self.ready.entered(prioritized=high, newest_first=newest_first)
            return [
                *(map(stamped, stream) for stream in ready),
                self.delayed.due(now, 0, prioritized=high, newest_first=newest_first),
                self.anchored.due(wall, now - wall, prioritized=high, newest_first=newest_first),
            ]
        if state is JobState.DELAYED:
            return [
                self.delayed.waiting(now, newest_first=newest_first),
                self.anchored.waiting(wall, newest_first=newest_first),
            ]
        kept: dict[str, JobRecord] = {
            JobState.ACTIVE: self.active,
            JobState.COMPLETED: self.completed,
            JobState.FAILED: self.dead.records,
        }.get(state, {})
        records = reversed(kept.values()) if newest_first else iter(kept.values())
        return [map(stamped, records)]

    def listing(
        self, states: Sequence[JobState], now: int, wall: int, *, newest_first: bool = False
    ) -> Iterator[JobRecord]:
        """The records in any of those states, in the order in which they entered them."""
        streams: list[Iterator[Stamped]] = []
        for state in states:
            streams += self.streams(state, now, wall, newest_first=newest_first)
        return merged(streams, newest_first=newest_first)

    def records(self) -> Iterator[JobRecord]:
        """Every record of the queue, in no particular order."""
        for pending in (
            *self.ready.entered(prioritized=True),
            *self.ready.entered(prioritized=False),
        ):
            yield from pending
        for kept in (
            self.delayed.members,
            self.anchored.members,
            self.active,
            self.completed,
            self.dead.records,
        ):
            yield from kept.values()

    def check(self, now: int) -> None:
        """Asserts its invariants and those of its parts."""
        self.ready.check()
        self.delayed.check()
        self.anchored.check()
        self.dead.check()
        assert all(r.state == ACTIVE and r.delivery for r in self.active.values()), "active"
        for record in self.active.values():
            assert record.delivery is not None
            check_watched(record.delivery, self.stalls)
        assert all(r.state == COMPLETED for r in self.completed.values()), "completed"
        assert all(r.state in (COMPLETED, FAILED) for r in self.counted.values()), "counted"
        for custom_id, record in self.custom_ids.items():
            assert record.custom_id == custom_id and record.state != REMOVED, "custom id"
        self.unique_keys.check()
        self.unique_keys.check_complete(self.records(), now)
        size = self.pending + len(self.active) + len(self.completed) + len(self.dead)
        assert self.admitted - self.departed == size, (
            f"{self.name}: {self.admitted} came, {self.departed} left, but {size} are here"
        )
        assert len(self.waiters) == len(set(self.waiters.line)), "a waiter stands twice in line"


def _run_at(record: JobRecord) -> int:
    return record.run_at_ms


def _moment(entry: tuple[int, JobRecord]) -> int:
    return entry[0]


_STATES = {
    ACTIVE: JobState.ACTIVE,
    COMPLETED: JobState.COMPLETED,
    FAILED: JobState.FAILED,
}


def finished_size(record: JobRecord) -> int:
    """What a finished job counts against `max_completed_bytes`."""
    return len(record.data) + max(0, record.result_size)
