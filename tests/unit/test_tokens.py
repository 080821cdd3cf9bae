"""SPEC's table of tokens: what each call answers to each kind of token, row by row.

It is over 400 lines because the table has one small function for each way a token comes to be
what it is.
"""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from bunqueue_py import (
    Ack,
    Backoff,
    Job,
    JobEvent,
    JobNotFoundError,
    JobState,
    LockError,
    Outcome,
    QueueManager,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

LEASE = 30
WAIT = 10


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


def pulled(manager: QueueManager, queue: str = "q", **options: Any) -> Job:
    job = manager.pull(queue, **options)
    assert job is not None, f"nothing to pull: {manager.counts(queue)}"
    return job


def held(manager: QueueManager, **options: Any) -> Job:
    """A job that was just pushed and pulled."""
    manager.push("q", {"n": 1}, **{"backoff": Backoff.fixed(WAIT, jitter=0), **options})
    return pulled(manager)


def swept(manager: QueueManager, clock: VirtualClock, **options: Any) -> Job:
    """A job whose lock ran out, and was seen to."""
    job = held(manager, **options)
    clock.advance(seconds=LEASE)
    manager.run_pending()
    return job


class Held(NamedTuple):
    """What the caller has in hand."""

    job_id: str
    token: str | None


def of(job: Job) -> Held:
    assert job.token
    return Held(job.id, job.token)


# -- the rows: how the token came to be what it is -------------------------------------------------


def current(manager: QueueManager, clock: VirtualClock) -> Held:
    return of(held(manager))


def current_but_expired(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    clock.advance(seconds=LEASE * 10)
    return of(job)


def current_after_others(manager: QueueManager, clock: VirtualClock) -> Held:
    swept(manager, clock, attempts=5)
    clock.advance(seconds=WAIT)
    manager.release(pulled(manager))
    manager.fail(pulled(manager), "boom")
    clock.advance(seconds=WAIT)
    return of(pulled(manager))


def none_for_a_lockless_delivery(manager: QueueManager, clock: VirtualClock) -> Held:
    manager.push("q")
    return Held(pulled(manager, lock_duration=None).id, None)


def own_for_a_lockless_delivery(manager: QueueManager, clock: VirtualClock) -> Held:
    manager.push("q")
    return of(pulled(manager, lock_duration=None))


def swept_in_back_off(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock)
    assert manager.get_state(job) is JobState.DELAYED
    return of(job)


def swept_and_due(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock)
    clock.advance(seconds=WAIT)
    assert manager.get_state(job) is JobState.WAITING
    return of(job)


def swept_and_ready_at_once(manager: QueueManager, clock: VirtualClock) -> Held:
    return of(swept(manager, clock, backoff=0))


def swept_before_a_release(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock, backoff=0)
    manager.release(pulled(manager))
    return of(job)


def swept_while_paused(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock, backoff=0)
    manager.pause("q")
    return of(job)


def swept_and_active_again(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock, backoff=0)
    pulled(manager)
    return of(job)


def timed_out_and_pending(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager, timeout=1)
    clock.advance(seconds=1)
    manager.run_pending()
    assert manager.get_state(job) is JobState.DELAYED
    return of(job)


def timed_out_and_active_again(manager: QueueManager, clock: VirtualClock) -> Held:
    held_before = timed_out_and_pending(manager, clock)
    clock.advance(seconds=WAIT)
    pulled(manager)
    return held_before


def released_and_pending(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.release(job)
    return of(job)


def released_and_active_again(manager: QueueManager, clock: VirtualClock) -> Held:
    before = released_and_pending(manager, clock)
    pulled(manager)
    return before


def failed_and_pending(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.fail(job, "boom")
    return of(job)


def failed_and_active_again(manager: QueueManager, clock: VirtualClock) -> Held:
    before = failed_and_pending(manager, clock)
    clock.advance(seconds=WAIT)
    pulled(manager)
    return before


def completed_then_retried(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.ack(job)
    manager.retry(job)
    return of(job)


def completed_then_retried_and_active(manager: QueueManager, clock: VirtualClock) -> Held:
    before = completed_then_retried(manager, clock)
    pulled(manager)
    return before


def dead_then_retried_and_active(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.fail(job, "boom", unrecoverable=True)
    manager.retry(job)
    pulled(manager)
    return of(job)


def own_ack_done(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.ack(job, "first")
    return of(job)


def own_final_failure(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.fail(job, "boom", unrecoverable=True)
    return of(job)


def swept_for_good(manager: QueueManager, clock: VirtualClock) -> Held:
    return of(swept(manager, clock, attempts=1))


def timed_out_for_good(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager, timeout=1, attempts=1)
    clock.advance(seconds=1)
    manager.run_pending()
    return of(job)


def swept_and_completed_by_another(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock, backoff=0)
    manager.ack(pulled(manager), "theirs")
    return of(job)


def swept_and_completed_by_its_own_late_ack(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock)
    manager.ack(job, "late")
    return of(job)


def missing_while_active(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(held(manager).id, None)


def missing_while_pending(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(manager.push("q").id, None)


def missing_after_a_sweep(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(swept(manager, clock).id, None)


def missing_once_finished(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(own_ack_done(manager, clock).job_id, None)


def invented_while_active(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(held(manager).id, "nobody issued this")


def invented_while_pending(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(manager.push("q").id, "nobody issued this")


def invented_for_a_lockless_delivery(manager: QueueManager, clock: VirtualClock) -> Held:
    manager.push("q")
    return Held(pulled(manager, lock_duration=None).id, "nobody issued this")


def invented_once_finished(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(own_ack_done(manager, clock).job_id, "nobody issued this")


def issued_for_another_job(manager: QueueManager, clock: VirtualClock) -> Held:
    mine, other = held(manager), held(manager)
    return Held(mine.id, other.token)


def gone_on_completion(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager, remove_on_complete=True)
    manager.ack(job, "first")
    return of(job)


def gone_on_failure(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager, remove_on_fail=True)
    manager.fail(job, "boom", unrecoverable=True)
    return of(job)


def gone_by_hand(manager: QueueManager, clock: VirtualClock) -> Held:
    job = swept(manager, clock)
    manager.remove(job)
    return of(job)


def gone_by_force_while_active(manager: QueueManager, clock: VirtualClock) -> Held:
    job = held(manager)
    manager.obliterate("q", force=True)
    return of(job)


def gone_and_the_token_is_missing(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held(gone_by_hand(manager, clock).job_id, None)


def never_existed(manager: QueueManager, clock: VirtualClock) -> Held:
    return Held("no such job", "no such token")


# -- the columns: what each call answers -----------------------------------------------------------

Call = Callable[[QueueManager, Held], Any]

CALLS: Mapping[str, Call] = {
    "ack": lambda manager, own: manager.ack(own.job_id, "mine", token=own.token),
    "fail": lambda manager, own: manager.fail(own.job_id, "mine", token=own.token),
    "heartbeat": lambda manager, own: manager.heartbeat(own.job_id, token=own.token),
    "extend_lock": lambda manager, own: manager.extend_lock(own.job_id, 60, token=own.token),
    "update_progress": lambda manager, own: manager.update_progress(
        own.job_id, 50, "half", token=own.token
    ),
    "release": lambda manager, own: manager.release(own.job_id, token=own.token),
}

APPLIED = Outcome(True)
LOST = Outcome(False, "lock_lost")
FINALIZED = Outcome(False, "already_finalized")
GONE = Outcome(False, "gone")

Answers = Mapping[str, Any]


def answers(ack: Any, fail: Any, renewed: Any, progress: Any) -> Answers:
    return {
        "ack": ack,
        "fail": fail,
        "heartbeat": renewed,
        "extend_lock": renewed,
        "update_progress": progress,
        "release": renewed,
    }


Builder = Callable[[QueueManager, VirtualClock], Held]

TABLE: list[tuple[Answers, list[Builder]]] = [
    (
        answers(APPLIED, APPLIED, True, None),
        [
            current,
            current_but_expired,
            current_after_others,
            none_for_a_lockless_delivery,
            own_for_a_lockless_delivery,
        ],
    ),
    (
        answers(APPLIED, LOST, False, LockError),
        [
            swept_in_back_off,
            swept_and_due,
            swept_and_ready_at_once,
            swept_before_a_release,
            swept_while_paused,
        ],
    ),
    (
        answers(LOST, LOST, False, LockError),
        [
            swept_and_active_again,
            timed_out_and_pending,
            timed_out_and_active_again,
            released_and_pending,
            released_and_active_again,
            failed_and_pending,
            failed_and_active_again,
            completed_then_retried,
            completed_then_retried_and_active,
            dead_then_retried_and_active,
        ],
    ),
    (
        answers(FINALIZED, FINALIZED, False, LockError),
        [
            own_ack_done,
            own_final_failure,
            swept_for_good,
            timed_out_for_good,
            swept_and_completed_by_another,
            swept_and_completed_by_its_own_late_ack,
        ],
    ),
    (
        answers(LockError, LockError, LockError, LockError),
        [
            missing_while_active,
            missing_while_pending,
            missing_after_a_sweep,
            missing_once_finished,
            invented_while_active,
            invented_while_pending,
            invented_for_a_lockless_delivery,
            invented_once_finished,
            issued_for_another_job,
        ],
    ),
    (
        answers(GONE, GONE, False, JobNotFoundError),
        [
            gone_on_completion,
            gone_on_failure,
            gone_by_hand,
            gone_by_force_while_active,
            gone_and_the_token_is_missing,
            never_existed,
        ],
    ),
]

CELLS = [
    pytest.param(build, call, row[call], id=f"{build.__name__}-{call}")
    for row, builders in TABLE
    for build in builders
    for call in CALLS
]


def seen(manager: QueueManager, job_id: str) -> dict[str, Any]:
    """All that can be observed of the job and its queue."""
    job = manager.get_job(job_id)
    return {
        "job": None if job is None else {**job.to_dict(), "timeline": job.timeline},
        "result": manager.get_result(job_id),
        "counts": manager.counts("q"),
        "dead": manager.dlq_len("q"),
    }


@pytest.mark.parametrize("build, call, answer", CELLS)
def test_every_call_answers_every_token_as_the_table_says(
    manager: QueueManager, clock: VirtualClock, build: Builder, call: str, answer: Any
) -> None:
    own = build(manager, clock)
    before = seen(manager, own.job_id)
    if isinstance(answer, type):
        with pytest.raises(answer) as caught:
            CALLS[call](manager, own)
        assert own.job_id in str(caught.value)
        assert caught.value.job_id == own.job_id
    else:
        assert CALLS[call](manager, own) == answer
    check(manager._state)
    if answer in (APPLIED, True, None):
        applied(manager, own, call)
    else:
        assert seen(manager, own.job_id) == before, "a call that was refused changed something"


def applied(manager: QueueManager, own: Held, call: str) -> None:
    job = manager.get_job(own.job_id)
    assert job is not None
    if call == "ack":
        assert (job.state, job.return_value) == ("completed", "mine")
        assert manager.counts("q").active == 0
    elif call == "fail":
        assert (job.state, job.error) == ("delayed", "mine")
    elif call == "release":
        assert job.state == "waiting"
    else:
        assert job.state == "active"
        if call == "update_progress":
            assert (job.progress, job.progress_message) == (50, "half")


# -- the same token, however it is given -----------------------------------------------------------


def test_a_pulled_job_brings_its_token_and_a_looked_up_one_brings_none(
    manager: QueueManager,
) -> None:
    job = held(manager)
    for lookup in (manager.get_job(job.id), manager.get_jobs("q", "active")[0]):
        assert lookup is not None
        assert lookup.token is None
        with pytest.raises(LockError):
            manager.ack(lookup)
    assert manager.ack(lookup, token=job.token).applied


def test_a_token_given_beside_a_job_wins_over_the_one_it_brings(
    manager: QueueManager, clock: VirtualClock
) -> None:
    old = swept(manager, clock, backoff=0)
    new = pulled(manager)
    assert manager.heartbeat(old) is False
    assert manager.heartbeat(old, token=new.token) is True
    with pytest.raises(LockError):
        manager.heartbeat(new, token="invented")


def test_refreshing_a_job_keeps_the_token_of_its_own_delivery(
    manager: QueueManager, clock: VirtualClock
) -> None:
    old = swept(manager, clock, backoff=0)
    new = pulled(manager)
    assert old.refresh().token != new.token
    assert manager.ack(old, "late") == LOST


# -- leases ----------------------------------------------------------------------------------------


def test_a_heartbeat_renews_the_lock_for_its_own_duration_from_now(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager)
    for _ in range(5):
        clock.advance(seconds=LEASE, milliseconds=-1)
        manager.run_pending()
        assert manager.heartbeat(job)
    clock.advance(seconds=LEASE, milliseconds=-1)
    manager.run_pending()
    assert manager.get_state(job) is JobState.ACTIVE
    clock.advance(milliseconds=1)
    manager.run_pending()
    assert manager.get_state(job) is JobState.DELAYED


@pytest.mark.parametrize("duration", [5, 300])
def test_an_extended_lock_holds_for_that_long_and_so_at_each_heartbeat(
    manager: QueueManager, clock: VirtualClock, duration: int
) -> None:
    job = held(manager)
    clock.advance(seconds=2)
    assert manager.extend_lock(job, duration)
    for _ in range(3):
        clock.advance(seconds=duration, milliseconds=-1)
        manager.run_pending()
        assert manager.get_state(job) is JobState.ACTIVE
        assert manager.heartbeat(job)
    clock.advance(seconds=duration)
    manager.run_pending()
    assert manager.get_state(job) is JobState.DELAYED


def test_an_expired_lock_that_nobody_swept_can_still_be_renewed(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager)
    clock.advance(seconds=LEASE * 3)
    assert manager.heartbeat(job)
    manager.run_pending()
    assert manager.get_state(job) is JobState.ACTIVE
    assert job.refresh().stall_count == 0


def test_a_job_pulled_without_a_lock_is_never_swept_by_a_lease(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q")
    run = pulled(manager, lock_duration=None)
    assert run.token
    assert manager.next_due() == clock.now + timedelta(seconds=30), "the stall check"
    clock.advance(days=30)
    manager.run_pending()
    assert manager.get_state(job) is JobState.ACTIVE
    assert manager.ack(job.id, "no token").applied


def test_a_batch_of_heartbeats_answers_each_in_order_and_raises_for_none(
    manager: QueueManager, clock: VirtualClock
) -> None:
    lost = swept(manager, clock, backoff=WAIT)
    mine = held(manager)
    done = held(manager)
    manager.ack(done)
    looked_up = manager.get_job(mine.id)
    assert looked_up is not None
    jobs: list[Job | str] = [mine, lost, done, looked_up, "no such job", mine]
    assert manager.heartbeat_batch(jobs) == [True, False, False, False, False, True]


def test_a_lock_extended_over_and_over_leaves_no_trail_in_memory(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager)
    tracemalloc.start()
    try:
        for n in range(160):
            for _ in range(10):
                manager.extend_lock(job, 60)
                manager.extend_lock(job, 10)
            clock.advance(seconds=1)
            manager.run_pending()
            if n == 70:  # by now old deadlines pass as fast as new ones come
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 60_000
    finally:
        tracemalloc.stop()
    assert (job.refresh().state, job.stall_count) == ("active", 0)


# -- late acks -------------------------------------------------------------------------------------


def test_a_late_ack_after_a_sweep_completes_the_pending_job_for_good(
    manager: QueueManager, clock: VirtualClock
) -> None:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append)
    job = swept(manager, clock)
    assert manager.ack(job, "late") == APPLIED
    assert job.refresh().state is JobState.COMPLETED
    assert (job.return_value, job.stall_count, job.attempts_made) == ("late", 1, 1)
    assert job.result(timeout=0) == "late"
    clock.advance(seconds=WAIT)
    manager.run_pending()
    assert manager.pull("q") is None, "the work was done and must not run twice"
    assert [event.type for event in heard].count("completed") == 1


def test_a_late_ack_frees_the_custom_id_and_the_place_in_the_queue(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = swept(manager, clock, custom_id="x", priority=3)
    manager.ack(job)
    counts = manager.counts("q")
    assert (counts.total, counts.completed) == (1, 1)
    assert manager.push("q", custom_id="x").duplicate is False


def test_an_ack_after_a_timeout_is_not_applied_and_the_job_runs_again(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager, timeout=1)
    clock.advance(seconds=1)
    manager.run_pending()
    assert manager.ack(job, "late") == LOST
    assert manager.get_result(job) is None
    clock.advance(seconds=WAIT)
    assert pulled(manager) == job


def test_an_ack_just_before_a_sweep_or_a_timeout_wins(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager, timeout=LEASE)
    clock.advance(seconds=LEASE)
    assert manager.ack(job, "in time") == APPLIED
    manager.run_pending()
    assert job.refresh().state is JobState.COMPLETED
    assert (job.attempts_made, job.stall_count) == (0, 0)


def test_a_worker_that_lost_its_lock_cannot_touch_what_another_completed(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B014"""
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append)
    late = swept(manager, clock, backoff=0)
    other = pulled(manager)
    assert manager.ack(other, "b") == APPLIED
    assert manager.ack(late, "a") == FINALIZED
    assert manager.fail(late, "a") == FINALIZED
    assert manager.extend_lock(late, 60) is False
    assert manager.heartbeat(late) is False
    assert manager.release(late) is False
    with pytest.raises(LockError):
        late.update_progress(50)
    assert manager.get_result(late) == "b"
    job = late.refresh()
    assert (job.state, job.progress, job.attempts_made) == ("completed", 0, 1)
    manager.run_pending()
    assert [event.type for event in heard].count("completed") == 1


def test_a_late_finisher_gives_back_no_second_place_among_the_active(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B020, as far as it goes without groups"""
    late = swept(manager, clock, backoff=0)
    other = pulled(manager)
    assert (late.id, manager.counts("q").active) == (other.id, 1)
    for verdict in (manager.ack(late, "a"), manager.fail(late, "a"), manager.ack(late, "a")):
        assert verdict == LOST
        assert manager.counts("q").active == 1
        check(manager._state)
    assert manager.ack(other) == APPLIED
    assert manager.ack(late) == FINALIZED
    manager.push_batch("q", [("n", i) for i in range(50)])
    for n in range(50):
        run = pulled(manager)
        assert manager.counts("q").active == 1
        assert manager.ack(run).applied
        assert manager.ack(late) == FINALIZED
        assert manager.counts("q").completed == n + 2
    assert manager.counts("q").active == 0


# -- the tokens that are remembered ----------------------------------------------------------------


def test_the_last_eight_retired_tokens_are_known_and_older_ones_are_strangers(
    manager: QueueManager,
) -> None:
    job = manager.push("q")
    tokens = []
    for _ in range(10):
        run = pulled(manager)
        tokens.append(run.token)
        manager.release(run)
    run = pulled(manager)
    for token in tokens[2:]:
        assert manager.ack(job.id, token=token) == LOST
        assert manager.heartbeat(job.id, token=token) is False
    for token in tokens[:2]:
        with pytest.raises(LockError):
            manager.ack(job.id, token=token)
    assert manager.ack(run).applied
    for token in [*tokens[2:], run.token]:
        assert manager.ack(job.id, token=token) == FINALIZED


def test_a_token_swept_earlier_completes_the_job_however_often_it_was_swept_since(
    manager: QueueManager, clock: VirtualClock
) -> None:
    first = swept(manager, clock, backoff=0, attempts=9)
    second = pulled(manager)
    clock.advance(seconds=LEASE)
    manager.run_pending()
    assert second.refresh().stall_count == 2
    assert manager.ack(first, "of the first run") == APPLIED
    assert manager.ack(second, "of the second run") == FINALIZED
    assert manager.get_result(first) == "of the first run"


def test_every_delivery_has_a_token_of_its_own(manager: QueueManager) -> None:
    manager.push_batch("q", [("n", i) for i in range(5)])
    tokens = set()
    for _ in range(5):
        for job in manager.pull_batch("q", 5):
            tokens.add(job.token)
            manager.release(job)
    assert len(tokens) == 25


# -- ack_batch -------------------------------------------------------------------------------------


def test_a_batch_of_acks_answers_each_in_order_and_raises_for_none(
    manager: QueueManager, clock: VirtualClock
) -> None:
    late = swept(manager, clock)
    timed_out = of(held(manager, timeout=1))
    clock.advance(seconds=1)
    manager.run_pending()
    mine, unlucky, elsewhere = held(manager), held(manager), manager.push("other")
    elsewhere = pulled(manager, "other")
    outcomes = manager.ack_batch(
        [
            Ack(mine, "one"),
            Ack("no such job", "two", "no such token"),
            Ack(mine.id, "three", mine.token),
            Ack(elsewhere, "four"),
            Ack(unlucky.id, "five", "invented"),
            Ack(unlucky.id, "six"),
            Ack(unlucky, object()),
            Ack(late, "late"),
            Ack(timed_out.job_id, "seven", timed_out.token),
        ]
    )
    reasons = [outcome.reason for outcome in outcomes]
    assert reasons[:6] == [None, "gone", "already_finalized", None, "not_issued", "not_issued"]
    assert reasons[6:] == ["unserializable", None, "lock_lost"]
    assert [o.applied for o in outcomes] == [reason is None for reason in reasons]
    assert manager.get_result(mine) == "one"
    assert manager.get_result(elsewhere) == "four"
    assert manager.get_result(late) == "late"
    assert manager.get_state(unlucky) is JobState.FAILED


def test_an_empty_batch_of_acks_is_an_empty_list(manager: QueueManager) -> None:
    assert manager.ack_batch([]) == []
    assert manager.heartbeat_batch([]) == []


def test_one_job_twice_in_a_batch_is_completed_once(manager: QueueManager) -> None:
    job = held(manager)
    assert manager.ack_batch([Ack(job, 1), Ack(job, 2)]) == [APPLIED, FINALIZED]
    assert manager.get_result(job) == 1


def test_a_batch_whose_item_names_no_job_at_all_changes_nothing_if_it_raises(
    manager: QueueManager,
) -> None:
    first, second = held(manager), held(manager)
    batch: list[Any] = [Ack(first, object()), Ack(second, "fine"), Ack(None)]
    try:
        outcomes = manager.ack_batch(batch)
    except ValueError:
        assert [manager.get_state(job) for job in (first, second)] == ["active", "active"]
    else:
        assert [outcome.applied for outcome in outcomes] == [False, True, False]


# -- results that cannot be kept -------------------------------------------------------------------


def test_a_result_that_cannot_be_encoded_fails_the_job_for_good_with_its_path(
    manager: QueueManager,
) -> None:
    job = held(manager, attempts=5)
    assert manager.ack(job, {"rows": [1, object()]}) == Outcome(False, "unserializable")
    assert job.refresh().state is JobState.FAILED
    assert job.failed_reason == "unrecoverable"
    assert "$.rows[1]" in (job.error or "")
    assert (job.attempts_made, manager.dlq_len("q")) == (1, 1)


@pytest.mark.parametrize(
    "build, answer",
    [(swept_and_active_again, LOST), (own_ack_done, FINALIZED), (gone_by_hand, GONE)],
)
def test_a_result_that_cannot_be_encoded_changes_nothing_without_the_lock(
    manager: QueueManager, clock: VirtualClock, build: Builder, answer: Outcome
) -> None:
    own = build(manager, clock)
    before = seen(manager, own.job_id)
    assert manager.ack(own.job_id, object(), token=own.token) == answer
    assert seen(manager, own.job_id) == before


def test_a_result_that_cannot_be_encoded_still_needs_a_token(manager: QueueManager) -> None:
    job = held(manager)
    with pytest.raises(LockError):
        manager.ack(job.id, object())
    assert manager.get_state(job) is JobState.ACTIVE
