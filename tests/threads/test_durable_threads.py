"""Durable calls of many threads: they share commits, and none returns before its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    JobState,
    ManagerClosedError,
    QueueManager,
    SqliteStorage,
    StorageError,
    Worker,
)
from bunqueue_py.model.job import COMPLETED
from tests.faulty_disk import Disk, on_disk

THREADS = 16
HOUR = 3600


def together(what: Callable[[int], Any], number: int = THREADS) -> list[threading.Thread]:
    threads = [threading.Thread(target=what, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def waiting(manager: QueueManager, number: int) -> None:
    """Returns once so many calls wait for a commit."""
    desk = manager._state.storage._writer._desk  # type: ignore[union-attr]
    pause = threading.Event()
    for _ in range(6000):
        if len(desk._tickets) >= number:
            return
        pause.wait(0.01)
    raise AssertionError(f"only {len(desk._tickets)} of {number} wait")


def test_durable_pushes_that_wait_at_once_share_a_commit(disk: Disk, tmp_path: Path) -> None:
    with QueueManager(SqliteStorage(tmp_path / "jobs.db")) as manager:
        manager.push("warm", durable=True)
        before = manager._state.storage.health().commits  # type: ignore[union-attr]
        disk.gate.clear()
        threads = together(lambda i: manager.push("q", i, durable=True))
        waiting(manager, THREADS)
        assert all(thread.is_alive() for thread in threads)
        disk.gate.set()
        joined(threads)
        # one that was under way when most came, and one for all of those
        assert manager._state.storage.health().commits <= before + 2  # type: ignore[union-attr]
        assert len(on_disk(tmp_path / "jobs.db")) == THREADS + 1


@pytest.mark.slow
def test_sixteen_threads_that_push_on_and_on_commit_far_less_often_than_they_push(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    each = 25
    missing: list[str] = []
    with QueueManager(SqliteStorage(path, flush_interval=HOUR, max_lag=HOUR)) as manager:

        def push(i: int) -> None:
            for n in range(each):
                job = manager.push(f"q{i}", n, durable=True)
                if n % 5 == 0 and job.id not in on_disk(path):
                    missing.append(job.id)

        joined(together(push))
        assert not missing
        commits = manager._state.storage.health().commits  # type: ignore[union-attr]
        assert commits <= THREADS * each / 3, commits


def test_durable_acks_that_wait_at_once_share_a_commit(disk: Disk, tmp_path: Path) -> None:
    with QueueManager(SqliteStorage(tmp_path / "jobs.db")) as manager:
        manager.push_batch("q", [("n", i) for i in range(3)])
        jobs = [manager.push("d", i, durable=True) for i in range(THREADS)]
        held = manager.pull_batch("d", THREADS)
        manager.flush()
        before = manager._state.storage.health().commits  # type: ignore[union-attr]
        disk.gate.clear()
        threads = together(lambda i: manager.ack(held[i], i))
        waiting(manager, THREADS)
        disk.gate.set()
        joined(threads)
        assert manager._state.storage.health().commits <= before + 2  # type: ignore[union-attr]
        states = on_disk(tmp_path / "jobs.db")
        assert {states[job.id] for job in jobs} == {COMPLETED}


def test_all_who_wait_hear_of_a_commit_that_fails_and_their_jobs_stand(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    with QueueManager(SqliteStorage(path)) as manager:
        errors: list[StorageError] = []

        def push(i: int) -> None:
            try:
                manager.push("q", i, durable=True)
            except StorageError as error:
                errors.append(error)

        disk.gate.clear()
        threads = together(push)
        waiting(manager, THREADS)
        disk.fail()
        disk.gate.set()
        joined(threads)
        assert len(errors) == THREADS
        accepted = {error.job_id for error in errors if error.accepted}
        assert accepted == {job.id for job in manager.get_jobs("q", [JobState.WAITING])}
        disk.mend()
        manager.flush()
        assert accepted == on_disk(path).keys()


def test_a_close_while_durable_pushes_wait_answers_every_one_with_the_truth(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    manager = QueueManager(SqliteStorage(path))
    kept: list[str] = []
    refused: list[int] = []

    def push(i: int) -> None:
        try:
            kept.append(manager.push("q", i, durable=True).id)
        except ManagerClosedError:
            refused.append(i)

    disk.gate.clear()
    threads = together(push)
    waiting(manager, THREADS)
    closer = threading.Thread(target=manager.close)
    closer.start()
    disk.gate.set()
    joined([closer, *threads])
    assert len(kept) + len(refused) == THREADS
    assert on_disk(path).keys() == set(kept)


def test_durable_jobs_that_workers_run_end_on_disk_in_any_mixture(
    disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    with QueueManager(SqliteStorage(path, max_lag=HOUR)) as manager:
        done: list[str] = []
        told_early: list[str] = []

        def tell(job: Any, result: Any) -> None:
            if job.data and on_disk(path).get(job.id) != COMPLETED:
                told_early.append(job.id)
            done.append(job.id)

        worker = Worker("q", lambda job: job.data, manager=manager, concurrency=4, prefetch=8)
        worker.on("completed", tell)
        with worker:
            together_pushed = together(
                lambda i: [manager.push("q", n % 2, durable=bool(n % 2)) for n in range(6)], 4
            )
            joined(together_pushed)
            manager.wait_until_empty("q", 60)
        assert len(done) == 24
        assert not told_early
