"""Deduplication keys: who owns one, what each mode does, and that every end of a job frees it.

It is over 400 lines because the ways in which a job can end are many, and each has its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BunqueueError,
    Deduplication,
    DuplicateJobError,
    Job,
    JobEvent,
    JobNotFoundError,
    JobSpec,
    JobStateError,
    KeepJobs,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.shard.shard import BROKEN
from bunqueue_py.testing import SeededIds, VirtualClock

SKIP = Deduplication("k")
REPLACE = Deduplication("k", mode="replace")
MODES = ["skip", "extend", "replace"]


def held(ttl: float = 10, mode: Any = "skip") -> Deduplication:
    return Deduplication("k", ttl, mode, "ttl")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    config = ManagerConfig(shards=1)
    with QueueManager(clock=clock, background=False, config=config, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def pulled(queue: Queue, **options: Any) -> Job:
    job = queue.manager.pull(queue, **options)  # type: ignore[attr-defined]
    assert job is not None
    return job


def broken_off(queue: Queue) -> None:
    """As if an exception had landed inside a section: the next verb rebuilds the shard."""
    state = queue.manager._state  # type: ignore[attr-defined]
    state.queues["q"].shard.gate = BROKEN


@pytest.fixture
def events(manager: QueueManager) -> Iterator[Callable[[], list[tuple[str, str | None]]]]:
    seen: list[JobEvent] = []
    unsubscribe = manager.events.subscribe(seen.append)

    def read() -> list[tuple[str, str | None]]:
        manager.run_pending()
        told = [(event.type, event.job_id) for event in seen]
        seen.clear()
        return told

    yield read
    unsubscribe()


# -- the key and its owner -----------------------------------------------------------------------


def test_a_job_shows_its_key_and_owns_it(queue: Queue) -> None:
    job = queue.add("a", 1, deduplication=SKIP)
    assert (job.deduplication_key, job.duplicate) == ("k", False)
    assert job.to_dict()["deduplication_key"] == "k"
    assert queue.deduplication.owner("k") == job.id
    assert pulled(queue).deduplication_key == "k"


def test_a_job_without_a_key_shows_none(queue: Queue) -> None:
    job = queue.add("a", deduplication=None)
    assert job.deduplication_key is None
    assert job.to_dict()["deduplication_key"] is None
    assert queue.deduplication.owner("k") is None


@pytest.mark.parametrize("mode", MODES)
def test_a_free_key_lets_the_job_in(queue: Queue, mode: Any) -> None:
    job = queue.add("a", 1, deduplication=Deduplication("k", 5, mode))
    assert not job.duplicate
    assert (job.state, pulled(queue).data) == ("waiting", 1)


def test_keys_of_two_queues_and_two_keys_of_one_are_apart(
    manager: QueueManager, queue: Queue
) -> None:
    """SPEC 16.8"""
    other = Queue("other", manager)
    jobs = [
        queue.add("a", deduplication=SKIP),
        other.add("a", deduplication=SKIP),
        queue.add("a", deduplication=Deduplication("K")),
    ]
    assert len({job.id for job in jobs}) == 3
    assert other.deduplication.release("k")
    assert queue.deduplication.owner("k") == jobs[0].id


def test_a_key_keeps_its_other_options(queue: Queue, clock: VirtualClock) -> None:
    job = queue.add(
        "a", deduplication=SKIP, priority=4, delay=5, attempts=7, tags=["t"], custom_id="c"
    )
    assert (job.priority, job.state, job.max_attempts) == (4, "delayed", 7)
    assert (job.tags, job.custom_id, job.deduplication_key) == (("t",), "c", "k")


def test_a_queue_may_give_the_key_to_all_its_jobs(manager: QueueManager) -> None:
    queue = Queue("q", manager, defaults={"deduplication": SKIP})
    first = queue.add("a")
    assert queue.add("b") == first
    assert queue.add("b", deduplication=None) != first
    assert [job == first for job in queue.add_bulk([("c", 1), JobSpec("d")])] == [True, True]


@pytest.mark.parametrize("bad", ["", "x" * 257, "a\0b", "\ud83d", 5, None, b"k", ["k"]])
def test_a_bad_key_is_refused_where_keys_are_asked_for(queue: Queue, bad: Any) -> None:
    """B071"""
    with pytest.raises(ValidationError, match="key"):
        queue.deduplication.owner(bad)
    with pytest.raises(ValidationError, match="key"):
        queue.deduplication.release(bad)


def test_asking_for_a_key_makes_no_queue(manager: QueueManager) -> None:
    assert manager.deduplication_owner("nowhere", "k") is None
    assert manager.deduplication_release("nowhere", "k") is False
    assert manager.queues() == []


def test_a_closed_manager_refuses_to_answer_about_keys() -> None:
    manager = QueueManager(background=False, clock=VirtualClock())
    queue = Queue("q", manager)
    manager.close()
    for name in ("q", "nowhere"):
        for verb in (manager.deduplication_owner, manager.deduplication_release):
            with pytest.raises(ManagerClosedError):
                verb(name, "k")
    with pytest.raises(ManagerClosedError):
        queue.add("a", deduplication=SKIP)


# -- skip ----------------------------------------------------------------------------------------


def test_skip_returns_the_owner_unchanged(
    queue: Queue, events: Callable[[], list[tuple[str, str | None]]]
) -> None:
    first = queue.add("one", 1, deduplication=SKIP, priority=3)
    events()
    again = queue.add("two", 2, deduplication=SKIP, priority=9, delay=60)
    assert (again, again.duplicate, again.token) == (first, True, None)
    assert (again.name, again.data, again.priority, again.state) == ("one", 1, 3, "prioritized")
    assert queue.counts().total == 1
    assert events() == [("duplicated", first.id)]


@pytest.mark.parametrize("stage", ["waiting", "delayed", "active", "back-off", "released"])
@pytest.mark.parametrize("mode", ["skip", "extend"])
def test_the_key_belongs_to_its_job_in_every_live_state(
    manager: QueueManager, queue: Queue, stage: str, mode: Any
) -> None:
    first = queue.add("one", deduplication=SKIP, delay=5 if stage == "delayed" else 0)
    if stage not in ("waiting", "delayed"):
        run = pulled(queue)
        if stage == "back-off":
            manager.fail(run, "boom")
        elif stage == "released":
            manager.release(run)
    again = queue.add("two", deduplication=Deduplication("k", mode=mode))
    assert (again, again.duplicate, again.token) == (first, True, None)
    assert queue.counts().total == 1


def test_the_key_survives_a_lost_lock(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    first = queue.add("one", deduplication=SKIP)
    pulled(queue, lock_duration=5)
    clock.advance(seconds=6)
    manager.run_pending()
    assert queue.add("two", deduplication=SKIP) == first


# -- ttl and extend ------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", ["live", "ttl"])
def test_a_key_is_free_exactly_when_its_ttl_has_passed(
    queue: Queue, clock: VirtualClock, hold: Any
) -> None:
    window = Deduplication("k", timedelta(seconds=10), hold=hold)
    first = queue.add("one", deduplication=window)
    clock.advance(seconds=9, milliseconds=999)
    assert queue.add("two", deduplication=window) == first
    clock.advance(milliseconds=1)
    assert queue.deduplication.owner("k") is None
    assert not queue.deduplication.release("k")
    second = queue.add("three", deduplication=window)
    assert second != first
    assert queue.deduplication.owner("k") == second.id
    assert queue.counts().waiting == 2, "the first job still runs"


def test_the_end_of_a_job_whose_key_expired_leaves_the_new_owner_alone(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.add("one", deduplication=Deduplication("k", 1))
    clock.advance(seconds=1)
    second = queue.add("two", deduplication=SKIP)
    manager.ack(pulled(queue))
    assert queue.deduplication.owner("k") == second.id
    assert queue.add("three", deduplication=SKIP) == second


def test_skip_does_not_move_the_ttl_and_extend_counts_it_anew(
    queue: Queue, clock: VirtualClock, events: Callable[[], list[tuple[str, str | None]]]
) -> None:
    first = queue.add("one", deduplication=Deduplication("k", 10))
    clock.advance(seconds=6)
    events()
    assert queue.add("two", deduplication=Deduplication("k", 10, "extend")).duplicate
    assert events() == [("duplicated", first.id)]
    clock.advance(seconds=6)
    assert queue.add("three", deduplication=Deduplication("k", 10)) == first
    clock.advance(seconds=4)
    assert queue.deduplication.owner("k") is None


def test_extend_without_a_ttl_counts_that_of_the_owner(queue: Queue, clock: VirtualClock) -> None:
    first = queue.add("one", deduplication=Deduplication("k", 10))
    clock.advance(seconds=6)
    queue.add("two", deduplication=Deduplication("k", mode="extend"))
    clock.advance(seconds=9)
    assert queue.deduplication.owner("k") == first.id
    clock.advance(seconds=1)
    assert queue.deduplication.owner("k") is None


def test_extend_never_makes_a_key_free_earlier(queue: Queue, clock: VirtualClock) -> None:
    first = queue.add("one", deduplication=Deduplication("k", 10))
    queue.add("two", deduplication=Deduplication("k", 1, "extend"))
    endless = queue.add("three", deduplication=Deduplication("e"))
    queue.add("four", deduplication=Deduplication("e", 1, "extend"))
    clock.advance(seconds=9)
    assert queue.deduplication.owner("k") == first.id
    clock.advance(days=1)
    assert queue.deduplication.owner("e") == endless.id


# -- replace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["waiting", "delayed", "back-off"])
def test_replace_puts_the_new_job_in_the_place_of_a_pending_owner(
    manager: QueueManager,
    queue: Queue,
    events: Callable[[], list[tuple[str, str | None]]],
    stage: str,
) -> None:
    first = queue.add("one", 1, deduplication=REPLACE, delay=60 if stage == "delayed" else 0)
    if stage == "back-off":
        manager.fail(pulled(queue), "boom")
    events()
    second = queue.add("two", 2, deduplication=REPLACE, priority=2)
    assert second != first
    assert (second.duplicate, second.state, second.data) == (False, "prioritized", 2)
    assert manager.get_job(first.id) is None
    assert queue.counts().total == 1
    assert queue.deduplication.owner("k") == second.id
    assert events() == [("removed", first.id), ("pushed", second.id)]
    with pytest.raises(JobNotFoundError):
        first.result(timeout=0)


def test_replace_lets_an_active_owner_run_and_passes_the_key_on(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add("one", 1, deduplication=SKIP)
    run = pulled(queue)
    second = queue.add("two", 2, deduplication=REPLACE)
    assert not second.duplicate
    assert queue.deduplication.owner("k") == second.id
    assert manager.ack(run, "done").applied
    assert queue.deduplication.owner("k") == second.id, "the old owner freed what is not its own"
    assert queue.add("three", deduplication=SKIP) == second
    assert pulled(queue) == second


def test_a_job_that_lost_its_key_does_not_get_it_back(manager: QueueManager, queue: Queue) -> None:
    queue.add("one", deduplication=SKIP, backoff=0)
    run = pulled(queue)
    second = queue.add("two", deduplication=REPLACE)
    manager.fail(run, "boom")
    queue.remove(second)
    assert queue.deduplication.owner("k") is None
    broken_off(queue)
    assert queue.deduplication.owner("k") is None, "a rebuild gave it back"
    check(manager._state)


def test_replace_many_times_leaves_one_job(manager: QueueManager, queue: Queue) -> None:
    for i in range(500):
        queue.add("job", i, deduplication=Deduplication("k", 60, "replace", "ttl"))
        check(manager._state)
    assert queue.counts().total == 1
    assert pulled(queue).data == 499


# -- hold="ttl": throttling ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", [True, False])
def test_a_held_key_stays_taken_though_the_job_is_done(
    manager: QueueManager, queue: Queue, clock: VirtualClock, mode: Any, kept: bool
) -> None:
    first = queue.add("one", 1, deduplication=held(), remove_on_complete=not kept)
    manager.ack(pulled(queue), "result")
    clock.advance(seconds=9)
    again = queue.add("two", 2, deduplication=Deduplication("k", 10, mode))
    assert (again, again.duplicate) == (first, True)
    assert again.state == ("completed" if kept else "unknown")
    assert again.result(timeout=0) == "result"
    assert queue.deduplication.owner("k") == first.id
    assert queue.counts().waiting == 0
    clock.advance(seconds=10 if mode == "extend" else 1)
    assert not queue.add("three", deduplication=held()).duplicate


def test_a_key_whose_time_was_extended_does_not_go_at_the_end_that_it_had_before(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    first = queue.add("one", deduplication=held(10))
    manager.ack(pulled(queue), "result")
    clock.advance(seconds=5)
    assert queue.add("two", deduplication=Deduplication("k", 10, "extend")).duplicate
    clock.advance(seconds=6)
    # each newly held key looks for two that may go, and so does the clean-up
    for n in range(3):
        queue.add("other", deduplication=Deduplication(f"other{n}", 10, hold="ttl"))
    manager.run_pending()
    assert queue.deduplication.owner("k") == first.id
    assert queue.add("three", deduplication=held()).duplicate
    check(manager._state)
    clock.advance(seconds=4)
    assert not queue.add("four", deduplication=held()).duplicate


def test_the_owner_of_a_held_key_that_is_gone_tells_so(queue: Queue) -> None:
    first = queue.add("one", {"a": 1}, deduplication=held())
    queue.remove(first)
    gone = queue.add("two", deduplication=held())
    assert (gone.id, gone.state, gone.finished_at, gone.token) == (first.id, "unknown", None, None)
    assert gone.deduplication_key == "k"
    with pytest.raises(JobNotFoundError):
        _ = gone.data
    with pytest.raises(JobNotFoundError):
        gone.refresh()


def test_a_held_key_is_free_after_its_ttl_though_its_job_lives(
    queue: Queue, clock: VirtualClock
) -> None:
    first = queue.add("one", deduplication=held(10), delay=60)
    clock.advance(seconds=10)
    second = queue.add("two", deduplication=held(10), delay=60)
    assert second != first
    assert queue.counts().delayed == 2


@pytest.mark.parametrize("gone", [False, True])
def test_a_held_key_survives_a_rebuild(
    manager: QueueManager, queue: Queue, clock: VirtualClock, gone: bool
) -> None:
    first = queue.add("one", deduplication=held(), remove_on_complete=gone)
    manager.ack(pulled(queue))
    for _ in range(3):
        broken_off(queue)
        assert queue.add("two", deduplication=held()) == first
        check(manager._state)
    clock.advance(seconds=10)
    broken_off(queue)
    assert not queue.add("three", deduplication=held()).duplicate


@pytest.mark.parametrize("mode", ["skip", "replace"])
def test_expired_held_keys_leave_no_memory_behind(
    manager: QueueManager, queue: Queue, clock: VirtualClock, mode: Any
) -> None:
    keys = manager._state.queues["q"].unique_keys
    for i in range(3_000):
        queue.add(
            "job", deduplication=Deduplication(f"k{i}", 1, mode, "ttl"), remove_on_complete=True
        )
        manager.ack(pulled(queue))
        clock.advance(milliseconds=100)
    assert len(keys) <= 20
    assert len(keys.held) <= 120
    check(manager._state)


def test_keys_that_are_taken_and_released_all_day_leave_no_memory_behind(
    manager: QueueManager, queue: Queue
) -> None:
    keys = manager._state.queues["q"].unique_keys
    for _ in range(1_000):
        queue.remove(queue.add("job", deduplication=held(86_400)))
        assert queue.deduplication.release("k")
    assert len(keys) == 0
    assert len(keys.held) <= 70


# -- release -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [SKIP, held()], ids=["live", "held"])
def test_a_released_key_is_free_and_its_job_runs_on(
    manager: QueueManager, queue: Queue, key: Deduplication
) -> None:
    first = queue.add("one", deduplication=key)
    assert queue.deduplication.release("k") is True
    assert queue.deduplication.release("k") is False
    assert queue.deduplication.owner("k") is None
    broken_off(queue)
    assert queue.deduplication.owner("k") is None, "a rebuild gave it back"
    second = queue.add("two", deduplication=key)
    assert second != first
    manager.ack(pulled(queue))
    assert queue.deduplication.owner("k") == second.id
    assert first.refresh().deduplication_key == "k"


# -- B101: every way a job can end ---------------------------------------------------------------


def by_ack(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.manager.ack(pulled(queue), 1)  # type: ignore[attr-defined]


def by_failure(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.manager.fail(pulled(queue), "x", unrecoverable=True)  # type: ignore[attr-defined]


def by_last_attempt(queue: Queue, clock: VirtualClock, job: Job) -> None:
    for _ in range(3):
        queue.manager.fail(pulled(queue), "x")  # type: ignore[attr-defined]
        clock.advance(days=1)


def by_unserializable_result(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.manager.ack(pulled(queue), object())  # type: ignore[attr-defined]


def by_late_ack(queue: Queue, clock: VirtualClock, job: Job) -> None:
    run = pulled(queue, lock_duration=1)
    clock.advance(seconds=2)
    queue.manager.run_pending()  # type: ignore[attr-defined]
    assert queue.manager.ack(run).applied  # type: ignore[attr-defined]


def by_stalls(queue: Queue, clock: VirtualClock, job: Job) -> None:
    for _ in range(3):
        pulled(queue, lock_duration=1)
        clock.advance(days=1)
        queue.manager.run_pending()  # type: ignore[attr-defined]
        clock.advance(days=1)


def by_timeout(queue: Queue, clock: VirtualClock, job: Job) -> None:
    for _ in range(3):
        pulled(queue, lock_duration=None)
        clock.advance(seconds=500)
        queue.manager.run_pending()  # type: ignore[attr-defined]
        clock.advance(seconds=500)


def by_ttl(queue: Queue, clock: VirtualClock, job: Job) -> None:
    clock.advance(days=36_000)
    queue.manager.run_pending()  # type: ignore[attr-defined]


def by_remove(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.remove(job)


def by_drain(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.drain()


def by_obliterate(queue: Queue, clock: VirtualClock, job: Job) -> None:
    queue.obliterate()


def by_obliterate_while_active(queue: Queue, clock: VirtualClock, job: Job) -> None:
    pulled(queue)
    queue.obliterate(force=True)


def by_a_crash_in_the_section(queue: Queue, clock: VirtualClock, job: Job) -> None:
    by_ack(queue, clock, job)
    broken_off(queue)


ENDS = [
    by_ack, by_failure, by_last_attempt, by_unserializable_result, by_late_ack, by_stalls,
    by_timeout, by_ttl, by_remove, by_drain, by_obliterate, by_obliterate_while_active,
    by_a_crash_in_the_section,
]  # fmt: skip
RETENTION: list[bool | KeepJobs] = [False, True, KeepJobs(count=0), KeepJobs(age=1)]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("keep", RETENTION, ids=str)
@pytest.mark.parametrize("listened", [False, True])
def test_every_end_of_a_job_frees_its_key(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    end: Callable[[Queue, VirtualClock, Job], None],
    keep: bool | KeepJobs,
    listened: bool,
) -> None:
    """B101, B106"""
    if listened:
        manager.events.subscribe(lambda event: None)
    first = queue.add(
        "one",
        "old",
        deduplication=SKIP,
        timeout=400,
        ttl=timedelta(days=30_000),
        remove_on_complete=keep,
        remove_on_fail=keep,
    )
    assert queue.deduplication.owner("k") == first.id
    end(queue, clock, first)
    check(manager._state)
    assert queue.deduplication.owner("k") is None
    second = queue.add("two", "new", deduplication=SKIP)
    assert (second.duplicate, second != first) == (False, True)
    assert (second.attempts_made, second.progress, second.started_at) == (0, 0, None)
    assert (second.stall_count, second.error, second.created_at) == (0, None, clock.now)
    run = pulled(queue)
    assert (run, run.data, run.attempt) == (second, "new", 1)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("keep", RETENTION, ids=str)
def test_no_end_of_a_job_frees_a_key_that_is_held(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    end: Callable[[Queue, VirtualClock, Job], None],
    keep: bool | KeepJobs,
) -> None:
    ttl = timedelta(days=36_500)
    key = Deduplication("k", ttl, hold="ttl")
    first = queue.add(
        "one",
        deduplication=key,
        timeout=400,
        ttl=timedelta(days=30_000),
        remove_on_complete=keep,
        remove_on_fail=keep,
    )
    end(queue, clock, first)
    assert queue.add("two", deduplication=key) == first
    check(manager._state)
    clock.advance(days=36_500)
    assert not queue.add("three", deduplication=SKIP).duplicate


def test_the_key_is_free_after_its_job_made_room_for_newer_ones(clock: VirtualClock) -> None:
    """B101"""
    config = ManagerConfig(keep_completed=2)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        queue = Queue("q", manager)
        for i in range(20):
            job = queue.add("job", i, deduplication=Deduplication(f"k{i % 3}"))
            assert not job.duplicate
            manager.ack(pulled(queue))
            check(manager._state)
        assert len(manager._state.queues["q"].unique_keys) == 0


def test_removing_an_old_failed_job_leaves_the_key_to_its_new_owner(
    manager: QueueManager, queue: Queue
) -> None:
    """B100"""
    first = queue.add("one", deduplication=SKIP)
    manager.fail(pulled(queue), "boom", unrecoverable=True)
    second = queue.add("two", deduplication=SKIP, delay=60)
    assert queue.dlq.remove(first)
    third = queue.add("three", deduplication=SKIP)
    assert (third, third.duplicate) == (second, True)


# -- retry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("stage", ["waiting", "delayed", "active"])
def test_a_retry_is_refused_while_the_key_belongs_to_another_live_job(
    manager: QueueManager, queue: Queue, outcome: str, stage: str
) -> None:
    first = queue.add("one", deduplication=SKIP)
    finish(manager, queue, outcome)
    second = queue.add("two", deduplication=SKIP, delay=9 if stage == "delayed" else 0)
    run = pulled(queue) if stage == "active" else None
    before = queue.counts()
    for verb in (queue.retry, queue.dlq.retry) if outcome == "failed" else (queue.retry,):
        with pytest.raises(DuplicateJobError) as caught:
            verb(first)
        error = caught.value
        assert isinstance(error, BunqueueError)
        assert (error.job_id, error.key, error.owner) == (first.id, "k", second.id)
        assert first.id in str(error)
        assert second.id in str(error)
    check(manager._state)
    assert queue.counts() == before
    assert first.refresh().state == outcome
    if run is None:
        queue.remove(second)
    else:
        manager.ack(run)
    assert queue.retry(first)
    assert queue.deduplication.owner("k") == first.id


def finish(manager: QueueManager, queue: Queue, outcome: str) -> None:
    run = pulled(queue)
    if outcome == "completed":
        manager.ack(run, "result")
    else:
        manager.fail(run, "boom", unrecoverable=True)


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("key", [SKIP, Deduplication("k", 10), held(10)], ids=str)
def test_a_retried_job_takes_its_key_again_with_its_whole_ttl(
    manager: QueueManager,
    queue: Queue,
    clock: VirtualClock,
    outcome: str,
    key: Deduplication,
) -> None:
    first = queue.add("one", deduplication=key)
    clock.advance(seconds=7)
    finish(manager, queue, outcome)
    assert queue.retry(first)
    check(manager._state)
    clock.advance(seconds=9)
    again = queue.add("two", deduplication=key)
    assert (again, again.duplicate) == (first, True)
    broken_off(queue)
    assert queue.deduplication.owner("k") == first.id
    clock.advance(seconds=1)
    assert (queue.deduplication.owner("k") is None) == (key.ttl is not None)
    finish(manager, queue, outcome)
    assert queue.deduplication.owner("k") is None


def test_a_retry_takes_the_key_from_a_job_that_is_done_but_holds_it(
    manager: QueueManager, queue: Queue
) -> None:
    first = queue.add("one", deduplication=SKIP)
    finish(manager, queue, "failed")
    second = queue.add("two", deduplication=held())
    finish(manager, queue, "completed")
    assert queue.deduplication.owner("k") == second.id
    assert queue.retry(first)
    assert queue.deduplication.owner("k") == first.id
    finish(manager, queue, "completed")
    assert queue.deduplication.owner("k") is None
    broken_off(queue)
    assert queue.deduplication.owner("k") is None
    check(manager._state)


def test_a_job_in_the_wrong_state_says_that_first(queue: Queue) -> None:
    queue.add("one", deduplication=Deduplication("k", 1))
    with pytest.raises(JobStateError):
        queue.retry(queue.add("two", deduplication=Deduplication("k", 1)))


# -- in bulk -------------------------------------------------------------------------------------


def test_a_batch_does_with_keys_what_its_jobs_one_by_one_would(
    manager: QueueManager, queue: Queue
) -> None:
    """B104"""
    live = queue.add("live", deduplication=Deduplication("live"))
    jobs = queue.add_bulk(
        [
            JobSpec("a", 1, deduplication=SKIP),
            JobSpec("b", 2, deduplication=SKIP),
            JobSpec("c", 3, deduplication=Deduplication("live")),
            JobSpec("d", 4, custom_id="x"),
            JobSpec("e", 5, custom_id="x"),
            ("f", 6),
        ]
    )
    assert [job.duplicate for job in jobs] == [False, True, True, False, True, False]
    assert [job.data for job in jobs] == [1, 1, None, 4, 4, 6]
    assert jobs[2] == live
    assert queue.counts().total == 4


@pytest.mark.parametrize("listened", [False, True])
def test_a_later_job_of_a_batch_replaces_an_earlier_one(
    manager: QueueManager, queue: Queue, listened: bool
) -> None:
    """B104"""
    if listened:
        manager.events.subscribe(lambda event: None)
    jobs = queue.add_bulk(JobSpec("job", i, deduplication=REPLACE) for i in range(3))
    assert [job.duplicate for job in jobs] == [False] * 3
    assert [manager.get_state(job) for job in jobs] == ["unknown", "unknown", "waiting"]
    assert queue.counts().total == 1
    assert queue.deduplication.owner("k") == jobs[2].id


def test_a_batch_that_is_refused_takes_no_key(queue: Queue) -> None:
    """B103"""
    with pytest.raises(ValidationError, match=r"jobs\[1\]"):
        queue.add_bulk([JobSpec("a", deduplication=SKIP), JobSpec("b", priority=True)])
    assert queue.deduplication.owner("k") is None
    assert not queue.add("c", deduplication=SKIP).duplicate


# -- together with a custom id -------------------------------------------------------------------


def test_a_live_custom_id_comes_before_the_key(queue: Queue) -> None:
    keyed = queue.add("one", deduplication=Deduplication("k", 10))
    named = queue.add("two", custom_id="x")
    again = queue.add("three", custom_id="x", deduplication=REPLACE)
    assert (again, again.duplicate) == (named, True)
    assert queue.deduplication.owner("k") == keyed.id, "the key was looked at all the same"


def test_a_taken_key_comes_before_the_retirement_of_a_finished_custom_id(
    manager: QueueManager, queue: Queue
) -> None:
    named = queue.add("one", custom_id="x")
    manager.ack(pulled(queue))
    keyed = queue.add("two", deduplication=SKIP)
    again = queue.add("three", custom_id="x", deduplication=SKIP)
    assert (again, again.duplicate) == (keyed, True)
    assert named.refresh().state == "completed", "a push that changed nothing retired a job"
    manager.ack(pulled(queue))
    fresh = queue.add("four", custom_id="x", deduplication=SKIP)
    assert (fresh.duplicate, fresh.custom_id, fresh.deduplication_key) == (False, "x", "k")
    assert manager.get_job(named.id) is None


def test_replace_frees_the_custom_id_of_what_it_replaces(queue: Queue) -> None:
    queue.add("one", custom_id="x", deduplication=REPLACE)
    second = queue.add("two", custom_id="y", deduplication=REPLACE)
    assert queue.get_job(custom_id="x") is None
    assert queue.get_job(custom_id="y") == second
    assert queue.counts().total == 1


# -- with its neighbours -------------------------------------------------------------------------


def test_jobs_with_keys_keep_their_order_among_the_others(
    manager: QueueManager, queue: Queue
) -> None:
    for i in range(9):
        key = Deduplication(f"k{i}") if i % 2 else None
        queue.add("job", i, deduplication=key)
    assert [pulled(queue).data for _ in range(9)] == list(range(9))


def test_a_key_that_is_replaced_holds_no_deadline(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    for _ in range(300):
        queue.add("job", deduplication=REPLACE, ttl=86_400)
    assert len(manager._state.shards.shards[0].deadlines) < 200
    clock.advance(days=2)
    manager.run_pending()
    assert queue.counts().failed == 1


def test_the_back_off_of_a_job_keeps_its_key_through_all_attempts(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    first = queue.add("one", deduplication=SKIP, attempts=5, backoff=Backoff.fixed(1, jitter=0))
    for _ in range(4):
        manager.fail(pulled(queue), "boom")
        assert queue.add("again", deduplication=SKIP) == first
        clock.advance(seconds=1)
    manager.fail(pulled(queue), "boom")
    assert not queue.add("again", deduplication=SKIP).duplicate
