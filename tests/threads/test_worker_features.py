"""Workers on threads: pauses, batches, cancellation, `run()`, forks."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BatchOptions,
    BunqueueError,
    DelayJob,
    ForkedManagerError,
    Job,
    ManagerConfig,
    Queue,
    QueueManager,
    ValidationError,
    Worker,
)
from bunqueue_py.ops.query import check
from tests.threads.patience import TIMEOUT, until


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    with QueueManager(storage, config=ManagerConfig(shards=1)) as manager:
        yield manager
        if not manager._state.shards.shards[0].gate:
            check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})


# -- pause ---------------------------------------------------------------------------------------


def test_a_paused_worker_takes_nothing_and_others_of_its_queue_go_on(queue: Queue) -> None:
    mine: list[Any] = []
    with Worker(queue, lambda job: mine.append(job.data), concurrency=3) as worker:
        queue.add("n", 1).result(timeout=TIMEOUT)
        worker.pause()
        worker.pause()
        assert worker.is_paused
        assert worker.is_running
        job = queue.add("n", 2)
        with Worker(queue, lambda job: "other"):
            assert job.result(timeout=TIMEOUT) == "other"
        left = queue.add("n", 3)
        worker.resume()
        worker.resume()
        left.result(timeout=TIMEOUT)
    assert mine == [1, 3]


def test_a_worker_that_is_paused_can_be_closed(queue: Queue) -> None:
    worker = Worker(queue, lambda job: None, concurrency=4).start()
    worker.pause()
    job = queue.add("n")
    assert worker.close(timeout=TIMEOUT)
    assert job.refresh().state == "waiting"


def test_a_worker_may_be_paused_before_it_starts(queue: Queue) -> None:
    worker = Worker(queue, lambda job: job.data)
    worker.pause()
    with worker:
        job = queue.add("n", 1)
        assert not threading.Event().wait(0.02)
        assert job.refresh().state == "waiting"
        worker.resume()
        assert job.result(timeout=TIMEOUT) == 1


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_is_one_call_and_its_members_fail_one_by_one(queue: Queue) -> None:
    calls: list[list[int]] = []

    def handler(jobs: list[Job]) -> list[Any]:
        calls.append([job.data for job in jobs])
        return [
            ValueError("odd") if job.data % 2 and job.attempt == 1 else job.data * 10
            for job in jobs
        ]

    jobs = queue.add_bulk([("n", n) for n in range(5)])
    with Worker(queue, handler, batch=BatchOptions(5)):
        assert [job.result(timeout=TIMEOUT) for job in jobs] == [0, 10, 20, 30, 40]
    assert calls[0] == [0, 1, 2, 3, 4]
    assert [job.refresh().attempts_made for job in jobs] == [0, 1, 0, 1, 0]


def test_a_batch_waits_for_more_until_it_is_full(queue: Queue) -> None:
    calls: list[int] = []

    def handler(jobs: list[Job]) -> None:
        calls.append(len(jobs))

    with Worker(queue, handler, batch=BatchOptions(3, max_wait=TIMEOUT)):
        first = queue.add("n")
        until(lambda: first.refresh().state == "active", "the batch has begun to fill")
        assert calls == []
        queue.add("n")
        queue.add("n").result(timeout=TIMEOUT)
    assert calls == [3]


def test_a_batch_that_raises_fails_all_of_its_jobs(queue: Queue) -> None:
    def handler(jobs: list[Job]) -> None:
        raise DelayJob(3600) if jobs[0].name == "later" else ValueError("all")

    with Worker(queue, handler, batch=BatchOptions(2)):
        jobs = queue.add_bulk([("n", 1), ("n", 2)])
        until(lambda: queue.counts().failed == 2, "both have failed")
        later = queue.add("later")
        until(lambda: later.refresh().state == "delayed", "it is put off")
    assert {job.refresh().error for job in jobs} == {"ValueError: all"}


@pytest.mark.parametrize("returned", [5, [1], [1, 2, 3], {"a": 1}])
def test_a_batch_that_returns_nonsense_fails_for_good_and_is_not_repeated(
    queue: Queue, returned: Any
) -> None:
    calls: list[int] = []

    def handler(jobs: list[Job]) -> Any:
        calls.append(len(jobs))
        return returned

    queue.add_bulk([("n", 1), ("n", 2)])
    with Worker(queue, handler, batch=BatchOptions(2)):
        until(lambda: queue.counts().failed == 2, "both have failed")
    assert calls == [2]
    assert {e.reason for e in queue.dlq.entries()} == {"unrecoverable"}


def test_close_gives_a_whole_batch_back_uncharged(queue: Queue) -> None:
    begun, gate = threading.Event(), threading.Event()

    def handler(jobs: list[Job]) -> None:
        begun.set()
        assert gate.wait(TIMEOUT)

    jobs = queue.add_bulk([("n", n) for n in range(3)])
    worker = Worker(queue, handler, batch=BatchOptions(3)).start()
    assert begun.wait(TIMEOUT)
    assert not worker.close(timeout=0.01)
    assert sorted(worker.unfinished) == sorted(job.id for job in jobs)
    assert {(j.refresh().state, j.attempts_made) for j in jobs} == {("waiting", 0)}
    gate.set()


@pytest.mark.parametrize("bad", [5, BatchOptions(1), BatchOptions(2, -1), BatchOptions(10**6)])
def test_bad_batch_options_are_refused(manager: QueueManager, bad: Any) -> None:
    with pytest.raises(ValidationError, match="batch"):
        Worker("q", lambda jobs: None, manager=manager, batch=bad)


def test_a_mapping_takes_no_batches(manager: QueueManager) -> None:
    with pytest.raises(ValidationError, match="mapping"):
        Worker("q", {"*": lambda jobs: None}, manager=manager, batch=BatchOptions(2))


# -- cancel --------------------------------------------------------------------------------------


def test_a_handler_that_waits_is_woken_by_its_cancellation(queue: Queue) -> None:
    told: list[Any] = []

    def handler(job: Job) -> None:
        told.append(job.cancelled.wait(TIMEOUT))
        told.append(job.cancelled.reason)

    with Worker(queue, handler) as worker:
        job = queue.add("n")
        until(lambda: job.refresh().state == "active", "it runs")
        assert worker.cancel(job)
        until(lambda: len(told) == 2, "it is told")
    assert told == [True, "cancelled"]
    assert job.refresh().failed_reason == "cancelled"


def test_handlers_are_told_when_their_worker_begins_to_close(queue: Queue) -> None:
    begun = threading.Semaphore(0)

    def handler(job: Job) -> str:
        begun.release()
        assert job.cancelled.wait(TIMEOUT)
        return str(job.cancelled.reason)

    worker = Worker(queue, handler, concurrency=2).start()
    jobs = queue.add_bulk([("n", 1), ("n", 2)])
    for _ in jobs:
        assert begun.acquire(timeout=TIMEOUT)
    assert worker.close(timeout=TIMEOUT)
    assert [job.refresh().return_value for job in jobs] == ["closing", "closing"]


# -- run() ---------------------------------------------------------------------------------------


def test_run_blocks_until_the_worker_is_closed_and_works_on_any_thread(queue: Queue) -> None:
    """B083."""
    worker = Worker(queue, lambda job: job.data)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert queue.add("n", 5).result(timeout=TIMEOUT) == 5
    assert thread.is_alive()
    worker.close()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_run_closes_at_the_first_signal_and_puts_the_old_handlers_back(queue: Queue) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]

    def handler(job: Job) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.05)
        return "finished"

    job = queue.add("n")
    Worker(queue, handler).run()
    assert job.refresh().return_value == "finished"
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_waits_for_nobody(queue: Queue) -> None:
    gate = threading.Event()

    def handler(job: Job) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: worker.is_closed, "the first is heard")
        os.kill(os.getpid(), signal.SIGINT)
        assert gate.wait(TIMEOUT)

    job = queue.add("n")
    worker = Worker(queue, handler)
    worker.run()
    assert worker.unfinished == [job.id]
    assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
    gate.set()


def test_what_a_close_has_given_up_the_managers_own_close_does_not_wait_for(
    manager: QueueManager, queue: Queue
) -> None:
    """A second signal, and then the end of the `with` block around the manager."""
    began, gate = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        began.set()
        gate.wait()

    job = queue.add("n")
    worker = Worker(queue, handler, close_timeout=None).start()
    assert began.wait(TIMEOUT)
    assert not worker.close(force=True)
    closing = threading.Thread(target=manager.close)
    closing.start()
    closing.join(TIMEOUT)
    assert not closing.is_alive()
    gate.set()
    assert worker.unfinished == [job.id]


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_forked_child_has_no_worker_and_says_so_once(kind: str) -> None:
    """B088."""

    async def handler(job: Job) -> None: ...

    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, handler if kind == "async" else lambda job: None).start()
        queue.add("n").result(timeout=TIMEOUT)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = [f"running {worker.is_running}", f"closed {worker.close()}"]
            try:
                queue.add("n")
            except ForkedManagerError:
                said.append("refused")
            os.write(write, ";".join(said).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 1000) == b"running False;closed True;refused"
        os.close(read)
        assert worker.is_running
        queue.add("n").result(timeout=TIMEOUT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_warning_of_a_forked_child_names_its_workers(tmp_path: Path) -> None:
    """B088."""
    log = tmp_path / "log"
    handler = logging.FileHandler(log)
    logger = logging.getLogger("bunqueue_py")
    logger.addHandler(handler)
    try:
        with QueueManager() as manager, Worker("q", lambda job: None, manager=manager, name="w1"):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert log.read_text().count("w1") == 1


def test_a_worker_cannot_be_started_again_after_close(queue: Queue) -> None:
    worker = Worker(queue, lambda job: None)
    worker.close()
    with pytest.raises(BunqueueError, match="closed"):
        worker.start()
