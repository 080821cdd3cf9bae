"""Jobs come in and go out: order, places, custom ids, queues apart, batches.

It is over 400 lines because order is one promise over many ways in.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Deduplication,
    Job,
    JobSpec,
    JobState,
    KeepJobs,
    Queue,
    QueueManager,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


def pulled(manager: QueueManager, queue: str = "q") -> Job:
    job = manager.pull(queue)
    assert job is not None, f"nothing to pull from {queue!r}: {manager.counts(queue)}"
    return job


def order(manager: QueueManager, queue: str = "q") -> list[str]:
    """Pulls and acks until the queue gives nothing more; the names in that order."""
    names = []
    while (job := manager.pull(queue)) is not None:
        names.append(job.name)
        assert manager.ack(job).applied
        check(manager._state)
    return names


# -- one job in, one job out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 3, "attempts": 5},
        {"priority": -3},
        {"custom_id": "x"},
        {"deduplication": Deduplication("k", ttl=5)},
        {"delay": 5, "tags": ["a"]},
        {"group": "g", "lifo": True},
        {"group": "known"},
        {"group": "known", "tags": ["a"]},
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_what_push_and_pull_hand_out_is_what_reading_the_job_tells(
    manager: QueueManager, clock: VirtualClock, options: Any, batch: bool
) -> None:
    manager.push("q", "first of its group", group="known", delay=3600)
    manager.push("q", "second of its group", group="known", delay=3600)
    clock.advance(seconds=1)
    if batch:
        (job,) = manager.push_batch("q", [JobSpec("name", {"a": 1}, **options)])
    else:
        job = manager.push("q", {"a": 1}, name="name", **options)
    read = manager.get_job(job.id)
    assert read is not None
    assert (job.id, job.token, job._fields) == (read.id, None, read._fields)
    clock.advance(seconds=5)
    job = pulled(manager) if not batch else manager.pull_batch("q", 9)[0]
    read = manager.get_job(job.id)
    assert read is not None
    assert (job.id, job._fields) == (read.id, read._fields)
    assert (job.group, job.tags) == (options.get("group"), tuple(options.get("tags", ())))
    manager.update_progress(job, 7, "under way")
    job.refresh()
    assert (job.progress, job.progress_message) == (7, "under way")
    assert job.token is not None
    assert manager.ack(job).applied


def test_a_pushed_job_waits_with_its_data_and_the_documented_defaults(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = manager.push("q", {"a": [1, 2]})
    assert (job.queue, job.name, job.data, job.state) == ("q", "default", {"a": [1, 2]}, "waiting")
    assert (job.priority, job.attempt, job.attempts_made, job.max_attempts) == (0, 1, 0, 3)
    assert job.created_at == job.run_at == clock.now
    assert job.started_at is None
    assert job.finished_at is None
    assert (job.token, job.custom_id, job.tags, job.duplicate) == (None, None, (), False)
    assert (job.progress, job.progress_message, job.stall_count) == (0, None, 0)
    assert (job.return_value, job.failed_reason, job.error, job.stacktrace) == (
        None,
        None,
        None,
        [],
    )
    assert manager.counts("q").waiting == manager.counts("q").total == 1


def test_a_pull_hands_out_the_job_active_with_a_token_and_its_start(
    manager: QueueManager, clock: VirtualClock
) -> None:
    added = manager.push("q", "payload", name="send", tags=("a", "b"))
    clock.advance(seconds=2)
    job = pulled(manager)
    assert job == added
    assert (job.state, job.name, job.data, job.tags) == ("active", "send", "payload", ("a", "b"))
    assert job.token
    assert job.started_at == clock.now
    assert job.created_at == clock.now - timedelta(seconds=2)
    assert manager.get_state(added) is JobState.ACTIVE
    assert manager.counts("q").active == manager.counts("q").total == 1
    assert manager.pull("q") is None, "one job was delivered twice"


def test_an_acked_job_is_completed_with_its_result_and_never_comes_back(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = pulled_after_push(manager)
    clock.advance(seconds=3)
    outcome = manager.ack(job, {"sum": 6})
    assert (outcome.applied, outcome.reason) == (True, None)
    done = job.refresh()
    assert done.state is JobState.COMPLETED
    assert done.return_value == manager.get_result(job) == {"sum": 6}
    assert done.finished_at == clock.now
    assert (done.attempt, done.attempts_made) == (1, 0)
    assert manager.counts("q").completed == manager.counts("q").total == 1
    clock.advance(days=400)
    manager.run_pending()
    assert manager.pull("q") is None


def pulled_after_push(manager: QueueManager, **options: Any) -> Job:
    manager.push("q", **options)
    return pulled(manager)


def test_a_pull_from_an_empty_queue_with_timeout_zero_returns_none_at_once(
    manager: QueueManager,
) -> None:
    assert manager.pull("q") is None
    assert manager.pull("q", timeout=0) is None
    assert manager.pull_batch("q", 5) == []


def test_a_failed_run_comes_back_as_the_next_attempt_with_the_same_payload(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = pulled_after_push(manager, data=[1], backoff=Backoff.fixed(5, jitter=0))
    assert manager.fail(job, ValueError("no")).applied
    assert job.refresh().state is JobState.DELAYED
    assert job.run_at == clock.now + timedelta(seconds=5)
    assert (job.attempts_made, job.attempt, job.error) == (1, 2, "ValueError: no")
    clock.advance(seconds=5)
    again = pulled(manager)
    assert again == job
    assert (again.data, again.attempt, again.attempts_made) == ([1], 2, 1)
    assert again.token != job.token


# -- order ---------------------------------------------------------------------------------------


def test_jobs_of_equal_priority_run_first_in_first_out(manager: QueueManager) -> None:
    for i in range(10):
        manager.push("q", name=f"{i}")
    assert order(manager) == [str(i) for i in range(10)]


def test_fifo_holds_between_jobs_of_one_millisecond_and_of_many(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for i in range(9):
        manager.push("q", name=f"{i}")
        if i % 3 == 2:
            clock.advance(milliseconds=1)
    assert order(manager) == [str(i) for i in range(9)]


def test_higher_priorities_run_first_negative_ones_last(manager: QueueManager) -> None:
    for priority in (0, -1_000_000, 7, 1_000_000, -1, 1):
        manager.push("q", name=str(priority), priority=priority)
    assert order(manager) == ["1000000", "7", "1", "0", "-1", "-1000000"]


def test_a_priority_above_zero_is_prioritized_and_any_other_waits(manager: QueueManager) -> None:
    states = {p: manager.push("q", priority=p).state for p in (-1, 0, 1)}
    assert states == {-1: "waiting", 0: "waiting", 1: "prioritized"}
    counts = manager.counts("q")
    assert (counts.waiting, counts.prioritized) == (2, 1)


@pytest.mark.parametrize("priority", [-3, 0, 3])
def test_lifo_jobs_run_newest_first_before_the_fifo_jobs_of_their_priority(
    manager: QueueManager, clock: VirtualClock, priority: int
) -> None:
    for i in range(3):
        manager.push("q", name=f"fifo{i}", priority=priority)
        manager.push("q", name=f"lifo{i}", priority=priority, lifo=True)
        clock.advance(milliseconds=1)
    assert order(manager) == ["lifo2", "lifo1", "lifo0", "fifo0", "fifo1", "fifo2"]


def test_lifo_never_overtakes_a_higher_priority(manager: QueueManager) -> None:
    manager.push("q", name="high", priority=1)
    manager.push("q", name="low", priority=-1)
    manager.push("q", name="lifo", lifo=True)
    manager.push("q", name="low-lifo", priority=-1, lifo=True)
    assert order(manager) == ["high", "lifo", "low-lifo", "low"]


def test_the_order_holds_while_jobs_come_in_between_pulls(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="b")
    manager.push("q", name="c")
    manager.push("q", name="a", priority=1)
    assert pulled(manager).name == "a"
    clock.advance(milliseconds=1)
    manager.push("q", name="first", lifo=True)
    manager.push("q", name="last", priority=-1)
    manager.push("q", name="d")
    assert order(manager) == ["first", "b", "c", "d", "last"]


def test_a_delayed_job_takes_its_place_by_its_run_at(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="at10", delay=10)
    clock.advance(seconds=5)
    manager.push("q", name="at5")
    clock.advance(seconds=10)
    manager.push("q", name="at15")
    clock.advance(seconds=10)
    assert order(manager) == ["at5", "at10", "at15"]


def test_a_retried_job_takes_its_place_by_its_run_at(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="at10", backoff=Backoff.fixed(10, jitter=0))
    manager.fail(pulled(manager), "boom")
    clock.advance(seconds=5)
    manager.push("q", name="at5")
    clock.advance(seconds=10)
    manager.push("q", name="at15")
    clock.advance(seconds=10)
    assert order(manager) == ["at5", "at10", "at15"]


def test_a_job_retried_at_once_stands_behind_those_that_waited_already(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="again", backoff=0)
    first = pulled(manager)
    clock.advance(milliseconds=1)
    manager.push("q", name="older")
    clock.advance(milliseconds=1)
    manager.fail(first, "boom")
    clock.advance(milliseconds=1)
    manager.push("q", name="newer")
    assert order(manager) == ["older", "again", "newer"]


def test_a_run_at_in_the_past_takes_the_place_of_its_moment(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="now")
    past = manager.push("q", name="past", run_at=clock.now - timedelta(hours=1))
    assert past.state is JobState.WAITING
    assert past.run_at == clock.now - timedelta(hours=1)
    assert order(manager) == ["past", "now"]


def test_equal_run_at_is_decided_by_admission_whether_delayed_or_not(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="admitted first", delay=1)
    clock.advance(seconds=1)
    manager.push("q", name="admitted second")
    assert order(manager) == ["admitted first", "admitted second"]


def test_jobs_due_at_one_moment_run_by_priority_then_first_in_first_out(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for i in range(3):
        manager.push("q", name=f"low{i}", delay=10 - i, priority=-1)
        manager.push("q", name=f"plain{i}", delay=10)
        manager.push("q", name=f"high{i}", delay=10, priority=2)
    clock.advance(seconds=10)
    wanted = ["high0", "high1", "high2", "plain0", "plain1", "plain2", "low2", "low1", "low0"]
    assert order(manager) == wanted


def test_a_due_job_overtakes_ready_ones_of_lower_priority_only(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="high", priority=9)
    manager.push("q", name="plain")
    manager.push("q", name="due", delay=1, priority=5)
    assert manager.get_state(manager.get_jobs("q", "delayed")[0]) is JobState.DELAYED
    clock.advance(seconds=1)
    assert [job.name for job in manager.get_jobs("q", "prioritized")] == ["high", "due"]
    assert order(manager) == ["high", "due", "plain"]


def test_a_released_job_gets_its_old_place_again(
    manager: QueueManager, clock: VirtualClock
) -> None:
    for i in range(4):
        manager.push("q", name=f"{i}")
        clock.advance(milliseconds=i % 2)
    first, second = manager.pull_batch("q", 2)
    assert manager.release(second)
    assert manager.release(first)
    assert (first.refresh().attempts_made, first.state) == (0, "waiting")
    assert order(manager) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("options", [{"priority": 4}, {"lifo": True}, {"priority": -4}])
def test_a_released_job_gets_its_old_place_among_its_like(
    manager: QueueManager, options: dict[str, Any]
) -> None:
    for i in range(4):
        manager.push("q", name=f"{i}", **options)
    undisturbed = ["3", "2", "1", "0"] if "lifo" in options else ["0", "1", "2", "3"]
    first, second = manager.pull_batch("q", 2)
    assert [first.name, second.name] == undisturbed[:2]
    manager.release(first)
    manager.release(second)
    assert order(manager) == undisturbed


def test_a_release_with_delay_waits_that_long_uncharged(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = pulled_after_push(manager, attempts=1)
    assert manager.release(job, delay=4)
    assert (job.refresh().state, job.attempts_made) == ("delayed", 0)
    clock.advance(seconds=3, milliseconds=999)
    assert manager.pull("q") is None
    clock.advance(milliseconds=1)
    assert pulled(manager).attempt == 1


# -- 512 due jobs a pull -------------------------------------------------------------------------


def test_a_pull_moves_512_due_jobs_and_the_rest_follows_in_order(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [JobSpec(str(i), delay=1) for i in range(1300)])
    clock.advance(milliseconds=999)
    assert manager.pull("q") is None
    clock.advance(milliseconds=1)
    counts = manager.counts("q")
    assert (counts.waiting, counts.delayed) == (1300, 0), "due is judged when asked"
    names = [pulled(manager).name]
    check(manager._state)
    counts = manager.counts("q")
    assert (counts.waiting, counts.active, counts.delayed) == (1299, 1, 0)
    while batch := manager.pull_batch("q", 100):
        names += [job.name for job in batch]
    assert names == [str(i) for i in range(1300)]


def test_one_batch_takes_more_due_jobs_than_one_move(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [JobSpec(str(i), delay=1 + i % 7) for i in range(1200)])
    clock.advance(seconds=7)
    jobs = manager.pull_batch("q", 5000)
    wanted = sorted(range(1200), key=lambda i: (i % 7, i))
    assert [int(job.name) for job in jobs] == wanted


def test_priority_holds_among_what_was_moved_of_a_crowd_due_at_once(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push_batch("q", [JobSpec("plain", delay=1) for _ in range(600)])
    manager.push_batch("q", [JobSpec(f"high{i}", delay=1, priority=1 + i % 2) for i in range(20)])
    clock.advance(seconds=1)
    names = [job.name for job in manager.pull_batch("q", 20)]
    assert names == [f"high{i}" for i in range(20) if i % 2] + [
        f"high{i}" for i in range(20) if not i % 2
    ]


# -- custom ids ----------------------------------------------------------------------------------


def test_a_custom_id_gives_back_the_live_job_unchanged(manager: QueueManager) -> None:
    first = manager.push("q", 1, name="one", custom_id="x", priority=3)
    again = manager.push("q", 2, name="two", custom_id="x", priority=9, delay=60)
    assert again == first
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.data, again.name, again.priority, again.state) == (1, "one", 3, "prioritized")
    assert manager.counts("q").total == 1
    assert manager.get_job(queue="q", custom_id="x") == first


@pytest.mark.parametrize("stage", ["delayed", "active", "back-off"])
def test_a_custom_id_is_taken_in_every_live_state(
    manager: QueueManager, clock: VirtualClock, stage: str
) -> None:
    first = manager.push("q", 1, custom_id="x", delay=5 if stage == "delayed" else 0)
    if stage != "delayed":
        held = pulled(manager)
        if stage == "back-off":
            manager.fail(held, "boom")
    again = manager.push("q", 2, custom_id="x")
    assert (again, again.duplicate, again.data) == (first, True, 1)
    assert again.state == ("active" if stage == "active" else "delayed")
    assert again.token is None or stage == "active"
    assert manager.counts("q").total == 1


def test_a_custom_id_within_one_batch_gives_one_job(manager: QueueManager) -> None:
    jobs = manager.push_batch("q", [JobSpec("a", 1, custom_id="x"), JobSpec("b", 2, custom_id="x")])
    assert jobs[0] == jobs[1]
    assert [job.duplicate for job in jobs] == [False, True]
    assert manager.counts("q").total == 1


def test_a_custom_id_belongs_to_its_queue_alone(manager: QueueManager) -> None:
    here = manager.push("here", 1, custom_id="x")
    there = manager.push("there", 2, custom_id="x")
    assert here != there
    assert there.duplicate is False
    assert manager.get_job(queue="here", custom_id="x") == here
    assert manager.get_job(queue="there", custom_id="x") == there
    assert manager.get_job(queue="nowhere", custom_id="x") is None


def test_a_custom_id_is_free_after_its_job_was_removed(manager: QueueManager) -> None:
    first = manager.push("q", custom_id="x")
    manager.remove(first)
    again = manager.push("q", custom_id="x")
    assert again != first
    assert again.duplicate is False


@pytest.mark.parametrize("how", ["drain", "obliterate"])
def test_a_custom_id_is_free_after_its_queue_was_emptied(manager: QueueManager, how: str) -> None:
    first = manager.push("q", custom_id="x")
    getattr(manager, how)("q")
    assert manager.get_job(queue="q", custom_id="x") is None
    assert manager.push("q", custom_id="x") != first


def test_a_finished_holder_is_retired_when_its_custom_id_comes_again(
    manager: QueueManager,
) -> None:
    first = pulled_after_push(manager, custom_id="x")
    manager.ack(first, "old")
    second = manager.push("q", custom_id="x")
    assert second != first
    assert manager.get_job(queue="q", custom_id="x") == second
    assert manager.get_job(first.id) is None
    assert manager.get_result(first) == "old", "a retired job leaves a proof and its result"
    assert manager.counts("q").total == 1


def test_a_dead_letter_is_retired_when_its_custom_id_comes_again(manager: QueueManager) -> None:
    first = pulled_after_push(manager, custom_id="x")
    manager.fail(first, "boom", unrecoverable=True)
    second = manager.push("q", custom_id="x")
    assert second.duplicate is False
    assert manager.get_job(first.id) is None
    assert manager.dlq_len("q") == 0
    assert manager.counts("q").failed == 0


RETENTION: list[bool | KeepJobs] = [False, True, KeepJobs(count=1), KeepJobs(age=3600)]


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("keep", RETENTION, ids=str)
def test_a_reused_custom_id_starts_with_fresh_fields(
    manager: QueueManager, clock: VirtualClock, keep: bool | KeepJobs, outcome: str
) -> None:
    """B106"""
    options: dict[str, Any] = {
        "custom_id": "x",
        "timeout": 100,
        "ttl": 50,
        "backoff": 0,
        "attempts": 2,
        "remove_on_complete": keep,
        "remove_on_fail": keep,
    }
    manager.push("q", "old", **options)
    manager.fail(pulled(manager), "first run")
    old = pulled(manager)
    old.update_progress(70, "nearly")
    clock.advance(seconds=10)
    if outcome == "completed":
        assert manager.ack(old, "old result").applied
    else:
        assert manager.fail(old, "second run").applied
    clock.advance(seconds=95)
    manager.run_pending()
    fresh = manager.push("q", "new", **options)
    assert (fresh.duplicate, fresh.data, fresh.state) == (False, "new", "waiting")
    assert fresh.id != old.id
    assert fresh.created_at == fresh.run_at == clock.now
    assert fresh.started_at is None
    assert fresh.finished_at is None
    assert (fresh.attempts_made, fresh.attempt, fresh.stall_count) == (0, 1, 0)
    assert (fresh.progress, fresh.progress_message, fresh.error) == (0, None, None)
    assert (fresh.return_value, manager.get_result(fresh)) == (None, None)
    assert [(step.state, step.at) for step in fresh.timeline] == [("waiting", clock.now)]
    # the predecessor's ttl and timeout are over: neither may touch the newcomer
    clock.advance(seconds=40)
    manager.run_pending()
    run = pulled(manager)
    assert run == fresh
    clock.advance(seconds=20)
    manager.run_pending()
    assert manager.heartbeat(run)
    assert manager.ack(run, "new result").applied
    assert manager.get_result(fresh) == "new result"


# -- queues apart --------------------------------------------------------------------------------


def test_queues_do_not_see_each_other(manager: QueueManager) -> None:
    names = [f"queue-{i}" for i in range(20)]
    for name in names:
        manager.push(name, name, name=name)
    assert manager.queues() == sorted(names)
    assert manager.counts().waiting == 20
    manager.pause(names[0])
    manager.drain(names[1])
    manager.obliterate(names[2])
    assert manager.pull(names[0]) is None
    assert manager.pull(names[1]) is None
    assert manager.pull(names[2]) is None
    for name in names[3:]:
        assert manager.counts(name).waiting == manager.counts(name).total == 1
        assert pulled(manager, name).data == name
        assert manager.pull(name) is None
    assert manager.counts().active == 17


def test_a_paused_queue_gives_nothing_and_counts_its_ready_jobs_as_paused(
    manager: QueueManager, clock: VirtualClock
) -> None:
    manager.push("q", name="plain")
    manager.push("q", name="high", priority=1)
    manager.push("q", name="later", delay=5)
    manager.pause("q")
    assert manager.pull("q") is None
    assert manager.pull_batch("q", 10) == []
    counts = manager.counts("q")
    assert (counts.paused, counts.delayed, counts.waiting, counts.prioritized) == (2, 1, 0, 0)
    clock.advance(seconds=5)
    assert manager.counts("q").paused == 3
    manager.resume("q")
    assert order(manager) == ["high", "plain", "later"]


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_is_admitted_in_order_at_one_moment(
    manager: QueueManager, clock: VirtualClock
) -> None:
    specs: list[JobSpec | tuple[str, Any]] = [
        ("a", 1),
        JobSpec("b", 2, priority=5),
        JobSpec("c", 3, delay=1),
        ("d", None),
    ]
    jobs = manager.push_batch("q", specs)
    assert [job.name for job in jobs] == ["a", "b", "c", "d"]
    assert [job.data for job in jobs] == [1, 2, 3, None]
    assert [job.state for job in jobs] == ["waiting", "prioritized", "delayed", "waiting"]
    assert {job.created_at for job in jobs} == {clock.now}
    assert len({job.id for job in jobs}) == 4
    assert order(manager) == ["b", "a", "d"]


def test_a_batch_with_one_invalid_job_adds_none(manager: QueueManager) -> None:
    with pytest.raises(ValueError, match=r"jobs\[2\].*priority"):
        manager.push_batch("q", [("a", 1), ("b", 2), JobSpec("c", 3, priority=1_000_001)])
    with pytest.raises(ValueError, match=r"jobs\[1\].*\$\.when"):
        manager.push_batch("q", [("a", 1), ("b", {"when": object()})])
    assert manager.counts("q").total == 0


def test_a_batch_takes_an_iterator_and_an_empty_one(manager: QueueManager) -> None:
    assert manager.push_batch("q", iter([])) == []
    assert len(manager.push_batch("q", (("n", i) for i in range(3)))) == 3
    assert manager.counts("q").waiting == 3


def test_a_pulled_batch_is_in_order_and_no_longer_than_asked(manager: QueueManager) -> None:
    manager.push_batch("q", [(str(i), i) for i in range(5)])
    batch = manager.pull_batch("q", 3)
    assert [job.data for job in batch] == [0, 1, 2]
    assert len({job.token for job in batch}) == 3
    assert [job.data for job in manager.pull_batch("q", 3)] == [3, 4]
    assert manager.pull_batch("q", 3) == []
    assert manager.counts("q").active == 5


def test_what_was_pushed_shares_nothing_with_the_pusher_or_the_handler(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """B073"""
    data = {"items": [1]}
    manager.push("q", data, backoff=0)
    data["items"].append(2)
    run = pulled(manager)
    assert run.data == {"items": [1]}
    run.data["items"].clear()
    manager.fail(run, "boom")
    again = pulled(manager)
    assert again.data == {"items": [1]}
    result = {"seen": [1]}
    manager.ack(again, result)
    result["seen"].append(2)
    manager.get_result(again)["seen"].append(3)
    assert manager.get_result(again) == {"seen": [1]}


def test_a_queue_object_adds_and_reads_like_its_manager(manager: QueueManager) -> None:
    queue = Queue("q", manager)
    job = queue.add("send", {"to": 1}, priority=2)
    bulk = queue.add_bulk([("a", 1), JobSpec("b", 2, delay=9)])
    assert (job.name, job.data, job.state) == ("send", {"to": 1}, "prioritized")
    assert len(queue) == 3
    assert queue.get_job(job.id) == job
    assert queue.get_job(bulk[1].id) == bulk[1]
    assert Queue("other", manager).get_job(job.id) is None
    assert manager.pull(queue) == job
    assert queue.counts() == manager.counts("q")
