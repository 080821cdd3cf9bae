"""Jobs that repeat: each success plans the next run, in one unit with its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import (
    CronError,
    Deduplication,
    Job,
    JobSpec,
    Queue,
    QueueManager,
    Repeat,
    ValidationError,
)
from bunqueue_py.client.job import Ack
from bunqueue_py.ops.query import check
from bunqueue_py.testing import SeededIds, VirtualClock

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def at(**parts: float) -> datetime:
    return START + timedelta(**parts)


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def wait(queue: Queue, **parts: float) -> None:
    manager: Any = queue.manager
    manager._state.clock.advance(**parts)
    manager.run_pending()
    check(manager._state)


def run(queue: Queue) -> Job | None:
    """Pulls and acks; the job, if there was one."""
    manager: Any = queue.manager
    job = manager.pull(queue)
    if job is not None:
        assert manager.ack(job, "done").applied
        check(manager._state)
    return job  # type: ignore[no-any-return]


def next_at(queue: Queue) -> datetime | None:
    pending = queue.get_jobs(("waiting", "delayed", "prioritized"))
    assert len(pending) <= 1
    return pending[0].run_at if pending else None


def test_each_success_plans_the_next_run_and_the_phase_is_kept(queue: Queue) -> None:
    first = queue.add("x", {"n": 1}, repeat=Repeat(every=60), priority=3, tags=["t"], group="g")
    wait(queue, seconds=10)
    assert run(queue) == first
    assert next_at(queue) == at(seconds=60)
    assert run(queue) is None
    wait(queue, seconds=50)
    second = run(queue)
    assert second is not None
    assert second != first
    for attribute in ("name", "data", "priority", "tags", "group", "max_attempts"):
        assert getattr(second, attribute) == getattr(first, attribute)
    wait(queue, seconds=185)  # three periods and more
    assert run(queue) is not None
    assert next_at(queue) == at(seconds=300)


def test_the_limit_counts_all_runs(queue: Queue) -> None:
    queue.add("x", repeat=Repeat(every=10, limit=3))
    done = 0
    for _ in range(6):
        done += run(queue) is not None
        wait(queue, seconds=10)
    assert done == 3
    assert queue.counts().total == 3
    queue.add("y", repeat=Repeat(every=10, limit=1))
    assert run(queue) is not None
    assert next_at(queue) is None


def test_a_wall_clock_set_back_during_a_run_does_not_have_it_run_again(queue: Queue) -> None:
    manager: Any = queue.manager
    queue.add("x", repeat=Repeat(cron="0 * * * *"))
    run(queue)
    wait(queue, hours=1)
    job = manager.pull(queue)
    manager._state.clock.set_wall_clock(at(minutes=10))
    assert manager.ack(job).applied
    assert next_at(queue) == at(hours=2)


def test_a_cron_expression_plans_by_the_wall_clock(queue: Queue) -> None:
    queue.add("x", repeat=Repeat(cron="0 9 * * *", tz="Asia/Kathmandu"))
    assert run(queue) is not None
    assert next_at(queue) == at(hours=3, minutes=15)
    clock: Any = queue.manager._state.clock  # type: ignore[attr-defined]
    clock.set_wall_clock(at(hours=3, minutes=15))
    assert run(queue) is not None
    assert next_at(queue) == at(days=1, hours=3, minutes=15)


def test_start_and_end_bound_the_runs(queue: Queue) -> None:
    bounds = Repeat(every=60, start=at(seconds=30), end=at(seconds=150))
    queue.add("x", repeat=bounds)
    assert run(queue) is None
    fired = []
    for _ in range(20):
        wait(queue, seconds=15)
        if run(queue) is not None:
            fired.append(queue.manager.now)
    assert fired == [at(seconds=30), at(seconds=90), at(seconds=150)]
    with pytest.raises(ValidationError, match="repeat: end must not be before the first run"):
        queue.add("x", delay=3600, repeat=Repeat(every=5, end=at(seconds=1000)))
    queue.add("late", delay=900, repeat=Repeat(every=5, start=at(seconds=320)))
    assert next_at(queue) == at(seconds=1200)


def test_a_failure_that_is_retried_plans_once_and_a_final_one_ends_it(queue: Queue) -> None:
    manager: Any = queue.manager
    queue.add("x", repeat=Repeat(every=60), attempts=2, backoff=0)
    manager.fail(manager.pull(queue), "no")
    assert len(queue) == 1
    assert run(queue) is not None
    assert next_at(queue) == at(seconds=60)
    wait(queue, seconds=60)
    manager.fail(manager.pull(queue), "no", unrecoverable=True)
    assert len(queue) == 0
    (letter,) = queue.dlq.entries()
    letter.job.retry()
    assert run(queue) is not None
    assert next_at(queue) == at(seconds=120)


@pytest.mark.parametrize("keep", [True, False])
def test_its_names_pass_to_the_next_run(queue: Queue, keep: bool) -> None:
    queue.add(
        "x",
        {"big": "y" * 9000},
        repeat=Repeat(every=60),
        custom_id="c",
        deduplication=Deduplication("k"),
        remove_on_complete=not keep,
    )
    for _ in range(3):
        first = run(queue)
        assert first is not None
        (following,) = queue.get_jobs("delayed")
        assert following.data == {"big": "y" * 9000}
        assert queue.get_job(custom_id="c") == following
        assert queue.deduplication.owner("k") == following.id
        assert first.result() == "done"
        wait(queue, seconds=60)
    with pytest.raises(ValidationError, match="repeat cannot go with hold='ttl'"):
        queue.add("y", repeat=Repeat(every=5), deduplication=Deduplication("z", 5, hold="ttl"))


def test_a_batch_of_acks_plans_for_each(queue: Queue) -> None:
    manager: Any = queue.manager
    queue.add_bulk([JobSpec(str(i), repeat=Repeat(every=10 + i)) for i in range(3)])
    jobs = manager.pull_batch(queue, 3)
    outcomes = manager.ack_batch([Ack(job) for job in jobs])
    assert all(outcome.applied for outcome in outcomes)
    moments = [job.run_at for job in queue.get_jobs("delayed")]
    assert sorted(moments) == [at(seconds=10 + i) for i in range(3)]
    # a second ack of the same run plans nothing more
    assert not manager.ack(jobs[0]).applied
    assert len(queue) == 3


def test_a_late_ack_after_a_sweep_plans_once(queue: Queue) -> None:
    manager: Any = queue.manager
    queue.add("x", repeat=Repeat(every=600), backoff=50)
    job = manager.pull(queue, lock_duration=5)
    wait(queue, seconds=6)
    assert manager.ack(job).applied
    assert next_at(queue) == at(seconds=600)


def test_a_next_run_has_a_ttl_of_its_own(queue: Queue) -> None:
    queue.add("x", repeat=Repeat(every=60), ttl=90)
    assert run(queue) is not None
    wait(queue, seconds=91)
    assert queue.counts().failed == 1


def test_a_bad_expression_is_refused_with_its_field(queue: Queue) -> None:
    with pytest.raises(CronError) as caught:
        queue.add("x", repeat=Repeat(cron="99 * * * *"))
    assert caught.value.field == "minute"
    with pytest.raises(ValidationError, match="tz must be"):
        queue.add("x", repeat=Repeat(cron="* * * * *", tz="Nowhere/Land"))
    assert len(queue) == 0


def test_a_queue_of_many_repeats_shares_its_rule_and_not_its_place(queue: Queue) -> None:
    rule = Repeat(every=60)
    for delay in (0, 5):
        queue.add("x", repeat=rule, delay=delay)
    wait(queue, seconds=5)
    for _ in range(2):
        assert run(queue) is not None
    assert sorted(job.run_at for job in queue.get_jobs("delayed")) == [
        at(seconds=60),
        at(seconds=65),
    ]
