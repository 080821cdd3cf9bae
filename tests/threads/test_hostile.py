"""Workers under whatever may happen to them: children that are stopped and killed, closes at every
moment, forks. No job is lost, none ends twice, nothing hangs, nothing is left over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Backoff, BatchOptions, Job, ManagerConfig, Queue, QueueManager, Worker
from bunqueue_py.ops.query import check
from tests.fixtures import process_handlers as handlers
from tests.threads.patience import TIMEOUT, until

pytestmark = pytest.mark.slow


def own_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("bunqueue"))


def open_files() -> int:
    # it keeps one pipe for as long as this process lives
    resource_tracker.ensure_running()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


class Books:
    """Counts how often each job is told to have ended."""

    def __init__(self, manager: QueueManager) -> None:
        self.completed: Counter[str | None] = Counter()
        manager.events.subscribe(lambda e: self.completed.update([e.job_id]), types="completed")

    def balance(self, queue: Queue, jobs: list[Job]) -> None:
        queue.wait_until_empty(timeout=20 * TIMEOUT)
        counts = queue.counts()
        assert (counts.completed, counts.failed) == (len(jobs), 0)
        until(lambda: len(self.completed) == len(jobs), "each end is told")
        assert set(self.completed.values()) == {1}
        check(queue.manager._state)  # type: ignore[attr-defined]


def settings() -> Any:
    return {"backoff": Backoff.fixed(0), "attempts": 1000}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")
def test_processes_that_are_stopped_and_killed_at_random_lose_no_job(
    tmp_path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    dice = random.Random(7)
    before = own_threads(), open_files()
    over = threading.Event()
    pids: set[int] = set()

    def children(worker: Worker) -> list[Any]:
        return list(worker._crew._children.values())  # type: ignore[union-attr]

    def torment(worker: Worker) -> None:
        while not over.wait(dice.uniform(0, 0.4)):
            living = [child for child in children(worker) if child.is_ready]
            if living:
                pid = dice.choice(living)._process.pid
                pids.add(pid)
                # one that stands still is killed when the time of its job is over
                try:
                    os.kill(pid, dice.choice((signal.SIGSTOP, signal.SIGKILL)))
                except ProcessLookupError:
                    pass

    with QueueManager(tmp_path / "jobs.db", config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager, defaults=settings())
        books = Books(manager)
        jobs = [queue.add("n", 0.03, timeout=2) for _ in range(slow_rounds(30, 600))]
        with Worker(queue, handlers.slowly, executor="process", concurrency=3) as worker:
            tormentor = threading.Thread(target=torment, args=(worker,))
            tormentor.start()
            try:
                left = len(jobs) // 5
                until_few(queue, left)
            finally:
                over.set()
                tormentor.join(TIMEOUT)
            books.balance(queue, jobs)
    assert pids
    until(lambda: not any(map(_exists, pids)), "no process is left")
    with QueueManager(tmp_path / "jobs.db") as manager:
        assert manager.verify().ok
        assert manager.counts("q").completed == len(jobs)
    assert (own_threads(), open_files()) == before


def until_few(queue: Queue, left: int) -> None:
    for _ in range(60):
        try:
            until(lambda: len(queue) <= left, "most are done")
            return
        except AssertionError:
            continue
    raise AssertionError(f"{queue.counts()} after ten minutes")


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def coroutine(job: Job) -> Any:
    await asyncio.sleep(job.data)
    return job.id


def plain(job: Job) -> Any:
    job.cancelled.wait(job.data)
    return job.id


def batch(jobs: list[Job]) -> list[Any]:
    return [plain(job) for job in jobs]


async def batch_of_coroutines(jobs: list[Job]) -> list[Any]:
    return [await coroutine(job) for job in jobs]


CREWS: dict[str, dict[str, Any]] = {
    "thread": {"handler": plain},
    "async": {"handler": coroutine},
    "mixed": {"handler": {"plain": plain, "*": coroutine}},
    "batch": {"handler": batch, "batch": BatchOptions(4, max_wait=0.001)},
    "async batch": {"handler": batch_of_coroutines, "batch": BatchOptions(4, max_wait=0.001)},
}


@pytest.mark.parametrize("kind", list(CREWS))
def test_workers_that_are_closed_at_any_moment_lose_no_job(
    tmp_path: Path, kind: str, slow_rounds: Callable[[int, int], int]
) -> None:
    dice = random.Random(kind)
    before = own_threads(), open_files()
    with QueueManager(tmp_path / "jobs.db", config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager, defaults=settings())
        books = Books(manager)
        jobs = []
        for _ in range(slow_rounds(12, 400)):
            jobs += [
                queue.add(dice.choice(("plain", "other")), dice.choice((0, 0, 0.002)))
                for _ in range(12)
            ]
            worker = Worker(queue, concurrency=3, **CREWS[kind]).start()
            threading.Event().wait(dice.uniform(0, 0.012))
            how = dice.choice(("force", "soon", "patient", "pause", "twice"))
            if how == "pause":
                worker.pause()
            if how == "twice":
                other = threading.Thread(target=worker.close)
                other.start()
            worker.close(timeout=0.001 if how == "soon" else None, force=how == "force")
            if how == "twice":
                other.join(TIMEOUT)
                assert not other.is_alive()
            assert worker.is_closed
        with Worker(queue, concurrency=3, **CREWS[kind]):
            books.balance(queue, jobs)
        assert manager.workers.list() == []
    assert (own_threads(), open_files()) == before


@pytest.mark.parametrize("kind", ["thread", "async", "mixed"])
def test_a_manager_that_is_closed_at_any_moment_leaves_every_job_on_its_file(
    tmp_path: Path, kind: str, slow_rounds: Callable[[int, int], int]
) -> None:
    dice = random.Random(kind)
    before = own_threads(), open_files()
    added = 0
    for _ in range(slow_rounds(6, 150)):
        manager = QueueManager(tmp_path / "jobs.db")
        queue = Queue("q", manager, defaults=settings())
        Worker(queue, concurrency=3, close_timeout=dice.choice((0, 1)), **CREWS[kind]).start()
        added += 12
        queue.add_bulk([(dice.choice(("plain", "other")), 0.002)] * 12)
        threading.Event().wait(dice.uniform(0, 0.01))
        manager.close()
    with QueueManager(tmp_path / "jobs.db") as manager:
        assert manager.verify().ok
        assert manager.counts("q").total == added
        assert {j.attempts_made for j in manager.get_jobs("q", limit=100_000)} == {0}
        queue = Queue("q", manager)
        with Worker(queue, concurrency=3, **CREWS[kind]):
            queue.wait_until_empty(timeout=TIMEOUT)
        assert manager.counts("q").completed == added
    assert (own_threads(), open_files()) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["thread", "async", "mixed", "process"])
def test_forks_at_any_moment_disturb_no_worker(
    tmp_path: Path, kind: str, slow_rounds: Callable[[int, int], int]
) -> None:
    """B088."""
    crew = dict(CREWS.get(kind, {"handler": handlers.slowly, "executor": "process"}))
    before = own_threads(), open_files()
    with QueueManager(tmp_path / "jobs.db", config=ManagerConfig(shards=1)) as manager:
        queue = Queue("q", manager, defaults=settings())
        books = Books(manager)
        jobs = []
        with Worker(queue, concurrency=2, **crew) as worker:
            for _ in range(slow_rounds(8, 200)):
                jobs += [queue.add(name, 0.001) for name in ("plain", "other") * 3]
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        code = 0 if worker.close() and not worker.is_running else 2
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
            books.balance(queue, jobs)
    assert (own_threads(), open_files()) == before
