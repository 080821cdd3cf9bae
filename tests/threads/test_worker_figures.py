"""What the manager tells of each kind of worker, and what a job's verbs do in each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    BatchOptions,
    FlowNode,
    FlowProducer,
    Job,
    ManagerConfig,
    Queue,
    QueueEvents,
    QueueManager,
    WaitForChildren,
    Worker,
)
from bunqueue_py.client import queue_events
from bunqueue_py.ops.query import check
from tests.threads.patience import TIMEOUT, until


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    config = ManagerConfig(shards=1, listener_backlog_alarm=20)
    with QueueManager(storage, config=config) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def figures(manager: QueueManager) -> tuple[int, int, int]:
    (info,) = manager.workers.list()
    return info.active, info.processed, info.failed


def test_a_worker_with_coroutines_is_listed_with_what_it_does(
    manager: QueueManager, queue: Queue
) -> None:
    gate = threading.Event()

    async def handler(job: Job) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.001)
        if job.data == "bad":
            raise ValueError

    jobs = [queue.add("n", data, attempts=1) for data in ("well", "bad", "well")]
    with Worker(queue, handler, concurrency=5, name="ada"):
        until(lambda: figures(manager) == (3, 0, 0), "all three are under way")
        (info,) = manager.workers.list()
        assert (info.name, info.concurrency, info.stale) == ("ada", 5, False)
        gate.set()
        queue.wait_until_empty(timeout=TIMEOUT)
        until(lambda: figures(manager) == (0, 2, 1), "it is told how they ended")
    assert manager.workers.list() == []
    assert [job.refresh().state for job in jobs] == ["completed", "failed", "completed"]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_worker_of_batches_counts_each_job_that_it_holds(
    manager: QueueManager, queue: Queue, kind: str
) -> None:
    gate = threading.Event()

    def plain(jobs: list[Job]) -> list[Any]:
        assert gate.wait(TIMEOUT)
        return [ValueError(job.data) if job.data == 2 else None for job in jobs]

    async def coroutine(jobs: list[Job]) -> list[Any]:
        while not gate.is_set():
            await asyncio.sleep(0.001)
        return plain(jobs)

    for n in range(3):
        queue.add("n", n, attempts=1)
    handler: Any = plain if kind == "thread" else coroutine
    with Worker(queue, handler, batch=BatchOptions(3)):
        until(lambda: figures(manager) == (3, 0, 0), "the batch is under way")
        gate.set()
        queue.wait_until_empty(timeout=TIMEOUT)
        until(lambda: figures(manager) == (0, 2, 1), "it is told how they ended")


@pytest.mark.parametrize("kind", ["coroutine", "plain among coroutines"])
def test_a_handler_that_does_not_heed_its_timeout_is_listed_as_overdue(
    manager: QueueManager, queue: Queue, kind: str
) -> None:
    """B082."""
    gate = threading.Event()

    async def stubborn(job: Job) -> None:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue

    def plain(job: Job) -> None:
        assert gate.wait(TIMEOUT)

    handler: Any = stubborn if kind == "coroutine" else {"n": plain, "*": stubborn}
    with Worker(queue, handler, name="ada"):
        job = queue.add("n", timeout=0.01, attempts=1)
        until(lambda: manager.health().overdue, "its time is up, and it runs on")
        (late,) = manager.health().overdue
        assert (late.job_id, late.worker, late.timeout) == (job.id, "ada", 0.01)
        until(lambda: figures(manager)[0] == 0, "its worker does not hold the job any more")
        gate.set()
        until(lambda: not manager.health().overdue, "it has returned")
    assert job.refresh().failed_reason == "timeout"


def test_a_coroutine_writes_into_the_log_of_its_job(queue: Queue) -> None:
    async def handler(job: Job) -> None:
        job.log("first", "warning")
        await asyncio.sleep(0)
        job.update_progress(40, "half")
        job.log("second")

    with Worker(queue, handler):
        job = queue.add("n")
        job.result(timeout=TIMEOUT)
    assert [(e.level, e.text) for e in job.logs().entries] == [
        ("warning", "first"),
        ("info", "second"),
    ]
    assert (job.refresh().progress, job.progress_message) == (40, "half")


def test_a_coroutine_reads_its_family_and_waits_for_a_child_that_it_adds(
    manager: QueueManager, queue: Queue
) -> None:
    async def handler(job: Job) -> Any:
        if job.name != "parent":
            return [job.name, job.parent_id is not None]
        values = job.children_values()
        if len(values) < 2:
            job.add_child(FlowNode("q", "late"))
            raise WaitForChildren
        return list(values.values())

    with Worker(queue, handler, concurrency=2):
        node = FlowNode("q", "parent", children=[FlowNode("q", "early")], attempts=1)
        parent = FlowProducer(manager).add(node).job
        assert parent.result(timeout=TIMEOUT) == [["early", True], ["late", True]]
    assert parent.refresh().attempts_made == 0


# -- QueueEvents, as the manager sees them -------------------------------------------------------


def test_iterators_and_callbacks_are_among_the_listeners_of_the_stats(
    manager: QueueManager, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(queue_events, "BUFFER_SIZE", 25)
    gate, began = threading.Event(), threading.Event()

    def slow(event: object) -> None:
        began.set()
        assert gate.wait(TIMEOUT)

    with QueueEvents(queue) as events:
        reader = iter(events)
        events.on("pushed", slow)
        queue.add("n")
        assert began.wait(TIMEOUT)
        for _ in range(29):
            queue.add("n")
        stats = manager.stats().listeners
        # the callback has one in hand
        assert (stats.count, stats.backlog, stats.lost) == (2, 25 + 29, 5)
        problems = [text for text in manager.health().problems if "events behind" in text]
        assert any("iterator" in text and "25 events behind" in text for text in problems)
        assert any("events of q" in text and "29 events behind" in text for text in problems)
        until(lambda: "iterator over events has lost" in caplog.text, "what it lost is logged")
        assert events.lost == 5
        assert next(reader).sequence == 6
        gate.set()
    assert manager.stats().listeners.count == 0
