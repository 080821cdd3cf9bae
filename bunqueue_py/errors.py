"""Every error the library raises, under one root and under the builtin a caller would catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .types import Duration


class BunqueueError(Exception):
    """The root of every error that bunqueue_py raises on purpose."""


class ValidationError(BunqueueError, ValueError):
    """An argument is out of its bounds; nothing has been changed."""


class SerializationError(BunqueueError, ValueError):
    """A value cannot be encoded or decoded; `path` says where in it, for example `$.items[3]`."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class ManagerClosedError(BunqueueError):
    """The manager was closed; open a new `QueueManager` to go on."""


class ForkedManagerError(ManagerClosedError):
    """The manager was opened by the parent of this process; a forked child must open its own."""


class JobNotFoundError(BunqueueError, LookupError):
    """No job has this id: it never existed, or it was removed."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobStateError(BunqueueError):
    """The job exists, but this call makes no sense in the state it is in."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class DuplicateJobError(BunqueueError):
    """The job cannot come back to life: its deduplication key `key` belongs to another live job
    now, `owner`."""

    def __init__(
        self,
        message: str,
        *,
        job_id: str | None = None,
        key: str | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.key = key
        self.owner = owner


class LockError(BunqueueError):
    """The token is missing, or was never issued for this job."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class GroupFullError(BunqueueError):
    """The group has as many waiting jobs as `group_limit` allows; nothing was added."""


class BulkAddError(BunqueueError):
    """A batch stopped half-way for a reason that lies in the queue: `accepted` are the jobs
    before `index`, which stand; `__cause__` says what was wrong with that one."""

    def __init__(self, message: str, *, accepted: Sequence[object], index: int) -> None:
        super().__init__(message)
        self.accepted = list(accepted)
        self.index = index


class CronError(BunqueueError, ValueError):
    """A cron expression is malformed, or means no moment at all; `field` is the part at fault, such
    as `day-of-month`, or `cron` for the whole. Nothing has been changed."""

    def __init__(self, message: str, *, field: str = "cron") -> None:
        super().__init__(message)
        self.field = field


class FlowError(BunqueueError):
    """Jobs cannot be tied together so: a dependency that nobody knows, a cycle, a flow that is too
    deep or too large, a custom id that a live job has. Nothing has been changed."""


class JobFailedError(BunqueueError):
    """The awaited job failed for good. Attributes: `job_id`, `reason`, `error`, `stacktrace`."""

    def __init__(
        self, job_id: str, reason: str, error: str, stacktrace: Sequence[str] = ()
    ) -> None:
        super().__init__(f"job {job_id} failed ({reason}): {error}")
        self.job_id = job_id
        self.reason = reason
        self.error = error
        self.stacktrace = list(stacktrace)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.job_id, self.reason, self.error, self.stacktrace)


class ResultExpiredError(BunqueueError):
    """The job completed, but its result has made room for newer ones (`keep_results`)."""


class WaitTimeoutError(BunqueueError, TimeoutError):
    """The time given to a blocking call passed before what it waited for happened."""


class StorageError(BunqueueError):
    """The storage could not be opened, read or written. `accepted`: the call has taken effect in
    memory, and what it did is written as soon as writing is possible again; a durable push then
    has a `job_id`. Otherwise nothing has been changed."""

    def __init__(self, message: str, *, accepted: bool = False, job_id: str | None = None) -> None:
        super().__init__(message)
        self.accepted = accepted
        self.job_id = job_id


class StorageLockedError(StorageError):
    """Another manager owns the file, in the process `pid` (`None` where it could not be read)."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class StorageFullError(StorageError):
    """The disk, or the bound on what may wait for it, has no room left."""


class StorageCorruptError(StorageError):
    """The file is damaged, or is no database; it has not been touched."""


class SchemaVersionError(StorageError):
    """A newer release wrote the file; it has not been touched."""


class UnrecoverableError(BunqueueError):
    """Raised by a handler: fails the job for good, whatever attempts remain.

    >>> raise UnrecoverableError("the account is closed")
    Traceback (most recent call last):
    ...
    bunqueue_py.errors.UnrecoverableError: the account is closed
    """


class WaitForChildren(BunqueueError):
    """Raised by a handler: its run ends, no attempt charged, and the job waits in
    `waiting-children` until the children that it has (`job.add_child`) are done; then its handler
    is called again, and `job.children_values()` has their results.

    >>> raise WaitForChildren()
    Traceback (most recent call last):
    ...
    bunqueue_py.errors.WaitForChildren: the job waits for its children
    """

    def __init__(self, message: str = "the job waits for its children") -> None:
        super().__init__(message)


class DelayJob(BunqueueError):
    """Raised by a handler: the job waits `delay` (seconds or a timedelta, over 0) and runs again;
    no attempt is charged. Raises `ValidationError` for a bad delay.

    >>> DelayJob(30).delay_ms
    30000
    """

    def __init__(self, delay: Duration) -> None:
        self.delay_ms = _delay_ms(delay)
        super().__init__(f"again in {self.delay_ms / 1000:g} s")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.delay_ms / 1000,)


class RateLimited(BunqueueError):
    """Raised by a handler that was told to come back later: the job's group, or its queue if it
    has none, starts nothing for `delay` (seconds or a timedelta, over 0), and the job takes its old
    place; no attempt is charged.

    >>> RateLimited(1.5).delay_ms
    1500
    """

    def __init__(self, delay: Duration) -> None:
        self.delay_ms = _delay_ms(delay)
        super().__init__(f"nothing more for {self.delay_ms / 1000:g} s")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.delay_ms / 1000,)


class JobInterrupted(BunqueueError):
    """Raised by `job.cancelled.raise_if_set()`; `reason` is `cancelled`, `timeout`, `lock_lost` or
    `closing`. A handler lets it pass: the job's fate is decided already (`closing`: it is given
    back, no attempt charged)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the run was interrupted: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason,)


def _delay_ms(delay: Duration) -> int:
    from .durations import to_ms  # which has its own errors from here

    return to_ms(delay, "delay", zero=False)
