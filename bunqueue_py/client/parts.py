"""The parts of a queue: its dead letters, its deduplication keys."""

from __future__ import annotations

from datetime import datetime

from ..types import DlqConfig, DlqStats, Duration
from .job import DlqEntry, Job
from .protocol import Manager

WEEK = 7 * 86_400


class DeadLetterQueue:
    """The jobs of one queue that failed for good, oldest first; `queue.dlq`."""

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def __len__(self) -> int:
        return self._manager.dlq_len(self._queue)

    def __bool__(self) -> bool:
        return True

    def configure(
        self,
        auto_retry: bool = False,
        retry_interval: Duration = 3600,
        max_retries: int = 3,
        max_age: Duration | None = WEEK,
        max_entries: int = 10_000,
    ) -> None:
        """Sets all of it, for the dead letters that are there too; what is not given has its
        default again.

        `auto_retry`: each is retried by itself `retry_interval` after it came in, and after
        twice, four times ... as long if it fails again, at most `max_retries` times (0 to 1000).
        `max_age`: it is removed that long after it first came in (`None`: never). `max_entries`
        (1 to 1,000,000): beyond that the oldest leave.
        """
        self._manager.dlq_configure(
            self._queue, auto_retry, retry_interval, max_retries, max_age, max_entries
        )

    @property
    def config(self) -> DlqConfig:
        """What `configure` has set."""
        return self._manager.dlq_config(self._queue)

    def entries(
        self,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[DlqEntry]:
        """A page of them, with what happened at each attempt, in the order in which they came in.

        `reason`: only those that failed for that `FailureReason`. `older_than`, `newer_than`: an
        age, or a moment; by `entered_at`, and what is exactly as old counts as older.
        `retriable`: whether an automatic retry is ahead. A filter costs O(all of them).
        """
        return self._manager.dlq_entries(
            self._queue, reason, older_than, newer_than, retriable, offset, limit
        )

    def stats(self) -> DlqStats:
        """How many there are, by reason, and from when."""
        return self._manager.dlq_stats(self._queue)

    def retry(self, job: Job | str) -> bool:
        """Runs the job again, with fresh attempts and stalls. Raises `JobNotFoundError`,
        `JobStateError` for a job that is no dead letter, or whose custom id a live job has,
        `DuplicateJobError` where its deduplication key belongs to one."""
        return self._manager.dlq_retry(self._queue, job)

    def retry_all(
        self,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int:
        """Retries those that the filter of `entries` finds, but for the ones that `retry` would
        refuse; returns how many."""
        return self._manager.dlq_retry_all(self._queue, reason, older_than, newer_than, retriable)

    def purge(
        self,
        reason: str | None = None,
        older_than: Duration | datetime | None = None,
        newer_than: Duration | datetime | None = None,
        retriable: bool | None = None,
    ) -> int:
        """Removes those that the filter of `entries` finds, for good; returns how many."""
        return self._manager.dlq_purge(self._queue, reason, older_than, newer_than, retriable)

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
