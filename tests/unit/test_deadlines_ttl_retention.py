"""What time does by itself: ttl, delays, moments of the wall clock, how long finished jobs stay.

It is over 400 lines because each of these is looked at from both of its sides, early and late.
"""

import tracemalloc
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from random import Random  # noqa: TID251 - a seeded one of the test's own
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobSpec,
    JobState,
    KeepJobs,
    ManagerConfig,
    QueueManager,
    ResultExpiredError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.stores.results import ResultStore
from bunqueue_py.testing import SeededIds, VirtualClock

MS = timedelta(milliseconds=1)
EVER = timedelta(days=36_500)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with opened(clock) as manager:
        yield manager
        check(manager._state)


def opened(clock: VirtualClock, **config: Any) -> QueueManager:
    return QueueManager(
        clock=clock, background=False, config=ManagerConfig(**config), _ids=SeededIds()
    )


def pulled(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    job = manager.pull(queue, **options)
    assert job is not None, f"nothing to pull: {manager.counts(queue)}"
    return job


def completed(
    manager: QueueManager, result: Any = None, data: Any = None, queue: str = "q", **options: Any
) -> Job:
    """A job that was pushed, pulled and acked just now."""
    manager.push(queue, data, **options)
    job = pulled(manager, queue)
    assert manager.ack(job, result).applied
    return job


def failed(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    manager.push(queue, **options)
    job = pulled(manager, queue)
    assert manager.fail(job, "boom", unrecoverable=True).applied
    return job


def advance(manager: QueueManager, clock: VirtualClock, **parts: float) -> None:
    clock.advance(**parts)
    manager.run_pending()
    check(manager._state)


def advance_to(manager: QueueManager, clock: VirtualClock, moment: datetime) -> None:
    advance(manager, clock, milliseconds=(moment - clock.now) / MS)


# -- ttl -------------------------------------------------------------------------------------------


def test_a_job_that_did_not_start_within_its_ttl_fails_without_any_worker(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", ttl=10)
    assert manager.next_due() == clock.now + timedelta(seconds=10)
    advance(manager, clock, seconds=9, milliseconds=999)
    assert job.refresh().state is JobState.WAITING
    advance(manager, clock, milliseconds=1)
    assert job.refresh().state is JobState.FAILED
    assert (job.failed_reason, job.attempts_made) == ("ttl_expired", 0)
    assert "ttl of 10 s" in (job.error or "")
    assert (job.started_at, job.finished_at) == (None, clock.now)
    assert manager.dlq_len("q") == 1
    assert manager.pull("q") is None
    assert manager.next_due() == clock.now + timedelta(days=7), "the dead letter's age"


@pytest.mark.parametrize(
    "options",
    [{"delay": 60}, {"priority": 5}, {"lifo": True}, {"priority": -5, "delay": 1}],
    ids=str,
)
def test_a_ttl_runs_wherever_the_job_waits(
    manager: QueueManager, clock: VirtualClock, options: dict[str, Any]
) -> None:
    job = manager.push("q", ttl=10, **options)
    anchored = manager.push("q", ttl=10, run_at=clock.now + timedelta(minutes=1))
    advance(manager, clock, seconds=10)
    assert job.refresh().failed_reason == "ttl_expired"
    assert anchored.refresh().failed_reason == "ttl_expired"
    assert manager.counts("q").total == manager.counts("q").failed == 2
    advance(manager, clock, minutes=2)
    assert manager.pull("q") is None


def test_a_ttl_runs_while_the_queue_is_paused(manager: QueueManager, clock: VirtualClock) -> None:
    manager.pause("q")
    job = manager.push("q", ttl=10)
    advance(manager, clock, seconds=10)
    assert job.refresh().failed_reason == "ttl_expired"


def test_a_pull_never_hands_out_an_expired_job_even_if_nobody_looked_yet(
    manager: QueueManager, clock: VirtualClock
) -> None:
    expired = manager.push("q", ttl=10)
    prioritized = manager.push("q", ttl=10, priority=3)
    good = manager.push("q")
    clock.advance(seconds=10)
    assert manager.pull("q") == good
    assert manager.pull_batch("q", 10) == []
    check(manager._state)
    assert expired.refresh().failed_reason == prioritized.refresh().failed_reason == "ttl_expired"


def test_a_ttl_is_over_with_the_first_start(manager: QueueManager, clock: VirtualClock) -> None:
    manager.push("q", ttl=10, attempts=5, backoff=Backoff.fixed(20, jitter=0))
    clock.advance(seconds=9)
    job = pulled(manager)
    advance(manager, clock, seconds=20)
    assert job.refresh().state is JobState.ACTIVE
    manager.fail(job, "boom")
    advance(manager, clock, seconds=20)
    again = pulled(manager)
    assert again.attempt == 2
    manager.release(again)
    advance(manager, clock, seconds=100)
    assert again.refresh().state is JobState.WAITING
    assert manager.ack(pulled(manager)).applied


def test_a_retry_by_hand_gives_the_ttl_anew(manager: QueueManager, clock: VirtualClock) -> None:
    job = manager.push("q", ttl=10)
    advance(manager, clock, seconds=10)
    advance(manager, clock, seconds=100)
    manager.retry(job)
    advance(manager, clock, seconds=9)
    assert job.refresh().state is JobState.WAITING
    advance(manager, clock, seconds=1)
    assert job.refresh().failed_reason == "ttl_expired"
    manager.retry(job)
    assert manager.ack(pulled(manager)).applied


def test_a_ttl_never_fires_for_a_job_that_ended_or_left(
    manager: QueueManager, clock: VirtualClock
) -> None:
    done = completed(manager, "r", ttl=10)
    dead = failed(manager, ttl=10)
    removed = manager.push("q", ttl=10)
    manager.remove(removed)
    manager.push("q", ttl=10)
    assert manager.drain("q") == 1
    advance(manager, clock, seconds=20)
    assert done.refresh().state is JobState.COMPLETED
    assert dead.refresh().failed_reason == "unrecoverable"
    assert manager.counts("q").total == 2


def test_more_ttls_than_one_pass_looks_at_are_all_seen_to_when_they_end_together(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [JobSpec("n", i, ttl=5, delay=i % 10) for i in range(1030)])
    clock.advance(seconds=5)
    while manager.run_pending():
        pass
    assert manager.counts("q").failed == 1030
    check(manager._state)


@pytest.mark.parametrize("option", ["ttl", "timeout"])
@pytest.mark.parametrize("value", [0, -1, 36_500 * 86_400 + 1, float("nan"), "5", True])
def test_a_ttl_or_timeout_out_of_bounds_is_refused(
    manager: QueueManager, option: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=option):
        manager.push("q", **{option: value})
    assert manager.counts("q").total == 0


# -- delays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delay, ms",
    [(1, 1000), (0.07, 70), (0.0701, 71), (0.0001, 1), (timedelta(microseconds=1001), 2), (0, 0)],
)
def test_a_delay_is_rounded_up_to_a_millisecond_and_never_early(
    manager: QueueManager, clock: VirtualClock, delay: Any, ms: int
) -> None:
    job = manager.push("q", delay=delay)
    assert job.run_at == clock.now + ms * MS
    if ms:
        assert job.state is JobState.DELAYED
        assert manager.next_due() == job.run_at
        clock.advance(milliseconds=ms - 1)
        assert manager.pull("q") is None
        assert job.refresh().state is JobState.DELAYED
        clock.advance(milliseconds=1)
    assert job.refresh().state is JobState.WAITING
    assert manager.pull("q") == job


def test_no_job_starts_early_and_equal_due_times_run_first_in_first_out(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B058"""
    dice = Random(58)
    jobs = {}
    for i in range(1000):
        job = manager.push("q", i, delay=0.001 + dice.random())
        jobs[job.id] = job
    started: list[Job] = []
    for _ in range(1001):
        clock.advance(milliseconds=1)
        while (run := manager.pull("q", lock_duration=None)) is not None:
            assert run.started_at == clock.now == jobs[run.id].run_at
            started.append(run)
    assert len(started) == 1000
    for before, after in pairwise(started):
        if before.run_at == after.run_at:
            assert before.data < after.data


def test_a_delayed_job_is_no_lost_delivery(manager: QueueManager, clock: VirtualClock) -> None:
    """B017"""
    job = manager.push("q", delay=10)
    for _ in range(49):
        advance(manager, clock, milliseconds=200)
        assert manager.pull("q", lock_duration=1) is None
    advance(manager, clock, milliseconds=200)
    run = pulled(manager, lock_duration=1)
    assert run == job
    assert (run.attempt, run.stall_count) == (1, 0)
    assert manager.ack(run).applied
    for _ in range(50):
        advance(manager, clock, milliseconds=200)
        assert manager.pull("q", lock_duration=1) is None


def test_a_delay_longer_than_the_lease_of_an_earlier_run_is_waited_out(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B017"""
    manager.push("q", backoff=Backoff.fixed(100, jitter=0))
    job = pulled(manager, lock_duration=1)
    manager.fail(job, "boom")
    for _ in range(99):
        advance(manager, clock, seconds=1)
        assert manager.pull("q", lock_duration=1) is None
    advance(manager, clock, seconds=1)
    assert pulled(manager, lock_duration=1).attempt == 2
    assert job.refresh().stall_count == 0


def test_next_due_is_the_earliest_of_all_deadlines_and_none_when_time_changes_nothing(
    manager: QueueManager, clock: VirtualClock
) -> None:
    start = clock.now
    assert manager.next_due() is None
    manager.push("ready")
    assert manager.next_due() is None
    manager.push("q", delay=50)
    assert manager.next_due() == start + timedelta(seconds=50)
    manager.push("other", run_at=start + timedelta(seconds=40))
    assert manager.next_due() == start + timedelta(seconds=40)
    manager.push("third", ttl=35)
    assert manager.next_due() == start + timedelta(seconds=35)
    job = pulled(manager, "ready")
    assert manager.next_due() == start + timedelta(seconds=30)
    manager.ack(job)
    assert manager.next_due() == start + timedelta(seconds=35)
    for queue in ("q", "other", "third", "ready"):
        manager.obliterate(queue)
    assert manager.next_due() is None
    assert manager.run_pending() == 0


# -- moments of the wall clock ---------------------------------------------------------------------


def test_a_run_at_is_a_moment_rounded_up_and_never_early(
    manager: QueueManager, clock: VirtualClock
) -> None:
    asked = clock.now + timedelta(seconds=5, microseconds=1)
    job = manager.push("q", run_at=asked.astimezone(timezone(timedelta(hours=-7))))
    assert job.run_at == clock.now + timedelta(seconds=5, milliseconds=1)
    assert job.state is JobState.DELAYED
    clock.advance(seconds=5)
    assert manager.pull("q") is None
    clock.advance(milliseconds=1)
    assert manager.pull("q") == job


def test_a_naive_run_at_is_refused(manager: QueueManager) -> None:
    with pytest.raises(ValueError, match="time zone"):
        manager.push("q", run_at=datetime(2030, 1, 2))
    with pytest.raises(ValueError, match="run_at"):
        manager.push("q", run_at="2030-01-02")  # type: ignore[arg-type]


def test_a_delay_and_a_run_at_together_are_refused(
    manager: QueueManager, clock: VirtualClock
) -> None:
    with pytest.raises(ValueError, match="delay or run_at, not both"):
        manager.push("q", delay=1, run_at=clock.now)


def test_a_run_at_follows_a_wall_clock_set_forward(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", run_at=clock.now + timedelta(hours=2))
    clock.set_wall_clock(clock.now + timedelta(hours=2) - MS)
    assert job.refresh().state is JobState.DELAYED
    assert manager.next_due() == clock.now + MS
    clock.set_wall_clock(clock.now + timedelta(hours=2))
    assert job.refresh().state is JobState.WAITING
    assert manager.counts("q").waiting == 1
    assert manager.next_due() == clock.now
    assert manager.pull("q") == job


def test_a_run_at_follows_a_wall_clock_set_back(manager: QueueManager, clock: VirtualClock) -> None:
    job = manager.push("q", run_at=clock.now + timedelta(hours=1))
    clock.set_wall_clock(clock.now - timedelta(hours=12))
    assert manager.next_due() == clock.now + timedelta(hours=13)
    clock.advance(hours=12, minutes=59)
    assert manager.pull("q") is None
    clock.advance(minutes=1)
    assert manager.pull("q") == job


def test_a_run_at_given_after_a_jump_means_the_wall_clock_of_now(
    manager: QueueManager, clock: VirtualClock
) -> None:
    wall = clock.now + timedelta(days=500)
    clock.set_wall_clock(wall)
    due, later = manager.push("q", run_at=wall), manager.push("q", run_at=wall + MS)
    assert (due.state, later.state) == ("waiting", "delayed")
    assert manager.pull("q") == due
    assert manager.pull("q") is None
    clock.advance(milliseconds=1)
    assert manager.pull("q") == later


def test_jobs_of_a_jump_run_in_the_order_of_their_moments(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for hours in (3, 1, 2):
        manager.push("q", hours, run_at=clock.now + timedelta(hours=hours))
    manager.push("q", 0)
    clock.set_wall_clock(clock.now + timedelta(hours=5))
    assert [job.data for job in manager.pull_batch("q", 9)] == [1, 2, 3, 0]


@pytest.mark.parametrize("jump", [timedelta(days=365 * 90), timedelta(days=365 * 700)], ids=str)
def test_priorities_hold_over_the_wildest_jump_of_the_wall_clock(
    manager: QueueManager, clock: VirtualClock, jump: timedelta
) -> None:
    manager.push("q", "low", priority=-5, run_at=clock.now + timedelta(hours=1))
    manager.push("q", "high", priority=5)
    manager.push("q", "plain")
    clock.set_wall_clock(clock.now + jump)
    manager.push("q", "lowest", priority=-9, run_at=datetime(1970, 1, 1, tzinfo=timezone.utc))
    manager.push("q", "highest", priority=9, run_at=datetime(1980, 1, 1, tzinfo=timezone.utc))
    check(manager._state)
    order = [job.data for job in manager.pull_batch("q", 9)]
    assert order == ["highest", "high", "plain", "low", "lowest"]


def test_a_job_that_came_due_by_a_jump_is_released_and_removed_like_any_other(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", "a", run_at=clock.now + timedelta(hours=1))
    manager.push("q", "b", run_at=clock.now + timedelta(hours=2))
    clock.set_wall_clock(clock.now + timedelta(days=365 * 90))
    first = pulled(manager)
    assert manager.release(first)
    check(manager._state)
    again, other = pulled(manager), pulled(manager)
    assert [again.data, other.data] == ["a", "b"]
    manager.release(other)
    manager.remove(other)
    check(manager._state)
    assert manager.pull("q") is None


@pytest.mark.parametrize("back", [timedelta(hours=12), timedelta(seconds=2)], ids=str)
def test_what_runs_by_the_timeline_does_not_notice_a_wall_clock_set_back(
    manager: QueueManager, clock: VirtualClock, back: timedelta
) -> None:
    """B043, what there is of it in memory: a delay, a back-off, a lease, a timeout and a ttl"""
    manager.push_batch("pulled", [JobSpec("n", n, backoff=90) for n in range(2)])
    leased, retried = pulled(manager, "pulled"), pulled(manager, "pulled")
    manager.push("timed", timeout=20, backoff=90)
    timed = pulled(manager, "timed")
    delayed = manager.push("q", delay=10)
    expiring = manager.push("q", ttl=5)
    manager.fail(retried, "boom")
    wait = retried.refresh().run_at - clock.now
    clock.set_wall_clock(clock.now - back)
    assert manager.next_due() == clock.now + timedelta(seconds=5)
    advance(manager, clock, seconds=5)
    assert expiring.refresh().failed_reason == "ttl_expired"
    advance(manager, clock, seconds=5)
    assert manager.pull("q") == delayed
    advance(manager, clock, seconds=10)
    assert timed.refresh().error == "ran longer than its timeout of 20 s"
    advance(manager, clock, seconds=9, milliseconds=999)
    assert leased.refresh().state is JobState.ACTIVE
    advance(manager, clock, milliseconds=1)
    assert leased.refresh().stall_count == 1
    advance_to(manager, clock, retried.run_at)
    assert retried.refresh().state is JobState.WAITING
    assert wait >= timedelta(seconds=45)


def test_a_wall_clock_set_forward_loses_no_lease_and_fires_nothing(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B043"""
    manager.push("q", timeout=60)
    job = pulled(manager)
    delayed = manager.push("q", delay=10)
    expiring = manager.push("q", ttl=20)
    done = completed(manager, "r", queue="other", remove_on_complete=KeepJobs(age=30))
    clock.set_wall_clock(clock.now + timedelta(days=3650))
    assert manager.run_pending() == 0
    assert manager.heartbeat(job)
    assert job.refresh().state is JobState.ACTIVE
    assert delayed.refresh().state is JobState.DELAYED
    assert expiring.refresh().state is JobState.WAITING
    assert done.refresh().state is JobState.COMPLETED


def test_moments_shown_follow_the_timeline_not_the_wall_clock(
    manager: QueueManager, clock: VirtualClock
) -> None:
    clock.set_wall_clock(clock.now - timedelta(days=30))
    job = completed(manager)
    clock.advance(seconds=1)
    assert job.refresh().created_at == job.finished_at == clock.now - timedelta(seconds=1)
    assert manager.now == clock.now


# -- the far future --------------------------------------------------------------------------------


def test_the_farthest_moments_are_kept_exactly_and_overflow_nothing(
    manager: QueueManager, clock: VirtualClock
) -> None:
    end = clock.now + EVER
    delayed = manager.push("q", delay=EVER)
    anchored = manager.push("q", run_at=end)
    expiring = manager.push("q", ttl=EVER, delay=EVER)
    held = manager.push("held", timeout=EVER)
    pulled(manager, "held", lock_duration=EVER)
    assert delayed.run_at == anchored.run_at == end
    assert manager.next_due() == end
    assert manager.run_pending() == 0
    advance(manager, clock, days=36_499)
    assert manager.counts().active == 1
    assert manager.pull("q") is None
    advance(manager, clock, days=1)
    assert expiring.refresh().failed_reason == "ttl_expired"
    assert held.refresh().state is not JobState.ACTIVE
    assert manager.pull_batch("q", 5) == [delayed, anchored]


def test_farther_than_36500_days_is_refused(manager: QueueManager, clock: VirtualClock) -> None:
    for option in ("delay", "ttl", "timeout", "backoff"):
        with pytest.raises(ValueError, match=rf"{option}.*36,500 days"):
            manager.push("q", **{option: EVER + MS})
    with pytest.raises(ValueError, match=r"run_at.*36,500 days"):
        manager.push("q", run_at=clock.now + EVER + MS)
    with pytest.raises(ValueError, match=r"lock_duration.*36,500 days"):
        manager.pull("q", lock_duration=EVER + MS)
    assert manager.counts("q").total == 0


# -- retention: removed at once --------------------------------------------------------------------


def test_a_job_removed_on_completion_leaves_a_proof_and_its_result(manager: QueueManager) -> None:
    job = completed(manager, {"n": 1}, remove_on_complete=True)
    nothing = completed(manager, remove_on_complete=True)
    assert manager.counts("q").total == 0
    assert manager.get_job(job.id) is None
    assert manager.get_state(job) is JobState.UNKNOWN
    assert manager.get_result(job) == job.result(timeout=0) == {"n": 1}
    assert nothing.result(timeout=0) is None
    with pytest.raises(JobNotFoundError):
        job.refresh()


def test_a_job_removed_on_failure_leaves_a_proof_of_how_it_failed(manager: QueueManager) -> None:
    job = failed(manager, remove_on_fail=True)
    assert manager.counts("q").total == manager.dlq_len("q") == 0
    assert manager.get_job(job.id) is None
    assert manager.get_result(job) is None
    with pytest.raises(JobFailedError, match="boom") as caught:
        job.result(timeout=0)
    assert caught.value.reason == "unrecoverable"


def test_each_retention_is_about_its_own_outcome(manager: QueueManager) -> None:
    done = completed(manager, remove_on_fail=True)
    dead = failed(manager, remove_on_complete=True)
    assert done.refresh().state is JobState.COMPLETED
    assert dead.refresh().state is JobState.FAILED


def test_a_retryable_failure_removes_nothing(manager: QueueManager) -> None:
    job = manager.push("q", remove_on_fail=True, attempts=2, backoff=0)
    manager.fail(pulled(manager), "boom")
    assert job.refresh().state is JobState.WAITING
    manager.fail(pulled(manager), "boom")
    assert manager.get_job(job.id) is None


def test_a_finished_job_removed_by_hand_leaves_its_proof(manager: QueueManager) -> None:
    done, dead = completed(manager, "r"), failed(manager)
    assert manager.remove(done)
    assert manager.remove(dead)
    assert done.result(timeout=0) == "r"
    with pytest.raises(JobFailedError):
        dead.result(timeout=0)


def test_a_job_that_was_removed_drained_or_obliterated_unfinished_is_not_found(
    manager: QueueManager,
) -> None:
    removed = manager.push("q")
    manager.remove(removed)
    drained = manager.push("q")
    manager.drain("q")
    obliterated, done = manager.push("q"), completed(manager, "r")
    manager.obliterate("q", force=True)
    for job in (removed, drained, obliterated, done):
        with pytest.raises(JobNotFoundError):
            job.result(timeout=0)
        assert manager.get_result(job) is None


# -- retention: KeepJobs ---------------------------------------------------------------------------


def test_a_count_keeps_the_newest_finished_jobs_that_carry_one(manager: QueueManager) -> None:
    unbounded = [completed(manager, i) for i in range(3)]
    counted = [completed(manager, i, remove_on_complete=KeepJobs(count=2)) for i in range(5)]
    assert manager.get_jobs("q", "completed") == unbounded + counted[3:]
    assert [job.result(timeout=0) for job in counted] == list(range(5))


def test_completed_and_failed_jobs_that_carry_a_count_are_counted_together(
    manager: QueueManager, clock: VirtualClock
) -> None:
    keep = {"remove_on_complete": KeepJobs(count=2), "remove_on_fail": KeepJobs(count=2)}
    jobs: list[Job] = []
    for finish in (completed, failed, completed, failed):
        jobs.append(finish(manager, **keep))  # type: ignore[operator]
        assert manager.get_jobs("q") == jobs[-2:]
        clock.advance(milliseconds=1)
    counts = manager.counts("q")
    assert (counts.completed, counts.failed, manager.dlq_len("q")) == (1, 1, 1)


def test_a_count_is_about_its_own_queue(manager: QueueManager) -> None:
    for queue in ("a", "b"):
        for i in range(3):
            completed(manager, i, queue=queue, remove_on_complete=KeepJobs(count=2))
    assert manager.counts("a").completed == manager.counts("b").completed == 2


@pytest.mark.parametrize("finish", [completed, failed])
def test_a_count_of_zero_keeps_none(manager: QueueManager, finish: Any) -> None:
    keep = KeepJobs(count=0)
    job = finish(manager, remove_on_complete=keep, remove_on_fail=keep)
    assert manager.get_job(job.id) is None
    assert manager.counts("q").total == 0


def test_a_job_run_again_is_counted_by_when_it_finished_last(manager: QueueManager) -> None:
    first, second, third = [
        completed(manager, i, remove_on_complete=KeepJobs(count=3)) for i in range(3)
    ]
    manager.retry(first)
    manager.ack(pulled(manager), "again")
    fourth = completed(manager, remove_on_complete=KeepJobs(count=3))
    assert manager.get_job(second.id) is None
    assert manager.get_jobs("q", "completed") == [third, first, fourth]


def test_a_job_that_waits_for_a_retry_is_not_removed_by_the_count_of_others(
    manager: QueueManager,
) -> None:
    first = completed(manager, remove_on_complete=KeepJobs(count=1))
    manager.retry(first)
    completed_later = pulled(manager)
    assert completed_later == first
    other = completed(manager, remove_on_complete=KeepJobs(count=1))
    assert first.refresh().state is JobState.ACTIVE
    manager.ack(completed_later)
    assert manager.get_jobs("q", "completed") == [first]
    assert manager.get_job(other.id) is None


@pytest.mark.parametrize("finish", [completed, failed])
def test_an_age_removes_the_job_that_long_after_it_finished(
    manager: QueueManager, clock: VirtualClock, finish: Any
) -> None:
    keep = KeepJobs(age=timedelta(minutes=1))
    job = finish(manager, remove_on_complete=keep, remove_on_fail=keep)
    other = finish(manager)
    assert manager.next_due() == clock.now + timedelta(minutes=1)
    advance(manager, clock, seconds=59, milliseconds=999)
    assert manager.get_job(job.id) == job
    advance(manager, clock, milliseconds=1)
    assert manager.get_job(job.id) is None
    assert manager.counts("q").total == 1
    advance(manager, clock, days=6)  # a dead letter is kept for 7
    assert manager.get_job(other.id) == other


def test_an_age_counts_from_the_last_finish_and_not_while_the_job_lives_again(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = completed(manager, "old", remove_on_complete=KeepJobs(age=60))
    advance(manager, clock, seconds=50)
    manager.retry(job)
    advance(manager, clock, seconds=50)
    assert job.refresh().state is JobState.WAITING
    manager.ack(pulled(manager), "new")
    advance(manager, clock, seconds=59)
    assert job.refresh().return_value == "new"
    advance(manager, clock, seconds=1)
    assert manager.get_job(job.id) is None
    assert job.result(timeout=0) == "new"


def test_count_and_age_together_remove_at_whichever_comes_first(
    manager: QueueManager, clock: VirtualClock
) -> None:
    keep = KeepJobs(count=2, age=60)
    first, second, third = [completed(manager, remove_on_complete=keep) for _ in range(3)]
    assert manager.get_jobs("q") == [second, third]
    assert manager.get_job(first.id) is None
    advance(manager, clock, seconds=60)
    assert manager.get_jobs("q") == []


def test_an_age_of_zero_removes_with_the_next_pass(manager: QueueManager) -> None:
    job = completed(manager, remove_on_complete=KeepJobs(age=0))
    manager.run_pending()
    assert manager.get_job(job.id) is None


@pytest.mark.parametrize("option", ["remove_on_complete", "remove_on_fail"])
@pytest.mark.parametrize(
    "keep",
    [KeepJobs(), KeepJobs(count=-1), KeepJobs(count=1_000_001), KeepJobs(age=-1), 5, None, "all"],
    ids=str,
)
def test_a_retention_that_makes_no_sense_is_refused(
    manager: QueueManager, option: str, keep: Any
) -> None:
    with pytest.raises(ValueError, match=option):
        manager.push("q", **{option: keep})
    assert manager.counts("q").total == 0


# -- what a manager keeps in all -------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 7, 100])
def test_keep_completed_lets_the_oldest_go_and_stays_close_to_its_bound(
    clock: VirtualClock, keep: int
) -> None:
    with opened(clock, keep_completed=keep) as manager:
        jobs = []
        for i in range(keep * 2 + 5):
            jobs.append(completed(manager, i))
            clock.advance(milliseconds=1)
            assert manager.counts("q").completed <= keep
        kept = manager.get_jobs("q", "completed", limit=1000)
        assert len(kept) >= keep - max(1, keep // 50)
        assert kept == jobs[-len(kept) :]
        assert jobs[0].result(timeout=0) == 0, "what left has left a proof"
        assert manager.get_job(jobs[0].id) is None
        check(manager._state)


def test_keep_completed_of_zero_keeps_proofs_only(clock: VirtualClock) -> None:
    with opened(clock, keep_completed=0) as manager:
        job = completed(manager, "r")
        assert manager.counts("q").total == 0
        assert job.result(timeout=0) == "r"


def test_keep_completed_of_none_has_no_bound(clock: VirtualClock) -> None:
    with opened(clock, keep_completed=None) as manager:
        manager.push_batch("q", [("n", None)] * 300)
        for job in manager.pull_batch("q", 300):
            manager.ack(job)
        assert manager.counts("q").completed == 300


def test_keep_completed_never_touches_what_lives_or_failed(clock: VirtualClock) -> None:
    with opened(clock, keep_completed=2) as manager:
        dead = [failed(manager) for _ in range(5)]
        manager.push_batch("pending", [("n", None)] * 5)
        manager.push_batch("active", [("n", None)] * 5)
        manager.pull_batch("active", 5)
        for _ in range(5):
            completed(manager)
        assert manager.counts("q").completed <= 2
        assert manager.counts("q").failed == len(dead)
        assert manager.counts("pending").waiting == 5
        assert manager.counts("active").active == 5


def test_keep_completed_takes_the_oldest_of_all_queues(clock: VirtualClock) -> None:
    with opened(clock, keep_completed=10, shards=4) as manager:
        jobs = []
        for i in range(30):
            jobs.append(completed(manager, i, queue=f"queue-{i % 5}"))
            clock.advance(milliseconds=1)
        left = [job for job in jobs if manager.get_job(job.id) is not None]
        assert 9 <= len(left) <= 10
        assert left == jobs[-len(left) :]


@pytest.mark.parametrize(
    "shards, keep, first, queues, each",
    [(8, 400, 400, 20, 15), (64, 640, 640, 40, 9), (1, 1024, 0, 40, 63)],
    ids=["eight shards", "64 shards", "many small queues"],
)
def test_keep_completed_bounds_all_queues_together_however_they_are_spread(
    clock: VirtualClock, shards: int, keep: int, first: int, queues: int, each: int
) -> None:
    with opened(clock, keep_completed=keep, shards=shards) as manager:
        peak = 0
        for name, jobs in [("first", first), *((f"queue-{n}", each) for n in range(queues))]:
            manager.push_batch(name, [("n", None)] * jobs)
            while (job := manager.pull(name, lock_duration=None)) is not None:
                manager.ack(job)
            peak = max(peak, manager.counts().completed)
        assert peak <= keep * 1.1, "a tenth more is slack enough for looking now and then"
        assert manager.counts().completed >= keep * 0.9


@pytest.mark.parametrize("shards", [1, 8])
def test_max_completed_bytes_bounds_payloads_and_results_together(
    clock: VirtualClock, shards: int
) -> None:
    with opened(clock, max_completed_bytes=10_000, shards=shards) as manager:
        jobs = []
        for i in range(64):
            # some 1,000 bytes each, half of them in the payload
            jobs.append(completed(manager, "r" * 500, "d" * 500, queue=f"queue-{i % 16}"))
            clock.advance(milliseconds=1)
            check(manager._state)
        left = [job for job in jobs if manager.get_job(job.id) is not None]
        assert left == jobs[-len(left) :], "the oldest go first"
        assert 8 <= len(left) <= 10
        with pytest.raises(ResultExpiredError):
            jobs[0].result(timeout=0)
        assert jobs[-len(left) - 1].result(timeout=0) == "r" * 500, "results outlive their jobs"


def test_results_are_bounded_by_bytes_even_where_their_jobs_leave_at_once(
    clock: VirtualClock,
) -> None:
    with opened(clock, max_completed_bytes=10_000) as manager:
        for _ in range(100):
            completed(manager, "r" * 1000, remove_on_complete=True)
        assert manager._state.results.size <= 10_000


def test_one_job_above_max_completed_bytes_goes_at_once_and_leaves_its_result(
    clock: VirtualClock,
) -> None:
    with opened(clock, max_completed_bytes=1000) as manager:
        small = completed(manager, "small")
        clock.advance(milliseconds=1)
        big = completed(manager, "r" * 5000)
        assert manager.get_job(big.id) is None
        assert manager.get_job(small.id) is None, "the oldest goes first"
        assert len(big.result(timeout=0)) == 5000
        assert manager.get_job(completed(manager, "next").id) is not None


def kept_after(manager: QueueManager, clock: VirtualClock, rounds: int, **options: Any) -> int:
    """How many bytes more the process holds after so many completions of 10 kB each."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(rounds):
            completed(manager, data=f"{i} {'x' * 10_000}", **options)
            clock.advance(seconds=1)
            manager.run_pending()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_a_job_that_made_room_before_its_age_is_not_held_in_memory(clock: VirtualClock) -> None:
    with opened(clock, keep_completed=10, shards=1) as manager:
        # one that stays, and whose age comes first
        failed(manager, queue="other", remove_on_fail=KeepJobs(age=86_400))
        held = kept_after(manager, clock, 170, remove_on_complete=KeepJobs(age=7 * 86_400))
        assert manager.counts("q").completed <= 10
        assert held < 1_000_000, "of 1.7 MB only what is kept and a few leftovers may remain"


def test_a_job_that_left_by_count_before_its_age_is_not_held_in_memory(
    clock: VirtualClock,
) -> None:
    with opened(clock, shards=1) as manager:
        failed(manager, queue="other", remove_on_fail=KeepJobs(age=86_400))
        keep = KeepJobs(count=10, age=7 * 86_400)
        held = kept_after(manager, clock, 170, remove_on_complete=keep)
        assert manager.counts("q").completed == 10
        assert held < 1_000_000, "of 1.7 MB only what is kept and a few leftovers may remain"


# -- results ---------------------------------------------------------------------------------------


def test_keep_results_lets_the_least_recently_used_result_go(clock: VirtualClock) -> None:
    with opened(clock, keep_results=2) as manager:
        first, second = completed(manager, 1), completed(manager, 2)
        assert manager.get_result(first) == 1, "now the second is the least recently used"
        third = completed(manager, 3)
        assert manager.get_result(first) == 1
        assert manager.get_result(third) == 3
        for ask in (
            lambda: manager.get_result(second),
            lambda: manager.wait_for(second, timeout=0),
            lambda: second.result(timeout=0),
            lambda: second.refresh().return_value,
        ):
            if manager._state.storage is not None:
                assert ask() == 2, "a file has it still"
                continue
            with pytest.raises(ResultExpiredError, match="keep_results"):
                ask()
        assert second.refresh().state is JobState.COMPLETED


def test_of_many_results_exactly_the_newest_that_the_bound_allows_stay() -> None:
    results = ResultStore(1600, 10**9)
    for n in range(5000):
        results.put(str(n), b"12345678")
        assert len(results) == min(n + 1, 1600)
        assert results.size == 8 * len(results)
    results.put("4999", b"1")
    assert results.size == 8 * len(results) - 7
    assert results.get(str(5000 - 1600)) is not None
    assert results.get(str(5000 - 1600 - 1)) is None


def test_a_job_without_a_result_has_none_to_lose(clock: VirtualClock) -> None:
    with opened(clock, keep_results=0) as manager:
        nothing, something = completed(manager), completed(manager, 1)
        assert manager.get_result(nothing) is None
        assert nothing.result(timeout=0) is None
        if manager._state.storage is not None:
            assert manager.get_result(something) == 1, "a file has it still"
            return
        with pytest.raises(ResultExpiredError):
            manager.get_result(something)


def test_an_evicted_result_of_a_removed_job_is_expired_not_unknown(clock: VirtualClock) -> None:
    with opened(clock, keep_results=1) as manager:
        first = completed(manager, 1, remove_on_complete=True)
        completed(manager, 2, remove_on_complete=True)
        with pytest.raises(ResultExpiredError):
            manager.get_result(first)
        with pytest.raises(ResultExpiredError):
            first.result(timeout=0)
        with pytest.raises(JobNotFoundError):
            manager.wait_for("never existed", timeout=0)


def test_a_false_or_empty_result_is_a_result(manager: QueueManager) -> None:
    for result in (0, False, "", [], {}):
        job = completed(manager, result, remove_on_complete=True)
        assert manager.get_result(job) == result
        assert type(job.result(timeout=0)) is type(result)
