"""Everything that one queue has, in one place. Guarded by its shard's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING, REMOVED, JobRecord
from ..model.rows import side_row
from ..types import JobCounts, JobState
from .places import Places
from .ready_queue import Stamped, merged, stamped
from .stalls import check_watched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class QueueState(Places):
    """One queue, whole: beside what moves its jobs (`Places`), all that looks at them."""

    __slots__ = ()

    def counts_per_priority(self) -> dict[int, int]:
        """How many jobs wait, ready or delayed, of each priority that there is; highest first.
        O(distinct priorities)."""
        sums = self.ready.tally()
        for part in (self.delayed.tally, self.anchored.tally):
            sums.update(part)
        if self.groups is not None:
            sums.update(self.groups.tally())
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
        return JobCounts(*self.by_state(now, wall))

    def by_state(self, now: int, wall: int) -> tuple[int, int, int, int, int, int, int, int]:
        """The parts of `counts`, in the order of its fields."""
        ready, groups = self.ready, self.groups
        waiting = len(ready)
        prioritized = ready.heap_high
        if ready.lanes is not None:
            prioritized += len(ready.lanes.high)
        if groups is not None:
            waiting += groups.ready
            prioritized += groups.prioritized
        waiting -= prioritized
        delayed = 0
        for index, moment in ((self.delayed, now), (self.anchored, wall)):
            if index.members:
                plain, high = index.count_due(moment)
                waiting, prioritized = waiting + plain, prioritized + high
                delayed += len(index.members) - plain - high
        paused = 0
        if self.paused:
            paused, waiting, prioritized = waiting + prioritized, 0, 0
        return (
            waiting,
            prioritized,
            delayed,
            len(self.gated),
            len(self.active),
            self.completed.size,
            len(self.dead.records),
            paused,
        )

    def streams(
        self, state: JobState, now: int, wall: int, *, newest_first: bool
    ) -> list[Iterator[Stamped]]:
        """The records in that state, as streams in the order in which they entered it."""
        if state in (JobState.WAITING, JobState.PRIORITIZED):
            high = state is JobState.PRIORITIZED
            return [
                *(map(stamped, s) for s in self.ready_streams(high, newest_first=newest_first)),
                self.delayed.due(now, 0, prioritized=high, newest_first=newest_first),
                self.anchored.due(wall, now - wall, prioritized=high, newest_first=newest_first),
            ]
        if state is JobState.DELAYED:
            return [
                self.delayed.waiting(now, newest_first=newest_first),
                self.anchored.waiting(wall, newest_first=newest_first),
            ]
        if state is JobState.COMPLETED:
            return [map(stamped, self.completed.values(newest_first=newest_first))]
        kept: dict[str, JobRecord] = {
            JobState.WAITING_CHILDREN: self.gated,
            JobState.ACTIVE: self.active,
            JobState.FAILED: self.dead.records,
        }.get(state, {})
        records = reversed(kept.values()) if newest_first else iter(kept.values())
        return [map(stamped, records)]

    def ready_streams(self, high: bool, *, newest_first: bool = False) -> list[Iterator[JobRecord]]:
        """The ready records of priority above 0 or not, in streams in the order of entering: up to
        four for each group, so O(groups)."""
        queues = [self.ready]
        if self.groups is not None:
            queues += self.groups.streams()
        return [
            stream
            for ready in queues
            for stream in ready.entered(prioritized=high, newest_first=newest_first)
        ]

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
        for pending in (*self.ready_streams(True), *self.ready_streams(False)):
            yield from pending
        for kept in (
            self.delayed.members,
            self.anchored.members,
            self.gated,
            self.active,
            self.dead.records,
        ):
            yield from kept.values()
        yield from self.completed.values()

    def check(self, now: int) -> None:
        """Asserts its invariants and those of its parts."""
        self.ready.check()
        self.delayed.check()
        self.anchored.check()
        self.dead.check()
        if self.groups is not None:
            self.groups.check(self.active, now)
        if self.limits is not None:
            self.limits.check()
        assert all(r.state == ACTIVE and r.delivery for r in self.active.values()), "active"
        for record in self.active.values():
            assert record.delivery is not None
            check_watched(record.delivery, self.stalls)
        self.completed.check()
        if self.tally is not None:
            self.tally.check()
        assert all(r.state in (COMPLETED, FAILED) for r in self.counted.values()), "counted"
        for custom_id, record in self.custom_ids.items():
            assert record.custom_id == custom_id and record.state != REMOVED, "custom id"
        self.unique_keys.check()
        self.unique_keys.check_complete(self.records(), now)
        for record in self.gated.values():
            assert record.state == GATED, "gated"
            assert record.side is not None and record.side.links is not None, "gated by nothing"
            record.side.links.check()
            assert record.side.links.unmet > 0, f"job {record.id} waits for nothing"
        for record in self.records():
            side = record.side
            if side is not None and side.common is not None:
                assert side_row(side) == side.common, "what several jobs share has changed"
        size = self.pending + len(self.gated) + len(self.active)
        size += len(self.completed) + len(self.dead)
        assert self.admitted - self.departed == size, (
            f"{self.name}: {self.admitted} came, {self.departed} left, but {size} are here"
        )
        assert len(self.waiters) == len(set(self.waiters.line)), "a waiter stands twice in line"


def _moment(entry: tuple[int, JobRecord]) -> int:
    return entry[0]


_STATES = {
    GATED: JobState.WAITING_CHILDREN,
    ACTIVE: JobState.ACTIVE,
    COMPLETED: JobState.COMPLETED,
    FAILED: JobState.FAILED,
}


def finished_size(record: JobRecord) -> int:
    """What a finished job counts against `max_completed_bytes`."""
    return len(record.data) + max(0, record.result_size)
