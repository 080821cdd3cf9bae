"""Groups, limits, deduplication, control verbs, dead letters and stalls, two or more at once."""

from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue_py import (
    ANY,
    Deduplication,
    DuplicateJobError,
    GroupFullError,
    Job,
    JobEvent,
    Queue,
    QueueManager,
)
from bunqueue_py.ops import walk
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


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


@pytest.fixture
def events(manager: QueueManager) -> list[JobEvent]:
    seen: list[JobEvent] = []
    manager.events.subscribe(seen.append)
    return seen


def pulled(manager: QueueManager, group: Any = ANY, **options: Any) -> Job:
    job = manager.pull("q", group=group, **options)
    assert job is not None
    return job


def dead(manager: QueueManager, queue: Queue, **options: Any) -> Job:
    queue.add("n", **options)
    job = pulled(manager)
    manager.fail(job, "boom", unrecoverable=True)
    return job


# -- a job that has both a group and a key -------------------------------------------------------


def test_a_grouped_job_with_a_key_keeps_both_through_failure_and_retry(
    manager: QueueManager, queue: Queue
) -> None:
    added = queue.add("n", group="a", deduplication=Deduplication("k"), priority=4)
    job = pulled(manager)
    assert (job.group, job.deduplication_key) == ("a", "k")
    assert (queue.groups["a"].active(), queue.groups["a"].pending()) == (1, 0)
    manager.fail(job, "boom", unrecoverable=True)
    assert queue.deduplication.owner("k") is None
    assert list(queue.groups) == []
    assert queue.retry(job)
    assert queue.deduplication.owner("k") == added.id
    assert queue.groups["a"].counts_per_priority() == queue.counts_per_priority() == {4: 1}
    check(manager._state)
    assert pulled(manager, "a").id == added.id


def test_a_retry_in_a_group_is_refused_while_another_job_has_the_key(
    manager: QueueManager, queue: Queue
) -> None:
    job = dead(manager, queue, group="a", deduplication=Deduplication("k"))
    owner = queue.add("n", group="b", deduplication=Deduplication("k"))
    with pytest.raises(DuplicateJobError) as caught:
        queue.retry(job)
    assert (caught.value.key, caught.value.owner) == ("k", owner.id)
    assert list(queue.groups) == ["b"]


def test_discard_takes_a_grouped_job_out_of_its_group_and_frees_its_key(
    manager: QueueManager, queue: Queue
) -> None:
    ready = queue.add("n", group="a", deduplication=Deduplication("r"))
    later = queue.add("n", group="a", deduplication=Deduplication("d"), delay=60)
    assert queue.discard(ready)
    assert queue.groups["a"].pending() == 1
    assert queue.discard(later)
    assert list(queue.groups) == []
    assert [queue.deduplication.owner(key) for key in "rd"] == [None, None]
    assert queue.dlq.stats().by_reason == {"discarded": 2}
    assert manager.pull("q") is None


def test_clean_counts_grouped_jobs_and_frees_their_keys(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    old = [
        queue.add("n", group=group, deduplication=Deduplication(f"k{i}"))
        for i, group in enumerate(("a", "b", None))
    ]
    clock.advance(minutes=5)
    young = queue.add("n", group="a")
    gone = queue.clean(60, state="waiting")
    assert gone == [job.id for job in old]
    assert (queue.groups["a"].pending(), list(queue.groups)) == (1, ["a"])
    assert queue.deduplication.owner("k0") is None
    assert pulled(manager).id == young.id


def test_a_duplicate_of_a_job_is_found_although_its_group_is_full(queue: Queue) -> None:
    full: dict[str, Any] = {"group": "a", "group_limit": 1}
    first = queue.add("n", **full, deduplication=Deduplication("k"))
    assert queue.add("n", **full, deduplication=Deduplication("k")).duplicate
    newer = queue.add("n", **full, deduplication=Deduplication("k", mode="replace"))
    assert (queue.get_job(first), queue.groups["a"].pending()) == (None, 1)
    assert queue.deduplication.owner("k") == newer.id
    with pytest.raises(GroupFullError):
        queue.add("n", **full, deduplication=Deduplication("other"))
    assert queue.deduplication.owner("other") is None


def test_a_job_that_replaces_one_of_another_group_takes_it_out_there(
    manager: QueueManager, queue: Queue
) -> None:
    queue.add("n", group="a", deduplication=Deduplication("k"))
    newer = queue.add("n", group="b", deduplication=Deduplication("k", mode="replace"))
    assert list(queue.groups) == ["b"]
    check(manager._state)
    assert pulled(manager).id == newer.id


# -- dead letters --------------------------------------------------------------------------------


def test_an_automatic_retry_brings_a_grouped_job_back_under_the_limit_of_its_group(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    queue.groups["a"].set_concurrency(1)
    job = dead(manager, queue, group="a", deduplication=Deduplication("k"))
    queue.add("n", 2, group="a")
    running = pulled(manager, lock_duration=3600)
    clock.advance(minutes=1)
    manager.run_pending()
    assert queue.deduplication.owner("k") == job.id
    assert (queue.groups["a"].pending(), manager.pull("q")) == (1, None)
    manager.ack(running)
    assert pulled(manager).id == job.id


def test_an_automatic_retry_whose_key_is_taken_is_skipped_until_the_owner_has_ended(
    manager: QueueManager, queue: Queue, clock: VirtualClock, events: list[JobEvent]
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    job = dead(manager, queue, group="a", deduplication=Deduplication("k"))
    queue.groups["a"].pause()
    owner = queue.add("n", group="a", deduplication=Deduplication("k"))
    clock.advance(minutes=1)
    manager.run_pending()
    assert [e.job_id for e in events if e.type == "dlq_skipped"] == [job.id]
    assert (queue.counts().failed, queue.groups["a"].pending()) == (1, 1)
    queue.remove(owner)
    clock.advance(minutes=1)
    manager.run_pending()
    assert (queue.counts().failed, queue.groups["a"].pending()) == (0, 1)
    assert queue.deduplication.owner("k") == job.id


def test_retry_all_passes_over_those_whose_key_is_taken_and_counts_the_others(
    manager: QueueManager, queue: Queue
) -> None:
    jobs = [
        dead(manager, queue, group="a", deduplication=Deduplication("same")) for _ in range(3)
    ] + [dead(manager, queue, deduplication=Deduplication(f"k{i}")) for i in range(3)]
    assert queue.retry_all(limit=2) == 2
    assert queue.retry_all() == 2
    counts = queue.counts()
    assert (counts.waiting, counts.failed) == (4, 2)
    assert queue.deduplication.owner("same") == jobs[0].id
    assert queue.retry_all() == 0
    assert queue.dlq.retry_all() == 0
    queue.deduplication.release("same")
    assert queue.retry_all(limit=1) == 1


def test_retry_all_goes_on_behind_more_refused_ones_than_one_bite_holds(
    manager: QueueManager, queue: Queue
) -> None:
    for _ in range(300):
        dead(manager, queue, deduplication=Deduplication("same"))
    queue.add("owner", deduplication=Deduplication("same"), delay=60)
    last = dead(manager, queue)
    assert queue.retry_all(limit=5) == 1
    assert pulled(manager).id == last.id


# -- limits and lost runs ------------------------------------------------------------------------


def test_a_run_that_stalls_gives_its_slot_in_queue_and_group_back(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.limits.set_concurrency(2)
    queue.groups["a"].set_concurrency(1)
    for _ in range(2):
        queue.add("n", group="a", attempts=1)
    queue.stalls.configure(interval=10)
    lost = pulled(manager, lock_duration=None)
    assert manager.pull("q") is None
    clock.advance(seconds=10)
    manager.run_pending()
    clock.advance(seconds=5)
    manager.run_pending()
    assert manager.get_state(lost) == "failed"
    assert queue.groups["a"].active() == 0
    following = pulled(manager)
    assert (following.group, queue.limits.status().active) == ("a", 1)


def test_an_expired_lock_gives_the_slot_of_its_group_back(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.groups["a"].set_concurrency(1)
    for _ in range(2):
        queue.add("n", group="a", backoff=1)
    pulled(manager, lock_duration=5)
    clock.advance(seconds=5)
    manager.run_pending()
    assert (queue.groups["a"].active(), queue.groups["a"].pending()) == (0, 2)
    pulled(manager)
    clock.advance(seconds=5)
    assert manager.pull("q") is None


def test_release_owner_gives_the_slots_of_groups_back_and_the_jobs_their_places(
    manager: QueueManager, queue: Queue
) -> None:
    for group in ("a", "b"):
        queue.groups[group].set_concurrency(1)
        for n in range(2):
            queue.add("n", n, group=group)
    held = manager.pull_batch("q", 10, owner="ada")
    assert [job.group for job in held] == ["a", "b"]
    assert manager.pull("q") is None
    assert manager.release_owner("ada") == 2
    assert [queue.groups[group].active() for group in "ab"] == [0, 0]
    again = manager.pull_batch("q", 10)
    assert sorted(job.id for job in again) == sorted(job.id for job in held)


# -- control verbs on grouped jobs ---------------------------------------------------------------


def test_a_promoted_grouped_job_waits_for_the_limit_of_its_group(
    manager: QueueManager, queue: Queue
) -> None:
    queue.groups["a"].set_concurrency(1)
    queue.add("n", group="a")
    running = pulled(manager)
    delayed = queue.add("n", group="a", delay=60, priority=3)
    assert queue.promote(delayed)
    assert queue.counts().prioritized == 1
    assert manager.pull("q") is None
    check(manager._state)
    manager.ack(running)
    assert pulled(manager).id == delayed.id


def test_promote_all_reaches_every_group(manager: QueueManager, queue: Queue) -> None:
    for n in range(6):
        queue.add("n", n, group="ab"[n % 2], delay=60)
    assert queue.promote_all() == 6
    assert [job.data for job in manager.pull_batch("q", 10)] == [0, 1, 2, 3, 4, 5]


def test_change_delay_moves_a_grouped_job_out_and_in(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    job = queue.add("n", group="a")
    assert queue.change_delay(job, 60)
    assert (queue.groups["a"].pending(), manager.pull("q")) == (1, None)
    check(manager._state)
    assert queue.change_delay(job, 0)
    assert queue.groups["a"].pending() == 1
    assert pulled(manager, "a").id == job.id


def test_change_priority_in_a_paused_group_holds_when_it_resumes(
    manager: QueueManager, queue: Queue
) -> None:
    queue.groups["a"].pause()
    first, second = (queue.add("n", n, group="a") for n in range(2))
    later = queue.add("n", 3, group="a", delay=60)
    assert queue.change_priority(second, 9)
    assert queue.change_priority(later, -2)
    assert manager.pull("q") is None
    assert queue.groups["a"].counts_per_priority() == {9: 1, 0: 1, -2: 1}
    assert queue.counts_per_priority() == {9: 1, 0: 1, -2: 1}
    counts = queue.counts()
    assert (counts.prioritized, counts.waiting, counts.delayed) == (1, 1, 1)
    check(manager._state)
    queue.groups["a"].resume()
    assert [job.id for job in manager.pull_batch("q", 5)] == [second.id, first.id]


def test_a_group_keeps_its_turn_when_its_job_changes_its_priority(
    manager: QueueManager, queue: Queue
) -> None:
    first = queue.add("n", group="a")
    queue.add("n", group="b")
    queue.change_priority(first, 1)
    assert pulled(manager).group == "a"


# -- reading -------------------------------------------------------------------------------------


def test_iter_jobs_and_counts_per_priority_know_grouped_jobs(
    manager: QueueManager, queue: Queue
) -> None:
    expected: dict[int, int] = {}
    for n in range(1200):
        priority = n % 3 - 1
        queue.add("n", n, group=f"g{n % 400}" if n % 5 else None, priority=priority)
        expected[priority] = expected.get(priority, 0) + 1
    queue.add("n", group="g1", delay=60, priority=7)
    running = pulled(manager)
    expected = {7: 1, **dict(sorted(expected.items(), reverse=True))}
    expected[running.priority] -= 1
    assert queue.counts_per_priority() == expected
    walked = [job.id for job in queue.iter_jobs()]
    assert len(walked) == len(set(walked)) == queue.counts().total == 1201
    waiting = {job.id for job in queue.iter_jobs(["waiting", "prioritized"])}
    assert waiting == {job.id for job in queue.get_jobs(["waiting", "prioritized"], limit=5000)}


@pytest.mark.parametrize("page", [1, 7, 250])
def test_a_walk_passes_no_grouped_job_twice_while_groups_come_and_go(
    manager: QueueManager, queue: Queue, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """A group that was empty is forgotten; the numbers of arrival of its successor go on."""
    monkeypatch.setattr(walk, "PAGE", page)
    for n in range(600):
        queue.add("n", n, group=f"g{n % 150:03}")
    later = [queue.add("later", group=f"g{n:03}", delay=60) for n in range(150)]
    walked: list[str] = []
    for i, job in enumerate(queue.iter_jobs()):
        walked.append(job.id)
        if i == 149:
            queue.promote_all()
        if i % 90 == 89:
            queue.add("new", group="zzz")
            for running in manager.pull_batch("q", 20):
                manager.ack(running)
    assert len(walked) == len(set(walked))
    assert {job.id for job in later} <= set(walked)


# -- all of it ends ------------------------------------------------------------------------------


def test_obliterate_leaves_nothing_of_any_feature_but_settings(
    manager: QueueManager, queue: Queue, clock: VirtualClock
) -> None:
    queue.dlq.configure(auto_retry=True, retry_interval=60)
    queue.groups["limited"].set_concurrency(1)
    queue.limits.set_rate_limit(100, per=60)
    dead(manager, queue, group="a", deduplication=Deduplication("dead"))
    for group in ("a", "limited", None):
        for delay in (0, 60):
            key = Deduplication(f"{group} {delay}")
            queue.add("n", group=group, delay=delay, priority=delay, deduplication=key)
    pulled(manager, "limited", lock_duration=None)
    pulled(manager, "a")
    assert queue.obliterate(force=True) == 7
    check(manager._state)
    assert queue.counts().total == 0
    assert list(queue.groups) == ["limited"]
    assert (queue.groups["limited"].active(), queue.groups["limited"].pending()) == (0, 0)
    assert queue.deduplication.owner("limited 0") is None
    assert (queue.counts_per_priority(), list(queue.iter_jobs())) == ({}, [])
    clock.advance(days=1)
    manager.run_pending()
    assert queue.counts().total == 0
    queue.add("n", group="limited", deduplication=Deduplication("limited 0"))
    assert pulled(manager).group == "limited"
