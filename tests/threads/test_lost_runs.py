"""Lost runs and owners on real threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue_py import Backoff, Job, Queue, QueueManager, Worker
from bunqueue_py.ops.query import check

TIMEOUT = 10.0


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager() as manager:
        yield manager
        check(manager._state)


class Gate:
    """A handler that says that it has begun, then waits to be let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, job: Job) -> Any:
        self.begun.release()
        assert self.open.wait(TIMEOUT)
        return job.data


def test_a_worker_is_the_owner_of_its_jobs_by_its_name(manager: QueueManager) -> None:
    """B022: what the handler returns after that has no effect; the job runs again."""
    queue, gate = Queue("q", manager), Gate()
    job = queue.add("n", 7)
    with Worker(queue, gate, name="ada"):
        assert gate.begun.acquire(timeout=TIMEOUT)
        assert manager.release_owner("bob") == 0
        assert manager.release_owner("ada") == 1
        assert job.refresh().state == "waiting"
        gate.open.set()
        assert gate.begun.acquire(timeout=TIMEOUT), "it runs again"
        assert job.result(timeout=TIMEOUT) == 7
    assert (job.refresh().attempts_made, job.stall_count) == (0, 0)


def test_dead_letters_come_back_and_go_on_the_schedulers_thread(manager: QueueManager) -> None:
    queue = Queue("q", manager, defaults={"attempts": 1, "backoff": Backoff.fixed(0)})
    queue.dlq.configure(auto_retry=True, retry_interval=0.01, max_retries=2)
    runs = []
    thrice = threading.Event()

    def handler(job: Job) -> None:
        runs.append(job.attempt)
        if len(runs) == 3:
            thrice.set()
        raise ValueError("always")

    with Worker(queue, handler):
        queue.add("n")
        assert thrice.wait(TIMEOUT)
        queue.wait_until_empty(timeout=TIMEOUT)
    (entry,) = queue.dlq.entries()
    assert (entry.retry_count, entry.next_retry_at, runs) == (2, None, [1, 1, 1])
    gone = threading.Event()
    manager.events.subscribe(lambda event: gone.set(), types="cleaned")
    queue.dlq.configure(max_age=0.001)
    for _ in range(1000):
        if not len(queue.dlq):
            break
        threading.Event().wait(0.01)
    assert len(queue.dlq) == 0


@pytest.mark.slow
def test_a_closing_worker_goes_on_with_its_heartbeats_until_its_handler_has_returned(
    manager: QueueManager,
) -> None:
    """B016"""
    queue, gate, other = Queue("q", manager), Gate(), Gate()
    job = queue.add("n", 7)
    closing = Worker(queue, gate, lock_duration=0.3).start()
    assert gate.begun.acquire(timeout=TIMEOUT)
    with Worker(queue, other):
        thread = threading.Thread(target=closing.close)
        thread.start()
        assert not other.begun.acquire(timeout=1.0), "three locks long"
        gate.open.set()
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert job.result(timeout=TIMEOUT) == 7
        other.open.set()
    assert (job.refresh().attempts_made, job.stall_count) == (0, 0)
