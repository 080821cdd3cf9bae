"""Schedulers and jobs that repeat, as the guide has them: the reference for the engine. All moments
and durations are in milliseconds. What an expression means is told by whoever makes the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Protocol

LATE = 60_000
"""What is later than this was missed, where a process was up."""
WRONG = 48 * 3_600_000
"""A wall clock that is set back by more had been wrong."""
TOLD = 100
"""At most so many missed moments of an expression are counted."""


class Times(Protocol):
    """When something happens again and again, by the wall clock or along the timeline."""

    by_wall: bool

    def next(self, after: int) -> int:
        """The first moment after that one."""

    def until(self, first: int, clock: int) -> int:
        """How many there are from `first`, which is one, to the clock; more than `TOLD` need not be
        counted where that is an effort."""


@dataclass(frozen=True)
class Every:
    """A period along the timeline."""

    period: int
    by_wall = False

    def next(self, after: int) -> int:
        """The moment a period later."""
        return after + self.period

    def until(self, first: int, clock: int) -> int:
        """All there are."""
        return max(0, (clock - first) // self.period + 1)


@dataclass(frozen=True)
class Wish:
    """What an upsert asks for. `key` says that all its jobs have one custom id."""

    times: Times
    limit: int | None = None
    immediately: bool = False
    catch_up: bool = False
    needs_worker: bool = False
    overlaps: bool = False
    key: bool = False


def ahead(times: Times, moment: int, clock: int) -> int:
    """The first moment behind that one, which is one, that is still to come."""
    if isinstance(times, Every):
        # in the same phase, and without going through each
        return moment + times.period * times.until(moment, max(moment, clock))
    return times.next(max(moment, clock))


class ModelSchedule:
    """One scheduler."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.planned: int | None = None
        #: the next run is the one that `immediately` asks for; later ones are looked for from here
        self.resume: int | None = None
        self.runs = 0
        self.skipped = 0
        self.last: int | None = None
        #: the number of its last job
        self.job: int | None = None
        #: where the wall clock was when it came so far
        self.seen_wall = 0

    def ahead(self, moment: int, clock: int) -> int:
        """The first of its moments behind that one which is still to come."""
        return ahead(self.wish.times, moment, clock)

    def begin(self, clock: int) -> None:
        """Its times are new."""
        first = self.wish.times.next(clock)
        self.planned, self.resume = first, None
        if self.wish.immediately:
            self.planned = self.resume = clock
            if (
                self.wish.times.by_wall
                and (first - clock) * 2 < self.wish.times.next(first) - first
            ):
                self.resume = first

    def is_done(self) -> bool:
        """Whether all that its limit allows have run."""
        return self.wish.limit is not None and self.runs >= self.wish.limit


class ModelSchedules:
    """All schedulers of one queue, and the jobs that they have added and that have not ended."""

    def __init__(self, now: int, wall: int) -> None:
        self.by_id: dict[str, ModelSchedule] = {}
        #: number -> scheduler's name, of jobs that have not ended, oldest first
        self.live: dict[int, str] = {}
        #: those that have the custom id of their scheduler
        self.keyed: dict[int, str] = {}
        self.events: Counter[tuple[str, str, int | str]] = Counter()
        self.has_worker = False
        self._numbers = count(1)
        self.opened(now, wall, None)
        # memory has missed nothing
        self._until = {False: 0, True: 0}

    def opened(self, now: int, wall: int, grace: int | None) -> None:
        """A process is up, with what the file has kept; the last one ended well, or was killed:
        then `grace` is how late its last runs may come."""
        self._offset = wall - now
        self._until = {False: now - (grace or 0), True: wall - (grace or 0)}
        for schedule in self.by_id.values():
            by_wall = schedule.wish.times.by_wall and schedule.planned is not None
            if by_wall and wall < schedule.seen_wall - WRONG:
                schedule.planned = schedule.wish.times.next(wall)
                schedule.seen_wall = wall

    def upsert(self, name: str, wish: Wish, now: int, wall: int) -> None:
        """See `QueueSchedulers.upsert`."""
        clock = wall if wish.times.by_wall else now
        known = self.by_id.get(name)
        if known is None:
            known = self.by_id[name] = ModelSchedule(wish)
            known.begin(clock)
            known.seen_wall = wall
            return
        before, known.wish = known.wish, wish
        if before == wish:
            return
        known.seen_wall = wall
        if before.times != wish.times:
            known.begin(clock)
            along = not (before.times.by_wall or wish.times.by_wall)
            if along and known.last is not None and not wish.immediately:
                # in the same phase
                known.planned = known.ahead(known.last, clock)
        elif known.planned is None:
            known.planned = wish.times.next(clock)
        if known.is_done():
            known.planned = known.resume = None

    def step(self, now: int, wall: int) -> None:
        """One pass."""
        if not self.by_id:
            return
        jump, self._offset = wall - now - self._offset, wall - now
        if jump < 0:
            self._until[True] += jump
        if jump > LATE:
            self._until[True] = max(self._until[True], wall - LATE)
        for name, schedule in self.by_id.items():
            by_wall = schedule.wish.times.by_wall
            if jump < -WRONG and by_wall and schedule.planned is not None:
                schedule.planned, schedule.resume = schedule.wish.times.next(wall), None
                schedule.seen_wall = wall
            clock = wall if by_wall else now
            if schedule.planned is not None and schedule.planned <= clock:
                schedule.seen_wall = wall
                self._come(name, schedule, schedule.planned, clock)

    def _come(self, name: str, schedule: ModelSchedule, planned: int, clock: int) -> None:
        wish, resume = schedule.wish, schedule.resume
        begin = planned if resume is None else resume
        schedule.planned, schedule.resume = schedule.ahead(begin, clock), None
        missed = resume is None and planned < self._until[wish.times.by_wall]
        first = planned if missed else wish.times.next(begin)
        without = wish.times.until(first, clock)
        if without:
            self.events["cron_missed", name, without] += 1
        if missed and not wish.catch_up:
            return
        why = self._hindrance(name, schedule)
        if why is not None:
            schedule.skipped += 1
            self.events["cron_skipped", name, why] += 1
            return
        self.events["cron_fired", name, planned] += 1
        schedule.runs += 1
        schedule.last, schedule.job = planned, next(self._numbers)
        self.live[schedule.job] = name
        if wish.key:
            self.keyed[schedule.job] = name
        if schedule.is_done():
            schedule.planned = None

    def _hindrance(self, name: str, schedule: ModelSchedule) -> str | None:
        if schedule.wish.needs_worker and not self.has_worker:
            return "no_worker"
        if not schedule.wish.overlaps and schedule.job in self.live:
            return "overlap"
        if schedule.wish.key and name in self.keyed.values():
            return "duplicate"
        return None

    def end(self, name: str) -> None:
        """The oldest job of the schedulers of that name has ended, well or not."""
        number = next(number for number, of in self.live.items() if of == name)
        del self.live[number]
        self.keyed.pop(number, None)


class ModelSeries:
    """One job that repeats, and its successors: `due` is when the next may start, by the wall clock
    if `anchored`, else by the timeline."""

    def __init__(
        self,
        name: str,
        times: Times,
        limit: int | None,
        start: int | None,
        end: int | None,
        now: int,
        wall: int,
    ) -> None:
        self.name = name
        self.times = times
        self.limit = limit
        self.end = end
        self.run = 1
        self.anchored = start is not None and start > wall
        first = start if start is not None and self.anchored else wall
        self.planned = first if times.by_wall else now + first - wall
        self.due = first if self.anchored else now

    def is_due(self, now: int, wall: int) -> bool:
        """Whether the next run may start."""
        return self.due <= (wall if self.anchored else now)

    def succeed(self, now: int, wall: int) -> bool:
        """A run has ended well; says whether there is another."""
        if self.limit is not None and self.run >= self.limit:
            return False
        by_wall = self.times.by_wall
        clock = wall if by_wall else now
        moment = self.planned
        if isinstance(self.times, Every) and moment - now > self.times.period:
            # it waited for a wall clock that was set forward: in the same phase, a period ahead
            moment = now + (moment - now) % self.times.period
        moment = ahead(self.times, moment, clock)
        if self.end is not None and (moment if by_wall else wall + moment - now) > self.end:
            return False
        self.run += 1
        self.planned = self.due = moment
        self.anchored = by_wall
        return True
