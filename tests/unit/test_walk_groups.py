"""iter_jobs through the jobs of groups, and what groups cost a pull and an ack."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from bunqueue_py import Job, JobSpec, ManagerConfig, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.ops.walk import PAGE
from bunqueue_py.testing import VirtualClock
from tests.unit.test_walk import ids, steps


@pytest.fixture
def manager() -> Iterator[QueueManager]:
    config = ManagerConfig(shards=1)
    with QueueManager(clock=VirtualClock(), background=False, config=config) as opened:
        yield opened
        check(opened._state)


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("mail", manager)


def fill(queue: Queue, n: int, groups: int) -> list[Job]:
    """That many jobs, of which more than half stand in the lanes of their groups."""
    return queue.add_bulk(
        [
            JobSpec(
                "job",
                i,
                group=f"g{i % groups}",
                priority=(0, 0, 0, 0, 5, -5)[i // groups % 6],
                lifo=i // groups % 5 == 3,
                delay=100 if i // groups % 7 == 6 else 0,
            )
            for i in range(n)
        ]
    )


@pytest.mark.parametrize("groups", [1, 7, PAGE + 1])
@pytest.mark.parametrize("n", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 10])
def test_every_job_of_every_group_comes_once(queue: Queue, n: int, groups: int) -> None:
    jobs = fill(queue, n, groups)
    plain = queue.add_bulk([JobSpec("job", i) for i in range(5)])
    assert ids(queue.iter_jobs()) == ids([*jobs, *plain])
    for state in ("waiting", "prioritized", "delayed"):
        assert ids(queue.iter_jobs(state)) == ids(queue.get_jobs(state, limit=100_000))


def pull_and_release(manager: QueueManager, queue: Queue, job: Job) -> None:
    """It goes from its group's lane to the heap, and stays in its state."""
    queue.change_priority(job, 1_000_000)
    queue.promote(job)
    assert job.group is not None
    held = manager.pull("mail", group=job.group)
    assert held == job
    manager.release(held)
    queue.change_priority(job, 0)


CHANGES: dict[str, Callable[[QueueManager, Queue, Job], Any]] = {
    "up": lambda manager, queue, job: queue.change_priority(job, 9),
    "down": lambda manager, queue, job: queue.change_priority(job, -9),
    "later": lambda manager, queue, job: queue.change_delay(job, 10**6),
    "remove": lambda manager, queue, job: queue.remove(job),
    "pull and release": pull_and_release,
}


@pytest.mark.parametrize("groups", [1, 7])
@pytest.mark.parametrize("change", CHANGES)
def test_a_job_of_a_group_that_moves_comes_at_most_once(
    manager: QueueManager, queue: Queue, change: str, groups: int
) -> None:
    """Whether it has come or not, and those that stay where they are come once."""
    jobs = fill(queue, 3 * PAGE, groups)
    walk = queue.iter_jobs()
    seen = Counter(job.id for job in islice(walk, PAGE + 10))
    moved = jobs[::3]
    for job in moved:
        CHANGES[change](manager, queue, job)
    seen.update(job.id for job in walk)
    assert max(seen.values()) == 1
    assert {job.id for job in jobs} - {job.id for job in moved} <= set(seen)


def test_jobs_of_groups_that_come_during_a_walk_are_not_among_what_it_shows(
    manager: QueueManager, queue: Queue
) -> None:
    jobs = fill(queue, 2 * PAGE, 3)
    walk = queue.iter_jobs()
    seen = [next(walk).id]
    for i in range(PAGE):
        queue.add("late", group=f"g{i % 5}", priority=i % 2)
    seen += [job.id for job in walk]
    assert sorted(seen) == ids(jobs)


def test_a_groups_jobs_run_in_their_order_wherever_they_stand(
    manager: QueueManager, queue: Queue
) -> None:
    """First in first out from the lane, with one that came back and one of each other kind."""
    for name in ("first", "second", "third"):
        queue.add(name, group="a")
    queue.add("high", group="a", priority=1)
    queue.add("low", group="a", priority=-1)
    queue.add("newest", group="a", lifo=True)
    pulled = manager.pull_batch("mail", 3)
    assert [job.name for job in pulled] == ["high", "newest", "first"]
    for job in pulled:
        assert manager.release(job)
    order = [job.name for job in manager.pull_batch("mail", 10)]
    assert order == ["high", "newest", "first", "second", "third", "low"]


# -- cost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", [0, 99])
def test_a_pull_and_an_ack_of_a_grouped_job_take_half_as_many_steps_again_at_most(
    manager: QueueManager, blocked: int
) -> None:
    """In units of one without a group, however many groups are blocked and jobs wait."""

    def cycles(queue: Queue, group: str | None) -> int:
        queue.add_bulk([JobSpec("job", group=group) for _ in range(50)])

        def some() -> None:
            for _ in range(20):
                job = manager.pull(queue)
                assert job is not None
                assert job.group == group
                manager.ack(job)

        return steps(some)

    plain, grouped = Queue("plain", manager), Queue("grouped", manager)
    for i in range(blocked):
        grouped.groups[f"blocked{i}"].set_concurrency(1)
        grouped.add_bulk([JobSpec("job", group=f"blocked{i}") for _ in range(5)])
        assert manager.pull(grouped, group=f"blocked{i}") is not None
    cycles(plain, None)
    assert cycles(grouped, "free") <= 1.5 * cycles(plain, None)


def test_a_group_with_one_job_takes_less_than_two_kilobytes(manager: QueueManager) -> None:
    manager.push("q", group="first")
    specs = [JobSpec("job", group=f"g{i}") for i in range(1_000)]
    others = [JobSpec("job", group="first") for _ in range(1_000)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        jobs = manager.push_batch("q", others)
        between = tracemalloc.get_traced_memory()[0]
        jobs += manager.push_batch("q", specs)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(jobs) == 2_000
    assert (after - between) - (between - before) < 2_000 * 1_000
