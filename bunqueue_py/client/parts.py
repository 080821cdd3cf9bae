"""The parts of a queue: its dead letters, its deduplication keys."""

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


class DeduplicationKeys:
    """The deduplication keys of one queue; `queue.deduplication`."""

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def owner(self, key: str) -> str | None:
        """The id of the job that owns the key now, `None` if it is free. That job has finished
        only where the key is held for its ttl."""
        return self._manager.deduplication_owner(self._queue, key)

    def release(self, key: str) -> bool:
        """Frees the key before its time, whoever owns it: the next job that is added with it comes
        in. The owner runs on. Says whether the key was taken."""
        return self._manager.deduplication_release(self._queue, key)
