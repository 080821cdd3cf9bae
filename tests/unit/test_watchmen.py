"""The background tasks: when they run, what a broken one costs, and what `health()` tells."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import JobEvent, ManagerConfig, Queue, QueueManager, ValidationError
from bunqueue_py.registry.task_errors import TaskErrors
from bunqueue_py.stores.alarm import NEVER, Alarm
from bunqueue_py.stores.duty import Duty
from bunqueue_py.tasks.scheduler import Pace, Report, Task, TaskLoop
from bunqueue_py.testing import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as manager:
        yield manager


def heard_by(manager: QueueManager, types: Any = "health") -> list[JobEvent]:
    events: list[JobEvent] = []
    manager.events.subscribe(events.append, types=types)
    return events


def break_task(manager: QueueManager, name: str, error: BaseException) -> None:
    """Has that task raise the error from now on."""

    def tick() -> Report:
        raise error

    task_of(manager, name).tick = tick


def task_of(manager: QueueManager, name: str) -> Task:
    return next(task for task in manager._loop._tasks if task.name == name)


def line_of(manager: QueueManager, name: str) -> Any:
    return next(task for task in manager.health().tasks if task.name == name)


# -- one task --------------------------------------------------------------------------------------


def test_a_task_with_a_duty_runs_when_that_is_due_and_no_sooner(clock: VirtualClock) -> None:
    alarm = Alarm()
    duty = Duty(alarm)
    runs: list[int] = []

    def tick() -> Report:
        runs.append(clock.timeline_ms())
        return Report(1, None)

    task = Task("t", tick, duty)
    start = clock.timeline_ms()
    assert task.run(clock) == Report(0, None)
    duty.arm(start + 1000)
    duty.arm(start + 5000)
    assert alarm.due_ms == duty.due_ms == start + 1000
    assert task.run(clock) == Report(0, start + 1000)
    clock.advance(seconds=3)
    assert task.run(clock) == Report(1, None)
    assert task.run(clock) == Report(0, None)
    assert (runs, duty.due_ms) == ([start + 3000], NEVER)


def test_what_is_armed_while_the_task_runs_counts(clock: VirtualClock) -> None:
    duty = Duty(Alarm())
    later = clock.timeline_ms() + 70

    def tick() -> Report:
        duty.arm(later)
        return Report(1, later + 1000)

    task = Task("t", tick, duty)
    duty.arm(clock.timeline_ms())
    task.run(clock)
    assert duty.due_ms == later


def failing(
    errors: TaskErrors, told: list[tuple[str, str | None]], duty: Duty | None = None
) -> tuple[Task, list[BaseException | None]]:
    plan: list[BaseException | None] = []

    def tick() -> Report:
        error = plan.pop(0) if plan else None
        if error is not None:
            raise error
        return Report(1, None)

    pace = Pace(1_000, 60_000, lambda name, error: told.append((name, error)))
    return Task("t", tick, duty, errors=errors, pace=pace), plan


def test_a_task_that_fails_is_tried_again_ever_later_and_its_circuit_opens_after_five(
    clock: VirtualClock,
) -> None:
    errors, told = TaskErrors(5), list[tuple[str, str | None]]()
    task, plan = failing(errors, told)
    plan += [RuntimeError(f"boom {n}") for n in range(7)]
    waits = []
    for _ in range(7):
        report = task.run(clock)
        assert report.next_due is not None
        waits.append((report.next_due - clock.timeline_ms()) // 1000)
        # whatever else wakes the loop
        assert task.run(clock) == Report(0, report.next_due)
        clock.advance(milliseconds=report.next_due - clock.timeline_ms())
    assert waits == [1, 2, 4, 8, 60, 60, 60]
    assert told == [("t", "RuntimeError: boom 4")], "told once"
    (line,) = errors.lines()
    assert (line.failures, line.in_a_row, line.runs) == (7, 7, 7)
    assert line.open_since_ms is not None
    assert task.run(clock) == Report(1, None)
    (line,) = errors.lines()
    assert (line.failures, line.in_a_row, line.open_since_ms) == (7, 0, None)
    assert told[1:] == [("t", None)], "one success closes it"


def test_a_task_that_fails_now_and_then_opens_no_circuit(clock: VirtualClock) -> None:
    errors, told = TaskErrors(2), list[tuple[str, str | None]]()
    task, plan = failing(errors, told)
    for _ in range(10):
        plan += [RuntimeError("now and then"), None]
        task.run(clock)
        clock.advance(seconds=1)
        task.run(clock)
    assert told == []
    assert errors.lines()[0].failures == 10


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_loop_of_a_thread_outlives_whatever_a_task_raises(
    clock: VirtualClock, error: BaseException
) -> None:
    alarm = Alarm()
    loop = TaskLoop("test", clock, alarm, threaded=True)
    ran = []

    def breaks() -> Report:
        raise error

    def works() -> Report:
        ran.append(1)
        return Report(1, None)

    loop.add(Task("breaks", breaks))
    loop.add(Task("works", works))
    assert loop.run_pass() == 1
    assert ran == [1]
    stepped = TaskLoop("test", clock, Alarm(), threaded=False)
    stepped.add(Task("breaks", breaks))
    with pytest.raises(type(error)):  # it is the caller who was interrupted
        stepped.run_pass()


def test_an_error_whose_text_raises_is_reported_all_the_same(clock: VirtualClock) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    errors = TaskErrors(1)
    task, plan = failing(errors, [])
    plan.append(Nasty())
    task.run(clock)
    assert errors.lines()[0].error == "Nasty: (its text raised)"


# -- in a manager ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deadlines", "clean-up", "workers", "counts", "checks"])
def test_one_broken_task_stops_no_other(
    manager: QueueManager, clock: VirtualClock, name: str
) -> None:
    heard = heard_by(manager)
    break_task(manager, name, RuntimeError("broken for ever"))
    queue = Queue("q", manager)
    queue.limits.cool_down(30)  # something for the clean-up
    queue.add("n", ttl=5)
    job = queue.add("held")
    queue.limits.cool_down(0)
    for task in manager._loop._tasks:
        if task.duty is not None:
            task.duty.arm(clock.timeline_ms())
    for _ in range(300):
        clock.advance(seconds=1)
        manager.run_pending()
    lines = {line.name: line for line in manager.health().tasks}
    assert lines[name].circuit == "open"
    assert lines[name].failures < 15, "at a slower pace"
    assert lines[name].error == "RuntimeError: broken for ever"
    for other in lines.keys() - {name}:
        assert (lines[other].circuit, lines[other].failures) == ("closed", 0)
        assert lines[other].runs > 0
    assert [(e.reason, e.subject) for e in heard if e.subject == name] == [("task_failing", name)]
    assert not manager.health().ok
    assert any(name in problem for problem in manager.health().problems)
    if name != "deadlines":
        assert queue.counts().failed == 1, "its ttl has passed"
    assert job.refresh().state == "waiting"


def test_a_task_that_works_again_is_told_of_and_catches_up(
    manager: QueueManager, clock: VirtualClock
) -> None:
    heard = heard_by(manager)
    queue = Queue("q", manager)
    queue.add("n", ttl=5)
    task = task_of(manager, "deadlines")
    tick = task.tick
    break_task(manager, "deadlines", RuntimeError("boom"))
    for _ in range(60):
        clock.advance(seconds=1)
        manager.run_pending()
    assert queue.counts().failed == 0
    task.tick = tick
    clock.advance(seconds=60)
    manager.run_pending()
    assert queue.counts().failed == 1
    assert [e.reason for e in heard] == ["task_failing", "task_recovered"]
    assert line_of(manager, "deadlines").circuit == "closed"
    assert manager.health().ok


def test_health_has_one_line_a_task_and_knows_when_it_ran(
    manager: QueueManager, clock: VirtualClock
) -> None:
    report = manager.health()
    assert report.ok
    assert report.problems == ()
    names = ["deadlines", "schedules", "dependencies", "clean-up", "workers", "counts", "checks"]
    assert [task.name for task in report.tasks] == names
    assert all(task.last_run is None for task in report.tasks)
    assert report.storage.error is None
    assert report.storage.persistent is (manager._state.storage is not None)
    clock.advance(seconds=7)
    manager.run_pending()
    line = line_of(manager, "deadlines")
    assert (line.last_run, line.runs, line.failures, line.circuit) == (clock.now, 1, 0, "closed")
    assert line.duration >= 0
    assert "deadlines: closed, 1 runs" in str(manager.health())


def test_an_idle_manager_arms_nothing(manager: QueueManager, clock: VirtualClock) -> None:
    queue = Queue("q", manager)
    job = queue.add("n")
    held = manager.pull(queue)
    assert held is not None
    manager.ack(held)
    assert manager.get_state(job) == "completed"
    for _ in range(3):
        clock.advance(days=1)
        manager.run_pending()
    assert manager._state.alarm.due_ms == NEVER


# -- settings --------------------------------------------------------------------------------------

BOUNDS = {
    "stall_check_interval": (1, 60),
    "cleanup_interval": (1, 3600),
    "dependency_fallback": (1, 3600),
    "worker_stale_after": (1, 86_400),
    "task_retry_delay": (0.1, 3600),
    "circuit_retry_delay": (0.1, 86_400),
    "check_interval": (1, 3600),
    "queue_idle_after": (1, 365 * 86_400),
    "worker_saturated_after": (1, 365 * 86_400),
    "scheduler_late_after": (0.1, 86_400),
    "handler_overdue_after": (0, 86_400),
    "empty_queue_after": (60, 36_500 * 86_400),
    "circuit_failures": (1, 1_000),
    "queue_size_alarm": (1, 100_000_000),
    "listener_backlog_alarm": (1, 100_000),
    "stale_share": (0.05, 0.9),
}


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_a_period_or_threshold_out_of_bounds_is_refused_by_its_name(
    name: str, bounds: tuple[float, float]
) -> None:
    low, high = bounds
    whole: Any = {"worker_removed_after": 7 * 86_400}
    for good in (low, high):
        ManagerConfig(**{name: good, **whole})
    above = high + 1 if isinstance(high, int) else high + 0.01
    below = low - 1 if isinstance(low, int) else low / 2
    for bad in (above, below, "5", True, float("nan")):
        with pytest.raises(ValidationError, match=name):
            ManagerConfig(**{name: bad, **whole})


def test_periods_are_durations_and_a_worker_is_stale_before_it_is_removed() -> None:
    config = ManagerConfig(cleanup_interval=timedelta(minutes=1), empty_queue_after=None)
    assert config.periods().cleanup_interval == 60_000
    assert config.periods().empty_queue_after is None
    with pytest.raises(ValidationError, match="worker_removed_after must be more than"):
        ManagerConfig(worker_stale_after=90)
    with pytest.raises(ValidationError, match="worker_removed_after"):
        ManagerConfig(worker_removed_after=8 * 86_400)


def test_the_stall_check_lives_by_its_interval(clock: VirtualClock) -> None:
    config = ManagerConfig(stall_check_interval=20)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        manager.push("q")
        job = manager.pull("q", lock_duration=None)
        assert job is not None
        clock.advance(seconds=30)
        manager.run_pending()
        clock.advance(seconds=19)
        manager.run_pending()
        assert job.refresh().stall_count == 0, "suspected, and may still speak"
        clock.advance(seconds=1)
        manager.run_pending()
        assert job.refresh().stall_count == 1


def test_the_fallback_of_the_drain_lives_by_its_setting(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ManagerConfig(dependency_fallback=5)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        first = manager.push("q")
        # of another shard: in its own a job that completes settles by itself what waits for it
        shards = manager._state.shards
        elsewhere = next(name for name in "abcdefgh" if shards.of(name) is not shards.of("q"))
        job = manager.push(elsewhere, depends_on=[first])
        # whoever completes it is broken off before it tells the others
        monkeypatch.setattr(manager._state.dependencies, "drain", lambda: None)
        held = manager.pull("q")
        assert held is not None
        manager.ack(held)
        assert job.refresh().state == "waiting-children"
        # what a file has to write is due before that
        due_ms = 5_000 if manager._state.storage is None else 1_000
        assert manager._state.alarm.due_ms == clock.timeline_ms() + due_ms
        clock.advance(seconds=5)
        manager.run_pending()
        assert job.refresh().state == "waiting"


def test_the_retry_of_a_task_lives_by_its_settings(clock: VirtualClock) -> None:
    config = ManagerConfig(task_retry_delay=5, circuit_failures=2, circuit_retry_delay=600)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        break_task(manager, "deadlines", RuntimeError("boom"))
        manager.run_pending()
        for step, failures in ((4.999, 1), (0.001, 2), (599.999, 2), (0.001, 3)):
            clock.advance(seconds=step)
            manager.run_pending()
            assert line_of(manager, "deadlines").failures == failures
        assert line_of(manager, "deadlines").circuit == "open"
