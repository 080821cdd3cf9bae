"""A state machine of its own for schedulers and jobs that repeat, over memory and over a file.

What an expression means is told to the model by `tests/cron_oracle.py`, which writes every time of
every day down. Days with a change of the clocks are among those that it plays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bunqueue_py import JobSpec, ManagerConfig, Queue, QueueManager, Repeat, SqliteStorage
from bunqueue_py.durations import moment_to_ms, ms_to_moment, optional_moment
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock
from bunqueue_py.testing.model.schedules import (
    LATE,
    TOLD,
    Every,
    ModelSchedules,
    ModelSeries,
    Times,
    Wish,
)
from tests.cron_oracle import following
from tests.stateful.base import STATISTICS

STARTS = [
    datetime(2030, 1, 1, tzinfo=timezone.utc),
    # half a day before Rome's clocks are set forward, and before they are set back
    datetime(2030, 3, 30, 13, 30, tzinfo=timezone.utc),
    datetime(2030, 10, 26, 12, 30, tzinfo=timezone.utc),
]
CRONS = [
    ("*/20 * * * *", "UTC"),
    ("*/30 9-17 * * * *", "UTC"),
    ("30 2 * * *", "Europe/Rome"),
    ("0 */2 * * *", "Europe/Rome"),
    ("15,45 0-4 * * SUN", "Europe/Rome"),
]
PERIODS = [1, 250, 1_000, 7_000, 60_000, 5_400_000]
BLOCK = 86_400_000
MOST = 40
"""With more jobs than that nothing is added by hand."""


@lru_cache(maxsize=4096)
def moments_of(expression: str, tz: str, block: int) -> list[int]:
    """What the expression means on one day of UTC."""
    before = ms_to_moment(block * BLOCK) - timedelta(seconds=1)
    found = following(expression, tz, before, 1 << 30, 2)
    return [m for m in (moment_to_ms(each, "") for each in found) if m < (block + 1) * BLOCK]


class Cron:
    """An expression, by the oracle."""

    by_wall = True

    def __init__(self, expression: str, tz: str) -> None:
        self.of = (expression, tz)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cron) and other.of == self.of

    def __hash__(self) -> int:
        return hash(self.of)

    def next(self, after: int) -> int:
        """The first moment after that one."""
        block = after // BLOCK
        while True:
            there = moments_of(*self.of, block)
            at = bisect_right(there, after)
            if at < len(there):
                return there[at]
            block += 1

    def until(self, first: int, clock: int) -> int:
        """How many there are, as far as that is told."""
        found = 0
        while first <= clock and found < TOLD:
            first, found = self.next(first), found + 1
        return found


def times_of(choice: Any) -> tuple[Times, dict[str, Any]]:
    """For the model, and for the engine."""
    if isinstance(choice, int):
        return Every(choice), {"every": choice / 1000}
    return Cron(*choice), {"cron": choice[0], "tz": choice[1]}


NAMES = st.sampled_from("abc")
TIMES = st.sampled_from([*PERIODS, *CRONS])
WISH = st.tuples(
    TIMES,
    st.lists(
        st.sampled_from(["immediately", "catch_up", "needs_worker", "overlaps", "overlaps", "key"]),
        max_size=3,
    ),
)
"""When, and which of its flags are on; a limit comes by a change."""

LIMIT = st.sampled_from([None, None, 1, 3])
STEP = st.sampled_from([0, 1, 249, 250, 1_000, 6_999, 61_000, 1_800_000, 7_200_000, 40_000_000])
JUMP = st.sampled_from(
    [
        -200_000_000,
        -9_000_000,
        -3_600_000,
        -61_000,
        -400,
        0,
        500,
        59_000,
        61_000,
        5_000_000,
        200_000_000,
    ]
)
AWAY = st.sampled_from([0, 1, 400, 8_000, 59_000, 61_000, 700_000, 20_000_000])


class ScheduleMachine(RuleBasedStateMachine):
    """Over memory."""

    on_disk = False

    @initialize(
        start=st.sampled_from(STARTS),
        first=st.lists(WISH, min_size=2, max_size=3),
        repeats=st.lists(TIMES, min_size=1, max_size=2),
    )
    def begin(self, start: datetime, first: list[Any], repeats: list[Any]) -> None:
        STATISTICS["runs"] += 1
        self.folder = TemporaryDirectory()
        self.clock = VirtualClock(start)
        self.ids = SeededIds()
        self.model = ModelSchedules(self.now, self.wall)
        self.series: list[ModelSeries] = []
        self.heard: Counter[Any] = Counter()
        self.serial = 0
        #: what each name stands for, as it was upserted last
        self.wishes: dict[str, tuple[Any, Wish]] = {}
        self.open()
        for name, (times, options) in zip("abc", first, strict=False):
            self.upsert(name, (times, options))
        for times in repeats:
            self.add(times, None, (None, 100_000 if isinstance(times, int) else 5_000_000))

    def open(self) -> None:
        self.storage = SqliteStorage(f"{self.folder.name}/jobs.db") if self.on_disk else None
        self.manager = QueueManager(
            self.storage,
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=2),
            _ids=self.ids,
        )
        self.queue = Queue("q", self.manager)
        self.manager.events.subscribe(
            self.hear, types=["cron_fired", "cron_skipped", "cron_missed"]
        )
        backend: Any = self.manager.backend
        backend.others_wait = lambda queue: self.model.has_worker
        self.step()

    def hear(self, event: Any) -> None:
        STATISTICS[f"event {event.type} {event.reason or ''}".strip()] += 1
        carried: Any = event.reason if event.type == "cron_skipped" else event.count
        if event.type == "cron_fired":
            carried = moment_to_ms(event.planned_at, "")
        self.heard[event.type, event.scheduler, carried] += 1

    @property
    def now(self) -> int:
        return self.clock.timeline_ms()

    @property
    def wall(self) -> int:
        return self.clock.wall_ms()

    def step(self) -> None:
        self.manager.run_pending()
        self.model.step(self.now, self.wall)

    # -- schedulers --------------------------------------------------------------------------

    @rule(name=NAMES, asked=WISH)
    def upsert(self, name: str, asked: Any) -> None:
        times, flags = asked
        self.put(name, times, Wish(times_of(times)[0], **dict.fromkeys(flags, True)))

    @rule(name=NAMES)
    def upsert_the_same(self, name: str) -> None:
        if name in self.wishes:
            self.put(name, *self.wishes[name])

    @rule(name=NAMES, part=st.sampled_from(["limit", "catch_up", "overlaps", "times"]), times=TIMES)
    def change(self, name: str, part: str, times: Any) -> None:
        if name not in self.wishes:
            return
        was, wish = self.wishes[name]
        parts = dict(vars(wish))
        if part == "times":
            was, parts["times"] = times, times_of(times)[0]
        elif part == "limit":
            parts["limit"] = {None: 2, 1: 4}.get(wish.limit)
        else:
            parts[part] = not parts[part]
        self.put(name, was, Wish(**parts))

    def put(self, name: str, times: Any, wish: Wish) -> None:
        STATISTICS["upsert"] += 1
        self.wishes[name] = (times, wish)
        options = {"custom_id": name} if wish.key else {}
        found = self.queue.schedulers.upsert(
            name,
            **times_of(times)[1],
            limit=wish.limit,
            immediately=wish.immediately,
            catch_up=wish.catch_up,
            skip_if_no_worker=wish.needs_worker,
            prevent_overlap=not wish.overlaps,
            job=JobSpec(name, remove_on_complete=True, remove_on_fail=True, **options),  # type: ignore[arg-type]
        )
        self.model.upsert(name, wish, self.now, self.wall)
        assert found.id == name

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        there = self.model.by_id.pop(name, None) is not None
        self.wishes.pop(name, None)
        assert self.queue.schedulers.remove(name) is there

    @rule()
    def a_worker_comes_or_goes(self) -> None:
        self.model.has_worker = not self.model.has_worker

    # -- jobs --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.series) < MOST)
    @rule(
        times=TIMES,
        limit=LIMIT,
        bounds=st.sampled_from(
            [(None, 100_000), (-5_000, 5_000_000), (90_000, None), (4_000_000, 90_000_000)]
        ),
    )
    def add(self, times: Any, limit: int | None, bounds: tuple[int | None, int | None]) -> None:
        rule_of, given = times_of(times)
        moments = [None if m is None else self.wall + m for m in bounds]
        start, end = map(optional_moment, moments)
        repeat = Repeat(**given, limit=limit, start=start, end=end)
        self.serial += 1
        name = f"r{self.serial}"
        self.manager.push(
            "r", name=name, repeat=repeat, remove_on_complete=True, remove_on_fail=True
        )
        self.series.append(ModelSeries(name, rule_of, limit, *moments, self.now, self.wall))

    @rule(well=st.booleans())
    def work(self, well: bool) -> None:
        for job in self.manager.pull_batch("q", 1000):
            self.settle(job, well)
            self.model.end(job.name)
        assert self.queue.counts().total == len(self.model.live) == 0

    @rule(well=st.booleans(), pick=st.integers(0, 40))
    def work_a_little(self, well: bool, pick: int) -> None:
        job = self.manager.pull("q")
        assert (job is None) is (not self.model.live)
        if job is not None:
            self.settle(job, well)
            self.model.end(job.name)

    @rule(well=st.booleans())
    def repeat(self, well: bool) -> None:
        due = {s.name: s for s in self.series if s.is_due(self.now, self.wall)}
        jobs = self.manager.pull_batch("r", 1000)
        assert sorted(job.name for job in jobs) == sorted(due)
        for job in jobs:
            self.settle(job, well)
            STATISTICS["repeated"] += 1
            if not well or not due[job.name].succeed(self.now, self.wall):
                self.series.remove(due[job.name])

    def settle(self, job: Any, well: bool) -> None:
        STATISTICS["jobs done"] += 1
        if well:
            assert self.manager.ack(job).applied
        else:
            assert self.manager.fail(job, "no", unrecoverable=True).applied

    # -- time, and ends ----------------------------------------------------------------------

    @rule(ms=STEP)
    def advance(self, ms: int) -> None:
        self.clock.advance(milliseconds=ms)
        self.step()

    @rule(pick=st.integers(0, 9), late=st.sampled_from([0, 0, 0, 1, 3_000]))
    def advance_to_the_next(self, pick: int, late: int) -> None:
        """Time moves to where one of them is due, and a little further."""
        waits = [
            schedule.planned - (self.wall if schedule.wish.times.by_wall else self.now)
            for schedule in self.model.by_id.values()
            if schedule.planned is not None
        ]
        waits += [s.due - (self.wall if s.anchored else self.now) for s in self.series]
        if waits:
            wait = max(0, waits[pick % len(waits)]) + late
            # not into the next year, for one that a clock was set back from
            self.advance(min(wait, 300_000_000))

    @rule(ms=JUMP)
    def set_the_wall_clock(self, ms: int) -> None:
        self.clock.set_wall_clock(
            self.clock.now + timedelta(milliseconds=self.wall - self.now + ms)
        )
        self.step()

    @rule(ms=AWAY, wall=st.sampled_from([0, 0, 0, -200_000_000, -5_000, 90_000_000]))
    def restart(self, ms: int, wall: int) -> None:
        if self.on_disk:
            STATISTICS["restart"] += 1
            self.manager.close()
            self.come_back(ms, wall, None)

    @rule(ms=AWAY)
    def kill(self, ms: int) -> None:
        if self.storage is not None:
            STATISTICS["kill"] += 1
            self.manager.flush()
            for shard in self.manager._state.shards.shards:
                shard.gate = 2
            self.storage._abandon()
            self.manager.close()
            self.come_back(ms, 0, LATE)

    def come_back(self, ms: int, wall: int, grace: int | None) -> None:
        self.clock.advance(milliseconds=ms)
        if wall:
            moment = self.clock.now + timedelta(milliseconds=self.wall - self.now + wall)
            self.clock.set_wall_clock(moment)
        self.model.opened(self.now, self.wall, grace)
        self.open()

    # -- what must agree ---------------------------------------------------------------------

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        STATISTICS["steps"] += 1
        check(self.manager._state)
        assert self.heard == self.model.events
        assert self.queue.counts().waiting == len(self.model.live)
        found: dict[str, Any] = {s.id: s for s in self.queue.schedulers.list()}
        assert found.keys() == self.model.by_id.keys()
        for name, expected in self.model.by_id.items():
            ours = found[name]
            seen = (ours.runs, ours.skipped, ours.next_run_at, ours.last_planned_at)
            planned, last = optional_moment(expected.planned), optional_moment(expected.last)
            assert seen == (expected.runs, expected.skipped, planned, last), name
            self.look_ahead(name, expected)
        waits = {job.name: job for job in self.manager.get_jobs("r", limit=1000)}
        assert waits.keys() == {series.name for series in self.series}
        for series in self.series:
            if not series.is_due(self.now, self.wall):
                job = waits[series.name]
                assert (job.state, moment_to_ms(job.run_at, "")) == ("delayed", series.due)

    def look_ahead(self, name: str, expected: Any) -> None:
        """The moments that `preview` tells."""
        wanted, moment, resume = [], expected.planned, expected.resume
        left = 3 if expected.wish.limit is None else expected.wish.limit - expected.runs
        while moment is not None and len(wanted) < min(3, left):
            wanted.append(ms_to_moment(moment))
            moment, resume = expected.wish.times.next(resume or moment), None
        assert self.queue.schedulers.preview(name, 3) == wanted

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            self.folder.cleanup()


class SqliteScheduleMachine(ScheduleMachine):
    """Over a file, which outlives its processes."""

    on_disk = True
