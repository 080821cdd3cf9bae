"""`Job`: what users hold of a job, a snapshot with verbs.

It is over 400 lines because it is a façade: every attribute and verb that a job has, none with
logic of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ..durations import ms_to_moment, optional_moment
from ..errors import JobNotFoundError, SerializationError
from ..model.cancel import Cancellation
from ..model.flow_node import FlowNode
from ..model.job import plain_timeline
from ..model.job_logs import LogPage
from ..model.side import AttemptRow
from ..model.snapshot import DATA, UNREAD, JobSnapshot
from ..types import Attempt, Duration, JobState, TimelineEntry

if TYPE_CHECKING:
    from .protocol import Manager


class Job(JobSnapshot):
    """A job as it was when it was read. `refresh()` reads again; `token` belongs to the delivery
    that handed this object out, and is `None` on one that was merely looked up.

    >>> from bunqueue_py import QueueManager
    >>> with QueueManager() as manager:
    ...     job = manager.push("emails", {"to": "ada@example.com"}, name="welcome")
    ...     job.name, job.data["to"], str(job.state)
    ('welcome', 'ada@example.com', 'waiting')
    """

    __slots__ = ()
    _manager: Manager

    def __repr__(self) -> str:
        return f"<Job {self._id} {self._name!r} of {self._queue!r}: {self._state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    # -- what was read -----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """UUIDv7 text."""
        return self._id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._queue

    @property
    def name(self) -> str:
        """What kind of job it is; workers with several handlers choose by it."""
        return self._name

    @property
    def data(self) -> Any:
        """The payload, decoded on first use; never the object that was added.

        Raises `SerializationError` if it cannot be decoded.
        """
        data = self._value
        if data is UNREAD:
            encoded = self._fields[DATA]
            if encoded is None:
                found = self._manager.get_job(self._id)
                if found is None:
                    raise self._gone()
                data = found.data
            else:
                decode = self._manager.decode
                try:
                    data = decode(encoded)
                except (SerializationError, MemoryError):
                    raise
                except Exception as error:  # a serializer of the application's may raise anything
                    raise SerializationError(
                        f"the data of job {self._id} cannot be decoded: {error!r}"
                    ) from error
            self._value = data
        return data

    @property
    def state(self) -> JobState:
        """Its state when it was read."""
        return self._state

    @property
    def priority(self) -> int:
        """Higher runs first."""
        return self._priority

    @property
    def created_at(self) -> datetime:
        """When it was added."""
        return ms_to_moment(self._created_ms)

    @property
    def run_at(self) -> datetime:
        """When it may run (again) at the earliest."""
        return ms_to_moment(self._run_at_ms)

    @property
    def started_at(self) -> datetime | None:
        """When its latest run began."""
        return optional_moment(self._started_ms)

    @property
    def finished_at(self) -> datetime | None:
        """When it completed or failed for good."""
        return optional_moment(self._finished_ms)

    @property
    def attempt(self) -> int:
        """The current or next run, from 1. Of a finished job: its last run."""
        if self._state is JobState.FAILED:
            return max(1, self._attempts_made)
        return self._attempts_made + 1

    @property
    def attempts_made(self) -> int:
        """How many runs failed so far."""
        return self._attempts_made

    @property
    def max_attempts(self) -> int:
        """How many runs it may have in all."""
        return self._options.attempts

    @property
    def progress(self) -> float:
        """0 to 100, as its handler last reported."""
        side = self._side
        return 0 if side is None else side.progress

    @property
    def progress_message(self) -> str | None:
        """What the handler said with its progress."""
        side = self._side
        return None if side is None else side.progress_message

    @property
    def return_value(self) -> Any:
        """The result of a completed job; `None` in every other state.

        Raises `ResultExpiredError` if it has made room for newer ones.
        """
        if self._state is not JobState.COMPLETED:
            return None
        return self._manager.get_result(self._id)

    @property
    def failed_reason(self) -> str | None:
        """The `FailureReason` of a job that failed for good."""
        side = self._side
        if side is None or side.failure is None or self._state is not JobState.FAILED:
            return None
        return str(side.failure.reason)

    @property
    def error(self) -> str | None:
        """The text of the error of its last failed run."""
        side = self._side
        return None if side is None or side.failure is None else side.failure.error

    @property
    def stacktrace(self) -> list[str]:
        """The last lines of that error's traceback, `stack_trace_limit` of them."""
        side = self._side
        return [] if side is None or side.failure is None else list(side.failure.stack)

    @property
    def custom_id(self) -> str | None:
        """The id that its adder gave it."""
        return self._custom_id

    @property
    def deduplication_key(self) -> str | None:
        """The key that its adder gave it; `queue.deduplication.owner(key)` says whose it is now."""
        return self._unique_key

    @property
    def group(self) -> str | None:
        """The group that it takes its turn with."""
        side = self._side
        return None if side is None else side.group

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that its adder gave it."""
        side = self._side
        return () if side is None else side.tags

    @property
    def parent_id(self) -> str | None:
        """The id of the job whose child it is."""
        side = self._side
        return None if side is None or side.links is None else side.links.parent_id

    @property
    def children_ids(self) -> tuple[str, ...]:
        """The ids of its children, in the order in which they were added."""
        side = self._side
        return () if side is None or side.links is None else side.links.children

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The ids of the jobs that had to complete before it, its children aside."""
        side = self._side
        return () if side is None or side.links is None else side.links.depends_on

    @property
    def stall_count(self) -> int:
        """How many of its runs were lost: their lock expired, or without one they fell silent."""
        side = self._side
        return 0 if side is None else side.stall_count

    @property
    def timeline(self) -> list[TimelineEntry]:
        """What happened to it and when, the newest `max_timeline` steps."""
        side = self._side
        steps = None if side is None else side.timeline
        if not isinstance(steps, tuple):
            steps = plain_timeline(self._created_ms, self._run_at_ms, self._started_ms, steps)
            if self._finished_ms is not None:
                steps = (*steps, (str(self._state), self._finished_ms))
            steps = steps[-self._options.max_timeline :]
        return [TimelineEntry(step, ms_to_moment(at_ms)) for step, at_ms in steps]

    @property
    def cancelled(self) -> Cancellation:
        """In a handler: whether the run is to end, like a `threading.Event` with a `reason`; see
        `Cancellation`. Raises `LockError` on a job that was only looked up."""
        try:
            return self._cancelled
        except AttributeError:
            pass
        self._cancelled: Cancellation = self._manager.backend.cancellation(self._id, self.token)
        return self._cancelled

    @property
    def now(self) -> datetime:
        """The time of the engine's own clock, which a test may own."""
        return self._manager.now

    # -- verbs -------------------------------------------------------------------------------

    def result(self, timeout: Duration | None = None) -> Any:
        """Blocks until the job has completed and returns its result.

        Raises `JobFailedError`, `JobNotFoundError` (it was removed), `ResultExpiredError`,
        `WaitTimeoutError`, `ManagerClosedError`.
        """
        return self._manager.wait_for(self._id, timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        """Like `result`, without blocking the running event loop."""
        return self._manager.wait_for_async(self._id).__await__()

    def refresh(self) -> Job:
        """Reads the job again, into this object. Raises `JobNotFoundError` if it is gone."""
        found = self._manager.get_job(self._id)
        if found is None:
            raise self._gone()
        self._fields = found._fields
        self._value = UNREAD
        return self

    def remove(self) -> bool:
        """Removes the job; see `Queue.remove`."""
        return self._manager.remove(self._id)

    def retry(self) -> bool:
        """Runs a finished job again; see `Queue.retry`."""
        return self._manager.retry(self._id)

    def promote(self) -> bool:
        """Makes a delayed job ready at once; see `Queue.promote`."""
        return self._manager.promote(self._id)

    def discard(self) -> bool:
        """Fails a job that waits, for good; see `Queue.discard`."""
        return self._manager.discard(self._id)

    def update_data(self, data: Any) -> bool:
        """Replaces its data; see `Queue.update_data`. This object keeps what it has read until
        `refresh()`.

        In a handler: raises `LockError` if this run has lost its lock, `JobNotFoundError` if the
        job is gone.
        """
        return self._manager.update_data(self, data)

    def change_priority(self, priority: int, lifo: bool | None = None) -> bool:
        """Gives it another priority while it waits; see `Queue.change_priority`."""
        return self._manager.change_priority(self._id, priority, lifo)

    def change_delay(self, delay: Duration) -> bool:
        """Has it run `delay` from now, while it waits; see `Queue.change_delay`."""
        return self._manager.change_delay(self._id, delay)

    def update_progress(self, percent: float, message: str | None = None) -> None:
        """In a handler: reports how far it is, 0 to 100.

        Raises `LockError` if this run has lost its lock, `JobNotFoundError` if the job is gone.
        """
        self._manager.update_progress(self, percent, message)

    def log(self, text: str, level: str = "info") -> None:
        """In a handler: writes a line into the job's log. `text`: up to 10,000 characters are
        kept; `level`: debug, info, warning, error or critical. A job's newest 100 lines are kept,
        of the 10,000 jobs (`keep_logs_jobs`) that wrote last, as long as the job is in memory.

        Raises `LockError` if this run has lost its lock, `JobNotFoundError` if the job is gone.
        """
        self._manager.add_log(self, text, level)

    def logs(self, offset: int = 0, limit: int = 100) -> LogPage:
        """A page of the lines that its handlers have written, oldest first; see `Queue.logs`."""
        return self._manager.job_logs(self._id, offset, limit)

    def extend_lock(self, duration: Duration) -> bool:
        """In a handler: holds the job for `duration` from now, and so at each heartbeat."""
        return self._manager.extend_lock(self, duration)

    def add_child(self, node: FlowNode) -> Job:
        """Gives this job one more child, which may have children of its own, and returns it. A job
        that waits for its turn then waits for the child; one that runs goes on, and its handler
        may raise `WaitForChildren`. Raises `JobStateError` for a finished job, or in a handler
        that has lost its lock, `JobNotFoundError`, and what `FlowProducer.add` raises."""
        return self._manager.add_child(self, node)

    def children_values(self, offset: int = 0, limit: int | None = None) -> dict[str, Any]:
        """The results of its children, and of the jobs that it depends on, by id and in the order
        of adding. One that has not completed is left out. `offset` and `limit` choose a page of
        all of them. Raises `ResultExpiredError` where a result is no longer kept."""
        return self._manager.children_values(self._id, offset, limit)

    def failed_children(self) -> dict[str, str]:
        """The errors of the children (and dependencies) that failed for good, by id, but for those
        in `ignored_failures`."""
        return self._manager.failed_children(self._id)

    def ignored_failures(self) -> dict[str, str]:
        """The errors of those that failed for good and that it went on without, since that is
        their `on_failure="ignore_dependency"`, by id."""
        return self._manager.ignored_failures(self._id)

    def unprocessed_children(self) -> list[str]:
        """The ids of the children that have neither completed nor failed for good."""
        return self._manager.unprocessed_children(self._id)

    def remove_dependency(self, job: Job | str) -> bool:
        """Waits for that job no longer; False if it did not. That one goes on by itself. Raises
        `JobStateError` for a job that has completed."""
        return self._manager.remove_dependency(self._id, job)

    def remove_unprocessed_children(self) -> list[str]:
        """Removes the children that wait for their turn, and what only they wait for; returns
        their ids. Children that run or have ended stay. Raises `JobStateError` for a job that has
        completed."""
        return self._manager.remove_unprocessed_children(self._id)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain values: moments as ISO 8601 text, the payload decoded."""
        return {
            "id": self.id,
            "queue": self.queue,
            "name": self.name,
            "data": self.data,
            "state": str(self.state),
            "priority": self.priority,
            "created_at": self.created_at.isoformat(),
            "run_at": self.run_at.isoformat(),
            "started_at": None if self.started_at is None else self.started_at.isoformat(),
            "finished_at": None if self.finished_at is None else self.finished_at.isoformat(),
            "attempt": self.attempt,
            "attempts_made": self.attempts_made,
            "max_attempts": self.max_attempts,
            "progress": self.progress,
            "progress_message": self.progress_message,
            "failed_reason": self.failed_reason,
            "error": self.error,
            "stacktrace": self.stacktrace,
            "custom_id": self.custom_id,
            "deduplication_key": self.deduplication_key,
            "group": self.group,
            "tags": list(self.tags),
            "parent_id": self.parent_id,
            "children_ids": list(self.children_ids),
            "depends_on": list(self.depends_on),
            "stall_count": self.stall_count,
        }

    def _gone(self) -> JobNotFoundError:
        return JobNotFoundError(f"job {self._id} is gone", job_id=self._id)


class Ack(NamedTuple):
    """One item of `ack_batch`: a pulled job (or its id with its token) and its result.

    >>> Ack("0190-...", result=42, token="...").result
    42
    """

    job: Job | str
    result: Any = None
    token: str | None = None


@dataclass(frozen=True)
class DlqEntry:
    """A job that failed for good, as the dead letters keep it.

    `entered_at` is when it first came in: an automatic retry that fails leaves it, and
    `expires_at`, as they were. `retry_count` counts its retries until it succeeds, by hand and
    automatic; `next_retry_at` is `None` where no automatic one is ahead, `expires_at` where it is
    kept for good.
    """

    job: Job
    entered_at: datetime
    reason: str
    error: str
    attempts: Sequence[Attempt]
    retry_count: int
    last_retry_at: datetime | None
    next_retry_at: datetime | None = None
    expires_at: datetime | None = None


def dlq_entry(job: Job) -> DlqEntry:
    """The dead letter that a failed job's snapshot tells of."""
    side = job._side
    assert side is not None and side.failure is not None and side.letter is not None
    return DlqEntry(
        job=job,
        entered_at=ms_to_moment(side.letter.since_ms),
        reason=str(side.failure.reason),
        error=side.failure.error,
        attempts=[_attempt(row) for row in side.attempts],
        retry_count=side.dlq_retries,
        last_retry_at=optional_moment(side.last_retry_ms),
        next_retry_at=optional_moment(side.letter.next_retry_ms),
        expires_at=optional_moment(side.letter.expires_ms),
    )


def _attempt(row: AttemptRow) -> Attempt:
    started = row.started_ms
    return Attempt(
        attempt=row.attempt,
        started_at=optional_moment(started),
        failed_at=ms_to_moment(row.failed_ms),
        reason=str(row.failure.reason),
        error=row.failure.error,
        duration=None if started is None else (row.failed_ms - started) / 1000,
    )
