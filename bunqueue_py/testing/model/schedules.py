"""Schedulers with `every`, as the guide has them: the reference for the engine."""

from __future__ import annotations


class ModelSchedule:
    """One scheduler; all times in milliseconds."""

    def __init__(self, every: int, limit: int | None, overlap: bool, catch_up: bool) -> None:
        self.every = every
        self.limit = limit
        self.overlap = overlap
        self.catch_up = catch_up
        self.planned: int | None = None
        self.runs = 0
        self.skipped = 0
        self.last: int | None = None
        self.live = False

    def step(self, now: int, opened: int) -> int:
        """Does what is due; `opened` is since when a process has been up. Says how many jobs it
        adds."""
        if self.planned is None or self.planned > now:
            return 0
        planned, ahead = self.planned, self.planned
        while ahead <= now:
            ahead += self.every
        self.planned = ahead
        if planned < opened and not self.catch_up:
            return 0
        if self.live and not self.overlap:
            self.skipped += 1
            return 0
        self.runs += 1
        self.last, self.live = planned, True
        if self.limit is not None and self.runs >= self.limit:
            self.planned = None
        return 1


class ModelSchedules:
    """All of a queue."""

    def __init__(self) -> None:
        self.by_id: dict[str, ModelSchedule] = {}
        #: jobs that wait
        self.waiting = 0
        self.opened = 0

    def upsert(
        self, name: str, every: int, limit: int | None, overlap: bool, catch_up: bool, now: int
    ) -> None:
        """See `QueueSchedulers.upsert`."""
        known = self.by_id.get(name)
        asked = ModelSchedule(every, limit, overlap, catch_up)
        if known is None:
            asked.planned = now + every
            self.by_id[name] = asked
            return
        same = (known.every, known.limit, known.overlap, known.catch_up)
        if same == (every, limit, overlap, catch_up):
            return
        if known.every != every:
            known.planned = now + every
            if known.last is not None:
                known.planned = known.last
                while known.planned <= now:
                    known.planned += every
        elif known.planned is None:
            known.planned = now + every
        known.every, known.limit = every, limit
        known.overlap, known.catch_up = overlap, catch_up
        if limit is not None and known.runs >= limit:
            known.planned = None

    def step(self, now: int) -> None:
        """One pass."""
        for schedule in self.by_id.values():
            self.waiting += schedule.step(now, self.opened)

    def finish(self) -> int:
        """All that waits is done."""
        done, self.waiting = self.waiting, 0
        for schedule in self.by_id.values():
            schedule.live = False
        return done
