"""`durable`, what is refused while the disk fails, and what recovered jobs wait for."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    BulkAddError,
    Deduplication,
    JobSpec,
    JobState,
    ManagerClosedError,
    Queue,
    QueueManager,
    SqliteStorage,
    StorageError,
    StorageFullError,
    ValidationError,
    Worker,
)
from bunqueue_py.model.job import COMPLETED, FAILED, PENDING
from bunqueue_py.testing import VirtualClock
from tests.faulty_disk import Disk, on_disk

HOUR = 3600
SLOW = {"flush_interval": HOUR, "max_lag": HOUR}
"""Nothing is written that nobody waits for."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def manager(disk: Disk, path: Path) -> Iterator[QueueManager]:
    """Writes nothing but what somebody waits for."""
    manager = QueueManager(SqliteStorage(path, **SLOW))  # type: ignore[arg-type]
    yield manager
    disk.mend()
    disk.gate.set()
    manager.close()


def commits(manager: QueueManager) -> int:
    assert manager._state.storage is not None
    return manager._state.storage.health().commits


# -- pushes --------------------------------------------------------------------------------------


def test_a_durable_push_returns_with_the_job_on_disk(manager: QueueManager, path: Path) -> None:
    plain = manager.push("q")
    assert plain.id not in on_disk(path)
    job = manager.push("q", durable=True)
    assert on_disk(path)[job.id] == PENDING


def test_with_memory_storage_durable_changes_nothing() -> None:
    with QueueManager() as manager:
        job = manager.push("q", durable=True)
        held = manager.pull("q")
        assert held == job
        assert manager.ack(held).applied


@pytest.mark.parametrize("bad", [None, 1, 0, "yes"])
def test_durable_is_a_bool(manager: QueueManager, bad: Any) -> None:
    with pytest.raises(ValidationError, match="durable"):
        manager.push("q", durable=bad)


def test_durable_may_be_a_default_of_a_queue(manager: QueueManager, path: Path) -> None:
    queue = Queue("q", manager, defaults={"durable": True})
    assert queue.add("n").id in on_disk(path)
    assert queue.add("n", durable=False).id not in on_disk(path)


def test_a_batch_waits_once(manager: QueueManager, path: Path) -> None:
    manager.push("q", durable=True)
    before = commits(manager)
    jobs = manager.push_batch("q", [JobSpec("n", i, durable=i > 0) for i in range(50)])
    assert commits(manager) == before + 1
    assert {job.id for job in jobs} <= on_disk(path).keys()


def test_a_batch_without_durable_jobs_does_not_wait(manager: QueueManager, path: Path) -> None:
    jobs = manager.push_batch("q", [JobSpec("n", durable=False), ("n", None)])
    assert not {job.id for job in jobs} & on_disk(path).keys()


@pytest.mark.parametrize(
    "named",
    [{"custom_id": "one"}, {"deduplication": Deduplication("one")}],
    ids=["custom id", "deduplication key"],
)
def test_a_durable_push_that_finds_a_job_waits_for_that_one(
    manager: QueueManager, path: Path, named: dict[str, Any]
) -> None:
    first = manager.push("q", **named)
    assert first.id not in on_disk(path)
    again = manager.push("q", durable=True, **named)
    assert again == first
    assert again.duplicate
    assert first.id in on_disk(path)


def test_a_delayed_durable_job_with_a_priority_is_on_disk_too(
    manager: QueueManager, path: Path
) -> None:
    job = manager.push("q", durable=True, delay=5, priority=3, ttl=60, tags=["a"])
    assert job.id in on_disk(path)


def test_without_threads_a_durable_push_writes_itself(disk: Disk, path: Path) -> None:
    with QueueManager(SqliteStorage(path), clock=VirtualClock(), background=False) as manager:
        job = manager.push("q", durable=True)
        assert job.id in on_disk(path)


# -- outcomes ------------------------------------------------------------------------------------


def test_the_ack_of_a_durable_job_returns_with_its_outcome_on_disk(
    manager: QueueManager, path: Path
) -> None:
    manager.push("q", durable=True)
    held = manager.pull("q")
    assert held is not None
    manager.ack(held, {"sum": 6})
    assert on_disk(path)[held.id] == COMPLETED


def test_the_ack_of_another_job_does_not_wait(manager: QueueManager, path: Path) -> None:
    manager.push("q")
    manager.flush()
    held = manager.pull("q")
    assert held is not None
    manager.ack(held)
    assert on_disk(path)[held.id] == PENDING


def test_a_durable_job_that_is_removed_on_completion_is_gone_from_disk(
    manager: QueueManager, path: Path
) -> None:
    manager.push("q", durable=True, remove_on_complete=True)
    held = manager.pull("q")
    assert held is not None
    manager.ack(held)
    assert held.id not in on_disk(path)


def test_a_batch_of_acks_over_several_queues_waits_once(manager: QueueManager, path: Path) -> None:
    jobs = []
    for i in range(12):
        manager.push(f"q{i % 3}", durable=i > 0)
        jobs.append(manager.pull(f"q{i % 3}"))
    before = commits(manager)
    outcomes = manager.ack_batch([Ack(job, 1) for job in jobs if job is not None])
    assert all(outcome.applied for outcome in outcomes)
    assert commits(manager) == before + 1
    assert set(on_disk(path).values()) == {COMPLETED}


def test_only_the_final_failure_of_a_durable_job_is_waited_for(
    manager: QueueManager, path: Path
) -> None:
    manager.push("q", durable=True, attempts=2, backoff=0)
    held = manager.pull("q")
    assert held is not None
    before = commits(manager)
    manager.fail(held, "no")
    assert commits(manager) == before
    held = manager.pull("q")
    assert held is not None
    manager.fail(held, "no")
    assert on_disk(path)[held.id] == FAILED


def test_a_durable_job_is_discarded_on_disk(manager: QueueManager, path: Path) -> None:
    job = manager.push("q", durable=True)
    manager.discard(job)
    assert on_disk(path)[job.id] == FAILED


def test_a_job_is_as_durable_after_a_restart(disk: Disk, path: Path) -> None:
    with QueueManager(path) as manager:
        manager.push("q", durable=True)
    with QueueManager(SqliteStorage(path, **SLOW)) as manager:  # type: ignore[arg-type]
        held = manager.pull("q")
        assert held is not None
        manager.ack(held)
        assert on_disk(path)[held.id] == COMPLETED


# -- a disk that fails ---------------------------------------------------------------------------


def test_a_push_whose_commit_fails_stands_and_says_so(
    manager: QueueManager, disk: Disk, path: Path
) -> None:
    disk.fail()
    with pytest.raises(StorageError, match="disk I/O") as raised:
        manager.push("q", {"n": 1}, durable=True)
    assert raised.value.accepted
    job = manager.get_job(raised.value.job_id)
    assert job is not None
    assert job.data == {"n": 1}
    assert job.state is JobState.WAITING
    assert job.id not in on_disk(path)
    disk.mend()
    manager.flush()
    assert job.id in on_disk(path)


def failing(manager: QueueManager, disk: Disk) -> None:
    disk.fail()
    manager.push("other")
    with pytest.raises(StorageError):
        manager.flush()


def test_while_the_disk_fails_a_durable_push_is_refused_before_anything_changes(
    manager: QueueManager, disk: Disk
) -> None:
    failing(manager, disk)
    with pytest.raises(StorageError, match="durable") as raised:
        manager.push("q", durable=True, custom_id="one", deduplication=Deduplication("one"))
    assert not raised.value.accepted
    assert raised.value.job_id is None
    with pytest.raises(StorageError) as raised:
        manager.push_batch("q", [("n", 1), JobSpec("n", durable=True)])
    assert not raised.value.accepted
    assert manager.queues() == ["other"]
    # neither the custom id nor the key is taken, and what is not durable goes on
    assert not manager.push("q", custom_id="one").duplicate
    assert not manager.push("q", deduplication=Deduplication("one")).duplicate
    assert len(manager.push_batch("q", [("n", 1), ("n", 2)])) == 2


def test_when_the_disk_is_back_so_are_durable_pushes(
    manager: QueueManager, disk: Disk, path: Path
) -> None:
    failing(manager, disk)
    between = manager.push("q")
    disk.mend()
    manager.flush()
    job = manager.push("q", durable=True)
    assert {between.id, job.id} <= on_disk(path).keys()
    assert manager._state.storage is not None
    manager.push("q")
    assert not manager._state.storage.troubled


def test_an_outcome_that_cannot_be_committed_stands_and_says_so(
    manager: QueueManager, disk: Disk, path: Path
) -> None:
    manager.push("q", durable=True)
    manager.push("q", durable=True, attempts=1)
    first, second = manager.pull("q"), manager.pull("q")
    assert first is not None
    assert second is not None
    failing(manager, disk)
    with pytest.raises(StorageError) as raised:
        manager.ack(first, 5)
    assert raised.value.accepted
    assert raised.value.job_id == first.id
    assert manager.get_result(first) == 5
    assert manager.ack(first).reason == "already_finalized"
    with pytest.raises(StorageError) as raised:
        manager.fail(second, "no")
    assert raised.value.accepted
    assert raised.value.job_id == second.id
    assert manager.get_state(second) is JobState.FAILED
    disk.mend()
    manager.flush()
    assert on_disk(path)[first.id] == COMPLETED
    assert on_disk(path)[second.id] == FAILED


def test_a_batch_of_acks_is_done_whole_before_it_says_that_it_is_not_on_disk(
    manager: QueueManager, disk: Disk
) -> None:
    for i in range(3):
        manager.push("q", i, durable=i == 0)
    jobs = manager.pull_batch("q", 3)
    failing(manager, disk)
    with pytest.raises(StorageError) as raised:
        manager.ack_batch([Ack(jobs[0]), Ack(jobs[1], object()), Ack(jobs[2], 2)])
    assert raised.value.accepted
    assert [str(manager.get_state(job)) for job in jobs] == ["completed", "failed", "completed"]


def test_a_batch_that_ends_at_a_full_group_waits_for_its_durable_prefix(
    manager: QueueManager, disk: Disk, path: Path
) -> None:
    def specs(durable: bool) -> list[JobSpec]:
        return [JobSpec("n", i, durable=durable, group="g", group_limit=2) for i in range(3)]

    with pytest.raises(BulkAddError) as raised:
        manager.push_batch("q", specs(True))
    assert {job.id for job in raised.value.accepted} == on_disk(path).keys()  # type: ignore[attr-defined]
    disk.fail()
    with pytest.raises(BulkAddError, match="disk I/O") as raised:
        manager.push_batch("q2", specs(True))
    assert len(raised.value.accepted) == 2 == manager.counts("q2").total


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "stepped"])
def test_pushes_go_on_until_max_unflushed_and_are_refused_then(
    disk: Disk, path: Path, threads: bool
) -> None:
    storage = SqliteStorage(path, max_unflushed=20)
    clock = None if threads else VirtualClock()
    with QueueManager(storage, clock=clock, background=threads) as manager:
        failing(manager, disk)
        added = 1
        with pytest.raises(StorageFullError, match="max_unflushed") as raised:
            while added < 100:
                manager.push("q", added)
                added += 1
        assert not raised.value.accepted
        assert added == 20
        with pytest.raises(StorageFullError):
            manager.push("q", custom_id="one")
        with pytest.raises(StorageFullError):
            manager.push("new", durable=False, tags=["a"])
        with pytest.raises(StorageFullError):
            manager.push_batch("new", [("n", 1)])
        assert manager.counts("q").total == 19
        assert manager.queues() == ["other", "q"]
        # what is there can be worked off
        held = manager.pull("q")
        assert held is not None
        assert manager.ack(held).applied
        disk.mend()
        manager.flush()
        assert not manager.push("q", custom_id="one").duplicate
        manager.flush()
        assert len(on_disk(path)) == 21


def test_a_closed_manager_says_that_it_is_closed_whatever_the_disk_does(
    disk: Disk, path: Path
) -> None:
    manager = QueueManager(path)
    failing(manager, disk)
    with pytest.raises(StorageError):
        manager.close()
    for options in ({}, {"durable": True}, {"custom_id": "one"}):
        with pytest.raises(ManagerClosedError):
            manager.push("q", **options)


@pytest.mark.slow
def test_bulk_work_on_the_queue_keeps_up_with_the_writer(disk: Disk, path: Path) -> None:
    """Whoever has marked something waits, after release, while the writer is far behind."""
    calls = {
        "drain": lambda: manager.drain("pending"),
        "clean": lambda: manager.clean("done", 0, state="completed"),
        "retry_all": lambda: manager.retry_all("done", "completed"),
        "promote_all": lambda: manager.promote_all("late"),
        "purge": lambda: Queue("dead", manager).dlq.purge(),
        "revive": lambda: Queue("dead2", manager).dlq.retry_all(),
        "release": lambda: manager.release(held),
        "fail": lambda: manager.fail(failed, "no"),
        "discard": lambda: manager.discard(wanted),
        "change_priority": lambda: manager.change_priority(moved, 5),
    }
    storage = SqliteStorage(path, max_lag=0.001)
    with QueueManager(storage) as manager:
        done = manager.push_batch("done", [("n", 1)] * 4)
        manager.ack_batch([Ack(job) for job in manager.pull_batch("done", 2)])
        assert done
        manager.push("pending")
        manager.push("late", delay=60)
        for name in ("dead", "dead2"):
            manager.discard(manager.push(name))
        manager.push_batch("held", [("n", 1)] * 2)
        held, failed = manager.pull_batch("held", 2)
        wanted, moved = manager.push_batch("other", [("n", 1)] * 2)
        for name, call in calls.items():
            manager.flush()
            disk.reached.clear()
            disk.gate.clear()
            before = threading.Thread(target=manager.push, args=("x",))
            before.start()
            assert disk.reached.wait(60), name
            while storage.health().lag_ms < 5:
                before.join(0.001)
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(0.02)
            held_up = thread.is_alive()
            disk.gate.set()
            thread.join(60)
            before.join(60)
            assert held_up, name
            assert not thread.is_alive(), name


# -- loops and workers ---------------------------------------------------------------------------


def test_a_loop_is_not_held_up_by_a_slow_disk(disk: Disk, path: Path) -> None:
    storage = SqliteStorage(path, max_lag=0.001)
    with QueueManager(storage) as manager:
        disk.gate.clear()

        async def push_all() -> None:
            while not disk.reached.is_set():
                manager.push("q")
                await asyncio.sleep(0.002)
            for _ in range(20):
                await asyncio.sleep(0.001)
                manager.push("q")
                held = manager.pull("q")
                assert held is not None
                manager.ack(held)

        asyncio.run(push_all())
        # and anybody else is: not at a push within the millisecond in which another has just looked
        storage._writer._look_at = 0.0
        blocked = threading.Thread(target=manager.push, args=("q",))
        blocked.start()
        blocked.join(0.05)
        assert blocked.is_alive()
        disk.gate.set()
        blocked.join(60)
        assert not blocked.is_alive()


def test_a_durable_job_is_awaited_in_a_loop(manager: QueueManager) -> None:
    queue = Queue("q", manager)

    async def run() -> Any:
        job = queue.add("n", 20, durable=True)
        return await job

    with Worker(queue, lambda job: job.data + 1):
        assert asyncio.run(run()) == 21


def test_a_worker_puts_the_outcome_of_a_durable_job_on_disk_before_the_next(
    manager: QueueManager, path: Path
) -> None:
    manager.push_batch("q", [JobSpec("n", i, durable=True) for i in range(5)])
    seen = []

    def handler(job: Any) -> None:
        states = list(on_disk(path).values())
        seen.append((states.count(COMPLETED), job.data))

    with Worker("q", handler, manager=manager, prefetch=5):
        manager.wait_until_empty("q", 60)
    assert seen == [(i, i) for i in range(5)]


def test_a_worker_reports_an_outcome_that_is_not_on_disk_and_goes_on(
    manager: QueueManager, disk: Disk
) -> None:
    jobs = manager.push_batch("q", [JobSpec("n", i, durable=True, attempts=1) for i in range(4)])
    told: list[tuple[str, Any]] = []

    def handler(job: Any) -> None:
        disk.fail()
        if job.data == 3:
            raise ValueError("no")

    worker = Worker("q", handler, manager=manager, prefetch=4)
    worker.on("completed", lambda job, result: told.append(("completed", job.data)))
    worker.on("failed", lambda job, error, again: told.append(("failed", again)))
    worker.on("error", lambda error: told.append(("error", error.accepted)))
    with worker:
        manager.wait_until_empty("q", 60)
    assert [state for _, state in told if state is True] == [True] * 4
    assert [n for kind, n in told if kind == "completed"] == [0, 1, 2]
    assert ("failed", False) in told
    assert [str(manager.get_state(job)) for job in jobs] == ["completed"] * 3 + ["failed"]


# -- after an unclean end ------------------------------------------------------------------------


@pytest.fixture
def crashed(disk: Disk, path: Path, tmp_path: Path) -> Path:
    """The file of a process that has died with two jobs waiting."""
    with QueueManager(path) as manager:
        manager.push("q", "old", custom_id="old")
        manager.push("q", "older", priority=-1)
        manager.flush()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"crashed.db{suffix}")
    return tmp_path / "crashed.db"


ACTIVE_ON_DISK = 2


@pytest.mark.parametrize("how", ["pull", "pull_batch", "wait"])
def test_a_recovered_job_is_handed_out_once_its_start_is_on_disk(crashed: Path, how: str) -> None:
    with QueueManager(SqliteStorage(crashed, **SLOW)) as manager:  # type: ignore[arg-type]
        if how == "pull_batch":
            jobs = manager.pull_batch("q", 2)
        else:
            held = manager.pull("q", 0 if how == "pull" else 5)
            jobs = [] if held is None else [held]
        assert jobs
        states = on_disk(crashed)
        assert {states[job.id] for job in jobs} == {ACTIVE_ON_DISK}


def test_after_a_clean_end_nobody_waits_for_a_start(disk: Disk, path: Path) -> None:
    with QueueManager(path) as manager:
        manager.push("q")
    with QueueManager(SqliteStorage(path, **SLOW)) as manager:  # type: ignore[arg-type]
        held = manager.pull("q")
        assert held is not None
        assert on_disk(path)[held.id] == PENDING


def test_a_recovered_job_that_cannot_be_committed_is_not_handed_out(
    crashed: Path, disk: Disk
) -> None:
    with QueueManager(SqliteStorage(crashed)) as manager:
        manager.pause("q")
        failing(manager, disk)
        manager.resume("q")
        for pull in (
            lambda: manager.pull("q"),
            lambda: manager.pull_batch("q", 2),
            lambda: manager.pull("q", 5),
        ):
            with pytest.raises(StorageError, match="recovered") as raised:
                pull()
            assert not raised.value.accepted
            counts = manager.counts("q")
            assert (counts.waiting + counts.prioritized, counts.active) == (2, 0)
        disk.mend()
        manager.flush()
        held = manager.pull("q")
        assert held is not None
        assert held.data == "old"
        assert held.attempts_made == 0


def test_new_jobs_and_all_jobs_after_a_minute_are_handed_out_at_once(
    crashed: Path, disk: Disk
) -> None:
    clock = VirtualClock()
    storage = SqliteStorage(crashed)
    with QueueManager(storage, clock=clock, background=False) as manager:
        clock.advance(seconds=1)
        manager.push("fresh", 1)
        failing(manager, disk)
        assert manager.pull("fresh") is not None
        with pytest.raises(StorageError):
            manager.pull("q")
        clock.advance(seconds=60)
        held = manager.pull("q")
        assert held is not None
        assert held.data == "old"
        disk.mend()


@pytest.mark.slow
def test_a_job_that_kills_its_process_at_once_is_charged_each_time(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = tmp_path / "killer.db"
    with QueueManager(path) as manager:
        job = manager.push("q", attempts=3, backoff=0)
    program = (
        "import os, sys\n"
        "from bunqueue_py import QueueManager, SqliteStorage, Worker\n"
        "manager = QueueManager(SqliteStorage(sys.argv[1], flush_interval=60, max_lag=60))\n"
        "if sys.argv[2] == 'clean':\n"
        "    job = manager.pull('q')\n"
        "    manager.flush()\n"
        "    os._exit(9)\n"
        "Worker('q', lambda job: os._exit(9), manager=manager).start()\n"
        "manager.wait_until_empty('q', 20)\n"
        "os._exit(0)\n"
    )
    codes = [
        subprocess.run([sys.executable, "-c", program, str(path), how], timeout=60).returncode
        for how in ("clean", "killer", "killer", "killer")
    ]
    # the third death is its last: the fourth process finds nothing to run
    assert codes == [9, 9, 9, 0]
    with QueueManager(path) as manager:
        found = manager.get_job(job.id)
        assert found is not None
        assert found.state is JobState.FAILED
        assert found.attempts_made == 3
        assert [str(entry.reason) for entry in Queue("q", manager).dlq.entries()] == ["worker_lost"]
