"""Threads of a worker that run one link of a chain after the other."""

import threading
from typing import Any

import pytest

from bunqueue_py import FlowNode, FlowProducer, Job, Queue, QueueManager, RateLimit, Worker
from bunqueue_py.ops.query import check
from tests.threads.patience import TIMEOUT, until


def a_chain(queue: Queue, length: int) -> list[Job]:
    """A chain of jobs whose data is their number."""
    return FlowProducer(queue.manager).chain([FlowNode(queue.name, "x", i) for i in range(length)])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_links_run_in_turn_each_with_the_result_of_the_one_before(concurrency: int) -> None:
    with QueueManager() as manager:
        queue, seen, told = Queue("q", manager), [], []
        links = a_chain(queue, 60)

        def handler(job: Job) -> int:
            seen.append((job.data, *job.children_values().values()))
            return int(job.data) * 10

        worker = Worker(queue, handler, concurrency=concurrency)
        worker.on("completed", lambda job, result: told.append((job.data, result)))
        with worker:
            assert links[-1].result(timeout=TIMEOUT) == 590
        assert seen == [(0,), *((i, (i - 1) * 10) for i in range(1, 60))]
        until(lambda: len(told) == 60, "every end was told of")
        assert told == [(i, i * 10) for i in range(60)]
        assert worker._crew.card.processed == 60
        check(manager._state)


def test_a_thread_that_goes_from_link_to_link_is_never_idle_for_the_beat() -> None:
    # the beat would arm no next heartbeat, and a long link would lose its lock
    with QueueManager() as manager:
        queue = Queue("q", manager)
        links = a_chain(queue, 5)
        worker = Worker(queue, lambda job: job.data)
        backend, taken = manager.backend, []
        go_on = backend.go_on

        def spy(*args: Any) -> Any:
            found = go_on(*args)
            (slot,) = worker._crew.slots  # type: ignore[union-attr]
            taken.append((found[2] is not None, slot.current is not None))
            return found

        backend.go_on = spy  # type: ignore[method-assign, assignment]
        with worker:
            assert links[-1].result(timeout=TIMEOUT) == 4
        assert taken[:4] == [(True, True)] * 4


def test_a_worker_that_is_paused_by_a_link_takes_the_next_when_it_resumes() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        links = a_chain(queue, 3)

        def handler(job: Job) -> int:
            if job.data == 0:
                worker.pause()
            return int(job.data)

        worker = Worker(queue, handler)
        with worker:
            assert links[0].result(timeout=TIMEOUT) == 0
            assert links[1].refresh().state == "waiting"
            worker.resume()
            assert links[2].result(timeout=TIMEOUT) == 2


def test_a_worker_that_is_closed_by_a_link_leaves_the_next() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        links = a_chain(queue, 3)
        closed = threading.Event()

        def handler(job: Job) -> int:
            worker.close()
            return int(job.data)

        worker = Worker(queue, handler)
        worker.on("closed", closed.set)
        worker.start()
        assert links[0].result(timeout=TIMEOUT) == 0
        assert closed.wait(TIMEOUT)
        assert links[1].refresh().state == "waiting"
        assert queue.counts().active == 0


def test_a_link_that_fails_ends_the_run_of_links() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        links = a_chain(queue, 4)

        def handler(job: Job) -> int:
            if job.data == 2 and job.attempt == 1:
                raise OSError("once")
            return int(job.data)

        with Worker(queue, handler):
            until(lambda: links[2].refresh().attempts_made == 1, "it failed once")
            links[2].promote()
            assert links[3].result(timeout=TIMEOUT) == 3


def test_what_follows_the_last_of_a_batch_runs_too() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        queue.add("x", 0)
        second = queue.add("x", 1)
        last = queue.add("x", 2, depends_on=[second])

        def handler(job: Job) -> int:
            if job.data == 1:
                # as the beat does when the batch takes its time: nothing is held any more
                (slot,) = worker._crew.slots  # type: ignore[union-attr]
                worker._crew._flush(slot)  # type: ignore[call-arg]
            return int(job.data)

        worker = Worker(queue, handler, prefetch=2)
        with worker:
            assert last.result(timeout=TIMEOUT) == 2


def test_a_worker_with_a_rate_of_its_own_starts_no_link_beyond_it() -> None:
    with QueueManager() as manager:
        queue, runs = Queue("q", manager), []
        links = a_chain(queue, 3)
        with Worker(queue, lambda job: runs.append(job.data), rate_limit=RateLimit(2, 3600)):
            links[1].result(timeout=TIMEOUT)
            until(lambda: links[2].refresh().state == "waiting", "the last is let go")
        assert runs == [0, 1]
