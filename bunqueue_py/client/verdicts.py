"""What becomes of a run whose handler raised: one place for every kind of crew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..durations import shown
from ..errors import (
    DelayJob,
    JobInterrupted,
    RateLimited,
    StorageError,
    UnrecoverableError,
    ValidationError,
    WaitForChildren,
)
from ..model.cancel import CLOSING
from ..model.failure import remote_of
from ..types import FailureReason, Outcome
from .job import Job
from .protocol import Backend

Errors = tuple[type[BaseException], ...]


class Verdicts:
    """Gives the backend the end of runs that did not return. `tell` and `report` are the worker's.

    `retry_on`: errors of other classes are unrecoverable; `no_retry_on`: those are; `None`: all
    are retried.
    """

    def __init__(
        self,
        backend: Backend,
        queue: str,
        tell: Callable[..., None],
        report: Callable[[BaseException], None],
        retry_on: Errors | None = None,
        no_retry_on: Errors | None = None,
    ) -> None:
        self._backend = backend
        self._queue = queue
        self._tell = tell
        self._report = report
        self._retry_on = retry_on
        self._no_retry_on = no_retry_on
        #: told of every run that has failed, beside whoever listens
        self.failed: Callable[[], None] = _nobody

    def end(
        self,
        job: Job,
        error: BaseException,
        *,
        work_done: bool = False,
        cause: FailureReason | None = None,
    ) -> None:
        """The run ends with that error. `work_done`: the handler had finished, only its result is
        at fault. `cause`: the reason, where it is none of the handler's. May block for the disk if
        the job is durable."""
        if not work_done and self._goes_back(job, error):
            return
        try:
            outcome, will_retry = self._backend.fail_run(
                job.id,
                job.token,
                error,
                unrecoverable=work_done or not self._retries(error),
                work_done=work_done,
                cause=cause,
            )
        except StorageError as problem:
            if not problem.accepted:
                raise
            # only an end is waited for
            outcome, will_retry = Outcome(True), False
            self._report(problem)
        if outcome.applied:
            self.failed()
            self._tell("failed", job, error, will_retry)

    def _goes_back(self, job: Job, error: BaseException) -> bool:
        """Whether the error only asks for the job to be run later, which has been done then."""
        if isinstance(error, DelayJob):
            self._backend.release(job.id, job.token, error.delay_ms)
        elif isinstance(error, RateLimited):
            # in this order: otherwise the job itself might be taken again at once
            self._backend.cool_down(self._queue, job.group, error.delay_ms)
            self._backend.release(job.id, job.token, 0)
        elif isinstance(error, JobInterrupted) and error.reason == CLOSING:
            self._backend.release(job.id, job.token, 0)
        elif isinstance(error, WaitForChildren):
            self._backend.park(job._id, job.token)
        else:
            return False
        return True

    def _retries(self, error: BaseException) -> bool:
        if isinstance(error, UnrecoverableError):
            return False
        if self._no_retry_on is not None and _is_one(error, self._no_retry_on):
            return False
        return self._retry_on is None or _is_one(error, self._retry_on)


def _nobody() -> None:
    """Where nobody counts."""


def _is_one(error: BaseException, classes: Errors) -> bool:
    if isinstance(error, classes):
        return True
    # that of a process may only stand for one
    remote = remote_of(error)
    return remote is not None and any(
        f"{cls.__module__}:{cls.__qualname__}" in remote.classes for cls in classes
    )


def checked_errors(given: object, option: str) -> Errors | None:
    """The exception classes of `retry_on` or `no_retry_on`, given as one or several."""
    if given is None:
        return None
    classes = (given,) if isinstance(given, type) else given
    if not isinstance(classes, Sequence) or isinstance(classes, str):
        raise ValidationError(f"{option} must be exception classes, not {shown(given)}")
    for cls in classes:
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise ValidationError(f"{option} must be exception classes, not {shown(cls)}")
    return tuple(classes)
