"""Waiting: for a job's outcome, for a job to come, for a queue to be empty. Nobody polls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Ack,
    Backoff,
    BunqueueError,
    FailureReason,
    Job,
    JobFailedError,
    JobNotFoundError,
    KeepJobs,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    ResultExpiredError,
    ValidationError,
    WaitTimeoutError,
    Worker,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock
from tests.threads.patience import TIMEOUT, until


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    with QueueManager(config=ManagerConfig(shards=1)) as manager:
        yield manager
        if manager.queues():
            check(manager._state)


def is_watched(manager: QueueManager, job: Job) -> bool:
    return job.id in manager.backend.watched(job.queue)


class Call:
    """A call on a thread of its own, and what it returned or raised."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn
        self._done = threading.Event()
        self._outcome: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome = self._fn()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def outcome(self) -> Any:
        """What it returned; raises what it raised."""
        assert self._done.wait(TIMEOUT), "the call never ended"
        if self._error is not None:
            raise self._error
        return self._outcome


def watched(manager: QueueManager, job: Job) -> None:
    until(lambda: is_watched(manager, job), "somebody waits for the job")


def blocked(manager: QueueManager, queue: str = "q") -> None:
    until(lambda: manager.backend.others_wait(queue), "somebody waits for a job of the queue")


def line_up(manager: QueueManager, n: int) -> None:
    """Waits until n threads stand in the line of queue "q"; no public call tells how many."""
    queues = manager._state.queues
    until(lambda: "q" in queues and len(queues["q"].waiters) == n, f"{n} wait")


def pulled(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    job = manager.pull(queue, **options)
    assert job is not None
    return job


# -- result() --------------------------------------------------------------------------------


def test_result_returns_to_every_thread_that_waits_for_it(manager: QueueManager) -> None:
    job = manager.push("q", 1)
    calls = [Call(lambda: job.result(timeout=TIMEOUT)) for _ in range(20)]
    watched(manager, job)
    manager.ack(pulled(manager), {"n": [1, 2]})
    results = [call.outcome() for call in calls]
    assert results == [{"n": [1, 2]}] * 20
    assert len({id(result) for result in results}) == 20, "two waiters share one object"


def test_result_returns_when_a_batch_completes_the_job(manager: QueueManager) -> None:
    job = manager.push_batch("q", [("n", n) for n in range(3)])[1]
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.ack_batch([Ack(job, n) for n, job in enumerate(manager.pull_batch("q", 3))])
    assert call.outcome() == 1


def test_result_of_a_job_that_has_completed_returns_at_once(manager: QueueManager) -> None:
    job = manager.push("q")
    manager.ack(pulled(manager), "done")
    assert job.result(timeout=0) == "done"
    assert job.result() == "done"


def test_result_times_out(manager: QueueManager) -> None:
    job = manager.push("q")
    for timeout in (0, 0.01, timedelta(milliseconds=5)):
        with pytest.raises(WaitTimeoutError, match=job.id):
            job.result(timeout=timeout)
    with pytest.raises(TimeoutError):
        job.result(timeout=0)
    manager.ack(pulled(manager), 1)
    assert job.result(timeout=0) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_is_no_duration_is_refused(manager: QueueManager, timeout: Any) -> None:
    job = manager.push("q")
    with pytest.raises(ValidationError, match="timeout"):
        job.result(timeout=timeout)
    with pytest.raises(ValidationError, match="timeout"):
        manager.pull("other", timeout=timeout)
    with pytest.raises(ValidationError, match="timeout"):
        manager.wait_until_empty("q", timeout=timeout)


def test_result_raises_how_the_job_failed(manager: QueueManager) -> None:
    job = manager.push("q", attempts=1)
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.fail(pulled(manager), ValueError("no"))
    with pytest.raises(JobFailedError) as caught:
        call.outcome()
    assert caught.value.job_id == job.id
    assert caught.value.reason == FailureReason.MAX_ATTEMPTS_EXCEEDED
    assert caught.value.error == "ValueError: no"
    with pytest.raises(JobFailedError, match="ValueError: no"):
        job.result(timeout=0)


def test_result_waits_through_a_retry(manager: QueueManager) -> None:
    job = manager.push("q", attempts=2, backoff=Backoff.fixed(0))
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.fail(pulled(manager), "once")
    assert not call.is_done
    manager.ack(pulled(manager), "twice")
    assert call.outcome() == "twice"


def test_result_of_a_job_that_is_removed_says_so(manager: QueueManager) -> None:
    job = manager.push("q")
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    job.remove()
    with pytest.raises(JobNotFoundError, match=job.id):
        call.outcome()
    with pytest.raises(JobNotFoundError):
        job.result(timeout=0)


@pytest.mark.parametrize("how", ["drain", "obliterate"])
def test_result_of_a_job_whose_queue_is_emptied_says_so(manager: QueueManager, how: str) -> None:
    job = manager.push("q")
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    getattr(manager, how)("q")
    with pytest.raises(JobNotFoundError):
        call.outcome()


def test_result_of_an_unknown_job_is_refused_at_once(manager: QueueManager) -> None:
    with pytest.raises(JobNotFoundError):
        manager.wait_for("no such job")


def test_result_of_a_job_that_left_on_completion_is_still_to_be_had(
    manager: QueueManager,
) -> None:
    job = manager.push("q", remove_on_complete=True)
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.ack(pulled(manager), "gone")
    assert call.outcome() == "gone"
    assert manager.get_job(job.id) is None
    assert job.result(timeout=0) == "gone"


def test_result_of_a_job_that_left_on_failure_still_says_how(manager: QueueManager) -> None:
    job = manager.push("q", remove_on_fail=True, attempts=1)
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.fail(pulled(manager), "broken")
    for raising in (call.outcome, lambda: job.result(timeout=0)):
        with pytest.raises(JobFailedError, match="broken"):
            raising()


def test_a_waiter_gets_a_result_that_is_evicted_at_once() -> None:
    with QueueManager(config=ManagerConfig(keep_results=0)) as manager:
        job = manager.push("q")
        call = Call(lambda: job.result(timeout=TIMEOUT))
        watched(manager, job)
        manager.ack(pulled(manager), "fleeting")
        assert call.outcome() == "fleeting"
        with pytest.raises(ResultExpiredError):
            job.result(timeout=0)


def test_waiters_of_a_job_kept_by_count_zero_get_its_result(manager: QueueManager) -> None:
    job = manager.push("q", remove_on_complete=KeepJobs(count=0))
    call = Call(lambda: job.result(timeout=TIMEOUT))
    watched(manager, job)
    manager.ack(pulled(manager), 1)
    assert call.outcome() == 1


@pytest.mark.parametrize("active", [False, True])
def test_close_ends_those_who_wait_for_a_result(active: bool) -> None:
    manager = QueueManager()
    job = manager.push("q")
    if active:
        pulled(manager)
    calls = [Call(job.result) for _ in range(5)]
    watched(manager, job)
    manager.close()
    for call in calls:
        with pytest.raises(ManagerClosedError):
            call.outcome()
    with pytest.raises(ManagerClosedError):
        job.result(timeout=0)


def test_a_wait_that_timed_out_leaves_nothing_behind(manager: QueueManager) -> None:
    job = manager.push("q")
    for _ in range(5):
        with pytest.raises(WaitTimeoutError):
            job.result(timeout=0.001)
    assert not is_watched(manager, job)


def test_a_wait_that_no_one_can_end_raises_at_once_on_a_virtual_clock() -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        job = manager.push("q")
        with pytest.raises(BunqueueError, match="advance"):
            job.result()
        pulled(manager)
        with pytest.raises(BunqueueError, match="advance"):
            manager.pull("q", timeout=5)
        assert not is_watched(manager, job)
        assert not manager.backend.others_wait("q")
        check(manager._state)


# -- await job -------------------------------------------------------------------------------


def test_a_job_can_be_awaited_while_its_loop_goes_on(manager: QueueManager) -> None:
    async def program() -> tuple[Any, int]:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1
                if turns == 10:
                    manager.ack(pulled(manager), "awaited")

        ticking = asyncio.ensure_future(tick())
        result = await job
        ticking.cancel()
        return result, turns

    job = manager.push("q")
    result, turns = asyncio.run(asyncio.wait_for(program(), TIMEOUT))
    assert result == "awaited"
    assert turns >= 10


def test_many_coroutines_may_await_one_job_and_many_jobs(manager: QueueManager) -> None:
    jobs = [manager.push("q", n) for n in range(50)]

    async def one(job: Job) -> Any:
        return await job

    async def program() -> list[Any]:
        return await asyncio.gather(*(one(job) for job in jobs * 3))

    with Worker(Queue("q", manager), lambda job: job.data, concurrency=2):
        results = asyncio.run(asyncio.wait_for(program(), TIMEOUT))
    assert results == list(range(50)) * 3


def test_awaiting_a_finished_job_returns_without_waiting(manager: QueueManager) -> None:
    done, dead = manager.push("q"), manager.push("q", attempts=1)
    manager.ack(pulled(manager), 1)
    manager.fail(pulled(manager), "broken")

    async def program() -> Any:
        with pytest.raises(JobFailedError, match="broken"):
            await dead
        return await done

    assert asyncio.run(asyncio.wait_for(program(), TIMEOUT)) == 1


def test_awaiting_a_job_that_fails_is_removed_or_closed_raises(manager: QueueManager) -> None:
    async def outcome(job: Job, end: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(manager.wait_for_async(job))
        while not is_watched(manager, job):
            await asyncio.sleep(0)
        end()
        await task

    async def program() -> None:
        failing = manager.push("q", attempts=1)
        with pytest.raises(JobFailedError):
            await outcome(failing, lambda: manager.fail(pulled(manager), "x"))
        removed = manager.push("q")
        with pytest.raises(JobNotFoundError):
            await outcome(removed, removed.remove)
        with pytest.raises(JobNotFoundError):
            await manager.wait_for_async("no such job")
        with QueueManager() as other:
            lasting = other.push("q")
            task = asyncio.ensure_future(other.wait_for_async(lasting))
            while not is_watched(other, lasting):
                await asyncio.sleep(0)
            other.close()
            with pytest.raises(ManagerClosedError):
                await task

    asyncio.run(asyncio.wait_for(program(), TIMEOUT))


def test_a_cancelled_await_leaves_nothing_behind_and_the_others_wait_on(
    manager: QueueManager,
) -> None:
    job = manager.push("q")

    async def program() -> list[Any]:
        first = asyncio.ensure_future(manager.wait_for_async(job))
        second = asyncio.ensure_future(manager.wait_for_async(job))
        while not is_watched(manager, job):
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(manager.wait_for_async(job), 0.01)
        manager.ack(pulled(manager), "kept")
        return [await second, is_watched(manager, job)]

    assert asyncio.run(asyncio.wait_for(program(), TIMEOUT)) == ["kept", False]


def test_several_loops_on_several_threads_may_await_one_job(manager: QueueManager) -> None:
    job = manager.push("q")

    async def program() -> Any:
        return await job

    calls = [
        Call(lambda: asyncio.run(asyncio.wait_for(program(), TIMEOUT)))  # type: ignore[arg-type]
        for _ in range(5)
    ]
    watched(manager, job)
    manager.ack(pulled(manager), "for all")
    assert [call.outcome() for call in calls] == ["for all"] * 5


def test_a_loop_that_was_closed_while_it_awaited_does_not_disturb_the_ack(
    manager: QueueManager,
) -> None:
    job = manager.push("q")
    loop = asyncio.new_event_loop()
    waiting = manager.wait_for_async(job)

    async def begin() -> None:
        waiting.send(None)

    loop.run_until_complete(begin())
    assert is_watched(manager, job)
    loop.close()
    assert manager.ack(pulled(manager), 1).applied
    waiting.close()
    assert job.result(timeout=0) == 1


# -- wait_until_empty ------------------------------------------------------------------------


def test_wait_until_empty_returns_at_once_where_there_is_nothing(manager: QueueManager) -> None:
    manager.wait_until_empty("q")
    manager.push("q", attempts=1)
    manager.fail(pulled(manager), "dead letters do not count")
    manager.wait_until_empty("q", timeout=0)


ENDS: dict[str, Callable[[QueueManager, Job, Job], Any]] = {
    "ack": lambda manager, held, other: manager.ack(held),
    "fail": lambda manager, held, other: manager.fail(held, "x", unrecoverable=True),
    "obliterate": lambda manager, held, other: manager.obliterate("q", force=True),
}


@pytest.mark.parametrize("end", ENDS)
def test_wait_until_empty_waits_for_the_last_active_job(manager: QueueManager, end: str) -> None:
    manager.push("q")
    held = pulled(manager)
    calls = [Call(lambda: manager.wait_until_empty("q", timeout=TIMEOUT)) for _ in range(3)]
    with pytest.raises(WaitTimeoutError, match="'q'"):
        manager.wait_until_empty("q", timeout=0.01)
    assert not any(call.is_done for call in calls)
    ENDS[end](manager, held, held)
    for call in calls:
        call.outcome()


@pytest.mark.parametrize("end", ["drain", "remove", "obliterate"])
def test_wait_until_empty_waits_for_the_last_pending_job(manager: QueueManager, end: str) -> None:
    job = manager.push("q", delay=60)
    call = Call(lambda: manager.wait_until_empty("q", timeout=TIMEOUT))
    with pytest.raises(WaitTimeoutError):
        manager.wait_until_empty("q", timeout=0.01)
    assert not call.is_done
    if end == "remove":
        job.remove()
    else:
        getattr(manager, end)("q")
    call.outcome()


def test_wait_until_empty_is_about_one_queue_only(manager: QueueManager) -> None:
    manager.push("other")
    manager.wait_until_empty("q", timeout=0)
    with pytest.raises(WaitTimeoutError):
        manager.wait_until_empty("other", timeout=0)


def test_close_ends_those_who_wait_for_an_empty_queue() -> None:
    manager = QueueManager()
    manager.push("q")
    call = Call(lambda: manager.wait_until_empty("q"))
    with pytest.raises(WaitTimeoutError):
        manager.wait_until_empty("q", timeout=0.01)
    manager.close()
    with pytest.raises(ManagerClosedError):
        call.outcome()


def test_wait_until_empty_with_workers_sees_every_job_done(manager: QueueManager) -> None:
    queue = Queue("q", manager)
    ran: list[int] = []
    with Worker(queue, lambda job: ran.append(job.data), concurrency=3):
        for batch in range(10):
            queue.add_bulk([("n", n) for n in range(20)])
            queue.wait_until_empty(timeout=TIMEOUT)
            assert len(ran) == 20 * (batch + 1)
            assert queue.counts().completed == len(ran)


# -- pull ------------------------------------------------------------------------------------


def test_a_pull_without_a_job_returns_none_after_its_timeout(manager: QueueManager) -> None:
    assert manager.pull("q") is None
    began = time.monotonic()
    assert manager.pull("q", timeout=0.02) is None
    assert manager.pull_batch("q", 5, timeout=0.02) == []
    assert 0.035 <= time.monotonic() - began < TIMEOUT
    assert not manager.backend.others_wait("q")


def hold(manager: QueueManager, **options: Any) -> Job:
    manager.push("q", "held", backoff=Backoff.fixed(0), **options)
    return pulled(manager)


def a_dead_letter(manager: QueueManager) -> Job:
    job = hold(manager)
    manager.fail(job, "x", unrecoverable=True)
    return job


def paused_with_a_job(manager: QueueManager) -> None:
    manager.pause("q")
    manager.push("q", "held")


WAKES: dict[str, tuple[Callable[[QueueManager], Any], Callable[[QueueManager, Any], Any]]] = {
    "push": (lambda manager: None, lambda manager, _: manager.push("q", "held")),
    "push_batch": (
        lambda manager: None,
        lambda manager, _: manager.push_batch("q", [("n", "held")]),
    ),
    "push with a short delay": (
        lambda manager: None,
        lambda manager, _: manager.push("q", "held", delay=0.02),
    ),
    "push with an earlier delay": (
        lambda manager: manager.push("q", "later", delay=60),
        lambda manager, _: manager.push("q", "held", delay=0.02),
    ),
    "push with a moment": (
        lambda manager: None,
        lambda manager, _: manager.push("q", "held", run_at=manager.now + timedelta(seconds=0.02)),
    ),
    "delay that was there": (
        lambda manager: manager.push("q", "held", delay=0.05),
        lambda manager, _: None,
    ),
    "release": (hold, lambda manager, job: manager.release(job)),
    "release with a delay": (hold, lambda manager, job: manager.release(job, delay=0.02)),
    "fail": (hold, lambda manager, job: manager.fail(job, "x")),
    "lock expiry": (
        lambda manager: (
            manager.push("q", "held", backoff=Backoff.fixed(0))
            and pulled(manager, lock_duration=0.05)
        ),
        lambda manager, _: None,
    ),
    "timeout": (lambda manager: hold(manager, timeout=0.05), lambda manager, _: None),
    "retry of a dead letter": (
        a_dead_letter,
        lambda manager, job: Queue("q", manager).dlq.retry(job),
    ),
    "resume": (paused_with_a_job, lambda manager, _: manager.resume("q")),
}


@pytest.mark.parametrize("wake", WAKES)
def test_a_blocked_pull_is_woken_by(manager: QueueManager, wake: str) -> None:
    prepare, act = WAKES[wake]
    prepared = prepare(manager)
    began = time.monotonic()
    call = Call(lambda: manager.pull("q", timeout=TIMEOUT))
    if wake not in ("delay that was there", "lock expiry", "timeout"):
        blocked(manager)
    act(manager, prepared)
    job = call.outcome()
    assert job is not None
    assert job.data == "held"
    assert time.monotonic() - began < TIMEOUT / 2


def test_a_batch_wakes_as_many_waiters_as_it_has_jobs(manager: QueueManager) -> None:
    calls = [Call(lambda: manager.pull("q", timeout=TIMEOUT)) for _ in range(5)]
    line_up(manager, 5)
    manager.push_batch("q", [("n", n) for n in range(5)])
    assert sorted(call.outcome().data for call in calls) == [0, 1, 2, 3, 4]


def test_resume_wakes_as_many_waiters_as_there_are_jobs(manager: QueueManager) -> None:
    manager.pause("q")
    manager.push_batch("q", [("n", n) for n in range(3)])
    calls = [Call(lambda: manager.pull("q", timeout=TIMEOUT)) for _ in range(3)]
    line_up(manager, 3)
    manager.resume("q")
    assert sorted(call.outcome().data for call in calls) == [0, 1, 2]


def test_many_jobs_that_come_due_at_once_reach_all_waiters(manager: QueueManager) -> None:
    calls = [Call(lambda: manager.pull("q", timeout=TIMEOUT)) for _ in range(4)]
    line_up(manager, 4)
    for n in range(4):
        manager.push("q", n, delay=0.03)
    assert sorted(call.outcome().data for call in calls) == [0, 1, 2, 3]


def test_waiters_are_served_in_the_order_in_which_they_came(manager: QueueManager) -> None:
    calls = []
    for n in range(8):
        calls.append(Call(lambda: manager.pull("q", timeout=TIMEOUT)))
        line_up(manager, n + 1)
    for n in range(8):
        manager.push("q", n)
        assert calls[n].outcome().data == n
        assert not any(call.is_done for call in calls[n + 1 :])


def test_a_waiter_that_gives_up_keeps_nobody_elses_place_or_job(manager: QueueManager) -> None:
    """Many leave by timeout about when jobs come; what is pushed is always taken by those who
    stay."""
    for _ in range(10):
        impatient = [Call(lambda: manager.pull("q", timeout=0.003)) for _ in range(3)]
        patient = [Call(lambda: manager.pull("q", timeout=TIMEOUT)) for _ in range(2)]
        threading.Event().wait(0.002)
        for n in range(2):
            manager.push("q", n)
        early = [call.outcome() for call in impatient]
        for _ in [job for job in early if job is not None]:
            manager.push("q", "in place of what was taken")
        assert all(call.outcome() is not None for call in patient)
        assert manager.counts("q").waiting == 0


def test_the_next_waiter_minds_the_timer_when_the_first_one_leaves(manager: QueueManager) -> None:
    """Only the head of the line holds the timer for the next due moment; it must be handed on."""
    manager.push("q", "due", delay=0.1)
    first = Call(lambda: manager.pull("q", timeout=0.03))
    blocked(manager)
    second = Call(lambda: manager.pull("q", timeout=TIMEOUT))
    assert first.outcome() is None
    began = time.monotonic()
    assert second.outcome().data == "due"
    assert time.monotonic() - began < TIMEOUT / 2


def test_a_worker_that_closes_hands_its_wake_on(manager: QueueManager) -> None:
    """A closing worker's thread that was woken for a job leaves it to whoever waits behind."""
    queue = Queue("q", manager)
    for n in range(10):
        worker = Worker(queue, lambda job: job.data).start()
        blocked(manager)
        call = Call(lambda: manager.pull("q", timeout=TIMEOUT))
        line_up(manager, 2)
        closing = Call(worker.close)
        job = queue.add("n", n)
        assert closing.outcome()
        if job.refresh().state == "completed":
            queue.add("n", n)
        assert call.outcome().data == n


def test_a_pull_of_a_paused_queue_waits_out_its_timeout(manager: QueueManager) -> None:
    manager.push("q")
    manager.pause("q")
    assert manager.pull("q", timeout=0.02) is None
    manager.resume("q")
    assert manager.pull("q") is not None


def test_close_ends_blocked_pulls() -> None:
    manager = QueueManager()
    calls = [Call(lambda: manager.pull("q", timeout=None)) for _ in range(3)]
    calls.append(Call(lambda: manager.pull_batch("q", 2, timeout=None)))
    line_up(manager, 4)
    manager.close()
    for call in calls:
        with pytest.raises(ManagerClosedError):
            call.outcome()


# -- nobody polls ----------------------------------------------------------------------------

IDLE = """
import threading, time
from bunqueue_py import Queue, QueueManager, Worker

with QueueManager() as manager:
    queue = Queue("idle", manager)
    manager.events.subscribe(lambda event: None)
    queue.add("far away", delay=3600)
    worker = Worker(queue, lambda job: None, concurrency=20)
    worker.on("completed", lambda job, result: None)
    with worker:
        busy = [queue.add("now") for _ in range(100)]
        for job in busy:
            job.result(timeout=10)
        threading.Event().wait(0.3)
        before = time.process_time()
        threading.Event().wait(0.5)
        print(time.process_time() - before)
"""


@pytest.mark.slow
def test_an_idle_manager_with_twenty_worker_threads_uses_no_processor_time() -> None:
    """Under 5 ms in half a second; the best of three, as the machine is shared."""
    used = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", IDLE],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "BUNQUEUE_CHECK_LOCKS": "0"},
        )
        used.append(float(done.stdout))
    assert min(used) < 0.005
