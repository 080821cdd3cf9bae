"""Coroutine handlers: on the worker's own event loop, and on the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BatchOptions,
    DelayJob,
    Job,
    JobFailedError,
    ManagerConfig,
    Queue,
    QueueManager,
    RateLimit,
    RateLimited,
    UnrecoverableError,
    Worker,
)
from bunqueue_py.ops.query import check
from tests.threads.patience import TIMEOUT, until

Work = Callable[[Job], Awaitable[Any]]


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    with QueueManager(storage, config=ManagerConfig(shards=1)) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager, defaults={"backoff": Backoff.fixed(0)})


class Gate:
    """A coroutine handler that says that it has begun, then waits to be let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ended: list[str] = []
        self._open = threading.Event()

    async def __call__(self, job: Job) -> Any:
        self.begun.release()
        try:
            while not self._open.is_set():
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return job.data

    def await_begun(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=TIMEOUT), "the handler never began"

    def let_go(self) -> None:
        self._open.set()


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), TIMEOUT)

    return asyncio.run(bounded())


# -- on a loop of its own ----------------------------------------------------------------------


def test_a_coroutine_handler_runs_and_its_return_value_is_the_result(queue: Queue) -> None:
    async def double(job: Job) -> int:
        await asyncio.sleep(0)
        return int(job.data) * 2

    jobs = queue.add_bulk([("n", n) for n in range(30)])
    with Worker(queue, double, concurrency=4):
        assert [job.result(timeout=TIMEOUT) for job in jobs] == [2 * n for n in range(30)]


def test_as_many_coroutines_run_at_once_as_the_concurrency_says(queue: Queue) -> None:
    gate = Gate()
    queue.add_bulk([("n", n) for n in range(20)])
    with Worker(queue, gate, concurrency=10):
        gate.await_begun(10)
        assert queue.counts().active == 10
        assert not gate.begun.acquire(blocking=False)
        gate.let_go()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 20


def test_a_mapping_of_coroutine_functions_is_chosen_from_by_name(queue: Queue) -> None:
    async def one(job: Job) -> str:
        return "one"

    async def rest(job: Job) -> str:
        return "rest"

    with Worker(queue, {"one": one, "*": rest}):
        assert queue.add("one").result(timeout=TIMEOUT) == "one"
        assert queue.add("two").result(timeout=TIMEOUT) == "rest"


def test_a_plain_function_that_returns_a_coroutine_fails_the_job_and_says_why(
    queue: Queue,
) -> None:
    async def work() -> None: ...

    with Worker(queue, lambda job: work()), pytest.raises(JobFailedError, match="async def"):
        queue.add("n").result(timeout=TIMEOUT)


def test_a_coroutine_that_raises_is_retried_and_fails_with_its_error(queue: Queue) -> None:
    async def work(job: Job) -> None:
        raise ValueError(f"attempt {job.attempt}")

    with Worker(queue, work), pytest.raises(JobFailedError) as caught:
        queue.add("n", attempts=2).result(timeout=TIMEOUT)
    assert caught.value.error == "ValueError: attempt 2"
    assert any("in work" in line for line in caught.value.stacktrace)


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=lambda e: type(e).__name__,
)
def test_whatever_a_coroutine_raises_fails_its_job_and_not_the_worker(
    queue: Queue, error: BaseException
) -> None:
    """B079, B143."""

    async def work(job: Job) -> str:
        if job.data == "bad":
            raise error
        return "good"

    bad = queue.add("n", "bad", attempts=1)
    good = queue.add_bulk([("n", "good")] * 20)
    with Worker(queue, work):
        with pytest.raises(JobFailedError, match=type(error).__name__):
            bad.result(timeout=TIMEOUT)
        assert {job.result(timeout=TIMEOUT) for job in good} == {"good"}


def test_an_error_that_cannot_be_shown_fails_its_job_like_any_other(queue: Queue) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def work(job: Job) -> None:
        raise Mute

    with Worker(queue, work), pytest.raises(JobFailedError, match="__str__ raised RuntimeError"):
        queue.add("n", attempts=1).result(timeout=TIMEOUT)


def test_a_coroutine_that_cancels_its_own_task_fails_its_job(queue: Queue) -> None:
    """B143."""

    async def work(job: Job) -> str:
        if job.data == "self":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        if job.data == "inner":
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner
        return "good"

    with Worker(queue, work):
        for data in ("self", "inner"):
            with pytest.raises(JobFailedError, match="CancelledError"):
                queue.add("n", data, attempts=1).result(timeout=TIMEOUT)
        assert queue.add("n").result(timeout=TIMEOUT) == "good"


def test_system_exit_in_a_task_that_a_handler_left_behind_stops_no_worker(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def work(job: Job) -> str:
        if job.data:
            job_task = asyncio.ensure_future(leave())
            await asyncio.wait([job_task])
        return "good"

    with Worker(queue, work, name="tough"):
        queue.add("n", True)
        assert queue.add("n").result(timeout=TIMEOUT) == "good"
    assert "SystemExit" in caplog.text


def test_a_context_variable_that_a_handler_sets_does_not_reach_the_next_job(queue: Queue) -> None:
    """B143; and what the adder has set reaches none."""
    seen: list[str] = []
    mine = contextvars.ContextVar("mine", default="nothing")

    async def work(job: Job) -> None:
        seen.append(mine.get())
        mine.set("the job's")

    mine.set("the adder's")
    with Worker(queue, work):
        for _ in range(3):
            queue.add("n").result(timeout=TIMEOUT)
    assert seen == ["nothing"] * 3


def test_a_result_that_cannot_be_encoded_fails_the_job_for_good(queue: Queue) -> None:
    async def work(job: Job) -> object:
        return {"a": object()}

    with Worker(queue, work), pytest.raises(JobFailedError, match=r"\$\.a") as caught:
        queue.add("n", attempts=5).result(timeout=TIMEOUT)
    assert caught.value.reason == "unrecoverable"


def test_a_coroutine_past_its_timeout_is_cancelled_and_told_why(queue: Queue) -> None:
    reasons: list[str | None] = []

    async def work(job: Job) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(job.cancelled.reason)

    with Worker(queue, work), pytest.raises(JobFailedError) as caught:
        queue.add("n", attempts=1, timeout=0.03).result(timeout=TIMEOUT)
    assert caught.value.reason == "timeout"
    until(lambda: reasons == ["timeout"], "the coroutine ends")


def test_a_coroutine_that_is_cancelled_by_the_worker_ends_and_its_job_has_failed(
    queue: Queue,
) -> None:
    gate = Gate()
    with Worker(queue, gate) as worker:
        job = queue.add("n", attempts=5)
        gate.await_begun()
        assert worker.cancel(job, "no longer wanted")
        with pytest.raises(JobFailedError, match="no longer wanted") as caught:
            job.result(timeout=TIMEOUT)
        assert caught.value.reason == "cancelled"
        until(lambda: gate.ended == ["cancelled"], "the coroutine ends")
        assert not worker.cancel(job)


def test_a_coroutine_whose_lock_was_taken_away_is_cancelled(
    manager: QueueManager, queue: Queue
) -> None:
    """B022."""
    gate = Gate()
    with Worker(queue, gate, name="mine", concurrency=1):
        queue.add("n", 5)
        gate.await_begun()
        assert manager.release_owner("mine") == 1
        until(lambda: gate.ended == ["cancelled"], "the coroutine ends")
        gate.let_go()
        queue.wait_until_empty(timeout=TIMEOUT)
    assert queue.counts().completed == 1


@pytest.mark.slow
def test_a_handler_that_blocks_the_loop_costs_nobody_his_lock_and_is_warned_of(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """B142."""
    blocked, done = threading.Event(), 0

    async def work(job: Job) -> None:
        nonlocal done
        if job.data == 9:
            blocked.set()
            time.sleep(0.4)
        else:
            await asyncio.sleep(0.05)
        done += 1

    queue.add_bulk([("n", n) for n in range(10)])
    with Worker(queue, work, concurrency=10, lock_duration=0.1, name="w"):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert done == 10
    assert all(job.stall_count == 0 for job in queue.get_jobs("completed"))
    assert "has blocked its event loop" in caplog.text


def test_a_worker_with_coroutines_keeps_its_rate_limit(queue: Queue) -> None:
    started: list[float] = []

    async def work(job: Job) -> None:
        started.append(time.monotonic())

    queue.add_bulk([("n", n) for n in range(5)])
    with Worker(queue, work, concurrency=5, rate_limit=RateLimit(2, 0.1)):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert started[4] - started[0] >= 0.19


def test_delay_and_rate_limit_charge_no_attempt(queue: Queue) -> None:
    runs: list[int] = []

    async def work(job: Job) -> str:
        runs.append(job.attempt)
        if len(runs) == 1:
            raise DelayJob(0.02)
        if len(runs) == 2:
            raise RateLimited(0.02)
        return "done"

    with Worker(queue, work):
        assert queue.add("n", attempts=1).result(timeout=TIMEOUT) == "done"
    assert runs == [1, 1, 1]


def test_a_paused_worker_takes_nothing_until_it_is_resumed(queue: Queue) -> None:
    gate = Gate()
    with Worker(queue, gate, concurrency=2) as worker:
        running = queue.add("n", 1)
        gate.await_begun()
        worker.pause()
        assert worker.is_paused
        waiting = queue.add("n", 2)
        gate.let_go()
        assert running.result(timeout=TIMEOUT) == 1
        assert not gate.begun.acquire(timeout=0.05)
        worker.resume()
        assert waiting.result(timeout=TIMEOUT) == 2


def test_retry_on_and_no_retry_on_decide_by_class(queue: Queue) -> None:
    async def work(job: Job) -> None:
        raise (OSError if job.data == "os" else KeyError)(job.data)

    with Worker(queue, work, retry_on=[OSError, KeyError], no_retry_on=KeyError):
        for data, made in (("os", 2), ("key", 1)):
            job = queue.add("n", data, attempts=2)
            with pytest.raises(JobFailedError):
                job.result(timeout=TIMEOUT)
            assert job.refresh().attempts_made == made


def test_a_batch_of_coroutines_is_one_call_whose_members_fail_one_by_one(queue: Queue) -> None:
    calls: list[int] = []

    async def work(jobs: list[Job]) -> list[Any]:
        calls.append(len(jobs))
        return [UnrecoverableError("odd") if job.data % 2 else job.data for job in jobs]

    jobs = queue.add_bulk([("n", n) for n in range(7)])
    with Worker(queue, work, batch=BatchOptions(4, max_wait=0.02)):
        queue.wait_until_empty(timeout=TIMEOUT)
    assert calls == [4, 3]
    assert [job.refresh().state for job in jobs] == ["completed", "failed"] * 3 + ["completed"]


# -- closing -----------------------------------------------------------------------------------


def test_close_waits_for_coroutines_that_finish_in_time(queue: Queue) -> None:
    gate = Gate()
    worker = Worker(queue, gate).start()
    job = queue.add("n", 7)
    gate.await_begun()
    threading.Timer(0.05, gate.let_go).start()
    assert worker.close(timeout=TIMEOUT)
    assert (worker.unfinished, job.refresh().return_value) == ([], 7)


def test_close_cancels_what_has_not_finished_and_gives_it_back_uncharged(queue: Queue) -> None:
    """B143."""
    gate = Gate()
    worker = Worker(queue, gate, concurrency=3).start()
    jobs = queue.add_bulk([("n", n) for n in range(3)])
    gate.await_begun(3)
    assert not worker.close(timeout=0.02)
    assert sorted(worker.unfinished) == sorted(job.id for job in jobs)
    assert gate.ended == ["cancelled"] * 3
    assert {(j.refresh().state, j.attempts_made) for j in jobs} == {("waiting", 0)}


@pytest.mark.slow
def test_close_does_not_wait_for_a_coroutine_that_will_not_be_cancelled(queue: Queue) -> None:
    begun, stop = threading.Event(), threading.Event()

    async def stubborn(job: Job) -> str:
        begun.set()
        while not stop.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        return "too late"

    worker = Worker(queue, stubborn).start()
    job = queue.add("n")
    assert begun.wait(TIMEOUT)
    assert not worker.close(force=True)
    assert worker.unfinished == [job.id]
    assert job.refresh().state == "waiting"
    stop.set()
    until(lambda: not any("-loop" in t.name for t in threading.enumerate()), "the loop ends")
    assert job.refresh().state == "waiting"


def test_a_coroutine_may_close_its_own_worker_and_manager(manager: QueueManager) -> None:
    """B091."""
    closed: list[bool] = []
    queue = Queue("q", manager)

    async def work(job: Job) -> str:
        closed.append(worker.close())
        return "done"

    worker = Worker(queue, work).start()
    job = queue.add("n")
    assert job.result(timeout=TIMEOUT) == "done"
    until(lambda: not any("-loop" in t.name for t in threading.enumerate()), "the loop ends")
    assert closed == [False]
    assert worker.is_closed


def test_closing_the_manager_ends_a_worker_with_coroutines() -> None:
    gate = Gate()
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, gate, close_timeout=0.02).start()
        queue.add("n")
        gate.await_begun()
    assert worker.is_closed
    assert gate.ended == ["cancelled"]


@pytest.mark.parametrize("batch", [None, BatchOptions(2)])
def test_a_task_that_is_cancelled_before_its_first_step_costs_neither_job_nor_place(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, batch: BatchOptions | None
) -> None:
    """A loop that is shut down does that, and so does a close that comes in that very turn."""
    ran: list[Any] = []

    async def work(given: Any) -> None:
        ran.append(given)

    worker = Worker(queue, work, batch=batch)
    launch: Any = worker._crew._launch  # type: ignore[union-attr]
    launched: list[Any] = []

    def cancelled(run: Any) -> None:
        launch(run)
        launched.append(run)
        if len(launched) <= 3:
            run.task.cancel()

    monkeypatch.setattr(worker._crew, "_launch", cancelled)
    with worker:
        job = queue.add("n", attempts=1)
        job.result(timeout=TIMEOUT)
    assert (len(launched), len(ran), job.refresh().attempts_made) == (4, 1, 0)


# -- on the caller's loop ----------------------------------------------------------------------


def test_async_with_runs_handlers_on_the_callers_own_loop(queue: Queue) -> None:
    loops: set[Any] = set()

    async def work(job: Job) -> int:
        loops.add(asyncio.get_running_loop())
        return int(job.data) + 1

    async def main() -> Any:
        async with Worker(queue, work, concurrency=3):
            results = await asyncio.gather(*(queue.add("n", n) for n in range(5)))
        return results, loops == {asyncio.get_running_loop()}

    assert run(main) == ([1, 2, 3, 4, 5], True)


def test_async_with_serves_plain_handlers_on_threads(queue: Queue) -> None:
    async def main() -> Any:
        async with Worker(queue, lambda job: threading.current_thread().name):
            return await queue.add("n")

    assert str(run(main)).startswith("bunqueue-worker")


def test_the_loop_goes_on_while_async_with_ends(queue: Queue) -> None:
    ticks = 0

    async def work(job: Job) -> None:
        await asyncio.sleep(0.05)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def main() -> Any:
        ticker = asyncio.create_task(tick())
        async with Worker(queue, work) as worker:
            job = queue.add("n")
            while job.refresh().state != "active":
                await asyncio.sleep(0.002)
            before = ticks
        ticker.cancel()
        return worker.unfinished, job.refresh().state, ticks - before > 2

    assert run(main) == ([], "completed", True)


def test_serve_returns_when_the_worker_is_closed(queue: Queue) -> None:
    async def work(job: Job) -> None: ...

    async def main() -> bool:
        worker = Worker(queue, work)
        serving = asyncio.create_task(worker.serve())
        await queue.add("n")
        assert worker.close()
        await serving
        return worker.is_closed

    assert run(main)


def test_a_task_that_serves_and_is_cancelled_lets_handlers_finish(queue: Queue) -> None:
    begun = asyncio.Event

    async def main() -> Any:
        began = begun()

        async def work(job: Job) -> str:
            began.set()
            await asyncio.sleep(0.03)
            return "finished"

        serving = asyncio.create_task(Worker(queue, work).serve())
        job = queue.add("n")
        await began.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        return job.refresh().return_value

    assert run(main) == "finished"


def test_a_loop_that_is_shut_down_gives_back_what_it_ran(queue: Queue) -> None:
    began = threading.Event()

    async def work(job: Job) -> None:
        began.set()
        await asyncio.sleep(60)

    worker = Worker(queue, work)

    async def main() -> None:
        task = asyncio.create_task(worker.serve())
        queue.add("n")
        while not began.is_set():
            await asyncio.sleep(0.002)
        del task

    asyncio.run(main())
    (job,) = queue.get_jobs()
    assert (job.state, job.attempts_made) == ("waiting", 0)
    assert worker.is_closed


def test_a_log_record_of_a_coroutine_says_its_job_and_queue(queue: Queue) -> None:
    from bunqueue_py import JobLogFilter

    records: list[Any] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    handler.addFilter(JobLogFilter())
    log = logging.getLogger("test.async")
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    async def work(job: Job) -> None:
        await asyncio.gather(asyncio.to_thread(log.info, "from a thread"))
        log.info("from the task")

    def plain(job: Job) -> None:
        log.info("plain")

    try:
        with Worker(queue, work):
            job = queue.add("n")
            job.result(timeout=TIMEOUT)
        with Worker(queue, plain):
            other = queue.add("n")
            other.result(timeout=TIMEOUT)
        log.info("outside")
    finally:
        log.removeHandler(handler)
    assert [(r.job_id, r.queue) for r in records] == [
        (job.id, "q"),
        (job.id, "q"),
        (other.id, "q"),
        ("-", "-"),
    ]


# -- a loop that ends under its worker -----------------------------------------------------------


def stopped_loop(queue: Queue, *, closed: bool) -> tuple[Worker, Job]:
    """A worker whose handler is under way on a loop that nobody runs any more."""
    began = asyncio.Event()

    async def work(job: Job) -> None:
        began.set()
        with contextlib.suppress(GeneratorExit):
            await asyncio.sleep(60)

    async def main() -> tuple[Worker, Job]:
        worker = await Worker(queue, work, lock_duration=0.2).__aenter__()
        job = queue.add("n", attempts=1)
        await began.wait()
        return worker, job

    loop = asyncio.new_event_loop()
    # which hears of the tasks that are thrown away with it
    loop.set_exception_handler(lambda *_: None)
    made = loop.run_until_complete(asyncio.wait_for(main(), TIMEOUT))
    if closed:
        loop.close()
    else:
        queue.loop = loop  # type: ignore[attr-defined]
    return made


def test_coroutines_that_are_collected_with_their_loop_take_no_lock() -> None:
    """The collector may be at work in the middle of a call of ours, under the shard's lock."""
    with QueueManager() as manager:
        worker, job = stopped_loop(Queue("q", manager), closed=True)
        crew: Any = worker._crew
        tasks = [crew._server, *(run.task for run in crew._runs.values())]
        assert len(tasks) == 2
        with manager._state.shards.shards[0].lock:
            for task in tasks:
                task.get_coro().close()
        until(lambda: job.refresh().state == "waiting", "its job goes back")
        assert job.attempts_made == 0
        assert not worker.close(timeout=TIMEOUT)
        assert worker.unfinished == [job.id]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_closing_a_worker_whose_loop_is_closed_or_stands_still_gives_its_job_back(
    closed: bool, elsewhere: bool
) -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker, job = stopped_loop(queue, closed=closed)
        if elsewhere:
            thread = threading.Thread(target=lambda: worker.close(timeout=0.3))
            thread.start()
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        else:
            assert not worker.close(timeout=TIMEOUT)
        assert worker.unfinished == [job.id]
        assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
        assert worker.is_closed
    if not closed:
        queue.loop.close()  # type: ignore[attr-defined]


def test_a_loop_that_is_closed_under_its_worker_is_noticed_by_the_heartbeat() -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker, job = stopped_loop(queue, closed=True)
        until(lambda: job.refresh().state == "waiting", "its job goes back")
        assert job.attempts_made == 0
        assert not worker.close(timeout=TIMEOUT)
        assert worker.unfinished == [job.id]
