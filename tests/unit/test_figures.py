"""`stats()`, `queue.metrics()`: what was counted is what happened, over restarts too."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
    Totals,
    ValidationError,
    Worker,
)
from bunqueue_py.model.spread import Spread, distribution
from bunqueue_py.observe import stats as stats_module
from bunqueue_py.ops.query import check
from bunqueue_py.shard.tally import Tally, packed, unpacked
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.testing import SeededIds, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


def run(manager: QueueManager, queue: str = "q", n: int = 1, *, fail: bool = False) -> None:
    """Adds n jobs and ends them now."""
    for _ in range(n):
        manager.push(queue, attempts=1)
        job = manager.pull(queue)
        assert job is not None
        manager.fail(job, "no") if fail else manager.ack(job)


def counted(manager: QueueManager, kind: str = "completed", queue: str = "q") -> list[int]:
    return [point.count for point in manager.minute_counts(queue, kind)]


def test_jobs_that_end_are_counted_in_the_minute_in_which_they_did(
    manager: QueueManager, clock: VirtualClock
) -> None:
    queue = Queue("q", manager)
    run(manager, n=3)
    clock.advance(seconds=59, milliseconds=999)
    run(manager, n=2)
    clock.advance(milliseconds=1)
    run(manager)
    run(manager, n=4, fail=True)
    clock.advance(minutes=10)
    run(manager, n=7)
    start = datetime(2030, 1, 1, tzinfo=timezone.utc)
    points = [(p.at - start, p.count) for p in queue.metrics("completed")]
    minute = timedelta(minutes=1)
    assert points == [(0 * minute, 5), (minute, 1), (11 * minute, 7)]
    assert [(p.at - start, p.count) for p in queue.metrics("failed")] == [(minute, 4)]


def test_counts_go_on_from_hour_to_hour(manager: QueueManager, clock: VirtualClock) -> None:
    for n in range(1, 6):
        run(manager, n=n)
        clock.advance(minutes=37)
    assert counted(manager) == [1, 2, 3, 4, 5]
    run(manager)
    assert counted(manager) == [1, 2, 3, 4, 5, 1]


def test_what_is_older_than_14_days_is_forgotten(
    manager: QueueManager, clock: VirtualClock
) -> None:
    run(manager)
    clock.advance(days=13, hours=23)
    run(manager, n=2)
    assert counted(manager) == [1, 2]
    clock.advance(hours=2)
    assert counted(manager) == [2], "without anything that happens"
    run(manager, n=3)
    tally = manager._state.queues["q"].tally
    assert tally is not None
    assert len(tally.closed) == 1, "and memory lets it go"


def test_counting_by_the_minute_can_be_turned_off(clock: VirtualClock) -> None:
    config = ManagerConfig(completed_metrics_days=0)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        for _ in range(3):
            run(manager)
            clock.advance(hours=1)
        assert counted(manager) == []
        assert manager.stats().totals == Totals(3, 3, 0)
        tally = manager._state.queues["q"].tally
        assert tally is not None
        assert not tally.closed


def test_an_unknown_queue_has_no_counts_and_an_unknown_kind_is_refused(
    manager: QueueManager,
) -> None:
    assert manager.minute_counts("never", "failed") == []
    assert manager.queues() == [], "asking makes no queue"
    with pytest.raises(ValidationError, match="kind must be 'completed' or 'failed'"):
        manager.minute_counts("never", "done")


def test_counts_survive_a_restart_and_go_on(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "jobs.db"
    for n in (2, 3):
        with QueueManager(path, clock=clock, background=False) as manager:
            run(manager, n=n)
            run(manager, n=1, fail=True)
            clock.advance(minutes=61)
            run(manager, n=n)
    with QueueManager(path, clock=clock, background=False) as manager:
        assert counted(manager) == [2, 5, 3]
        assert counted(manager, "failed") == [1, 1]
        assert manager.stats().totals == Totals(), "totals count from the start of the manager"
        assert manager.stats().counts.completed == 10


def killed(manager: QueueManager) -> None:
    """Ends it as a kill does, all that is marked being on disk."""
    manager.flush()
    manager._state.storage._abandon()  # type: ignore[union-attr]


def test_a_kill_costs_no_more_than_the_second_under_way(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "jobs.db"
    manager = QueueManager(path, clock=clock, background=False)
    for _ in range(10):
        run(manager)
        clock.advance(seconds=0.25)
        manager.run_pending()
    killed(manager)
    with QueueManager(path, clock=clock, background=False) as again:
        assert 6 <= sum(counted(again)) <= 10


def test_a_burst_is_kept_a_second_after_it_though_nothing_else_happens(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "jobs.db"
    manager = QueueManager(path, clock=clock, background=False)
    for queue in range(20):
        run(manager, f"q{queue}", n=2)
    assert manager._state.counting.due_ms == 1000 + manager._state.now() // 1000 * 1000
    clock.advance(seconds=1)
    manager.run_pending()
    assert not any(shard.counting for shard in manager._state.shards.shards)
    # in the second of that look, and after it
    run(manager, "q0")
    clock.advance(seconds=1)
    manager.run_pending()
    clock.advance(hours=1)
    manager.run_pending()
    killed(manager)
    with QueueManager(path, clock=clock, background=False) as again:
        assert counted(again, queue="q0") == [3]
        assert [counted(again, queue=f"q{n}") for n in range(1, 20)] == [[2]] * 19


@pytest.mark.parametrize("on_file", [False, True])
def test_the_counts_of_a_queue_that_was_let_go_are_told_and_go_on(
    tmp_path: Path, clock: VirtualClock, on_file: bool
) -> None:
    path = tmp_path / "jobs.db" if on_file else None
    config = ManagerConfig(empty_queue_after=60)
    with QueueManager(path, clock=clock, background=False, config=config) as manager:
        for n in (2, 1):
            for _ in range(n):
                manager.push("q", remove_on_complete=True)
                job = manager.pull("q")
                assert job is not None
                manager.ack(job)
            del job
            for _ in range(6):
                manager._state.cleanup.arm(manager._state.now())
                manager.run_pending()
                clock.advance(seconds=70)
            assert manager.queues() == []
        assert counted(manager) == [2, 1]
    if path is not None:
        with QueueManager(path, clock=clock, background=False) as manager:
            assert counted(manager) == [2, 1]


def test_in_memory_and_where_nothing_is_counted_nothing_is_armed(
    tmp_path: Path, clock: VirtualClock
) -> None:
    none = ManagerConfig(completed_metrics_days=0)
    for storage, config in ((None, ManagerConfig()), (tmp_path / "jobs.db", none)):
        with QueueManager(storage, config=config, clock=clock, background=False) as manager:
            run(manager)
            assert manager._state.counting.due_ms == NEVER


def test_counts_too_old_leave_the_file_when_it_is_opened(
    tmp_path: Path, clock: VirtualClock
) -> None:
    import sqlite3

    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False) as manager:
        run(manager)
    clock.advance(days=15)
    for _ in range(2):
        with QueueManager(path, clock=clock, background=False) as manager:
            assert counted(manager) == []
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM rest WHERE kind = 'minutes'").fetchall() == []
    connection.close()


def test_totals_count_from_the_start_whatever_leaves(manager: QueueManager) -> None:
    run(manager, n=3)
    run(manager, n=2, fail=True)
    manager.push("q")
    manager.drain("q")
    manager.clean("q", 0, state="completed")
    manager.dlq_retry_all("q")
    totals = manager.stats().totals
    assert totals == Totals(added=6, completed=3, failed=2)


def test_a_rebuild_changes_no_total(manager: QueueManager) -> None:
    from bunqueue_py.ops.recover import rebuild

    run(manager, n=3)
    manager.push("q", remove_on_complete=True)
    job = manager.pull("q")
    assert job is not None
    manager.ack(job)
    shard = manager._state.shards.of("q")
    with shard.lock:
        rebuild(manager._state, shard)
    shard.call_after()
    assert manager.stats().totals == Totals(added=4, completed=4)


def test_throughput_is_a_moving_average_that_readers_do_not_disturb(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """Ten jobs a second: 3, 5.1, 6.57, ... towards 10; it then falls by three tenths a second."""
    seen = []
    for _ in range(30):
        run(manager, n=10)
        clock.advance(seconds=1)
        manager.stats(), manager.stats()
        seen.append(manager.stats().throughput.completed)
    assert seen[:3] == pytest.approx([3, 5.1, 6.57])
    assert seen[-1] == pytest.approx(10, abs=0.01)
    assert manager.stats().throughput.added == pytest.approx(10, abs=0.5)
    clock.advance(seconds=2)
    assert manager.stats().throughput.completed == pytest.approx(seen[-1] * 0.49)
    clock.advance(days=1)
    assert manager.stats().throughput.completed == pytest.approx(0)


def test_stats_tell_jobs_by_state_queue_by_queue_and_in_all(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("a")
    manager.push("a", priority=1)
    manager.push("b", delay=5)
    manager.pause("b")
    run(manager, "c", 2)
    stats = manager.stats()
    assert list(stats.queues) == ["a", "b", "c"]
    assert stats.at == clock.now
    assert (stats.counts.waiting, stats.counts.prioritized, stats.counts.delayed) == (1, 1, 1)
    assert stats.counts.completed == 2
    assert stats.queues["b"].paused
    assert stats.queues["c"].totals == Totals(2, 2, 0)
    assert stats.memory["jobs"] == 5
    assert stats.memory["delayed_jobs"] == 1
    assert stats.times == {}, "nothing is timed unless asked"


def test_stats_tell_the_size_of_what_belongs_to_no_queue(clock: VirtualClock) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        first = manager.push("q")
        manager.push("q", depends_on=[first])
        Queue("q", manager).schedulers.upsert("s", every=60, job=JobSpec("tick"))
        memory = manager.stats().memory
        assert (memory["depended_on_jobs"], memory["schedulers"], memory["workers"]) == (1, 1, 0)


def test_stats_count_each_queue_as_counts_does(manager: QueueManager, clock: VirtualClock) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"priority": 3},
        {"delay": 5},
        {"delay": 500},
        {"group": "g"},
        {"priority": -1, "lifo": True},
    ]
    for at, chosen in enumerate(options):
        for name in ("all", f"q{at}"):
            manager.push(name, **chosen)
    for name in ("all", "q0", "q4"):
        job = manager.pull(name)
        assert job is not None
        manager.ack(job) if name == "q0" else manager.fail(job, "no", unrecoverable=name == "q4")
    clock.advance(seconds=10)
    manager.pause("q1")
    manager.pause("q2")
    stats = manager.stats()
    assert stats.queues.keys() == set(manager.queues())
    for name, found in stats.queues.items():
        assert found.counts == manager.counts(name), name
        assert found.counts.total == manager.counts(name).total
        assert repr(found.counts) == repr(manager.counts(name))
    assert stats.counts == manager.counts()


def test_stats_hold_no_shard_for_more_than_a_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    holds: list[int] = []
    read_one = stats_module._line

    class Counting:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def __enter__(self) -> None:
            self._lock.__enter__()
            holds.append(0)

        def __exit__(self, *error: Any) -> None:
            self._lock.__exit__(*error)

    def counted_read(*given: Any) -> Any:
        holds[-1] += 1
        return read_one(*given)

    with QueueManager(background=False, config=ManagerConfig(shards=1)) as manager:
        for n in range(150):
            manager.push(f"q{n}")
        (shard,) = manager._state.shards.shards
        lock = shard.lock
        monkeypatch.setattr(stats_module, "_line", counted_read)
        shard.lock = Counting(lock)  # type: ignore[assignment]
        assert manager.stats().counts.waiting == 150
        shard.lock = lock
    assert sum(holds) == 150
    assert max(holds) == stats_module.BITE == 64


def test_waits_and_runs_are_measured_where_asked(clock: VirtualClock) -> None:
    config = ManagerConfig(measure_times=True)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        for seconds in (1, 2, 4):
            manager.push("q", attempts=1)
            clock.advance(seconds=seconds)
            job = manager.pull("q")
            assert job is not None
            clock.advance(seconds=10)
            manager.ack(job)
        manager.push("q", attempts=2)
        job = manager.pull("q")
        assert job is not None
        clock.advance(seconds=10)
        manager.fail(job, "no")
        times = manager.stats().times
        assert set(times) == {"push", "pull", "ack", "wait", "run"}
        assert times["wait"].count == times["run"].count == 4, "a run that failed took time too"
        assert times["run"].mean == 10
        assert times["wait"].mean == 1.75
        assert 8.192 <= times["run"].p50 <= times["run"].p99 <= 16.384
        assert times["push"].count == 1, "of 32 calls the first is timed"


def test_a_pull_that_is_timed_waits_and_refuses_as_any_other(clock: VirtualClock) -> None:
    config = ManagerConfig(measure_times=True)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        with pytest.raises(ValidationError, match="timeout"):
            manager.pull("q", timeout=-1)
        manager.push("q", {"n": 1}, custom_id="x", priority=3)
        job = manager.pull("q", owner="me", lock_duration=None)
        assert job is not None
        assert (job.data, job.custom_id, job.priority) == ({"n": 1}, "x", 3)
        assert manager.ack(job, {"sum": 1}).applied
        assert manager.get_result(job) == {"sum": 1}
        assert manager.pull("q") is None
        assert manager.pull_batch("q", 3) == []


def test_a_quantile_lies_in_the_bucket_of_its_value() -> None:
    spread = Spread()
    for value in (0, 1, 5, 100, 100, 100, 100, 100, 3000, 1 << 80):
        spread.note(value)
    found = distribution([(spread.counts, spread.total)], 0.001, 32)
    assert found.count == 10
    assert 0.064 <= found.quantile(0.5) <= 0.128
    assert 2.048 <= found.quantile(0.9) <= 4.096
    assert found.quantile(0) == 0
    assert distribution([], 1, 4).quantile(0.5) == 0


def test_an_hour_survives_its_packing_and_damage_is_noticed() -> None:
    hour = [*range(60), *[0] * 59, 4_000_000_000]
    assert unpacked(packed(hour)) == hour
    for damaged in ("", "x", "####", packed(hour)[:-8], "AAAA"):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever of its parts finds it
            unpacked(damaged)


def test_damaged_counts_in_a_file_are_passed_over(tmp_path: Path, clock: VirtualClock) -> None:
    import sqlite3

    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False) as manager:
        run(manager)
    with sqlite3.connect(path) as connection:
        for key, body in (("q\0x", '"AAAA"'), ("q\0525960", '"####"'), ("q\0525961", "[1]")):
            connection.execute("INSERT INTO rest VALUES ('minutes', ?, ?)", (key, body))
    connection.close()
    with QueueManager(path, clock=clock, background=False) as manager:
        assert counted(manager) == [1]


def test_a_tally_forgets_what_it_is_told_to() -> None:
    tally = Tally(Totals(), 0)
    tally.look(Totals(1, 1, 0), 3_600_000)
    tally.look(Totals(2, 2, 0), 7_200_000)
    assert tally.forget_before(1) == [0]
    assert list(tally.closed) == [1]
    tally.check()


def test_what_workers_pull_and_ack_is_timed_too() -> None:
    with QueueManager(config=ManagerConfig(measure_times=True)) as manager:
        queue = Queue("q", manager)
        jobs = [queue.add("x", n) for n in range(40)]
        with Worker(queue, lambda job: job.data, concurrency=2):
            assert [job.result(10) for job in jobs] == list(range(40))
        times = manager.stats().times
    assert times["run"].count == times["wait"].count == 40
    assert times["push"].count == 2, "the first of every 32"
    assert times["pull"].count >= 1
    assert times["ack"].count >= 1
