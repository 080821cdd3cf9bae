"""The parts of a queue: its dead letters."""

from __future__ import annotations

from .job import DlqEntry, Job
from .protocol import Manager


class DeadLetterQueue:
    """The jobs of one queue that failed for good, oldest first; `queue.dlq`."""

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def __len__(self) -> int:
        return self._manager.dlq_len(self._queue)

    def __bool__(self) -> bool:
        return True

    def entries(self, *, offset: int = 0, limit: int = 100) -> list[DlqEntry]:
        """A page of them, with what happened at each attempt."""
        return self._manager.dlq_entries(self._queue, offset, limit)

    def retry(self, job: Job | str) -> bool:
        """Runs the job again, with fresh attempts. Raises `JobNotFoundError`, `JobStateError` for
        a job that is no dead letter."""
        return self._manager.dlq_retry(self._queue, job)

    def remove(self, job: Job | str) -> bool:
        """Removes the job for good. Raises as `retry` does."""
        return self._manager.dlq_remove(self._queue, job)
