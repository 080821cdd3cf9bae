"""Schedulers on the virtual clock: when they fire, when they do not, and what they tell.

It is over 400 lines because each condition of a firing has its own test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    CronError,
    Deduplication,
    Job,
    JobEvent,
    JobSpec,
    KeepJobs,
    ManagerClosedError,
    Queue,
    QueueManager,
    Repeat,
    Scheduler,
    SerializationError,
    ValidationError,
)
from bunqueue_py.ops.fire import COUNTED, LATE_MS
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.tasks import schedules
from bunqueue_py.testing import Harness, SeededIds, VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def at(**parts: float) -> datetime:
    return START + timedelta(**parts)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


@pytest.fixture
def events(manager: QueueManager) -> list[JobEvent]:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append, types=("cron_fired", "cron_skipped", "cron_missed"))
    return heard


def step(queue: Queue, **parts: float) -> None:
    manager: Any = queue.manager
    manager._state.clock.advance(**parts)
    manager.run_pending()
    check(manager._state)


def finish(queue: Queue) -> int:
    """Runs all that is ready; says how many."""
    manager: Any = queue.manager
    jobs = manager.pull_batch(queue, 1000)
    for job in jobs:
        manager.ack(job)
    return len(jobs)


def runs(queue: Queue, schedule_id: str = "s") -> int:
    return got(queue, schedule_id).runs


def got(queue: Queue, schedule_id: str = "s") -> Scheduler:
    found = queue.schedulers.get(schedule_id)
    assert found is not None
    return found


# -- when ------------------------------------------------------------------------------------------


def test_every_fires_at_each_period_and_not_a_millisecond_before(queue: Queue) -> None:
    """B050: never before its slot, never twice."""
    queue.schedulers.upsert("s", every=10, job=JobSpec("tick", {"n": 1}, priority=7))
    step(queue, seconds=9.999)
    assert len(queue) == 0
    step(queue, milliseconds=1)
    (job,) = queue.get_jobs()
    assert (job.name, job.data, job.priority, job.created_at) == (
        "tick",
        {"n": 1},
        7,
        at(seconds=10),
    )
    for _ in range(20):
        step(queue, milliseconds=0)
        assert len(queue) == 1
    found = got(queue)
    assert (found.runs, found.last_job_id, found.last_run_at) == (1, job.id, at(seconds=10))
    assert (found.last_planned_at, found.next_run_at) == (at(seconds=10), at(seconds=20))


def test_a_pass_that_comes_early_fires_nothing_and_one_that_is_late_keeps_the_phase(
    queue: Queue,
) -> None:
    """B050"""
    queue.schedulers.upsert("s", every=10)
    for _ in range(3):
        for ms in (9_980, 19, 1):
            step(queue, milliseconds=ms)
            finish(queue)
    assert runs(queue) == 3
    step(queue, seconds=13)  # 3 late
    assert finish(queue) == 1
    assert got(queue).next_run_at == at(seconds=50)


def test_cron_fires_by_the_wall_clock_of_its_zone(queue: Queue) -> None:
    queue.schedulers.upsert("s", cron="30 9 * * *", tz="Asia/Kathmandu")
    assert got(queue).next_run_at == at(hours=3, minutes=45)
    step(queue, hours=3, minutes=44, seconds=59)
    assert finish(queue) == 0
    step(queue, seconds=1)
    assert finish(queue) == 1
    assert got(queue).next_run_at == at(days=1, hours=3, minutes=45)


def test_what_was_slept_through_by_the_stepper_fires_once_and_is_told(
    queue: Queue, events: list[JobEvent]
) -> None:
    queue.schedulers.upsert("s", every=10)
    step(queue, seconds=45)
    assert finish(queue) == 1
    kinds = [(e.type, e.count, e.planned_at) for e in events]
    assert kinds == [
        ("cron_missed", 3, at(seconds=10)),
        ("cron_fired", None, at(seconds=10)),
    ]
    assert got(queue).next_run_at == at(seconds=50)


def test_a_limit_counts_exactly_and_is_not_filled_up_by_skipped_times(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=1, limit=3)
    for second in range(10):
        step(queue, seconds=1)
        if second != 1:  # one is skipped, for the last one is not done
            finish(queue)
    found = got(queue)
    assert (found.runs, found.skipped, found.next_run_at) == (3, 1, None)
    assert queue.counts().completed == 3
    queue.schedulers.upsert("s", every=1, limit=3)
    step(queue, seconds=5)
    assert runs(queue) == 3
    queue.schedulers.upsert("s", every=1, limit=4)  # raised: it goes on
    step(queue, seconds=1)
    assert (runs(queue), got(queue).next_run_at) == (4, None)


def test_immediately_fires_at_once_and_then_a_period_later(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=10, immediately=True)
    step(queue)
    assert finish(queue) == 1
    assert got(queue).next_run_at == at(seconds=10)
    queue.schedulers.upsert("s", every=10, immediately=True)
    step(queue)
    assert finish(queue) == 0


@pytest.mark.parametrize(("ahead", "then"), [(0.5, 120), (29.9, 120), (30.1, 60), (59, 60)])
def test_an_immediate_run_counts_as_the_next_one_if_that_is_near(
    queue: Queue, ahead: float, then: int
) -> None:
    """B056: half a second before its slot, there is one run for that slot."""
    step(queue, seconds=60 - ahead)
    queue.schedulers.upsert("s", cron="* * * * *", immediately=True)
    step(queue)
    assert finish(queue) == 1
    assert got(queue).next_run_at == at(seconds=then)
    preview = queue.schedulers.preview("s", 2)
    assert preview == [at(seconds=then), at(seconds=then + 60)]


def test_a_preview_shows_what_then_comes(queue: Queue) -> None:
    queue.schedulers.upsert("s", cron="*/20 * * * *", limit=4, immediately=True)
    planned = queue.schedulers.preview("s", 1000)
    assert planned == [START, at(minutes=20), at(minutes=40), at(minutes=60)]
    fired = []
    for _ in range(7):
        if finish(queue):
            fired.append(got(queue).last_run_at)
        step(queue, minutes=0 if not fired else 20)
        if finish(queue):
            fired.append(got(queue).last_run_at)
    assert fired == planned
    assert queue.schedulers.preview("s", 5) == []
    with pytest.raises(ValidationError, match="has no scheduler 'x'"):
        queue.schedulers.preview("x", 1)
    for bad in (-1, 1001, True, "1"):
        with pytest.raises(ValidationError, match=r"^n must be"):
            queue.schedulers.preview("s", bad)  # type: ignore[arg-type]


# -- conditions ------------------------------------------------------------------------------------


def test_without_overlap_there_is_never_a_second_one_and_the_skipped_are_counted(
    queue: Queue, events: list[JobEvent]
) -> None:
    """B055: every second, a handler of 3.5 s."""
    manager: Any = queue.manager
    queue.schedulers.upsert("s", every=1)
    held: list[tuple[float, Job]] = []
    for half in range(1, 29):
        step(queue, seconds=0.5)
        for done, job in list(held):
            if half / 2 - done >= 3.5:
                manager.ack(job)
                held.remove((done, job))
        held += [(half / 2, job) for job in manager.pull_batch(queue, 4)]
        assert len(held) + len(queue) <= 1
    found = got(queue)
    assert found.runs + found.skipped == 14
    assert found.runs == 4
    skipped = [e for e in events if e.type == "cron_skipped"]
    assert len(skipped) == found.skipped
    assert {(e.reason, e.scheduler, e.job_id) for e in skipped} == {("overlap", "s", None)}
    assert skipped[0].planned_at == at(seconds=2)


def test_a_failed_job_is_not_in_the_way_and_one_in_back_off_is(queue: Queue) -> None:
    manager: Any = queue.manager
    queue.schedulers.upsert("s", every=10, job=JobSpec("x", attempts=2, backoff=Backoff.fixed(15)))
    step(queue, seconds=10)
    manager.fail(manager.pull(queue), "once")
    step(queue, seconds=10)
    assert runs(queue) == 1
    step(queue, seconds=9)
    manager.fail(manager.pull(queue), "twice")
    step(queue, seconds=1)
    assert runs(queue) == 2


def test_with_overlap_each_time_has_its_job(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=10, prevent_overlap=False)
    for _ in range(5):
        step(queue, seconds=10)
    assert len(queue) == 5


def test_without_a_worker_it_is_skipped_if_so_asked(queue: Queue, events: list[JobEvent]) -> None:
    queue.schedulers.upsert("s", every=10, skip_if_no_worker=True)
    step(queue, seconds=10)
    assert (len(queue), events[-1].type, events[-1].reason) == (0, "cron_skipped", "no_worker")


def test_a_worker_of_the_queue_is_found_and_one_of_another_is_not() -> None:
    with Harness() as h:
        queue, other = h.queue("q"), h.queue("other")
        for each in (queue, other):
            each.schedulers.upsert("s", every=10, skip_if_no_worker=True)
        worker = h.worker(queue, lambda job: None)
        h.advance(seconds=15)
        assert (runs(queue), runs(other)) == (1, 0)
        worker.close()
        h.advance(seconds=10)
        assert (runs(queue), got(queue).skipped) == (1, 1)


@pytest.mark.parametrize(
    "option", [{"custom_id": "only"}, {"deduplication": Deduplication("only")}]
)
def test_a_name_that_is_taken_is_in_the_way(
    queue: Queue, events: list[JobEvent], option: Any
) -> None:
    queue.schedulers.upsert("s", every=10, prevent_overlap=False, job=JobSpec("x", **option))
    queue.add("by hand", **option)
    step(queue, seconds=10)
    assert (len(queue), events[-1].reason) == (1, "duplicate")
    finish(queue)
    step(queue, seconds=10)
    (job,) = queue.get_jobs("waiting")
    assert (job.name, job.custom_id) == ("x", option.get("custom_id"))


def test_a_full_group_is_in_the_way(queue: Queue, events: list[JobEvent]) -> None:
    spec = JobSpec("x", group="g", group_limit=2)
    queue.schedulers.upsert("s", every=10, prevent_overlap=False, job=spec)
    for _ in range(3):
        step(queue, seconds=10)
    assert (len(queue), events[-1].reason) == (2, "group_full")


def test_a_paused_queue_takes_the_job_which_waits(queue: Queue) -> None:
    queue.pause()
    queue.schedulers.upsert("s", every=10)
    step(queue, seconds=10)
    assert queue.counts().paused == 1


def test_the_job_has_all_the_options_of_its_spec(queue: Queue) -> None:
    options: Any = {
        "priority": -5,
        "delay": 2.5,
        "attempts": 7,
        "backoff": Backoff.fixed(3, jitter=0),
        "timeout": timedelta(seconds=90),
        "ttl": 120,
        "custom_id": "c",
        "deduplication": Deduplication("k", 60, "replace", "ttl"),
        "group": "g",
        "group_limit": 4,
        "lifo": True,
        "remove_on_complete": KeepJobs(3, 60.5),
        "remove_on_fail": True,
        "tags": ("a", "b"),
        "stack_trace_limit": 3,
        "stall_timeout": 12,
        "durable": True,
    }
    queue.schedulers.upsert("s", every=10, job=JobSpec("x", {"d": [1, (2, 3)]}, **options))
    step(queue, seconds=10)
    (job,) = queue.get_jobs()
    twin = Queue("twin", queue.manager).add("x", {"d": [1, (2, 3)]}, **options)
    for attribute in ("data", "priority", "max_attempts", "custom_id", "group", "tags", "run_at"):
        assert getattr(job, attribute) == getattr(twin, attribute), attribute
    ours, theirs = job._options, twin._options
    for field in ("backoff", "timeout_ms", "ttl_ms", "lifo", "remove_on_complete", "durable"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.remove_on_fail is True
    assert (ours.stack_trace_limit, ours.stall_timeout_ms) == (3, 12_000)
    shown = got(queue).job
    assert (shown.name, shown.data) == ("x", {"d": [1, (2, 3)]})
    assert {k: shown.options[k] for k in ("delay", "timeout", "remove_on_complete")} == {
        "delay": 2.5,
        "timeout": 90.0,
        "remove_on_complete": KeepJobs(3, 60.5),
    }
    assert queue.deduplication.owner("k") == job.id


def test_each_job_has_a_key_of_its_own(queue: Queue) -> None:
    """The claims of two jobs do not share their moments."""
    key = Deduplication("k", 15, hold="ttl")
    queue.schedulers.upsert("s", every=10, job=JobSpec("x", deduplication=key))
    for _ in range(4):
        step(queue, seconds=10)
        finish(queue)
    assert (runs(queue), got(queue).skipped) == (2, 2)


# -- definitions -----------------------------------------------------------------------------------


def test_the_same_definition_again_resets_and_doubles_nothing(queue: Queue) -> None:
    """B052: upserts at random times while jobs are consumed."""
    spec: Any = {"every": 1, "immediately": True, "job": JobSpec("x", {"a": 1})}
    for i in range(600):
        queue.schedulers.upsert("s", **spec)
        step(queue, seconds=0.1)
        if i % 3 == 0:
            queue.schedulers.upsert("s", **spec)
        assert len(queue) <= 1
        finish(queue)
    assert runs(queue) == 61
    assert queue.counts().completed == 61
    assert len(queue.schedulers) == 1


def test_another_definition_holds_from_the_next_run_and_the_count_goes_on(queue: Queue) -> None:
    """B053, as SPEC 10 has it: what has been admitted keeps its definition."""
    queue.schedulers.upsert("s", every=3600, job=JobSpec("old", 1))
    step(queue, hours=1)
    queue.schedulers.upsert("s", every=60, prevent_overlap=False, job=JobSpec("new", 2, priority=9))
    assert got(queue).next_run_at == at(hours=1, minutes=1)
    step(queue, minutes=1)
    assert [(j.name, j.data, j.priority) for j in queue.get_jobs(("prioritized", "waiting"))] == [
        ("old", 1, 0),
        ("new", 2, 9),
    ]
    assert runs(queue) == 2
    step(queue, hours=2)
    assert {j.name for j in queue.get_jobs()} == {"old", "new"}


def test_another_job_alone_does_not_move_the_times(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=60)
    step(queue, seconds=50)
    queue.schedulers.upsert("s", every=60, job=JobSpec("y"))
    assert got(queue).next_run_at == at(seconds=60)


def test_another_period_keeps_the_phase_of_the_runs_before(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=60)
    step(queue, seconds=60)
    step(queue, seconds=25)
    queue.schedulers.upsert("s", every=30)
    assert got(queue).next_run_at == at(seconds=90)


def test_from_every_to_cron_and_back(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=7)
    step(queue, seconds=7)
    queue.schedulers.upsert("s", cron="*/5 * * * *")
    assert got(queue).next_run_at == at(minutes=5)
    queue.schedulers.upsert("s", every=7)
    assert got(queue).next_run_at == at(seconds=14)


def test_a_removed_one_fires_no_more_and_its_jobs_stay(queue: Queue) -> None:
    queue.schedulers.upsert("s", every=10)
    step(queue, seconds=10)
    assert queue.schedulers.remove("s") is True
    assert queue.schedulers.remove("s") is False
    assert queue.schedulers.get("s") is None
    step(queue, seconds=100)
    assert len(queue) == 1
    queue.schedulers.upsert("s", every=10)
    assert runs(queue) == 0


def test_lists_are_by_queue_and_by_id(manager: QueueManager) -> None:
    for name in ("b", "a"):
        for key in ("y", "x"):
            Queue(name, manager).schedulers.upsert(key, every=5)
    listed = [(s.queue, s.id) for s in manager.schedulers.list()]
    assert listed == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert [s.id for s in Queue("b", manager).schedulers.list()] == ["x", "y"]
    assert len(manager.cron) == 4
    assert bool(Queue("none", manager).schedulers) is True
    made = manager.cron.upsert("c", "z", every=5, job=JobSpec("j"))
    found = manager.schedulers.get(Queue("c", manager), "z")
    assert found is not None
    assert (found.every, found.next_run_at) == (made.every, made.next_run_at)
    assert manager.schedulers.preview("c", "z", 1) == [at(seconds=5)]
    assert manager.schedulers.remove("c", "z")


def test_a_job_is_named_as_its_scheduler_unless_it_has_a_name(queue: Queue) -> None:
    queue.schedulers.upsert("nightly", every=10)
    step(queue, seconds=10)
    assert [(j.name, j.data) for j in queue.get_jobs()] == [("nightly", None)]


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("every", [{"cron": "* * * * * *"}, {"cron": "*/5 * * * *"}])
def test_a_clock_ten_years_ahead_costs_one_run_at_most_and_no_time(
    manager: QueueManager, queue: Queue, events: list[JobEvent], every: Any, catch_up: bool
) -> None:
    """B044"""
    queue.schedulers.upsert("s", catch_up=catch_up, **every)
    step(queue, seconds=0)
    manager._state.clock.set_wall_clock(at(days=3653))  # type: ignore[attr-defined]
    step(queue, seconds=1)
    assert finish(queue) == int(catch_up)
    missed = [e for e in events if e.type == "cron_missed"]
    assert [e.count for e in missed] == [COUNTED]
    assert got(queue).next_run_at > at(days=3653)  # type: ignore[operator]
    step(queue, minutes=5)
    assert runs(queue) == 1 + catch_up


def test_every_is_not_moved_by_the_wall_clock(manager: QueueManager, queue: Queue) -> None:
    """B043, B044: the timeline never jumps."""
    clock: Any = manager._state.clock
    queue.schedulers.upsert("s", every=10)
    for jump in (-12 * 3600, -2, 86_400 * 3653, 5):
        clock.set_wall_clock(clock.now + timedelta(seconds=jump))
        before = runs(queue)
        step(queue, seconds=10)
        finish(queue)
        assert runs(queue) == before + 1


def test_a_clock_set_back_does_not_fire_again_and_goes_on_when_it_is_back(
    manager: QueueManager, queue: Queue
) -> None:
    """B043: a pause no longer than the step and one period."""
    clock: Any = manager._state.clock
    queue.schedulers.upsert("s", cron="*/10 * * * * *")
    step(queue, seconds=10)
    assert finish(queue) == 1
    clock.set_wall_clock(at(hours=-1, seconds=10))
    for _ in range(360):
        step(queue, seconds=10)
        assert finish(queue) == 0
    step(queue, seconds=10)
    assert finish(queue) == 1
    assert got(queue).last_planned_at == at(seconds=20)


def test_a_clock_that_was_years_ahead_and_is_put_right_is_believed(
    manager: QueueManager, queue: Queue
) -> None:
    clock: Any = manager._state.clock
    queue.schedulers.upsert("s", cron="0 * * * *")
    clock.set_wall_clock(at(days=3653))
    step(queue, seconds=1)
    clock.set_wall_clock(at(seconds=1))
    step(queue, seconds=0)
    assert got(queue).next_run_at == at(hours=1)
    step(queue, minutes=60)
    assert finish(queue) == 1


def test_a_clock_set_forward_a_little_has_what_it_passed_run(queue: Queue) -> None:
    clock: Any = queue.manager._state.clock  # type: ignore[attr-defined]
    queue.schedulers.upsert("s", cron="0 * * * *")
    clock.set_wall_clock(at(hours=1, seconds=30))
    step(queue, seconds=0)
    assert finish(queue) == 1


@pytest.mark.parametrize("catch_up", [False, True])
def test_what_a_frozen_process_slept_through_is_missed(
    manager: QueueManager, queue: Queue, events: list[JobEvent], catch_up: bool
) -> None:
    clock: Any = manager._state.clock
    queue.schedulers.upsert("e", every=600, catch_up=catch_up)
    queue.schedulers.upsert("c", cron="*/10 * * * *", catch_up=catch_up)
    clock.advance(hours=1, minutes=5)
    late_ms = 55 * 60_000
    schedules.tick(manager._state, late_ms, lambda name: True, threaded=False)
    manager.run_pending()
    assert finish(queue) == 2 * catch_up
    assert [(e.scheduler, e.count) for e in events if e.type == "cron_missed"] == [
        ("e", 6),
        ("c", 6),
    ]
    step(queue, minutes=5)
    assert finish(queue) == 2


def test_one_that_is_late_by_less_fires(manager: QueueManager, queue: Queue) -> None:
    queue.schedulers.upsert("s", every=600)
    manager._state.clock.advance(seconds=600 + LATE_MS / 1000)  # type: ignore[attr-defined]
    schedules.tick(manager._state, LATE_MS, lambda name: True, threaded=False)
    assert finish(queue) == 1
    assert manager._state.schedules.worst_late_ms == LATE_MS


def test_nothing_is_armed_without_a_scheduler_and_next_due_tells_of_one(
    manager: QueueManager, queue: Queue
) -> None:
    assert manager.next_due() is None
    queue.schedulers.upsert("s", cron="0 12 * * *")
    assert manager.next_due() == at(hours=12)
    manager._state.clock.set_wall_clock(at(hours=1))  # type: ignore[attr-defined]
    assert manager.next_due() == at(hours=11)
    queue.schedulers.remove("s")
    assert manager.next_due() is None


# -- events, errors --------------------------------------------------------------------------------


def test_a_firing_is_told_before_its_job_and_the_numbers_have_no_gap(
    manager: QueueManager, queue: Queue
) -> None:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append, queue="q")
    queue.schedulers.upsert("s", every=10)
    for _ in range(3):
        step(queue, seconds=10)
        finish(queue)
    step(queue)
    kinds = [e.type for e in heard]
    one = ["cron_fired", "pushed", "active", "completed", "empty"]
    assert kinds == one * 3
    numbers = [e.sequence for e in heard]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert heard[0].job_id == heard[1].job_id
    assert (heard[0].scheduler, heard[0].planned_at) == ("s", at(seconds=10))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValidationError, "give either every or cron"),
    ({"every": 5, "cron": "* * * * *"}, ValidationError, "give either every or cron"),
    ({"every": 0}, ValidationError, "^every must be at least"),
    ({"every": -1}, ValidationError, "^every must not be negative"),
    ({"every": float("nan")}, ValidationError, "^every must be at most"),
    ({"every": "5"}, ValidationError, "^every must be seconds"),
    ({"every": 40_000 * 86_400}, ValidationError, "^every must be at most"),
    ({"every": 5, "tz": "Europe/Rome"}, ValidationError, "^tz is for cron"),
    ({"cron": "61 * * * *"}, CronError, "the minute field"),
    ({"cron": "0 0 31 2 *"}, CronError, "the day-of-month field"),
    ({"cron": "* * * * *", "tz": "Mars/Olympus"}, ValidationError, "^tz must be"),
    ({"every": 5, "limit": 0}, ValidationError, "^limit must be"),
    ({"every": 5, "limit": True}, ValidationError, "^limit must be"),
    ({"every": 5, "limit": 1.0}, ValidationError, "^limit must be"),
    ({"every": 5, "immediately": 1}, ValidationError, "^immediately must be"),
    ({"every": 5, "catch_up": None}, ValidationError, "^catch_up must be"),
    ({"every": 5, "skip_if_no_worker": "no"}, ValidationError, "^skip_if_no_worker must be"),
    ({"every": 5, "prevent_overlap": 0}, ValidationError, "^prevent_overlap must be"),
    ({"every": 5, "job": "x"}, ValidationError, "^job must be a JobSpec"),
    ({"every": 5, "job": JobSpec("")}, ValidationError, "^job: name must"),
    ({"every": 5, "job": JobSpec("x", attempts=0)}, ValidationError, "^job: attempts must"),
    ({"every": 5, "job": JobSpec("x", run_at=START)}, ValidationError, "^job: .* cannot have run_"),
    (
        {"every": 5, "job": JobSpec("x", repeat=Repeat(every=5))},
        ValidationError,
        "^job: .* cannot have repeat",
    ),
    ({"every": 5, "job": JobSpec("x", object())}, SerializationError, "^job: "),
    ({"every": 5, "job": JobSpec("x", "y" * (11 << 20))}, SerializationError, "^job: data takes"),
]


@pytest.mark.parametrize(("given", "kind", "text"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_refused_with_its_name_before_anything_changed(
    manager: QueueManager, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = manager.queues()
    with pytest.raises(kind, match=text):
        manager.schedulers.upsert("q", "s", **given)
    assert manager.queues() == before
    assert manager.schedulers.list() == []
    assert manager.next_due() is None


def test_bad_ids_and_unknown_options_are_refused(manager: QueueManager) -> None:
    for bad in ("", "x" * 257, "a\0b", 5, None):
        with pytest.raises(ValidationError, match=r"^id must"):
            manager.schedulers.upsert("q", bad, every=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        manager.schedulers.upsert("q", "s", evry=5)
    with pytest.raises(ValidationError, match=r"^queue may have"):
        manager.schedulers.upsert("a b", "s", every=5)


def test_one_that_breaks_keeps_no_other_from_its_time(
    manager: QueueManager, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.schedulers.upsert("bad", every=10)
    queue.schedulers.upsert("good", every=10)
    broken = manager._state.schedules.find("q", "bad")
    assert broken is not None
    whole, broken.template = broken.template, None  # type: ignore[assignment]
    step_raw(manager, seconds=10)
    assert "scheduler 'bad'" in caplog.text
    broken.template = whole
    assert len(queue) == 1
    assert queue.get_jobs()[0].name == "good"


def step_raw(manager: QueueManager, **parts: float) -> None:
    manager._state.clock.advance(**parts)  # type: ignore[attr-defined]
    manager.run_pending()


def test_after_a_broken_section_schedulers_are_where_their_progress_says(
    manager: QueueManager, queue: Queue
) -> None:
    queue.schedulers.upsert("s", every=10)
    schedule = manager._state.schedules.find("q", "s")
    assert schedule is not None
    manager._state.schedules.arm(schedule, None)
    schedule.queue.shard.gate = BROKEN
    step(queue, seconds=10)
    assert queue.counts().waiting == 1


def test_a_closed_manager_refuses() -> None:
    manager = QueueManager(clock=VirtualClock(), background=False)
    queue = Queue("q", manager)
    manager.close()
    for call in (
        lambda: queue.schedulers.upsert("s", every=5),
        lambda: queue.schedulers.get("s"),
        lambda: queue.schedulers.list(),
        lambda: queue.schedulers.remove("s"),
        lambda: queue.schedulers.preview("s", 1),
    ):
        with pytest.raises(ManagerClosedError):
            call()


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", [{"every": 60}, {"cron": "* * * * *", "tz": "Europe/Rome"}], ids=["every", "cron"]
)
def test_a_simulated_year_of_one_a_minute_runs_each_minute_once(
    when: dict[str, Any], slow_rounds: Callable[[int, int], int]
) -> None:
    """A week of it in the short form. `tests/benchmarks/run.py --only schedules` says how long a
    year takes."""
    days = slow_rounds(7, 365)
    with Harness() as h:
        queue = h.queue("q")
        ran = 0

        def run(job: Job) -> None:
            nonlocal ran
            ran += 1
            assert h.now == job.created_at == at(minutes=ran)

        h.worker(queue, run)
        queue.schedulers.upsert("s", job=JobSpec("x", remove_on_complete=True), **when)
        h.advance(days=days)
        assert ran == days * 1440
        assert (got(queue).runs, got(queue).skipped) == (ran, 0)
        last = h.timeline(got(queue).last_job_id or "")
        assert [e.type for e in last] == ["cron_fired", "pushed", "active", "completed"]
        assert {event.timestamp for event in last} == {at(days=days)}
        assert h.manager.counts().total == 0


@pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *", "tz": "Europe/Rome"}])
def test_a_firing_and_its_run_take_few_calls(when: dict[str, Any]) -> None:
    """A year of one a minute is half a million of these; it was 236 calls once."""
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, lambda job: None)
        queue.schedulers.upsert("s", job=JobSpec("x", remove_on_complete=True), **when)
        h.advance(minutes=5)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            h.advance(minutes=50)
        finally:
            sys.setprofile(before)
    assert calls / 50 < 160


def test_every_pass_of_the_harness_is_told_and_what_has_gone_is_cleaned_up_after() -> None:
    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, lambda job: None)
        queue.schedulers.upsert("s", every=60, job=JobSpec("x", remove_on_complete=True))
        h.advance(minutes=300)
        runs = {task.name: task.runs for task in h.manager.health().tasks}
    assert all(runs[name] >= 300 for name in ("deadlines", "schedules", "dependencies"))
    assert runs["clean-up"] > 0


def test_what_a_run_brings_about_in_the_harness_comes_at_its_moment() -> None:
    """Its passes look only at what was due when it looked ahead."""
    with Harness() as h:
        queue, other = h.queue("q"), h.queue("other")
        h.worker(queue, lambda job: other.add("y", ttl=30) and None)
        queue.schedulers.upsert("s", every=60, job=JobSpec("x", remove_on_complete=True))
        h.advance(minutes=2)
        other.add("z", ttl=70)
        h.advance(minutes=1)
        h.advance(minutes=1)
        failed = [(e.timestamp, e.reason) for e in h.events if e.type == "failed"]
    # of the last one 30 s are left
    moments = [at(seconds=90), at(seconds=150), at(seconds=190), at(seconds=210)]
    assert failed == [(moment, "ttl_expired") for moment in moments]


def test_jobs_of_schedulers_are_among_those_that_were_added() -> None:
    with Harness() as h:
        queue = h.queue("q")
        queue.schedulers.upsert("s", every=60, job=JobSpec("x", {"a": 1, "b": 2}))
        h.advance(seconds=60)
        (job,) = h.added(queue, "x", {"a": 1})
        assert job.id == got(queue).last_job_id


def test_a_jump_of_the_wall_clock_moves_expressions_in_the_harness() -> None:
    with Harness() as h:
        queue = h.queue("q")
        ran: list[datetime] = []
        h.worker(queue, lambda job: ran.append(h.now))
        queue.schedulers.upsert("s", cron="0 12 * * *")
        h.set_wall_clock(at(hours=11, minutes=59, seconds=30))
        h.advance(minutes=1)
        assert ran == [at(seconds=30)]
        h.set_wall_clock(at(days=1, hours=13))
        h.run_until_idle()
        assert len(ran) == 1, "the clock leapt an hour over it: it was missed"
        assert h.events[-1].type == "cron_missed"


def test_health_tells_how_late_the_latest_job_of_a_scheduler_came() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        Queue("q", manager).schedulers.upsert("tick", every=10)
        clock.advance(seconds=12)
        manager.run_pending()
        (line,) = [task for task in manager.health().tasks if task.name == "schedules"]
        assert line.lateness == 2.0
