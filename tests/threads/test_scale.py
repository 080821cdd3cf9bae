"""A large backlog costs each call what a small one does, and many threads run each job once."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    JobSpec,
    ManagerConfig,
    Queue,
    QueueManager,
    StorageLockedError,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

pytestmark = pytest.mark.slow

Rounds = Callable[[int, int], int]
PATIENCE = 120


def test_many_threads_on_a_file_run_each_job_exactly_once(
    tmp_path: Path, slow_rounds: Rounds
) -> None:
    """B011: three workers of eight threads, in place of three processes; a second owner of the file
    is refused by its type."""
    n, runs, lock = slow_rounds(1000, 5000), Counter[str](), threading.Lock()

    def handler(job: Any) -> None:
        with lock:
            runs[job.id] += 1

    path = tmp_path / "jobs.db"
    with QueueManager(path) as manager:
        queue = Queue("q", manager)
        workers = [Worker(queue, handler, concurrency=8, name=f"w{i}") for i in range(3)]
        jobs = queue.add_bulk([("n", i) for i in range(n)])
        for worker in workers:
            worker.start()
        with pytest.raises(StorageLockedError):
            QueueManager(path)
        queue.wait_until_empty(timeout=PATIENCE)
        infos = manager.workers.list()
        assert sum(info.processed for info in infos) == n
        assert len(infos) == 3
    assert set(runs) == {job.id for job in jobs}
    assert set(runs.values()) == {1}


class Steps:
    """Counts the lines of Python that a call runs."""

    def __init__(self) -> None:
        self.lines = 0

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        self.lines += event == "line"
        return self.trace

    def of(self, call: Callable[[], Any]) -> int:
        before, self.lines = sys.gettrace(), 0
        sys.settrace(self.trace)
        try:
            call()
        finally:
            sys.settrace(before)
        return self.lines


def backlog(manager: QueueManager, clock: VirtualClock, n: int) -> Queue:
    """n waiting jobs, a fifth as many delayed, half as many completed."""
    queue = Queue("q", manager)
    manager.push_batch(queue, (JobSpec("n", i) for i in range(n // 2)))
    while jobs := manager.pull_batch(queue, 500):
        manager.ack_batch(Ack(job) for job in jobs)
        clock.advance(milliseconds=1)
    for first in range(0, n, 50_000):
        many = range(first, min(n, first + 50_000))
        manager.push_batch(queue, (JobSpec("n", i) for i in many))
    manager.push_batch(queue, (JobSpec("n", i, delay=100 + i) for i in range(n // 5)))
    return queue


def cost(storage: Path | None, n: int) -> dict[str, int]:
    """The lines that each call runs with that backlog: the fewest of several."""
    clock, steps = VirtualClock(), Steps()
    with QueueManager(
        storage, clock=clock, background=False, config=ManagerConfig(shards=1)
    ) as manager:
        queue = backlog(manager, clock, n)
        manager.run_pending()
        held: list[Any] = []

        def pull_and_ack() -> None:
            job = manager.pull(queue)
            assert job is not None
            held.append(job)
            manager.ack(job)

        calls: dict[str, Callable[[], Any]] = {
            "push": lambda: queue.add("n"),
            "pull and ack": pull_and_ack,
            "counts": queue.counts,
            "a page": lambda: queue.get_jobs(["waiting"], limit=20),
            "a page of completed": lambda: queue.get_jobs(["completed"], limit=20),
            "promote": lambda: queue.promote_all(limit=1),
            "clean": lambda: queue.clean(0, state="completed", limit=5),
        }
        found = {name: min(steps.of(call) for _ in range(5)) for name, call in calls.items()}
        clock.advance(seconds=100 + n // 10)
        assert queue.counts().delayed < n // 5
        found["a pull with many due"] = steps.of(pull_and_ack)
        check(manager._state)
        return found


@pytest.mark.parametrize("on", ["memory", "sqlite"])
def test_no_call_grows_with_the_backlog(tmp_path: Path, slow_rounds: Rounds, on: str) -> None:
    """B140: counted in steps, not in time; the file is written, so its row counts too."""
    few, many = 6_000, slow_rounds(20_000, 200_000)
    costs = [cost(None if on == "memory" else tmp_path / f"{n}.db", n) for n in (few, many)]
    for name, before in costs[0].items():
        after = costs[1][name]
        print(f"{name}: {before:,} lines with {few:,} jobs, {after:,} with {many:,}")
        assert after <= before * 1.5 + 60, name


def test_what_is_asked_of_a_file_goes_by_an_index(tmp_path: Path) -> None:
    """B140: no question about one job or one queue reads the whole table."""
    path = tmp_path / "jobs.db"
    with QueueManager(path, config=ManagerConfig(keep_completed=None)) as manager:
        queue = Queue("q", manager)
        queue.add("n")
        job = manager.pull(queue)
        assert job is not None
        manager.ack(job)
        manager.flush()
    with closing(sqlite3.connect(path)) as file:
        for question in (
            "SELECT * FROM jobs WHERE id = 'x'",
            "SELECT id FROM jobs WHERE queue = 'q' AND state = 4",
        ):
            plan = " ".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {question}"))
            assert "USING" in plan, f"{question}: {plan}"
            assert "INDEX" in plan or "PRIMARY KEY" in plan, f"{question}: {plan}"
