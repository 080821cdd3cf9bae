"""Attempts, back-off, timeouts, lost deliveries, and the reasons for which a job fails for good.

It is over 400 lines because all of it is one story: how a run ends badly, and what follows.
"""

import math
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    FailureReason,
    Job,
    JobEvent,
    JobFailedError,
    JobState,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

EXACT = Backoff.exponential(1, jitter=0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


def pulled(manager: QueueManager, **options: Any) -> Job:
    job = manager.pull("q", **options)
    assert job is not None, f"nothing to pull: {manager.counts('q')}"
    return job


def held(manager: QueueManager, **options: Any) -> Job:
    manager.push("q", {"n": 1}, **options)
    return pulled(manager)


def advance_to(manager: QueueManager, clock: VirtualClock, moment: datetime) -> None:
    clock.advance(milliseconds=(moment - clock.now) / timedelta(milliseconds=1))
    manager.run_pending()


def wait_after_failure(manager: QueueManager, clock: VirtualClock, job: Job) -> float:
    """Fails the run; the seconds until the next one."""
    manager.fail(job, "boom")
    return (job.refresh().run_at - clock.now).total_seconds()


def waits_of(manager: QueueManager, clock: VirtualClock, **options: Any) -> list[float]:
    """Fails the job until it is dead; the seconds between one failure and the next run."""
    job = manager.push("q", **options)
    waits = []
    while True:
        run = pulled(manager)
        assert run == job
        manager.fail(run, "boom")
        if job.refresh().state is JobState.FAILED:
            return waits
        assert job.run_at >= clock.now
        waits.append((job.run_at - clock.now).total_seconds())
        clock.advance(seconds=waits[-1])


# -- attempts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_attempts_are_the_runs_in_all_the_first_included(
    manager: QueueManager, attempts: int
) -> None:
    """B062"""
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append, types="failed")
    job = manager.push("q", attempts=attempts, backoff=0)
    shown = []
    while (run := manager.pull("q")) is not None:
        shown.append(run.attempt)
        manager.fail(run, "boom")
    assert shown == list(range(1, attempts + 1))
    manager.run_pending()
    assert [event.attempt for event in heard] == shown
    assert [event.terminal for event in heard] == [False] * (attempts - 1) + [True]
    assert job.refresh().attempts_made == attempts
    assert (job.attempt, job.failed_reason) == (attempts, "max_attempts_exceeded")


def test_three_attempts_are_the_default(manager: QueueManager, clock: VirtualClock) -> None:
    assert len(waits_of(manager, clock)) == 2


@pytest.mark.parametrize("attempts", [0, -1, 1001, 2.0, "3", True, None])
def test_attempts_out_of_bounds_are_refused(manager: QueueManager, attempts: Any) -> None:
    """B062"""
    with pytest.raises(ValueError, match=r"attempts must be an int from 1 to 1,000"):
        manager.push("q", attempts=attempts)
    assert manager.counts("q").total == 0


def test_a_back_off_with_one_attempt_is_accepted_and_never_used(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B062: documented on `JobOptions`"""
    asked: list[int] = []

    def rule(attempt: int, error: object) -> float:
        asked.append(attempt)
        return 5

    assert waits_of(manager, clock, attempts=1, backoff=Backoff.custom(rule)) == []
    assert asked == []


def test_a_failure_that_is_given_as_text_or_exception_is_kept_as_text(
    manager: QueueManager,
) -> None:
    job = held(manager, backoff=0)
    manager.fail(job, "just text")
    assert (job.refresh().error, job.stacktrace) == ("just text", [])
    manager.fail(pulled(manager), KeyError("k"))
    assert job.refresh().error == "KeyError: 'k'"
    manager.fail(pulled(manager), SystemExit(3))
    assert job.refresh().error == "SystemExit: 3"


def test_an_error_whose_text_raises_is_described_all_the_same(manager: QueueManager) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    job = held(manager)
    assert manager.fail(job, Mute()).applied
    assert "Mute" in (job.refresh().error or "")


@pytest.mark.parametrize("error", [None, 42, b"bytes", ValueError])
def test_an_error_that_is_neither_text_nor_exception_is_refused(
    manager: QueueManager, error: Any
) -> None:
    job = held(manager)
    with pytest.raises(ValueError, match="error must be text or an exception"):
        manager.fail(job, error)
    assert job.refresh().state is JobState.ACTIVE


# -- back-off --------------------------------------------------------------------------------------


def test_an_exponential_back_off_doubles_from_its_delay(
    manager: QueueManager, clock: VirtualClock
) -> None:
    rule = Backoff.exponential(0.5, jitter=0)
    assert waits_of(manager, clock, attempts=6, backoff=rule) == [0.5, 1, 2, 4, 8]


def test_a_fixed_back_off_stays_the_same(manager: QueueManager, clock: VirtualClock) -> None:
    rule = Backoff.fixed(timedelta(seconds=7), jitter=0)
    assert waits_of(manager, clock, attempts=5, backoff=rule) == [7, 7, 7, 7]


def test_a_fixed_back_off_has_no_hidden_cap(manager: QueueManager, clock: VirtualClock) -> None:
    rule = Backoff.fixed(timedelta(days=36_500), jitter=0)
    assert waits_of(manager, clock, attempts=2, backoff=rule) == [36_500 * 86_400]


def at_once(attempt: int, error: object) -> float:
    return 0


def test_a_back_off_of_zero_retries_at_once(manager: QueueManager, clock: VirtualClock) -> None:
    for rule in (0, Backoff.fixed(0), Backoff.exponential(0), Backoff.custom(at_once)):
        assert waits_of(manager, clock, attempts=3, backoff=rule) == [0, 0]


@pytest.mark.parametrize(
    "backoff, base",
    [(4, 4), (2.5, 2.5), (timedelta(minutes=1), 60), (None, 1)],
    ids=["int", "float", "timedelta", "default"],
)
def test_a_bare_duration_is_exponential_with_a_jitter_of_a_half(
    manager: QueueManager, clock: VirtualClock, backoff: Any, base: float
) -> None:
    options = {} if backoff is None else {"backoff": backoff}
    firsts, seconds = [], []
    for _ in range(60):
        first, second = waits_of(manager, clock, attempts=3, **options)
        firsts.append(first / base)
        seconds.append(second / base)
    assert 0.5 <= min(firsts) < 0.7
    assert 1.3 < max(firsts) <= 1.5
    assert 1 <= min(seconds) < 1.4
    assert 2.6 < max(seconds) <= 3


def test_a_fixed_back_off_has_a_jitter_of_a_fifth_by_default(
    manager: QueueManager, clock: VirtualClock
) -> None:
    waits = waits_of(manager, clock, attempts=200, backoff=Backoff.fixed(100))
    assert 80 <= min(waits) < 85
    assert 115 < max(waits) <= 120


@pytest.mark.parametrize("make", [Backoff.exponential, Backoff.fixed])
@pytest.mark.parametrize(
    "jitter", [-0.1, 1.1, float("nan"), float("inf"), 10**400, -(10**400), True, "1", None]
)
def test_a_jitter_out_of_bounds_is_refused_by_its_name(make: Any, jitter: Any) -> None:
    with pytest.raises(ValidationError, match="jitter must be a number from 0 to 1, not"):
        make(1, jitter=jitter)


@pytest.mark.parametrize("jitter", [0.1, 0.5, 1])
def test_jitter_stays_within_its_bounds_and_fills_them(
    manager: QueueManager, clock: VirtualClock, jitter: float
) -> None:
    waits = waits_of(manager, clock, attempts=300, backoff=Backoff.fixed(10, jitter=jitter))
    low, high = 10 * (1 - jitter), 10 * (1 + jitter)
    assert low <= min(waits) < low + 2 * jitter
    assert high - 2 * jitter < max(waits) <= high


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan, math.inf, "0.5", None, True])
def test_a_jitter_out_of_bounds_is_refused(jitter: Any) -> None:
    for make in (Backoff.fixed, Backoff.exponential):
        with pytest.raises(ValueError, match=r"jitter must be a number from 0 to 1"):
            make(1, jitter=jitter)


def test_an_exponential_back_off_is_capped_at_an_hour_by_default(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B061"""
    waits = waits_of(manager, clock, attempts=40)
    assert len(waits) == 39
    assert max(waits) <= 3600
    assert waits[20:] == [3600] * 19


def test_an_exponential_back_off_is_capped_at_what_it_was_given(
    manager: QueueManager, clock: VirtualClock
) -> None:
    rule = Backoff.exponential(1, max_delay=timedelta(seconds=5), jitter=0)
    assert waits_of(manager, clock, attempts=7, backoff=rule) == [1, 2, 4, 5, 5, 5]


def test_the_cap_is_taken_after_the_jitter(manager: QueueManager, clock: VirtualClock) -> None:
    """The wait is delay * 2**(n-1), times the jitter's factor, and only then capped: far beyond
    the cap no factor brings it back under it."""
    rule = Backoff.exponential(1, max_delay=60, jitter=0.9)
    waits = waits_of(manager, clock, attempts=200, backoff=rule)
    # from the 11th retry on even the smallest factor, 0.1, leaves more than 60 s
    assert set(waits[11:]) == {60}


def test_a_delay_above_its_cap_waits_the_cap(manager: QueueManager, clock: VirtualClock) -> None:
    rule = Backoff.exponential(100, max_delay=10, jitter=0)
    assert waits_of(manager, clock, attempts=3, backoff=rule) == [10, 10]


def test_a_thousand_attempts_overflow_nothing(manager: QueueManager, clock: VirtualClock) -> None:
    """The last wait would be 2**998 s without the cap"""
    waits = waits_of(manager, clock, attempts=1000, backoff=EXACT)
    assert len(waits) == 999
    assert waits[:13] == [*(2.0**n for n in range(12)), 3600]
    assert set(waits[12:]) == {3600}


def test_the_longest_back_off_of_all_overflows_nothing(
    manager: QueueManager, clock: VirtualClock
) -> None:
    ever = timedelta(days=36_500)
    job = held(manager, attempts=1000, backoff=Backoff.exponential(ever, max_delay=ever))
    assert wait_after_failure(manager, clock, job) <= ever.total_seconds()
    assert job.state is JobState.DELAYED


def test_a_stored_due_time_is_decision_time_plus_documented_delay_every_time(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B059"""
    queue = Queue("q", manager)
    job = manager.push("q", attempts=12, backoff=Backoff.exponential(120, jitter=0))
    for _ in range(2):
        for failure in range(1, 12):
            run = pulled(manager)
            clock.advance(seconds=17)  # how long it ran plays no part
            manager.fail(run, "boom")
            wanted = min(120 * 2 ** (failure - 1), 3600)
            assert job.refresh().run_at == clock.now + timedelta(seconds=wanted)
            advance_to(manager, clock, job.run_at)
        manager.fail(pulled(manager), "boom")
        assert job.refresh().state is JobState.FAILED
        queue.dlq.retry(job)
        assert job.refresh().run_at == clock.now


# -- custom back-off -------------------------------------------------------------------------------


def test_a_custom_back_off_is_shown_the_attempt_that_failed_and_its_error(
    manager: QueueManager, clock: VirtualClock
) -> None:
    seen: list[tuple[int, Any]] = []

    def rule(attempt: int, error: BaseException | str) -> timedelta:
        seen.append((attempt, error))
        return timedelta(seconds=attempt * 3)

    errors = [ValueError("one"), "two"]
    job = manager.push("q", attempts=3, backoff=Backoff.custom(rule))
    for n, error in enumerate(errors, 1):
        manager.fail(pulled(manager), error)
        assert job.refresh().run_at == clock.now + timedelta(seconds=n * 3)
        advance_to(manager, clock, job.run_at)
    manager.fail(pulled(manager), "three")
    assert job.refresh().state is JobState.FAILED
    assert seen == [(1, errors[0]), (2, "two")], "the last failure needs no wait"


NONSENSE = [None, "soon", -1, math.nan, math.inf, 10**12, True, [1]]


@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
def test_a_custom_back_off_that_returns_nonsense_gives_the_default_wait_and_says_so(
    manager: QueueManager,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
) -> None:
    job = held(manager, backoff=Backoff.custom(lambda attempt, error: answer))
    assert 0.5 <= wait_after_failure(manager, clock, job) <= 1.5
    assert "custom back-off" in caplog.text


@pytest.mark.parametrize("error", [ValueError, RecursionError, SystemExit, KeyboardInterrupt])
def test_a_custom_back_off_that_raises_loses_no_job(
    manager: QueueManager, clock: VirtualClock, error: type[BaseException]
) -> None:
    def rule(attempt: int, failure: object) -> float:
        raise error("broken rule")

    job = held(manager, backoff=Backoff.custom(rule))
    if error is KeyboardInterrupt:  # Ctrl-C is the application's: the call may be broken off
        with pytest.raises(KeyboardInterrupt):
            manager.fail(job, "boom")
        assert job.refresh().state is JobState.ACTIVE
        assert manager.heartbeat(job)
        return
    assert manager.fail(job, "boom").applied
    wait = job.refresh().run_at - clock.now
    assert timedelta(seconds=0.5) <= wait <= timedelta(seconds=1.5)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_custom_back_off_that_raises_in_a_sweep_loses_no_job(
    manager: QueueManager, clock: VirtualClock, error: type[BaseException]
) -> None:
    def rule(attempt: int, failure: object) -> float:
        raise error("broken rule")

    job = held(manager, backoff=Backoff.custom(rule))
    other = held(manager)
    clock.advance(seconds=30)
    try:
        manager.run_pending()
    except SystemExit:
        clock.advance(minutes=2)
        manager.run_pending()
    assert job.refresh().state in (JobState.DELAYED, JobState.WAITING)
    assert other.refresh().state in (JobState.DELAYED, JobState.WAITING)


def test_a_custom_back_off_may_use_the_manager(manager: QueueManager, clock: VirtualClock) -> None:
    def rule(attempt: int, error: object) -> float:
        manager.push("from-the-rule", attempt)
        return manager.counts("from-the-rule").waiting * 2

    job = held(manager, backoff=Backoff.custom(rule))
    assert wait_after_failure(manager, clock, job) == 2
    advance_to(manager, clock, job.run_at)
    run = pulled(manager)
    clock.advance(seconds=30)
    manager.run_pending()  # the sweep asks the rule as well
    assert run.refresh().run_at == clock.now + timedelta(seconds=4)


@pytest.mark.parametrize("rule", [None, 5, "fn"])
def test_a_custom_back_off_must_be_callable(rule: Any) -> None:
    with pytest.raises(ValueError, match="custom needs a function"):
        Backoff.custom(rule)


@pytest.mark.parametrize("backoff", ["soon", None, -1, math.nan, 36_500 * 86_400 + 1, [1]])
def test_a_back_off_that_is_none_is_refused(manager: QueueManager, backoff: Any) -> None:
    with pytest.raises(ValueError, match="backoff"):
        manager.push("q", backoff=backoff)
    assert manager.counts("q").total == 0


# -- unrecoverable ---------------------------------------------------------------------------------


def test_an_unrecoverable_failure_ends_the_job_whatever_attempts_remain(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager, attempts=10)
    assert manager.fail(job, "no such account", unrecoverable=True).applied
    assert job.refresh().state is JobState.FAILED
    assert (job.failed_reason, job.attempts_made) == ("unrecoverable", 1)
    assert job.finished_at == clock.now
    with pytest.raises(JobFailedError) as caught:
        job.result(timeout=0)
    assert caught.value.reason == FailureReason.UNRECOVERABLE
    assert (caught.value.job_id, caught.value.error) == (job.id, "no such account")
    clock.advance(days=1)
    assert manager.pull("q") is None


# -- stack traces ----------------------------------------------------------------------------------


def ping(levels: int) -> None:
    if levels:
        pong(levels - 1)  # two functions, because a traceback folds up one that calls itself
    raise ValueError("the bottom")


def pong(levels: int) -> None:
    ping(levels)


def raised(levels: int) -> ValueError:
    try:
        ping(levels)
    except ValueError as error:
        return error
    raise AssertionError("nothing was raised")


def test_ten_lines_of_the_traceback_are_kept_by_default(manager: QueueManager) -> None:
    job = held(manager)
    manager.fail(job, raised(20))
    lines = job.refresh().stacktrace
    assert len(lines) == 10
    assert lines[-1] == "ValueError: the bottom"
    assert any("raise ValueError" in line for line in lines)


@pytest.mark.parametrize("limit, kept", [(0, 0), (1, 1), (3, 3), (1000, None)])
def test_the_stack_trace_limit_keeps_the_last_lines(
    manager: QueueManager, limit: int, kept: int | None
) -> None:
    job = held(manager, stack_trace_limit=limit, attempts=1)
    manager.fail(job, raised(12))
    lines = job.refresh().stacktrace
    if kept is not None:
        assert len(lines) == kept
    else:
        assert 26 <= len(lines) <= 1000, "every frame and the error itself"
    assert lines[-1:] == ["ValueError: the bottom"][:limit]
    with pytest.raises(JobFailedError) as caught:
        job.result(timeout=0)
    assert caught.value.stacktrace == lines
    assert job.error == "ValueError: the bottom", "the limit is about the trace alone"


@pytest.mark.parametrize("limit", [-1, 1001, 1.5, None, True])
def test_a_stack_trace_limit_out_of_bounds_is_refused(manager: QueueManager, limit: Any) -> None:
    with pytest.raises(ValueError, match="stack_trace_limit"):
        manager.push("q", stack_trace_limit=limit)


def test_a_very_deep_traceback_and_a_very_long_error_are_bounded(manager: QueueManager) -> None:
    job = held(manager, stack_trace_limit=1000, backoff=0)
    manager.fail(job, raised(sys.getrecursionlimit() // 3))
    assert len(job.refresh().stacktrace) <= 1000
    manager.fail(pulled(manager), "x" * 1_000_000)
    assert len(job.refresh().error or "") <= 8192


def test_text_that_is_no_valid_unicode_is_kept_escaped(manager: QueueManager) -> None:
    job = held(manager)
    manager.fail(job, ValueError("bad \ud800 text"))
    (job.refresh().error or "").encode()
    assert "bad" in (job.error or "")


# -- timeouts --------------------------------------------------------------------------------------


def test_a_run_may_take_its_timeout_and_not_a_millisecond_more(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager, timeout=5, backoff=Backoff.fixed(10, jitter=0))
    clock.advance(seconds=4, milliseconds=999)
    assert manager.run_pending() == 0
    assert job.refresh().state is JobState.ACTIVE
    assert manager.next_due() == clock.now + timedelta(milliseconds=1)
    clock.advance(milliseconds=1)
    assert manager.run_pending() == 1
    assert job.refresh().state is JobState.DELAYED
    assert job.run_at == clock.now + timedelta(seconds=10)
    assert (job.attempts_made, job.stall_count) == (1, 0)
    assert "timeout of 5 s" in (job.error or "")


def test_a_timeout_counts_from_each_start_not_from_the_push(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", timeout=5, backoff=0)
    clock.advance(hours=1)
    run = pulled(manager)
    clock.advance(seconds=4)
    manager.fail(run, "boom")
    run = pulled(manager)
    clock.advance(seconds=4)
    manager.run_pending()
    assert run.refresh().state is JobState.ACTIVE
    clock.advance(seconds=1)
    manager.run_pending()
    assert (run.refresh().state, run.attempts_made) == ("waiting", 2)


def test_heartbeats_do_not_put_a_timeout_off(manager: QueueManager, clock: VirtualClock) -> None:
    job = held(manager, timeout=50)
    for _ in range(5):
        clock.advance(seconds=10)
        assert manager.heartbeat(job)
        assert manager.extend_lock(job, 100)
    manager.run_pending()
    assert job.refresh().state is JobState.DELAYED
    assert manager.heartbeat(job) is False


def test_a_timeout_needs_no_lock(manager: QueueManager, clock: VirtualClock) -> None:
    manager.push("q", timeout=5, attempts=1)
    job = pulled(manager, lock_duration=None)
    clock.advance(seconds=5)
    manager.run_pending()
    assert job.refresh().failed_reason == "timeout"


def test_a_job_that_always_exceeds_its_timeout_runs_its_attempts_and_dies_of_it(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B064"""
    job = manager.push("q", timeout=3, attempts=2, backoff=0)
    for _ in range(2):
        assert pulled(manager) == job
        clock.advance(seconds=3)
        manager.run_pending()
    assert manager.pull("q") is None
    assert job.refresh().failed_reason == FailureReason.TIMEOUT
    assert job.attempts_made == 2
    (entry,) = manager.dlq_entries("q")
    assert entry.reason == "timeout"
    assert [(row.attempt, row.reason, row.duration) for row in entry.attempts] == [
        (1, "timeout", 3.0),
        (2, "timeout", 3.0),
    ]


def test_runs_that_time_out_leave_the_engine_free_and_their_late_ends_are_ignored(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B082, the engine's half"""
    stuck = [held(manager, timeout=0.2, attempts=1) for _ in range(2)]
    manager.push_batch("q", [("quick", i) for i in range(10)])
    clock.advance(milliseconds=200)
    manager.run_pending()
    assert [job.refresh().failed_reason for job in stuck] == ["timeout", "timeout"]
    assert {job.finished_at for job in stuck} == {clock.now}
    assert manager.counts("q").active == 0
    for job in manager.pull_batch("q", 10):
        assert manager.ack(job).applied
    clock.advance(seconds=3)
    assert manager.ack(stuck[0], "late").reason == "already_finalized"
    assert manager.fail(stuck[1], "late").reason == "already_finalized"
    counts = manager.counts("q")
    assert (counts.completed, counts.failed, counts.active) == (10, 2, 0)


def test_a_run_that_ended_in_time_is_left_alone_by_its_timeout(
    manager: QueueManager, clock: VirtualClock
) -> None:
    acked = held(manager, timeout=5)
    manager.ack(acked)
    failed = held(manager, timeout=5, backoff=60)
    manager.fail(failed, "boom")
    released = held(manager, timeout=5)
    manager.release(released)
    clock.advance(seconds=10)
    manager.run_pending()
    assert acked.refresh().state is JobState.COMPLETED
    assert (failed.refresh().error, failed.attempts_made) == ("boom", 1)
    assert (released.refresh().state, released.attempts_made) == ("waiting", 0)


# -- lost deliveries -------------------------------------------------------------------------------


def test_an_expired_lock_charges_an_attempt_and_a_stall_and_retries_with_back_off(
    manager: QueueManager, clock: VirtualClock
) -> None:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append)
    manager.push("q", backoff=Backoff.fixed(10, jitter=0))
    job = pulled(manager, lock_duration=8, owner="worker-7")
    clock.advance(seconds=7, milliseconds=999)
    manager.run_pending()
    assert job.refresh().state is JobState.ACTIVE
    clock.advance(milliseconds=1)
    manager.run_pending()
    assert job.refresh().state is JobState.DELAYED
    assert (job.attempts_made, job.stall_count, job.attempt) == (1, 1, 2)
    assert job.run_at == clock.now + timedelta(seconds=10)
    assert "worker-7" in (job.error or "")
    assert [event.type for event in heard][-2:] == ["stalled", "failed"]
    assert heard[-1].terminal is False
    assert heard[-1].retry_at == job.run_at


def sweep(manager: QueueManager, clock: VirtualClock, times: int) -> None:
    for _ in range(times):
        pulled(manager)
        clock.advance(seconds=30)
        manager.run_pending()


def test_a_job_lost_as_often_as_it_has_attempts_fails_as_stalled(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", attempts=2, backoff=0)
    sweep(manager, clock, 1)
    assert job.refresh().state is JobState.WAITING
    sweep(manager, clock, 1)
    assert job.refresh().state is JobState.FAILED
    assert (job.failed_reason, job.attempts_made, job.stall_count) == ("stalled", 2, 2)


def test_a_job_lost_three_times_fails_as_stalled_whatever_attempts_remain(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", attempts=100, backoff=0)
    sweep(manager, clock, 2)
    assert (job.refresh().state, job.stall_count) == ("waiting", 2)
    sweep(manager, clock, 1)
    assert job.refresh().state is JobState.FAILED
    assert (job.failed_reason, job.attempts_made, job.stall_count) == ("stalled", 3, 3)
    assert manager.pull("q") is None


def test_ordinary_failures_and_timeouts_are_no_stalls(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", attempts=8, backoff=0, timeout=10)
    for _ in range(3):
        manager.fail(pulled(manager), "boom")
        pulled(manager)
        clock.advance(seconds=10)
        manager.run_pending()
    assert (job.refresh().attempts_made, job.stall_count) == (6, 0)
    assert job.state is JobState.WAITING


def test_the_reason_is_that_of_the_failure_which_ended_the_job(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", attempts=2, backoff=0)
    sweep(manager, clock, 1)
    manager.fail(pulled(manager), "boom")
    assert job.refresh().failed_reason == "max_attempts_exceeded"
    (entry,) = manager.dlq_entries("q")
    assert [row.reason for row in entry.attempts] == ["stalled", "unknown"]


def test_an_active_job_that_keeps_its_heartbeats_is_never_lost(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager)
    for _ in range(100):
        clock.advance(seconds=29)
        assert manager.heartbeat(job)
        manager.run_pending()
    assert (job.refresh().state, job.stall_count) == ("active", 0)


def test_many_leases_that_run_out_together_are_all_seen_to(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [("n", i) for i in range(300)])
    jobs = manager.pull_batch("q", 300)
    manager.heartbeat_batch(jobs[::2])
    clock.advance(seconds=30)
    manager.heartbeat_batch(jobs[::3])
    assert manager.run_pending() >= 200
    lost = [job for i, job in enumerate(jobs) if i % 3]
    assert all(job.refresh().stall_count == 1 for job in lost)
    assert manager.counts("q").active == 100


# -- why a job failed for good ---------------------------------------------------------------------


def test_every_final_failure_names_its_reason_everywhere(
    manager: QueueManager, clock: VirtualClock
) -> None:
    jobs = {
        "max_attempts_exceeded": held(manager, attempts=1),
        "unrecoverable": held(manager),
        "timeout": held(manager, attempts=1, timeout=2),
        "stalled": held(manager, attempts=1),
        "ttl_expired": manager.push("q", ttl=2),
    }
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append, types=["failed", "dlq_added"])
    manager.fail(jobs["max_attempts_exceeded"], "boom")
    manager.fail(jobs["unrecoverable"], "boom", unrecoverable=True)
    clock.advance(seconds=2)
    manager.run_pending()
    clock.advance(seconds=28)
    manager.run_pending()
    entries = {entry.job.id: entry for entry in manager.dlq_entries("q")}
    assert len(entries) == len(jobs)
    for reason, job in jobs.items():
        assert job.refresh().failed_reason == reason
        assert FailureReason(reason) == reason
        assert entries[job.id].reason == reason
        mine = [event for event in heard if event.job_id == job.id]
        assert [(e.type, e.reason) for e in mine] == [("failed", reason), ("dlq_added", reason)]
        with pytest.raises(JobFailedError, match=reason) as caught:
            manager.wait_for(job, timeout=0)
        assert caught.value.reason == reason


def test_a_manual_retry_gives_fresh_attempts_stalls_and_the_first_back_off_step(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B067"""
    job = manager.push("q", attempts=5, backoff=EXACT)
    for _ in range(5):
        manager.fail(pulled(manager), "boom")
        advance_to(manager, clock, max(clock.now, job.refresh().run_at))
    assert job.refresh().state is JobState.FAILED
    assert manager.retry(job) is True
    assert job.refresh().state is JobState.WAITING
    assert (job.attempts_made, job.attempt, job.stall_count) == (0, 1, 0)
    assert (job.error, job.failed_reason, job.stacktrace, job.progress) == (None, None, [], 0)
    assert (job.started_at, job.finished_at) == (None, None)
    assert wait_after_failure(manager, clock, pulled(manager)) == 1
    advance_to(manager, clock, job.refresh().run_at)
    for wanted in (2, 4, 8):
        assert wait_after_failure(manager, clock, pulled(manager)) == wanted
        advance_to(manager, clock, job.refresh().run_at)
    manager.fail(pulled(manager), "boom")
    assert (job.refresh().state, job.attempts_made) == ("failed", 5)


def test_a_completed_job_can_be_run_again(manager: QueueManager, clock: VirtualClock) -> None:
    job = held(manager)
    job.update_progress(80)
    manager.ack(job, "old")
    assert manager.retry(job) is True
    assert (job.refresh().state, job.return_value, job.progress) == ("waiting", None, 0)
    assert manager.get_result(job) is None
    manager.ack(pulled(manager), "new")
    assert manager.get_result(job) == "new"
    assert manager.counts("q").total == 1
