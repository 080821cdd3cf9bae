"""clean: exactly the old ones of a state, oldest first."""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import JobEvent, JobNotFoundError, Queue, QueueManager, ValidationError
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
STATES = ("waiting", "prioritized", "delayed", "completed", "failed")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as opened:
        yield opened
        check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("mail", manager)


def enter(queue: Queue, state: str, count: int) -> list[str]:
    """That many jobs which enter the state now."""
    manager: Any = queue.manager
    options: Any = {"prioritized": {"priority": 2}, "delayed": {"delay": 86_400}}
    ids = []
    for _ in range(count):
        if state in ("completed", "failed"):
            job = queue.add("job", 1, priority=1000)
            held = manager.pull(queue)
            assert held == job
            if state == "failed":
                manager.fail(held, "no", unrecoverable=True)
            else:
                manager.ack(held, "done")
        else:
            job = queue.add("job", 1, **options.get(state, {}))
        ids.append(job.id)
    return ids


@pytest.mark.parametrize("limit", [0, 1, 7, 10, 1000])
@pytest.mark.parametrize("older_than", [0, 1, 10, timedelta(seconds=11)])
@pytest.mark.parametrize("state", STATES)
def test_exactly_the_old_ones_go_oldest_first_and_no_more_than_the_limit(
    clock: VirtualClock,
    manager: QueueManager,
    queue: Queue,
    state: str,
    older_than: Any,
    limit: int,
) -> None:
    """B134: for each state, grace and limit, ten old and ten young."""
    others = {other: enter(queue, other, 2) for other in STATES if other != state}
    old = enter(queue, state, 10)
    clock.advance(seconds=10)
    young = enter(queue, state, 10)
    expected = {0: [*old, *young], 1: old, 10: old}.get(older_than, [])[:limit]
    assert queue.clean(older_than, state=state, limit=limit) == expected
    left = [job.id for job in queue.get_jobs(state)]
    assert left == [job_id for job_id in [*old, *young] if job_id not in expected]
    for other, ids in others.items():
        assert [job.id for job in queue.get_jobs(other)] == ids
    for job_id in expected:
        assert queue.get_job(job_id) is None


def test_a_job_that_time_made_ready_entered_then(clock: VirtualClock, queue: Queue) -> None:
    job = queue.add("later", delay=60)
    on_time = queue.add("on time", run_at=START + timedelta(seconds=61))
    clock.advance(seconds=70)
    assert queue.clean(10.5, state="waiting") == []
    assert queue.clean(9, state="waiting") == [job.id, on_time.id]


def test_a_retried_job_entered_with_its_retry(
    clock: VirtualClock, manager: QueueManager, queue: Queue
) -> None:
    (job,) = enter(queue, "failed", 1)
    clock.advance(seconds=60)
    queue.retry(job)
    assert queue.clean(1, state="prioritized") == []
    assert queue.clean(0, state="prioritized") == [job]


def test_what_is_paused_is_cleaned_by_the_state_it_has(queue: Queue) -> None:
    ids = enter(queue, "waiting", 2)
    queue.pause()
    assert queue.clean(0, state="waiting") == ids


def test_thousands_go_in_bites_with_one_event(manager: QueueManager, queue: Queue) -> None:
    heard: list[JobEvent] = []
    manager.events.subscribe(heard.append, types=["cleaned", "removed", "empty"])
    jobs = queue.add_bulk([("job", n) for n in range(1600)])
    assert queue.clean(0, state="waiting", limit=1500) == [job.id for job in jobs[:1500]]
    assert queue.clean(0, state="waiting") == [job.id for job in jobs[1500:]]
    assert queue.clean(0, state="waiting") == []
    manager.run_pending()
    assert [(event.type, event.count) for event in heard] == [
        ("cleaned", 1500),
        ("empty", None),
        ("cleaned", 100),
    ]


def test_a_cleaned_completed_job_leaves_its_proof_and_a_waiting_one_nothing(
    manager: QueueManager, queue: Queue
) -> None:
    """SPEC 8: every completed job that is cleaned leaves a proof."""
    (done,) = enter(queue, "completed", 1)
    (waiting,) = enter(queue, "waiting", 1)
    queue.clean(0, state="completed")
    queue.clean(0, state="waiting")
    assert manager.wait_for(done, timeout=0) == "done"
    with pytest.raises(JobNotFoundError):
        manager.wait_for(waiting, timeout=0)


def test_its_custom_id_is_free(queue: Queue) -> None:
    queue.add("mine", custom_id="one")
    queue.clean(0, state="waiting")
    assert queue.get_job(custom_id="one") is None
    assert not queue.add("mine", custom_id="one").duplicate


@pytest.mark.parametrize(
    "state", ["active", "paused", "unknown", "waiting-children", "", "WAITING", None, 1, ["failed"]]
)
def test_a_state_that_cannot_be_cleaned_is_refused(queue: Queue, state: Any) -> None:
    """B134: active is protected."""
    with pytest.raises(ValidationError, match="state must be among waiting, prioritized, delayed"):
        queue.clean(0, state=state)


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf"), 1e300, True, "5", None])
def test_a_bad_age_is_refused(queue: Queue, age: Any) -> None:
    """B139."""
    with pytest.raises(ValidationError, match="older_than"):
        queue.clean(age, state="failed")


def test_a_limit_beyond_a_batch_is_refused(queue: Queue) -> None:
    with pytest.raises(ValidationError, match="limit must be an int from 0 to 100,000"):
        queue.clean(0, state="failed", limit=100_001)
