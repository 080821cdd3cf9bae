"""What a handler may say with an exception, and what it is told: on a virtual clock."""

from __future__ import annotations

import asyncio
import pickle
from itertools import pairwise
from typing import Any

import pytest

from bunqueue_py import (
    DelayJob,
    Job,
    JobFailedError,
    JobInterrupted,
    JobNotFoundError,
    JobStateError,
    LockError,
    QueueManager,
    RateLimited,
    ValidationError,
    Worker,
)
from bunqueue_py.testing import Harness, handler_context
from bunqueue_py.types import BatchOptions


def test_a_job_that_delays_itself_runs_again_then_and_no_attempt_is_charged() -> None:
    with Harness() as h:
        queue, moments = h.queue("q"), []

        def handler(job: Job) -> str:
            moments.append(job.now)
            if len(moments) < 4:
                raise DelayJob(60)
            return "at last"

        h.worker(queue, handler)
        job = queue.add("n", attempts=1)
        h.run_until_idle()
        assert job.refresh().state == "delayed"
        h.drain()
        assert job.refresh().return_value == "at last"
        assert job.attempts_made == 0
        assert [(b - a).seconds for a, b in pairwise(moments)] == [60] * 3


def test_a_rate_limited_job_cools_its_queue_and_keeps_its_place() -> None:
    with Harness() as h:
        queue, ran = h.queue("q"), []

        def handler(job: Job) -> None:
            ran.append(job.data)
            if ran == [0]:
                raise RateLimited(5)

        jobs = queue.add_bulk([("n", n) for n in range(3)])
        h.worker(queue, handler)
        h.run_until_idle()
        assert ran == [0]
        h.advance(seconds=4.9)
        assert ran == [0]
        h.advance(seconds=0.2)
        assert ran == [0, 0, 1, 2]
        assert jobs[0].refresh().attempts_made == 0


def test_a_rate_limited_job_of_a_group_cools_that_group_alone() -> None:
    with Harness() as h:
        queue, ran = h.queue("q"), []

        def handler(job: Job) -> None:
            ran.append(job.group)
            if ran.count("a") == 1 and job.group == "a":
                raise RateLimited(5)

        for group in "aab":
            queue.add("n", group=group)
        h.worker(queue, handler)
        h.run_until_idle()
        assert ran == ["a", "b"]
        h.advance(seconds=5)
        assert ran == ["a", "b", "a", "a"]


def test_rate_limited_also_holds_back_what_the_worker_had_taken_already() -> None:
    with Harness() as h:
        queue, ran = h.queue("q"), []

        def handler(job: Job) -> None:
            ran.append(job.data)
            if len(ran) == 1:
                raise RateLimited(5)

        queue.add_bulk([("n", n) for n in range(4)])
        h.worker(queue, handler, prefetch=4)
        h.run_until_idle()
        assert ran == [0]
        h.advance(seconds=5)
        assert ran == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("delay", [0, -1, "5", None, float("nan"), 1e300])
@pytest.mark.parametrize("error", [DelayJob, RateLimited])
def test_a_bad_delay_is_refused_where_it_is_given(error: Any, delay: Any) -> None:
    with pytest.raises(ValidationError, match="delay"):
        error(delay)


@pytest.mark.parametrize("error", [DelayJob(2.5), RateLimited(1), JobInterrupted("timeout")])
def test_these_exceptions_survive_a_pickle(error: Any) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)


# -- job.cancelled -------------------------------------------------------------------------------


def test_a_handler_in_time_is_told_nothing() -> None:
    job = handler_context()
    assert not job.cancelled
    assert not job.cancelled.is_set()
    assert job.cancelled.reason is None
    assert job.cancelled.wait(0) is False
    job.cancelled.raise_if_set()


def test_only_a_job_that_is_held_has_a_run_that_can_be_cancelled() -> None:
    with QueueManager() as manager:
        job = manager.push("q")
        with pytest.raises(LockError, match="looked up"):
            job.cancelled.is_set()
        with pytest.raises(LockError):
            manager.backend.cancellation(job.id, "no such token")


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_handler_is_told_that_its_time_is_up(asked_before: bool) -> None:
    with Harness() as h:
        queue, told = h.queue("q"), []

        def handler(job: Job) -> None:
            if asked_before:
                assert not job.cancelled
            h.advance(seconds=11)
            told.append(job.cancelled.reason)
            job.cancelled.raise_if_set()

        h.worker(queue, handler)
        job = queue.add("n", timeout=10, attempts=1)
        h.run_until_idle()
        assert told == ["timeout"]
        h.assert_failed(job, "timeout")


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_handler_is_told_that_it_lost_its_lock(asked_before: bool) -> None:
    """B022."""
    with Harness() as h:
        queue, told = h.queue("q"), []

        def handler(job: Job) -> None:
            if job.attempt == 1:
                if asked_before:
                    assert not job.cancelled
                h.expire_lock(job)
                told.append(job.cancelled.reason)

        h.worker(queue, handler)
        queue.add("n")
        h.drain()
        assert told == ["lock_lost"]


def test_a_handler_whose_job_was_cancelled_is_told_so_and_it_never_runs_again() -> None:
    """B022."""
    with Harness() as h:
        queue, told = h.queue("q"), []

        def handler(job: Job) -> str:
            before = job.cancelled
            assert worker.cancel(job, "changed my mind")
            told.append((before.reason, before.is_set(), job.cancelled.wait(0)))
            with pytest.raises(JobInterrupted) as caught:
                before.raise_if_set()
            told.append(caught.value.reason)
            return "too late"

        worker = h.worker(queue, handler)
        job = queue.add("n", attempts=5)
        h.drain(raise_errors=False)
        assert told == [("cancelled", True, True), "cancelled"]
        h.assert_failed(job, "cancelled")
        assert job.refresh().error == "cancelled: changed my mind"
        assert job.attempts_made == 1
        assert [e.type for e in h.events if e.job_id == job.id] == [
            *("pushed", "active", "cancelled", "failed", "dlq_added")
        ]
        assert queue.dlq.entries()[0].reason == "cancelled"


def test_cancel_answers_by_the_state_of_the_job() -> None:
    with Harness() as h:
        queue = h.queue("q")
        worker = h.worker(queue, lambda job: None)
        queue.pause()
        job = queue.add("n")
        with pytest.raises(JobStateError, match="discard"):
            worker.cancel(job)
        queue.resume()
        h.run_until_idle()
        assert worker.cancel(job) is False
        with pytest.raises(JobNotFoundError):
            worker.cancel("nobody")
        elsewhere = h.queue("other").add("n")
        with pytest.raises(JobNotFoundError):
            worker.cancel(elsewhere)
        for bad in (None, 5):
            with pytest.raises(ValidationError):
                worker.cancel(bad)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="reason"):
            worker.cancel(job, 5)  # type: ignore[arg-type]


def test_a_cancelled_job_frees_its_place_in_a_limit_and_its_key() -> None:
    from bunqueue_py import Deduplication

    with Harness() as h:
        queue, ran = h.queue("q"), []
        queue.limits.set_concurrency(1)

        def handler(job: Job) -> Any:
            ran.append(job.data)
            return h.hang() if job.data == 1 else None

        worker = h.worker(queue, handler, concurrency=2)
        first = queue.add("n", 1, deduplication=Deduplication("k"))
        second = queue.add("n", 2)
        h.run_until_idle()
        assert ran == [1]
        worker.cancel(first)
        assert queue.deduplication.owner("k") is None
        h.run_until_idle()
        assert ran == [1, 2]
        h.assert_completed(second)


def test_a_durable_job_that_is_cancelled_is_on_disk(tmp_path: Any) -> None:
    with QueueManager(tmp_path / "jobs.db") as manager:
        job = manager.push("q", durable=True)
        manager.pull("q")
        assert Worker("q", lambda job: None, manager=manager).cancel(job)
        manager.flush()
    with QueueManager(tmp_path / "jobs.db") as manager:
        found = manager.get_job(job.id)
        assert found is not None
        assert (found.state, found.failed_reason) == ("failed", "cancelled")


def test_interrupted_by_closing_gives_the_job_back_and_any_other_reason_is_a_failure() -> None:
    """B065."""
    with Harness() as h:
        queue = h.queue("q")

        def handler(job: Job) -> None:
            if job.data == "closing":
                worker.close()
                assert job.cancelled.reason == "closing"
                job.cancelled.raise_if_set()
            raise JobInterrupted("by hand")

        worker = h.worker(queue, handler)
        other = queue.add("n", "other", attempts=1)
        job = queue.add("n", "closing", attempts=1)
        h.run_until_idle()
        assert (job.refresh().state, job.attempts_made) == ("waiting", 0)
        h.assert_failed(other, "max_attempts_exceeded")


# -- coroutine handlers in the harness -----------------------------------------------------------


def test_the_harness_runs_coroutine_handlers_on_the_tests_own_thread() -> None:
    async def handler(job: Job) -> int:
        await asyncio.sleep(0)
        if job.attempt == 1:
            raise ValueError("once")
        return int(job.data) + 1

    with Harness() as h:
        queue = h.queue("q")
        h.worker(queue, handler)
        job = queue.add("n", 1)
        h.drain()
        assert job.refresh().return_value == 2


def test_the_harness_runs_them_within_a_running_loop_too() -> None:
    async def handler(job: Job) -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> Any:
        with Harness() as h:
            queue = h.queue("q")
            h.worker(queue, handler)
            job = queue.add("n")
            h.run_until_idle()
            return await job

    assert asyncio.run(main()) == "done"


@pytest.mark.parametrize("options", [{"executor": "process"}, {"batch": BatchOptions(2)}])
def test_the_harness_refuses_what_it_cannot_play(options: Any) -> None:
    with Harness() as h, pytest.raises(ValidationError, match="Harness"):
        h.worker("q", lambda job: None, **options)


def test_a_paused_worker_of_the_harness_runs_nothing() -> None:
    with Harness() as h:
        queue, ran = h.queue("q"), []
        worker = h.worker(queue, lambda job: ran.append(job.data))
        worker.pause()
        queue.add("n", 1)
        h.run_until_idle()
        assert (ran, worker.is_paused) == ([], True)
        worker.resume()
        h.run_until_idle()
        assert ran == [1]


# -- the worker's events --------------------------------------------------------------------------


def test_a_worker_tells_of_its_own_life_and_that_of_its_jobs() -> None:
    with Harness() as h:
        queue, heard = h.queue("q"), []
        worker = Worker(queue, lambda job: job.update_progress(50), manager=h.manager)
        for event in ("ready", "active", "progress", "completed", "drained", "closed"):
            worker.on(event, lambda *values, event=event: heard.append(event))
        queue.add("n")
        worker.start()
        h.run_until_idle()
        worker.close()
        assert heard == ["ready", "active", "progress", "drained", "completed", "closed"]


def test_a_worker_tells_of_jobs_that_it_lost_or_that_were_cancelled() -> None:
    with Harness() as h:
        queue, heard = h.queue("q"), []

        def handler(job: Job) -> None:
            if job.data == "stall" and job.attempt == 1:
                h.expire_lock(job)
            if job.data == "cancel":
                worker.cancel(job)

        worker = h.worker(queue, handler)
        worker.on("stalled", lambda job: heard.append(("stalled", job.data)))
        worker.on("cancelled", lambda job: heard.append(("cancelled", job.data)))
        queue.add("n", "stall")
        queue.add("n", "cancel")
        h.drain(raise_errors=False)
        assert heard == [("stalled", "stall"), ("cancelled", "cancel")]


def test_once_hears_one_event_and_off_none() -> None:
    with Harness() as h:
        queue, heard = h.queue("q"), []
        worker = h.worker(queue, lambda job: None)

        @worker.once("active")
        def first(job: Job) -> None:
            heard.append(job.data)

        def never(job: Job) -> None:
            heard.append("never")

        worker.on("active", never)
        assert worker.off("active", never)
        assert not worker.off("active", never)
        queue.add_bulk([("n", 1), ("n", 2)])
        h.run_until_idle()
        assert heard == [1]
        with pytest.raises(ValidationError, match="event must be among"):
            worker.on("nonsense", never)
        with pytest.raises(ValidationError, match="callable"):
            worker.on("active", 5)


# -- retry_on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({}, {"OSError": 3, "TimeoutError": 3, "KeyError": 3}),
        ({"retry_on": OSError}, {"OSError": 3, "TimeoutError": 3, "KeyError": 1}),
        ({"no_retry_on": (TimeoutError,)}, {"OSError": 3, "TimeoutError": 1, "KeyError": 3}),
        (
            {"retry_on": [OSError], "no_retry_on": [TimeoutError]},
            {"OSError": 3, "TimeoutError": 1, "KeyError": 1},
        ),
        ({"retry_on": ()}, {"OSError": 1, "TimeoutError": 1, "KeyError": 1}),
    ],
)
def test_which_errors_are_retried_is_decided_by_class(options: Any, runs: dict[str, int]) -> None:
    import builtins

    with Harness() as h:
        queue, seen = h.queue("q"), dict.fromkeys(runs, 0)

        def handler(job: Job) -> None:
            seen[job.data] += 1
            raise getattr(builtins, job.data)()

        h.worker(queue, handler, **options)
        jobs = [queue.add("n", name, attempts=3) for name in runs]
        h.drain(raise_errors=False)
        assert seen == runs
        reasons = {job.data: job.refresh().failed_reason for job in jobs}
        for name, times in runs.items():
            assert reasons[name] == ("unrecoverable" if times == 1 else "max_attempts_exceeded")


@pytest.mark.parametrize("option", ["retry_on", "no_retry_on"])
@pytest.mark.parametrize("bad", ["OSError", 5, [int], [OSError()], OSError()])
def test_retry_on_takes_exception_classes_only(option: str, bad: Any) -> None:
    with QueueManager() as manager, pytest.raises(ValidationError, match=option):
        Worker("q", lambda job: None, manager=manager, **{option: bad})


def test_a_job_that_fails_is_a_job_failed_error_for_who_waits() -> None:
    with Harness() as h:
        queue = h.queue("q")

        def handler(job: Job) -> None:
            worker.cancel(job)

        worker = h.worker(queue, handler)
        job = queue.add("n")
        h.drain(raise_errors=False)
        with pytest.raises(JobFailedError) as caught:
            job.result(timeout=0)
        assert caught.value.reason == "cancelled"
