"""A batch that meets a full group keeps what came before it, and says which one stopped it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bunqueue_py import (
    BulkAddError,
    BunqueueError,
    GroupFullError,
    JobSpec,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock


@pytest.fixture
def queue() -> Iterator[Queue]:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        yield Queue("q", manager)
        check(manager._state)


def full_at(index: int, limit: int = 1) -> list[JobSpec]:
    """A batch whose job at `index` finds its group full."""
    specs = [JobSpec("j", i) for i in range(index)]
    specs += [JobSpec("j", "last in", group="a", group_limit=limit)] * (limit + 1)
    return [*specs[limit:], JobSpec("j", "behind it")]


@pytest.mark.parametrize("index", [1, 2, 7])
def test_the_jobs_before_the_refused_one_stand_and_those_behind_it_do_not(
    queue: Queue, index: int
) -> None:
    with pytest.raises(BulkAddError, match=rf"^jobs\[{index}\]: group 'a'") as caught:
        queue.add_bulk(full_at(index))
    error = caught.value
    assert error.index == len(error.accepted) == index
    assert isinstance(error.__cause__, GroupFullError)
    assert isinstance(error, BunqueueError)
    assert queue.get_jobs() == error.accepted
    assert len(queue) == index
    assert error.accepted[-1].data == "last in"


def test_a_batch_whose_first_job_is_refused_adds_nothing(queue: Queue) -> None:
    queue.add("j", group="a")
    with pytest.raises(BulkAddError) as caught:
        queue.add_bulk([JobSpec("j", group="a", group_limit=1), JobSpec("j")])
    assert (caught.value.index, caught.value.accepted) == (0, [])
    assert len(queue) == 1


def test_the_limit_sees_the_jobs_of_the_same_batch(queue: Queue) -> None:
    jobs = queue.add_bulk([JobSpec("j", i, group="a", group_limit=5) for i in range(5)])
    assert len(jobs) == 5
    with pytest.raises(BulkAddError) as caught:
        queue.add_bulk([JobSpec("j", i, group="b", group_limit=5) for i in range(9)])
    assert caught.value.index == 5
    assert queue.groups["b"].pending() == 5


def test_a_duplicate_in_the_batch_is_found_and_fills_nothing(queue: Queue) -> None:
    first = queue.add("j", group="a", custom_id="x")
    options = {"group": "a", "group_limit": 2}
    specs = [
        JobSpec("j", custom_id="x", **options),
        JobSpec("j", custom_id="y", **options),
        JobSpec("j", custom_id="x", **options),
        JobSpec("j", custom_id="z", **options),
    ]
    with pytest.raises(BulkAddError) as caught:
        queue.add_bulk(specs)
    error = caught.value
    assert error.index == 3
    assert [job.duplicate for job in error.accepted] == [True, False, True]
    assert error.accepted[0] == error.accepted[2] == first
    assert error.accepted[0].token is None


def test_what_is_invalid_refuses_the_batch_whole_even_behind_a_full_group(queue: Queue) -> None:
    """B029, B104: only what depends on state keeps the prefix."""
    with pytest.raises(ValidationError, match=r"^jobs\[4\]: priority"):
        queue.add_bulk([*full_at(2), JobSpec("j", priority=1.5)])  # type: ignore[arg-type]
    assert queue.counts().total == 0


def test_the_prefix_can_be_worked_on_and_the_rest_added_later(queue: Queue) -> None:
    specs = [JobSpec("j", i, group="a", group_limit=2) for i in range(5)]
    added = []
    while specs:
        try:
            added += queue.add_bulk(specs)
            specs = []
        except BulkAddError as error:
            added += error.accepted
            specs = specs[error.index :]
            while (job := queue.manager.pull("q")) is not None:
                queue.manager.ack(job)
    assert [job.data for job in added] == [0, 1, 2, 3, 4]


def test_a_batch_refused_half_way_wakes_for_what_it_accepted(queue: Queue) -> None:
    with pytest.raises(BulkAddError):
        queue.manager.push_batch("q", full_at(1))
    job = queue.manager.pull("q", timeout=1)
    assert job is not None
    assert job.data == "last in"
