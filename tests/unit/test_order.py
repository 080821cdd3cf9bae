"""Who comes first: priority, LIFO before FIFO, the moment, the admission (SPEC 4)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue_py import Queue, QueueManager
from bunqueue_py.testing import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(datetime(2030, 1, 1, tzinfo=timezone.utc))


def order(manager: QueueManager) -> list[str]:
    return [job.name for job in manager.pull_batch("mail", 100)]


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("priority", [0, 5])
def test_of_two_jobs_due_at_one_moment_the_one_admitted_first_runs_first(
    clock: VirtualClock, priority: int, anchored: bool
) -> None:
    """B058, B095; SPEC 4: FIFO by run_at, then admission."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        when: Any = {"run_at": clock.now + timedelta(seconds=5)} if anchored else {"delay": 5}
        queue.add("delayed", priority=priority, **when)
        clock.advance(seconds=5)
        queue.add("pushed", priority=priority)
        assert order(manager) == ["delayed", "pushed"]


def test_delayed_jobs_due_at_one_moment_run_in_the_order_of_their_admission(
    clock: VirtualClock,
) -> None:
    """B058: equal due times run FIFO."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for n in range(5):
            queue.add(f"job{n}", delay=5 - n)
            clock.advance(seconds=1)
        clock.advance(seconds=60)
        assert order(manager) == [f"job{n}" for n in range(5)]


def test_a_delayed_job_takes_its_place_by_its_run_at(clock: VirtualClock) -> None:
    """B095."""
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        queue.add("due at 5", delay=5)
        queue.add("at 0")
        clock.advance(seconds=4)
        queue.add("at 4")
        clock.advance(seconds=2)
        queue.add("at 6")
        assert order(manager) == ["at 0", "at 4", "due at 5", "at 6"]


def test_the_newest_lifo_job_runs_first_even_if_an_older_one_was_moved_only_now(
    clock: VirtualClock,
) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        queue.add("older, due at 5", delay=5, lifo=True)
        clock.advance(seconds=10)
        queue.add("newer", lifo=True)
        clock.advance(seconds=10)
        assert order(manager) == ["newer", "older, due at 5"]


def test_lifo_jobs_run_before_fifo_jobs_of_their_priority_newest_first(
    clock: VirtualClock,
) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for name, options in (
            ("fifo1", {}),
            ("lifo1", {"lifo": True}),
            ("fifo2", {}),
            ("lifo2", {"lifo": True}),
            ("high fifo", {"priority": 1}),
            ("high lifo", {"priority": 1, "lifo": True}),
            ("low lifo", {"priority": -1, "lifo": True}),
            ("low fifo", {"priority": -1}),
        ):
            queue.add(name, **options)
        assert order(manager) == [
            "high lifo",
            "high fifo",
            "lifo2",
            "lifo1",
            "fifo1",
            "fifo2",
            "low lifo",
            "low fifo",
        ]


def test_released_jobs_take_their_old_places(clock: VirtualClock) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        queue = Queue("mail", manager)
        for n in range(4):
            queue.add(f"fifo{n}")
            queue.add(f"lifo{n}", lifo=True)
            queue.add(f"high{n}", priority=3)
        expected = [job.name for job in manager.pull_batch("mail", 100)]
        for job in queue.get_jobs("active"):
            held = manager._state.index[job.id].delivery
            assert manager.release(job.id, token=held.token)
        queue.add("last")
        assert order(manager) == [*expected, "last"]
