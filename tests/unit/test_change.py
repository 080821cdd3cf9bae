"""promote, promote_all, discard, update_data, change_priority, change_delay, retry_all."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    JobEvent,
    JobFailedError,
    JobStateError,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    SerializationError,
    ValidationError,
)
from bunqueue_py.client.job import Job
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    config = ManagerConfig(shards=1, max_data_bytes=1000)
    with QueueManager(clock=clock, background=False, config=config) as opened:
        yield opened
        check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("mail", manager)


@pytest.fixture
def heard(manager: QueueManager) -> list[JobEvent]:
    events: list[JobEvent] = []
    manager.events.subscribe(events.append)
    return events


def order(manager: QueueManager) -> list[str]:
    return [job.name for job in manager.pull_batch("mail", 100)]


def kinds(manager: QueueManager, heard: list[JobEvent]) -> list[tuple[str, str | None]]:
    manager.run_pending()
    return [(event.type, event.job_id) for event in heard]


def pulled(manager: QueueManager) -> Job:
    job = manager.pull("mail")
    assert job is not None
    return job


# -- promote ---------------------------------------------------------------------------------


def test_a_promoted_job_stands_behind_those_that_are_ready_and_before_later_ones(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    """B095: the place of a promoted job; its run_at is the moment of the promotion."""
    late = queue.add("late", delay=3600)
    queue.add("first")
    clock.advance(seconds=1)
    assert late.promote()
    assert late.refresh().run_at == clock.now
    assert late.timeline[-1].state == "promoted"
    clock.advance(seconds=1)
    queue.add("last")
    assert order(manager) == ["first", "late", "last"]


def test_a_promoted_job_keeps_its_priority(manager: QueueManager, queue: Queue) -> None:
    high = queue.add("high", delay=60, priority=5)
    queue.add("plain")
    assert queue.promote(high)
    assert high.refresh().state == "prioritized"
    assert order(manager) == ["high", "plain"]


def test_a_job_of_the_wall_clock_is_promoted_for_good(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    job = queue.add("later", run_at=START + timedelta(days=1))
    assert job.promote()
    clock.set_wall_clock(START - timedelta(days=400))
    assert job.refresh().state == "waiting"
    assert order(manager) == ["later"]


def test_promotion_is_told_once(manager: QueueManager, queue: Queue, heard: list[JobEvent]) -> None:
    job = queue.add("later", delay=60)
    assert job.promote()
    assert not job.promote()
    told = kinds(manager, heard)
    assert told.count(("promoted", job.id)) == 1


def test_all_are_promoted_soonest_first_up_to_the_limit(
    manager: QueueManager, queue: Queue
) -> None:
    for n in (3, 1, 2):
        queue.add(f"in {n}", delay=n * 60)
    queue.add("on the clock", run_at=START + timedelta(seconds=90))
    assert queue.promote_all(limit=0) == 0
    assert queue.promote_all(limit=3) == 3
    assert [job.name for job in queue.get_jobs("delayed")] == ["in 3"]
    assert order(manager) == ["in 1", "on the clock", "in 2"]
    assert queue.promote_all() == 1
    assert queue.promote_all() == 0


def test_thousands_are_promoted_in_bites(manager: QueueManager, queue: Queue) -> None:
    queue.add_bulk([("job", n) for n in range(300)])
    defaults = Queue("mail", manager, defaults={"delay": 60})
    defaults.add_bulk([("job", n) for n in range(1300)])
    assert queue.promote_all() == 1300
    assert queue.counts().waiting == 1600


# -- discard ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"priority": 4}, {"delay": 60}, {"ttl": 60}])
def test_a_discarded_job_is_a_dead_letter(
    manager: QueueManager, queue: Queue, heard: list[JobEvent], options: dict[str, Any]
) -> None:
    job = queue.add("mine", custom_id="one", **options)
    assert queue.discard(job)
    (entry,) = queue.dlq.entries()
    assert (entry.job, entry.reason, list(entry.attempts)) == (job, "discarded", [])
    with pytest.raises(JobFailedError, match="discarded"):
        job.result(timeout=0)
    manager.run_pending()
    (failed,) = [event for event in heard if event.type == "failed"]
    assert (failed.reason, failed.terminal, failed.attempt) == ("discarded", True, 0)
    # its custom id is free, its place in the queue too
    assert queue.counts().failed == 1
    assert len(queue) == 0
    assert not queue.add("again", custom_id="one").duplicate


def test_a_discarded_job_can_be_retried(manager: QueueManager, queue: Queue) -> None:
    job = queue.add("mine", delay=60)
    job.discard()
    assert queue.dlq.retry(job)
    assert order(manager) == ["mine"]


def test_a_job_that_leaves_on_failure_leaves_when_it_is_discarded(queue: Queue) -> None:
    job = queue.add("mine", remove_on_fail=True)
    assert job.discard()
    assert queue.get_job(job.id) is None
    with pytest.raises(JobFailedError, match="discarded"):
        job.result(timeout=0)


# -- update_data -----------------------------------------------------------------------------


def test_new_data_reach_the_handler(manager: QueueManager, queue: Queue) -> None:
    job = queue.add("mine", {"n": 1})
    assert job.update_data({"n": 2})
    assert job.data == {"n": 1}, "a snapshot stays"
    assert not job.update_data({"n": 2})
    assert pulled(manager).data == {"n": 2}


def test_data_are_no_object_that_is_shared(manager: QueueManager, queue: Queue) -> None:
    job = queue.add("mine")
    data = [1]
    job.update_data(data)
    data.append(2)
    assert pulled(manager).data == [1]


def test_bad_data_are_refused_before_anything_has_changed(
    manager: QueueManager, queue: Queue
) -> None:
    """SPEC 16.5."""
    job = queue.add("mine", "old")
    for bad in (float("nan"), object(), {"\ud800": 1}, "x" * 2000):
        with pytest.raises(SerializationError):
            job.update_data(bad)
    assert job.refresh().data == "old"


def test_a_failed_job_is_mended_and_retried(manager: QueueManager, queue: Queue) -> None:
    queue.add("mine", "bad")
    job = pulled(manager)
    manager.fail(job, "bad data", unrecoverable=True)
    assert queue.update_data(job.id, "good")
    assert queue.dlq.retry(job)
    assert pulled(manager).data == "good"


class TestDataFromAHandler:
    """SPEC 5's table of tokens, the column of progress, log and update."""

    def test_the_holder_may_change_them_and_the_next_run_sees_them(
        self, manager: QueueManager, queue: Queue, clock: VirtualClock
    ) -> None:
        queue.add("mine", 1, backoff=Backoff.fixed(0))
        job = pulled(manager)
        assert job.update_data(2)
        assert manager.update_data(job.id, 3, token=job.token)
        manager.fail(job, "again")
        assert pulled(manager).data == 3

    def test_even_if_its_lock_has_run_out_and_nobody_has_swept_it(
        self, manager: QueueManager, queue: Queue, clock: VirtualClock
    ) -> None:
        queue.add("mine", 1)
        job = pulled(manager)
        clock.advance(days=1)
        assert job.update_data(2)

    def test_a_delivery_that_was_swept_may_not(
        self, manager: QueueManager, queue: Queue, clock: VirtualClock
    ) -> None:
        queue.add("mine", 1)
        job = pulled(manager)
        clock.advance(days=1)
        manager.run_pending()
        with pytest.raises(LockError, match="lost its lock"):
            job.update_data(2)
        assert queue.get_jobs()[0].data == 1

    @pytest.mark.parametrize("end", ["ack", "fail", "release"])
    def test_a_delivery_that_has_ended_may_not(
        self, manager: QueueManager, queue: Queue, end: str
    ) -> None:
        queue.add("mine", 1)
        job = pulled(manager)
        {
            "ack": lambda: manager.ack(job),
            "fail": lambda: manager.fail(job, "no", unrecoverable=True),
            "release": lambda: manager.release(job),
        }[end]()
        with pytest.raises(LockError, match="lost its lock"):
            job.update_data(2)

    @pytest.mark.parametrize("token", [None, "", "never issued"])
    def test_nobody_else_may_while_it_is_held(
        self, manager: QueueManager, queue: Queue, token: str | None
    ) -> None:
        queue.add("mine", 1)
        job = pulled(manager)
        with pytest.raises(LockError, match="never issued"):
            manager.update_data(job.id, 2, token=token)
        assert manager.get_job(job.id).data == 1  # type: ignore[union-attr]

    def test_a_job_without_a_lock_needs_no_token(self, manager: QueueManager, queue: Queue) -> None:
        queue.add("mine", 1)
        job = manager.pull("mail", lock_duration=None)
        assert job is not None
        assert queue.update_data(job.id, 2)


# -- change_priority -------------------------------------------------------------------------


def test_a_job_stands_where_it_would_had_it_been_added_so(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    jobs = {}
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", 0)):
        jobs[name] = queue.add(name, priority=priority)
        clock.advance(seconds=1)
    assert jobs["c"].change_priority(5)
    assert jobs["d"].change_priority(0)
    assert order(manager) == ["b", "c", "a", "d", "e"]


def test_there_and_back_again_is_the_old_place(manager: QueueManager, queue: Queue) -> None:
    jobs = queue.add_bulk([(f"job{n}", n) for n in range(5)])
    assert jobs[2].change_priority(-7)
    assert jobs[2].refresh().priority == -7
    assert jobs[2].change_priority(0)
    assert not jobs[2].change_priority(0)
    assert order(manager) == [f"job{n}" for n in range(5)]


def test_lifo_is_changed_with_it(manager: QueueManager, queue: Queue) -> None:
    first, second = queue.add("first"), queue.add("second", attempts=7)
    assert not first.change_priority(0, lifo=False)
    assert second.change_priority(0, lifo=True)
    assert not second.change_priority(0, lifo=True)
    assert not second.change_priority(0)
    taken = manager.pull_batch("mail", 2)
    assert [job.name for job in taken] == ["second", "first"]
    assert taken[0].max_attempts == 7, "the other options stay"


def test_a_delayed_job_takes_its_priority_along(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    later = queue.add("later", delay=5)
    on_time = queue.add("on time", run_at=START + timedelta(seconds=5))
    other = queue.add("other", delay=5, priority=3)
    for job, priority in ((later, 2), (on_time, 9), (other, -1)):
        assert job.change_priority(priority)
        assert job.refresh().state == "delayed"
    assert queue.counts_per_priority() == {9: 1, 2: 1, -1: 1}
    assert [job.name for job in queue.get_jobs("delayed")] == ["later", "on time", "other"]
    clock.advance(seconds=5)
    assert queue.counts().prioritized == 2
    assert order(manager) == ["on time", "later", "other"]


def test_a_retried_run_keeps_the_changed_priority(manager: QueueManager, queue: Queue) -> None:
    queue.add("mine", backoff=Backoff.fixed(0)).change_priority(8)
    manager.fail(pulled(manager), "again")
    assert queue.counts_per_priority() == {8: 1}


def test_a_hundred_thousand_changes_leave_no_memory_behind(
    manager: QueueManager, queue: Queue
) -> None:
    jobs = queue.add_bulk([("job", n) for n in range(50)])
    late = Queue("mail", manager, defaults={"delay": 60}).add_bulk([("l", n) for n in range(50)])
    ready, delayed = manager._state.queues["mail"].ready, manager._state.queues["mail"].delayed
    for n in range(1000):
        for i, job in enumerate(jobs):
            manager.change_priority(job.id, (n + i) % 7 - 3, lifo=None if n % 3 else bool(i % 2))
            manager.change_priority(late[i].id, (n * i) % 9 - 4)
    shelves = (ready.members, ready.promoted, ready.low, ready.low_promoted)
    assert sum(map(len, shelves)) <= 50
    assert len(ready.heap) <= 50 * 1.25 + 65
    assert len(ready.arrived) <= 50 * 1.5 + 65
    assert len(ready.lane.records) <= 50 * 1.25 + 65
    assert len(ready.tally()) <= 7
    assert len(delayed.members) == len(delayed.plain) + len(delayed.prioritized) == 50
    assert len(delayed.tally) <= 9
    assert len(manager._state.options._made) < 10
    assert queue.counts().total == len(queue.get_jobs(limit=1000)) == 100


@pytest.mark.parametrize("priority", [1.0, True, "5", None, 1_000_001, -1_000_001, float("nan")])
def test_a_bad_priority_is_refused(queue: Queue, priority: Any) -> None:
    """B139."""
    job = queue.add("mine")
    with pytest.raises(ValidationError, match="priority"):
        job.change_priority(priority)
    with pytest.raises(ValidationError, match="lifo"):
        job.change_priority(1, lifo=0)  # type: ignore[arg-type]
    assert job.refresh().priority == 0


# -- change_delay ----------------------------------------------------------------------------


def test_a_delay_counts_from_now_and_never_compounds(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    """B059: change the delay of a delayed job twice, let it run, replay it."""
    job = queue.add("mine", delay=120, backoff=Backoff.fixed(10, jitter=0), attempts=12)
    for _ in range(2):
        clock.advance(seconds=30)
        assert job.change_delay(120)
        assert job.refresh().run_at == clock.now + timedelta(seconds=120)
    clock.advance(seconds=120)
    for _ in range(11):
        manager.fail(pulled(manager), "again")
        assert job.refresh().run_at == clock.now + timedelta(seconds=10)
        assert job.change_delay(timedelta(minutes=1))
        assert job.refresh().run_at == clock.now + timedelta(minutes=1)
        clock.advance(minutes=1)
    manager.fail(pulled(manager), "for good")
    clock.advance(seconds=5)
    assert queue.dlq.retry(job)
    assert job.refresh().run_at == clock.now


def test_a_ready_job_is_put_off(clock: VirtualClock, manager: QueueManager, queue: Queue) -> None:
    job = queue.add("mine", priority=4)
    queue.add("other")
    assert job.change_delay(0.5)
    assert job.refresh().state == "delayed"
    assert order(manager) == ["other"]
    clock.advance(milliseconds=500)
    assert order(manager) == ["mine"]


def test_no_delay_makes_it_ready(
    clock: VirtualClock, manager: QueueManager, queue: Queue, heard: list[JobEvent]
) -> None:
    job = queue.add("mine", run_at=START + timedelta(days=1))
    assert job.change_delay(0)
    assert not job.change_delay(0)
    assert ("promoted", job.id) in kinds(manager, heard)
    assert order(manager) == ["mine"]


def test_a_moment_of_the_wall_clock_becomes_one_of_the_timeline(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    job = queue.add("mine", run_at=START + timedelta(seconds=60))
    assert job.change_delay(60)
    clock.set_wall_clock(START - timedelta(days=1))
    clock.advance(seconds=60)
    assert order(manager) == ["mine"]


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, True, "5", None])
def test_a_bad_delay_is_refused(queue: Queue, delay: Any) -> None:
    """B139."""
    job = queue.add("mine", delay=60)
    before = job.run_at
    with pytest.raises(ValidationError, match="delay"):
        job.change_delay(delay)
    assert job.refresh().run_at == before


def test_a_changed_delay_leaves_the_ttl_as_it_was(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    job = queue.add("mine", ttl=30)
    job.change_delay(3600)
    clock.advance(seconds=30)
    manager.run_pending()
    assert job.refresh().failed_reason == "ttl_expired"


# -- retry_all -------------------------------------------------------------------------------


def test_what_failed_is_retried_oldest_first(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    for n in range(4):
        queue.add(f"job{n}")
        manager.fail(pulled(manager), "no", unrecoverable=True)
        clock.advance(seconds=1)
    assert queue.retry_all(limit=0) == 0
    assert queue.retry_all(limit=3) == 3
    assert len(queue.dlq) == 1
    assert order(manager) == ["job0", "job1", "job2"]
    assert queue.retry_all("failed") == 1


def test_completed_jobs_can_all_be_run_again(manager: QueueManager, queue: Queue) -> None:
    queue.add_bulk([("job", n) for n in range(700)])
    for job in manager.pull_batch("mail", 700):
        manager.ack(job)
    assert queue.retry_all("completed") == 700
    assert queue.counts().waiting == 700


@pytest.mark.parametrize("state", ["waiting", "active", "paused", "", None, 3, ("failed",)])
def test_only_finished_states_can_be_retried(queue: Queue, state: Any) -> None:
    with pytest.raises(ValidationError, match="state must be among completed, failed"):
        queue.retry_all(state)


@pytest.mark.parametrize("limit", [-1, True, 1.0, "5", float("nan"), float("inf"), 1e300])
def test_a_bad_limit_is_refused(queue: Queue, limit: Any) -> None:
    """B139."""
    for call in (
        lambda: queue.retry_all(limit=limit),
        lambda: queue.promote_all(limit=limit),
        lambda: queue.clean(0, state="waiting", limit=limit),
    ):
        with pytest.raises(ValidationError, match="limit"):
            call()


@pytest.mark.parametrize("verb", ["promote", "discard", "change_priority", "change_delay"])
def test_the_error_names_the_job_and_its_state(
    manager: QueueManager, queue: Queue, verb: str
) -> None:
    job = queue.add("mine")
    manager.ack(pulled(manager))
    arguments = (5,) if verb.startswith("change") else ()
    with pytest.raises(JobStateError, match=f"job {job.id} is completed .*retry") as caught:
        getattr(job, verb)(*arguments)
    assert caught.value.job_id == job.id
