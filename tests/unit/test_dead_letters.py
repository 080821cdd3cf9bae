"""The dead letters of a queue: what an entry tells, and what can be done with it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Attempt,
    Backoff,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobState,
    JobStateError,
    Queue,
    QueueManager,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

BOUND = 10_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def pulled(manager: QueueManager, queue: str = "q") -> Job:
    job = manager.pull(queue)
    assert job is not None, f"nothing to pull: {manager.counts(queue)}"
    return job


def dead(manager: QueueManager, name: str = "n", queue: str = "q", **options: Any) -> Job:
    """A job that failed for good just now."""
    manager.push(queue, name=name, **options)
    job = pulled(manager, queue)
    assert manager.fail(job, f"{name} broke", unrecoverable=True).applied
    return job


def names(queue: Queue, **page: int) -> list[str]:
    return [entry.job.name for entry in queue.dlq.entries(**page)]


# -- entries ---------------------------------------------------------------------------------------


def test_an_entry_tells_the_job_when_and_why_it_failed_and_each_attempt(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    start = clock.now
    queue.add("send", {"to": "ada"}, attempts=3, backoff=Backoff.fixed(10, jitter=0), timeout=4)
    clock.advance(seconds=1)
    job = pulled(manager)
    clock.advance(seconds=2)
    manager.fail(job, ValueError("first"))
    clock.advance(seconds=10)
    job = pulled(manager)
    clock.advance(seconds=4)
    manager.run_pending()
    clock.advance(seconds=10)
    job = pulled(manager)
    clock.advance(milliseconds=500)
    manager.fail(job, "third")

    (entry,) = queue.dlq.entries()
    assert entry.job == job
    assert (entry.job.state, entry.job.data, entry.job.attempts_made) == (
        "failed",
        {"to": "ada"},
        3,
    )
    assert entry.job.token is None
    assert entry.entered_at == entry.job.finished_at == clock.now
    assert (entry.reason, entry.error) == ("max_attempts_exceeded", "third")
    assert (entry.retry_count, entry.last_retry_at) == (0, None)

    def at(seconds: float) -> Any:
        return start + timedelta(seconds=seconds)

    assert list(entry.attempts) == [
        Attempt(1, at(1), at(3), "unknown", "ValueError: first", 2.0),
        Attempt(2, at(13), at(17), "timeout", "ran longer than its timeout of 4 s", 4.0),
        Attempt(3, at(27), at(27.5), "unknown", "third", 0.5),
    ]


def test_a_job_that_never_started_has_no_attempts_to_tell(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("n", ttl=1)
    clock.advance(seconds=1)
    manager.run_pending()
    (entry,) = queue.dlq.entries()
    assert (entry.reason, list(entry.attempts)) == ("ttl_expired", [])


def test_the_history_keeps_the_newest_fifty_attempts(manager: QueueManager, queue: Queue) -> None:
    queue.add("n", attempts=60, backoff=0)
    for n in range(1, 61):
        manager.fail(pulled(manager), f"run {n}")
    (entry,) = queue.dlq.entries()
    assert [row.attempt for row in entry.attempts] == list(range(11, 61))
    assert [row.error for row in entry.attempts] == [f"run {n}" for n in range(11, 61)]


def test_entries_stand_in_the_order_in_which_they_failed_and_come_in_pages(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add_bulk([(str(n), None) for n in range(7)])
    jobs = manager.pull_batch("q", 7)
    for n in (3, 0, 6, 1, 5, 2, 4):
        manager.fail(jobs[n], "boom", unrecoverable=True)
    assert names(queue) == ["3", "0", "6", "1", "5", "2", "4"]
    assert names(queue, limit=3) == ["3", "0", "6"]
    assert names(queue, offset=3, limit=3) == ["1", "5", "2"]
    assert names(queue, offset=6) == ["4"]
    assert names(queue, offset=7) == names(queue, limit=0) == []
    assert len(queue.dlq) == queue.counts().failed == 7


def test_a_page_holds_a_hundred_entries_unless_asked_otherwise(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add_bulk([("n", n) for n in range(101)])
    for job in manager.pull_batch("q", 101):
        manager.fail(job, "boom", unrecoverable=True)
    assert len(queue.dlq.entries()) == 100
    assert len(queue.dlq) == len(queue.dlq.entries(limit=200)) == 101


@pytest.mark.parametrize(
    "page", [{"offset": -1}, {"limit": -1}, {"limit": 1.5}, {"offset": True}], ids=str
)
def test_a_page_that_makes_no_sense_is_refused(queue: Queue, page: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(page))):
        queue.dlq.entries(**page)


def test_an_empty_dead_letter_queue_is_empty_and_still_true(queue: Queue) -> None:
    assert (len(queue.dlq), queue.dlq.entries()) == (0, [])
    assert bool(queue.dlq) is True


def test_dead_letters_are_their_queues_own(manager: QueueManager, queue: Queue) -> None:
    other = Queue("other", manager)
    dead(manager, "mine")
    dead(manager, "theirs", "other")
    assert (names(queue), names(other)) == (["mine"], ["theirs"])
    queue.obliterate()
    assert (len(queue.dlq), len(other.dlq)) == (0, 1)


def test_a_job_that_is_removed_on_failure_is_no_dead_letter(
    manager: QueueManager, queue: Queue
) -> None:
    dead(manager, remove_on_fail=True)
    assert len(queue.dlq) == 0


def test_draining_leaves_the_dead_letters(manager: QueueManager, queue: Queue) -> None:
    dead(manager)
    queue.add("n")
    assert queue.drain() == 1
    assert len(queue.dlq) == 1


# -- retry -----------------------------------------------------------------------------------------


def test_a_retried_dead_letter_runs_again_with_fresh_attempts_and_keeps_its_history(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    """B067"""
    job = queue.add("n", attempts=2, backoff=Backoff.exponential(5, jitter=0))
    for _ in range(2):
        manager.fail(pulled(manager), "before")
        clock.advance(seconds=5)
    clock.advance(hours=1)
    retried_at = clock.now
    assert queue.dlq.retry(job) is True
    assert (len(queue.dlq), job.refresh().state) == (0, "waiting")
    assert (job.attempts_made, job.attempt, job.stall_count, job.error) == (0, 1, 0, None)
    assert job.run_at == clock.now

    manager.fail(pulled(manager), "after")
    assert job.refresh().state is JobState.DELAYED
    assert job.run_at == clock.now + timedelta(seconds=5), "the first back-off step again"
    clock.advance(seconds=5)
    manager.fail(pulled(manager), "after")

    (entry,) = queue.dlq.entries()
    assert entry.entered_at == clock.now
    assert (entry.retry_count, entry.last_retry_at) == (1, retried_at)
    history = [(row.attempt, row.error) for row in entry.attempts]
    assert history == [(1, "before"), (2, "before"), (1, "after"), (2, "after")]
    queue.dlq.retry(job)
    manager.fail(pulled(manager), "again", unrecoverable=True)
    assert queue.dlq.entries()[0].retry_count == 2


def test_a_lost_job_has_fresh_stalls_after_its_retry(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = queue.add("n", attempts=50, backoff=0)
    for round_ in range(2):
        for stalls in (1, 2, 3):
            assert job.refresh().state is JobState.WAITING
            pulled(manager)
            clock.advance(seconds=30)
            manager.run_pending()
            assert job.refresh().stall_count == stalls
        assert (job.state, job.failed_reason) == ("failed", "stalled"), f"round {round_}"
        queue.dlq.retry(job)
    assert job.refresh().stall_count == 0


def test_a_retried_dead_letter_stands_behind_what_waits_and_fails_to_the_end_of_the_line(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    first = dead(manager, "first")
    dead(manager, "second")
    clock.advance(seconds=1)
    queue.add("waiting")
    clock.advance(seconds=1)
    queue.dlq.retry(first)
    assert names(queue) == ["second"]
    manager.ack(pulled(manager))
    manager.fail(pulled(manager), "boom", unrecoverable=True)
    assert names(queue) == ["second", "first"]


def test_a_retried_dead_letter_that_completes_leaves_no_entry(
    manager: QueueManager, queue: Queue
) -> None:
    job = dead(manager)
    queue.dlq.retry(job)
    manager.ack(pulled(manager), "at last")
    assert len(queue.dlq) == 0
    assert job.result(timeout=0) == "at last"
    assert job.refresh().failed_reason is None


def test_a_retry_takes_a_job_an_id_and_the_queues_own_retry(
    manager: QueueManager, queue: Queue
) -> None:
    for retry in (
        lambda job: queue.dlq.retry(job),
        lambda job: queue.dlq.retry(job.id),
        lambda job: queue.retry(job),
        lambda job: job.retry(),
    ):
        job = dead(manager)
        assert retry(job) is True
        assert manager.ack(pulled(manager)).applied
    assert len(queue.dlq) == 0


def test_a_retry_of_a_paused_queues_dead_letter_waits_for_its_end(
    manager: QueueManager, queue: Queue
) -> None:
    job = dead(manager)
    queue.pause()
    queue.dlq.retry(job)
    assert (queue.counts().paused, manager.pull("q")) == (1, None)
    queue.resume()
    assert pulled(manager) == job


# -- remove ----------------------------------------------------------------------------------------


def test_a_removed_dead_letter_is_gone_and_its_failure_is_still_known(
    manager: QueueManager, queue: Queue
) -> None:
    job, other = dead(manager, "one", custom_id="x"), dead(manager, "other")
    assert queue.dlq.remove(job) is True
    assert names(queue) == ["other"]
    assert manager.get_job(job.id) is None
    assert manager.get_job(queue="q", custom_id="x") is None
    with pytest.raises(JobFailedError, match="one broke"):
        job.result(timeout=0)
    assert queue.dlq.remove(other.id) is True
    assert len(queue.dlq) == queue.counts().total == 0


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["retry", "remove"])
def test_a_job_that_is_unknown_or_gone_is_not_found(
    manager: QueueManager, queue: Queue, verb: str
) -> None:
    gone = dead(manager)
    queue.dlq.remove(gone)
    for job in (gone, gone.id, "no such job"):
        with pytest.raises(JobNotFoundError) as caught:
            getattr(queue.dlq, verb)(job)
        assert caught.value.job_id == (job if isinstance(job, str) else job.id)


@pytest.mark.parametrize("verb", ["retry", "remove"])
def test_a_job_that_is_no_dead_letter_is_refused_and_left_alone(
    manager: QueueManager, queue: Queue, verb: str
) -> None:
    done, active = manager.push("q"), manager.push("q")
    manager.ack(pulled(manager))
    pulled(manager)
    waiting, delayed = queue.add("n"), queue.add("n", delay=9)
    before = queue.counts()
    for job in (done, active, waiting, delayed):
        with pytest.raises(JobStateError, match="not among the dead letters"):
            getattr(queue.dlq, verb)(job)
    assert queue.counts() == before


@pytest.mark.parametrize("verb", ["retry", "remove"])
def test_a_dead_letter_of_another_queue_is_not_found(
    manager: QueueManager, queue: Queue, verb: str
) -> None:
    theirs = dead(manager, "theirs", "other")
    for job in (theirs, theirs.id):
        with pytest.raises(JobNotFoundError):
            getattr(queue.dlq, verb)(job)
    assert names(Queue("other", manager)) == ["theirs"]


def test_a_dead_letter_whose_custom_id_was_taken_over_cannot_come_back_beside_it(
    manager: QueueManager, queue: Queue
) -> None:
    old = dead(manager, custom_id="x")
    new = queue.add("n", custom_id="x")
    with pytest.raises((JobNotFoundError, JobStateError)):
        queue.dlq.retry(old)
    assert manager.get_job(queue="q", custom_id="x") == new
    assert queue.counts().total == 1


def test_a_retried_dead_letter_holds_its_custom_id_again(
    manager: QueueManager, queue: Queue
) -> None:
    job = dead(manager, custom_id="x")
    queue.dlq.retry(job)
    again = queue.add("n", custom_id="x")
    assert (again, again.duplicate) == (job, True)


# -- the bound -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_oldest_of_more_than_ten_thousand_dead_letters_makes_room(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add_bulk([(str(n), None) for n in range(BOUND + 5)])
    jobs = manager.pull_batch("q", BOUND + 5)
    for job in jobs[:BOUND]:
        manager.fail(job, "boom", unrecoverable=True)
    assert len(queue.dlq) == BOUND
    queue.dlq.retry(jobs[0])
    manager.fail(pulled(manager), "boom", unrecoverable=True)
    for job in jobs[BOUND:]:
        manager.fail(job, "boom", unrecoverable=True)
        assert len(queue.dlq) == queue.counts().failed == BOUND
    assert names(queue, limit=2) == ["6", "7"]
    assert names(queue, offset=BOUND - 6) == ["0", *(str(BOUND + n) for n in range(5))]
    assert manager.get_job(jobs[1].id) is None
    with pytest.raises(JobFailedError, match="boom"):
        jobs[1].result(timeout=0)
