"""Mappings whose handlers are plain functions and coroutine functions, in one worker."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue_py import Job, JobFailedError, JobLogFilter, Queue, QueueManager, Worker
from bunqueue_py.ops.query import check
from tests.threads.patience import TIMEOUT, until


@pytest.fixture
def queue() -> Iterator[Queue]:
    with QueueManager() as manager:
        yield Queue("q", manager)
        check(manager._state)


class Plain:
    """A plain handler that says that it has begun, then waits to be let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.reasons: list[str | None] = []

    def __call__(self, job: Job) -> str:
        self.begun.release()
        assert self.gate.wait(TIMEOUT)
        self.reasons.append(job.cancelled.reason)
        return threading.current_thread().name


async def quick(job: Job) -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_plain_ones_run_on_threads_and_hold_up_no_coroutine(queue: Queue) -> None:
    plain = Plain()
    with Worker(queue, {"plain": plain, "*": quick}, concurrency=3, name="both"):
        slow = queue.add_bulk([("plain", None)] * 2)
        for _ in slow:
            assert plain.begun.acquire(timeout=TIMEOUT)
        assert queue.add("quick").result(timeout=TIMEOUT) == "bunqueue-both-loop"
        plain.gate.set()
        names = {job.result(timeout=TIMEOUT) for job in slow}
    assert names == {"bunqueue-both-hand-1", "bunqueue-both-hand-2"}
    assert not any("both" in thread.name for thread in threading.enumerate())


def test_concurrency_counts_both_kinds_together(queue: Queue) -> None:
    plain = Plain()
    with Worker(queue, {"plain": plain, "*": quick}, concurrency=1):
        queue.add("plain")
        assert plain.begun.acquire(timeout=TIMEOUT)
        other = queue.add("quick")
        assert queue.counts().active == 1
        plain.gate.set()
        other.result(timeout=TIMEOUT)


def test_what_a_plain_one_raises_fails_its_job(queue: Queue) -> None:
    def plain(job: Job) -> None:
        raise KeyError(job.name)

    with Worker(queue, {"plain": plain, "*": quick}):
        with pytest.raises(JobFailedError, match="KeyError: 'plain'") as caught:
            queue.add("plain", attempts=1).result(timeout=TIMEOUT)
        assert any("in plain" in line for line in caught.value.stacktrace)
        assert queue.add("quick").result(timeout=TIMEOUT)


def test_a_plain_one_past_its_timeout_keeps_its_place_until_it_returns(queue: Queue) -> None:
    """B082."""
    plain = Plain()
    with Worker(queue, {"plain": plain, "*": quick}, concurrency=1):
        job = queue.add("plain", timeout=0.02, attempts=1)
        assert plain.begun.acquire(timeout=TIMEOUT)
        with pytest.raises(JobFailedError):
            job.result(timeout=TIMEOUT)
        other = queue.add("quick")
        assert not threading.Event().wait(0.02)
        assert other.refresh().state == "waiting"
        plain.gate.set()
        other.result(timeout=TIMEOUT)
    assert plain.reasons == ["timeout"]
    assert job.refresh().failed_reason == "timeout"


def test_close_gives_the_job_of_a_plain_one_back_when_it_does_not_return(queue: Queue) -> None:
    plain = Plain()
    worker = Worker(queue, {"plain": plain, "*": quick}, name="both").start()
    job = queue.add("plain", attempts=1)
    assert plain.begun.acquire(timeout=TIMEOUT)
    assert not worker.close(force=True)
    assert worker.unfinished == [job.id]
    assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
    plain.gate.set()
    until(
        lambda: not any("both" in thread.name for thread in threading.enumerate()),
        "its threads end with it",
    )
    assert job.refresh().state == "waiting"


@pytest.mark.parametrize("whole", [False, True])
def test_a_plain_one_may_close_its_own_worker_and_manager(whole: bool) -> None:
    """B091."""
    closed: list[bool] = []
    manager = QueueManager()
    queue = Queue("q", manager)

    def plain(job: Job) -> str:
        closed.append(worker.close())
        if whole:
            manager.close()
        return "done"

    worker = Worker(queue, {"plain": plain, "*": quick}, name="both").start()
    job = queue.add("plain")
    until(
        lambda: not any("both" in thread.name for thread in threading.enumerate()),
        "its threads end",
    )
    assert closed == [False]
    if not whole:
        assert job.result(timeout=0) == "done"
    manager.close()


def test_on_the_callers_loop_they_see_the_context_of_the_start(queue: Queue) -> None:
    mine = contextvars.ContextVar("mine", default="nothing")
    seen: list[str] = []

    def plain(job: Job) -> None:
        seen.append(mine.get())
        mine.set("the job's")

    async def main() -> None:
        mine.set("the app's")
        async with Worker(queue, {"plain": plain, "*": quick}):
            mine.set("the adder's")
            await queue.add("plain")
            await queue.add("plain")

    asyncio.run(asyncio.wait_for(main(), TIMEOUT))
    assert seen == ["the app's"] * 2


def test_a_loop_that_is_shut_down_waits_for_no_plain_one(queue: Queue) -> None:
    plain = Plain()

    async def main() -> None:
        serving = asyncio.create_task(Worker(queue, {"plain": plain, "*": quick}).serve())
        queue.add("plain")
        while not plain.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)
        del serving

    asyncio.run(asyncio.wait_for(main(), TIMEOUT))
    (job,) = queue.get_jobs()
    assert (job.state, job.attempts_made) == ("waiting", 0)
    plain.gate.set()


def test_log_records_of_a_plain_one_say_their_job(queue: Queue) -> None:
    records: list[Any] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log = logging.getLogger("test.mixed")
    log.setLevel(logging.INFO)
    keeper = Keep()
    keeper.addFilter(JobLogFilter())
    log.addHandler(keeper)
    try:
        with Worker(queue, {"plain": lambda job: log.info("here"), "*": quick}):
            job = queue.add("plain")
            job.result(timeout=TIMEOUT)
    finally:
        log.removeHandler(keeper)
    assert [record.job_id for record in records] == [job.id]


# -- contexts of plain handlers ------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_a_context_variable_reaches_neither_a_handler_on_a_thread_nor_the_next_job(
    queue: Queue, batch: bool
) -> None:
    """B143; and what the adder has set reaches none."""
    from bunqueue_py import BatchOptions

    mine = contextvars.ContextVar("mine", default="nothing")
    seen: list[str] = []

    def handler(given: Any) -> None:
        seen.append(mine.get())
        mine.set("the job's")
        if len(seen) == 2:
            raise ValueError

    mine.set("the adder's")
    options: dict[str, Any] = {"batch": BatchOptions(2)} if batch else {}
    with Worker(queue, handler, **options):
        for _ in range(3):
            with pytest.raises(JobFailedError) if len(seen) == 1 else _nothing():
                queue.add("n", attempts=1).result(timeout=TIMEOUT)
    assert seen == ["nothing"] * 3


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()
