"""What another thread could see at the very moment at which a verb lets its lock go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_py import Ack, JobState, QueueManager
from bunqueue_py.testing import VirtualClock


class Door:
    """A lock that tells when it has been let go."""

    def __init__(self, lock: Any, opened: Callable[[], object]) -> None:
        self._lock = lock
        self._opened = opened

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._lock.__exit__(*raised)
        self._opened()


@pytest.mark.parametrize("batch", [False, True])
def test_whoever_sees_that_a_job_has_completed_finds_its_result(batch: bool) -> None:
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        job = manager.push("q", 1)
        held = manager.pull("q")
        assert held is not None
        seen: list[tuple[JobState, Any]] = []
        queue = manager._state.queues["q"]
        lock = queue.lock

        def look() -> None:
            queue.lock = lock
            seen.append((manager.get_state(job.id), manager.get_result(job.id)))

        queue.lock = Door(lock, look)  # type: ignore[assignment]
        if batch:
            manager.ack_batch([Ack(held, "done")])
        else:
            manager.ack(held, "done")
        assert seen[0] == (JobState.COMPLETED, "done")
