"""Faults that users of other queues met with files and crashes, each as it was met.

A kill is a copy of the file and its log while they are in use, which is all that a kill leaves.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Job,
    JobEvent,
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
    SerializationError,
    SqliteStorage,
    StorageError,
    StorageFullError,
    StorageLockedError,
    ValidationError,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock
from bunqueue_py.testing.pytest_plugin import no_thread_left
from tests.faulty_disk import Disk
from tests.threads.patience import until
from tests.unit.sqlite_files import crash_copy, neighbour, posix

TIMEOUT = 10.0


def stepped(path: Path, clock: VirtualClock) -> QueueManager:
    return QueueManager(path, clock=clock, background=False)


@posix
def test_a_job_whose_process_is_killed_runs_once_more_and_has_one_stall(tmp_path: Path) -> None:
    # B001: a killed process, and one that lives on and loses the lease alone
    path, job_ids = tmp_path / "jobs.db", []

    def begin() -> None:
        manager = stepped(path, VirtualClock())
        manager.push("q", 1, backoff=Backoff.fixed(0))
        assert manager.pull("q") is not None
        manager.flush()

    with neighbour(begin) as other:
        other.kill()
    clock = VirtualClock()
    with stepped(path, clock) as manager:
        heard: list[JobEvent] = []
        manager.events.subscribe(heard.append, types="stalled")
        for stalls in (1, 2):
            job = manager.pull("q")
            assert job is not None
            job_ids.append(job.id)
            assert (job.stall_count, job.attempts_made) == (stalls, stalls)
            assert manager.pull("q") is None
            clock.advance(seconds=31)
            manager.run_pending()
        # nobody could listen to the first
        assert [event.job_id for event in heard] == [job_ids[0]] * 2
        assert job_ids[0] == job_ids[1]
        assert manager.get_state(job_ids[0]) == "failed"


def test_a_file_that_is_full_takes_batches_whole_and_loses_no_run(tmp_path: Path) -> None:
    # B029
    path, clock = tmp_path / "a.db", VirtualClock()
    manager = stepped(path, clock)
    running = [manager.push("q", n, durable=True) for n in range(4)]
    held = manager.pull_batch("q", 4)
    manager.flush()
    storage: Any = manager._state.storage
    connection = storage._session._committer.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    batch = manager.push_batch("big", [JobSpec("n", "x" * 2_000) for _ in range(100)])
    with pytest.raises(StorageFullError) as full:
        manager.flush()
    cause: BaseException | None = full.value
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    assert cause is not None, "what SQLite said"
    with pytest.raises(StorageFullError) as refused:
        manager.push_batch("big", [JobSpec("n", durable=True) for _ in range(100)])
    assert not refused.value.accepted
    assert manager.counts("big").total == 100
    # what ends meanwhile has ended in memory; of what did not, the file has the run
    with pytest.raises(StorageFullError) as accepted:
        manager.ack(held[0], "done")
    assert accepted.value.accepted
    assert manager.get_state(running[0]) == "completed"
    with stepped(crash_copy(path, tmp_path / "b.db"), clock) as again:
        assert again.counts("big").total == 0, "all or nothing"
        assert again.counts("q").total == 4
    connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    manager.flush()
    assert manager.ack(held[1], "done").applied
    with stepped(crash_copy(path, tmp_path / "c.db"), clock) as again:
        assert [again.get_state(job) for job in running[:2]] == ["completed"] * 2
        assert [job.id for job in Queue("big", again).iter_jobs()] == [job.id for job in batch]
        check(again._state)
    manager.close()


@pytest.mark.parametrize("moved", [0, 1, 500])
def test_jobs_that_come_due_are_never_between_two_places(
    tmp_path: Path, disk: Disk, moved: int
) -> None:
    # B002: the hand-over is memory alone, so neither a failing disk nor a kill can halve it
    clock = VirtualClock()
    manager = stepped(tmp_path / "a.db", clock)
    due = [
        job.id for job in manager.push_batch("q", [JobSpec("n", i, delay=10) for i in range(503)])
    ]
    future = manager.push("q", "later", delay=1000)
    other = manager.push("other", "elsewhere", delay=10)
    manager.flush()
    clock.advance(seconds=20)
    disk.fail()
    for _ in range(moved):
        job = manager.pull("q")
        assert job is not None
        manager.release(job)

    def held(where: QueueManager) -> Counter[str]:
        queue = Queue("q", where)
        assert where.counts("other").total == 1
        assert where.get_state(future.id) == "delayed"
        assert where.get_job(other.id) is not None
        return Counter(job.id for job in queue.iter_jobs() if job.id != future.id)

    assert held(manager) == Counter(due)
    again = stepped(crash_copy(tmp_path / "a.db", tmp_path / "b.db"), clock)
    assert held(again) == Counter(due)
    disk.mend()
    manager.flush()
    assert held(manager) == Counter(due)
    again.close()
    manager.close()


def test_after_a_restart_state_result_counts_and_listings_agree_as_before(tmp_path: Path) -> None:
    # B004
    clock = VirtualClock()
    manager = stepped(tmp_path / "jobs.db", clock)
    jobs = [manager.push("q", i, attempts=1) for i in range(5)]
    for i, job in enumerate(jobs):
        run = manager.pull("q")
        assert run is not None
        assert run.id == job.id
        if i < 3:
            manager.ack(run, {"n": i})
        else:
            manager.fail(run, "no")
    jobs += [manager.push("q", "d", delay=60), manager.push("q", "w")]

    def told(where: QueueManager) -> list[Any]:
        queue = Queue("q", where)
        states = {job.id: where.get_state(job.id) for job in jobs}
        for state in ("completed", "failed", "delayed", "waiting"):
            listed = {job.id for job in queue.get_jobs([state])}
            assert listed == {i for i, s in states.items() if s == state}
            assert getattr(where.counts("q"), state) == len(listed)
        results = [where.get_result(job.id) for job in jobs[:3]]
        return [states, where.counts("q"), results]

    before = told(manager)
    manager.close()
    with stepped(tmp_path / "jobs.db", clock) as again:
        assert told(again) == before


def test_what_a_killed_process_held_finishes_with_one_worker_and_nothing_else(
    tmp_path: Path,
) -> None:
    # B005
    with QueueManager(tmp_path / "a.db") as manager:
        specs = [("n", i) for i in range(8)]
        jobs = [manager.push("q", data, backoff=Backoff.fixed(0)) for _, data in specs]
        assert len(manager.pull_batch("q", 5)) == 5
        manager.flush()
        path = crash_copy(tmp_path / "a.db", tmp_path / "b.db")
    with QueueManager(path) as again:
        queue = Queue("q", again)
        with Worker(queue, lambda job: job.data):
            assert [again.wait_for(job.id, TIMEOUT) for job in jobs] == list(range(8))
        assert queue.counts().active == 0


def test_a_kill_in_the_middle_of_a_sweep_leaves_nothing_that_the_next_process_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # B007: the background tasks hold memory only, and begin anew with the process
    clock = VirtualClock()
    manager = stepped(tmp_path / "a.db", clock)
    manager.push_batch("q", [JobSpec("n", i, backoff=Backoff.fixed(0)) for i in range(20)])
    assert len(manager.pull_batch("q", 20, lock_duration=5)) == 20
    manager.flush()
    clock.advance(seconds=6)
    path = None
    judged = 0

    from bunqueue_py.ops import leases  # the sweep's own name for it

    judge: Callable[..., Any] = leases.judge

    def judge_and_copy(*args: Any) -> Any:
        nonlocal path, judged
        judged += 1
        if judged == 10:
            path = crash_copy(tmp_path / "a.db", tmp_path / "b.db")
        return judge(*args)

    monkeypatch.setattr(leases, "judge", judge_and_copy)
    manager.run_pending()
    assert judged == 20
    assert path is not None
    with stepped(path, clock) as again:
        assert again.counts("q").active == 0
        assert len(again.pull_batch("q", 30)) == 20
        check(again._state)
    manager.close()


def test_what_goes_wrong_after_a_push_was_accepted_is_not_the_error_of_the_push(
    tmp_path: Path, disk: Disk
) -> None:
    # B010: a listener that raises, and a disk that is locked
    with stepped(tmp_path / "a.db", VirtualClock()) as manager:

        def raises(event: Any) -> None:
            raise sqlite3.OperationalError("database is locked")

        manager.events.subscribe(raises)
        disk.fault = sqlite3.OperationalError("database is locked")
        job = manager.push("q", 1, custom_id="once")
        manager.run_pending()
        again = manager.push("q", 1, custom_id="once")
        assert again.id == job.id
        assert again.duplicate
        disk.mend()
        manager.flush()
        assert manager.counts("q").total == 1


@pytest.mark.parametrize("how", ["refused", "raises"])
def test_where_a_write_ahead_log_cannot_be_had_the_opening_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # B025: never a surprise at the first push
    plain_connect = sqlite3.connect

    class Elsewhere(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            if "journal_mode" in sql:
                if how == "raises":
                    raise sqlite3.OperationalError("unable to open database file")
                return super().execute("SELECT 'delete'")
            return super().execute(sql, *values)

    def connect(*args: Any, **options: Any) -> Any:
        return plain_connect(*args, factory=Elsewhere, **options)

    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(StorageError, match=r"jobs\.db"):
        QueueManager(tmp_path / "jobs.db")
    monkeypatch.undo()
    with QueueManager(tmp_path / "jobs.db") as manager:
        manager.push("q", 1)


def test_a_disk_that_fails_for_a_while_is_one_event_and_few_lines_of_log(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    # B026
    with QueueManager(tmp_path / "jobs.db") as manager:
        queue = Queue("q", manager)
        heard: list[Any] = []
        manager.events.subscribe(heard.append, types="health")
        with Worker(queue, lambda job: None, concurrency=2), caplog.at_level(logging.WARNING):
            disk.fail()
            for i in range(200):
                queue.add("n", i)
            queue.wait_until_empty(timeout=TIMEOUT)
            storage = manager._state.storage
            assert storage is not None
            until(lambda: storage.health().failing_since_ms is not None, "the writer has seen it")
            disk.mend()
            until(lambda: storage.health().failing_since_ms is None, "it is written to again")
            manager.flush(timeout=TIMEOUT)
        until(lambda: len(heard) == 2, "one event when it begins, and one when it ends")
    assert len(caplog.records) <= 10


@pytest.mark.slow
def test_a_listing_that_is_left_standing_does_not_make_the_log_grow(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    # B028: pages are read by key, and no transaction is held between them
    path = tmp_path / "jobs.db"
    jobs = slow_rounds(5_000, 50_000)
    with QueueManager(path) as manager:
        queue = Queue("q", manager)
        queue.add_bulk([("n", i) for i in range(200)])
        listing = queue.iter_jobs()
        next(listing)
        log = path.with_name(path.name + "-wal")
        greatest = 0
        for _ in range(0, jobs, 500):
            manager.push_batch("work", [("n", "x" * 500)] * 500)
            for job in manager.pull_batch("work", 500):
                manager.ack(job)
            greatest = max(greatest, log.stat().st_size)
        assert greatest <= 64 * 1024 * 1024
        next(listing)
    assert not log.exists() or log.stat().st_size == 0


def test_a_log_cut_off_anywhere_opens_with_a_beginning_of_what_was_pushed(tmp_path: Path) -> None:
    # B031
    path = tmp_path / "jobs.db"
    manager = QueueManager(path, background=False)
    durable = [manager.push("q", i, durable=True).id for i in range(3)]
    log = path.with_name(path.name + "-wal")
    begun = log.stat().st_size
    later = [manager.push("q", i, durable=True).id for i in range(3, 8)]
    size = log.stat().st_size
    copies = tmp_path / "copies"
    for cut in range(max(begun, size - 8192), size + 1, 1024):
        copies.mkdir()
        copy = copies / "jobs.db"
        shutil.copy(path, copy)
        shutil.copy(log, copies / "jobs.db-wal")
        with open(copies / "jobs.db-wal", "r+b") as file:
            file.truncate(cut)
        with no_thread_left(2.0), QueueManager(copy, background=False) as again:
            found = [job.id for job in Queue("q", again).iter_jobs()]
            assert found == (durable + later)[: len(found)]
            assert len(found) >= len(durable)
            check(again._state)
        shutil.rmtree(copies)
    manager.close()


def with_bad_payload(path: Path, size: int) -> list[str]:
    """A file with three jobs, the payload of the second of which is no longer what it was."""
    with QueueManager(path, background=False) as manager:
        ids = [manager.push("q", ["x" * size, i], backoff=Backoff.fixed(0)).id for i in range(3)]
    with closing(sqlite3.connect(path)) as connection, connection:
        table = "payloads" if size > 4096 else "jobs"
        connection.execute(f"UPDATE {table} SET data = X'5B31FF' WHERE id = ?", (ids[1],))
    return ids


async def later(job: Job) -> Any:
    return job.data[1]


@pytest.mark.parametrize("handler", [lambda job: job.data[1], later], ids=["thread", "loop"])
@pytest.mark.parametrize("size", [1, 5000])
def test_a_payload_that_cannot_be_decoded_ends_its_job_and_holds_up_no_other(
    tmp_path: Path, handler: Callable[[Job], Any], size: int
) -> None:
    # B032
    ids = with_bad_payload(tmp_path / "jobs.db", size)
    with QueueManager(tmp_path / "jobs.db") as manager:
        queue = Queue("q", manager)
        with Worker(queue, handler):
            queue.wait_until_empty(timeout=TIMEOUT)
        assert [manager.get_state(i) for i in ids] == ["completed", "failed", "completed"]
        (entry,) = queue.dlq.entries()
        assert (entry.job.id, entry.reason, len(entry.attempts)) == (ids[1], "undecodable", 1)
        assert manager._state.index[ids[1]].data == b"[1\xff", "the bytes are kept"
        check(manager._state)
        assert queue.remove(ids[1])
        assert manager.counts("q").failed == 0


def test_whose_payload_cannot_be_decoded_is_told_of_that_job_alone(tmp_path: Path) -> None:
    ids = with_bad_payload(tmp_path / "jobs.db", 1)
    with stepped(tmp_path / "jobs.db", VirtualClock()) as manager:
        queue = Queue("q", manager)
        jobs = manager.pull_batch("q", 3)
        for job in jobs:
            try:
                bad = queue.get_job(ids[1])
                assert bad is not None
                raise AssertionError(bad.data)
            except SerializationError as error:
                manager.fail(job, error)
        states = [manager.get_state(i) for i in ids]
        assert states[1] == "failed"
        assert states[0] == states[2] != "failed"


def test_one_file_under_several_names_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # B035: and there is no file called :memory:
    monkeypatch.chdir(tmp_path)
    with QueueManager("q.db") as manager:
        manager.push("q", 1)
        (tmp_path / "link.db").symlink_to(tmp_path / "q.db")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for name in ("./q.db", tmp_path / "q.db", "link.db", SqliteStorage(b"q.db")):
            with pytest.raises(StorageLockedError):
                QueueManager(name)
        monkeypatch.chdir(elsewhere)
        with QueueManager("q.db") as other:
            assert other.counts("q").total == 0
    assert (tmp_path / "q.db").exists()
    with pytest.raises(ValidationError, match="memory"):
        SqliteStorage(":memory:")


@pytest.mark.slow
def test_a_steady_state_of_large_jobs_keeps_the_file_small(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    # B037
    path = tmp_path / "jobs.db"
    payload = "x" * 20_000
    with QueueManager(path, config=ManagerConfig(keep_completed=0)) as manager:
        for _ in range(slow_rounds(8, 1_000)):
            for _ in range(100):
                manager.push("q", payload, remove_on_complete=True)
            manager.flush()
            for job in manager.pull_batch("q", 100):
                manager.ack(job)
    live = 100 * len(payload)
    assert path.stat().st_size <= 10 * live + 16 * 1024 * 1024
