"""`Queue`: one queue, as applications use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import Unpack

from ..durations import MAX_DURATION_MS, shown
from ..errors import ValidationError
from ..model.options import JobOptions, JobSpec, check_known, checked_iterable, checked_queue_name
from ..types import Duration, JobCounts, JobState
from .job import Job
from .parts import DeadLetterQueue
from .protocol import Manager


class Queue:
    """A named queue of a manager (of the process's own, if none is given).

    `name`: 1 to 256 of `A-Z a-z 0-9 _ . : -`. `defaults`: job options for every job added
    through this object, which a call may override. `bool(queue)` is always True.

    >>> from bunqueue_py import QueueManager
    >>> with QueueManager() as manager:
    ...     emails = Queue("emails", manager, defaults={"attempts": 5})
    ...     job = emails.add("welcome", {"to": "ada@example.com"})
    ...     len(emails), job.max_attempts
    (1, 5)
    """

    def __init__(
        self, name: str, manager: Manager | None = None, *, defaults: JobOptions | None = None
    ) -> None:
        checked_queue_name(name)
        if defaults is not None and not isinstance(defaults, dict):
            raise ValidationError(f"defaults must be a dict of job options, not {shown(defaults)}")
        self._defaults: dict[str, Any] = dict(defaults or {})
        check_known(self._defaults)
        if manager is None:
            from ..default_manager import get_default_manager

            manager = get_default_manager()
        if not hasattr(manager, "push_batch"):
            raise ValidationError(f"manager must be a QueueManager, not {shown(manager)}")
        if self._defaults:
            _check_defaults(self._defaults)
        self._manager = manager
        self._name = manager.known_queue(name)
        self._dlq = DeadLetterQueue(manager, self._name)

    def __repr__(self) -> str:
        return f"<Queue {self._name!r}>"

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """How many jobs are pending: waiting, prioritized, delayed and paused."""
        counts = self._manager.counts(self._name)
        return counts.waiting + counts.prioritized + counts.delayed + counts.paused

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def manager(self) -> Manager:
        """The manager that it belongs to."""
        return self._manager

    @property
    def dlq(self) -> DeadLetterQueue:
        """Its dead letters."""
        return self._dlq

    # -- adding ------------------------------------------------------------------------------

    def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Adds a job and returns it; if a live job of this queue has the same `custom_id`, that
        one (`job.duplicate` is then True).

        Raises `ValidationError` or `SerializationError` naming what is wrong, and `TypeError`
        for an unknown option, before anything has changed.
        """
        if self._defaults:
            options = self._merged(options)  # type: ignore[assignment, arg-type]
        return self._manager.push(self._name, data, name=name, **options)

    def add_bulk(self, jobs: Iterable[JobSpec | tuple[str, Any]]) -> list[Job]:
        """Adds up to 100,000 jobs, given as `JobSpec` or (name, data), in one unit; returns them
        in order. One that is invalid refuses all, and is named `jobs[i]` in the error."""
        if self._defaults:
            jobs = map(self._with_defaults, checked_iterable(jobs, "jobs"))
        return self._manager.push_batch(self._name, jobs)

    def _merged(self, options: dict[str, Any]) -> dict[str, Any]:
        merged = {**self._defaults, **options}
        # a call's run_at overrides a default delay, and the other way round
        if "run_at" in options and "delay" not in options:
            merged.pop("delay", None)
        elif "delay" in options and "run_at" not in options:
            merged.pop("run_at", None)
        return merged

    def _with_defaults(self, spec: JobSpec | tuple[str, Any]) -> JobSpec | tuple[str, Any]:
        # whatever is wrong with the entry is for push_batch to say, which knows its number
        if isinstance(spec, JobSpec):
            return JobSpec(spec.name, spec.data, **self._merged(spec.options))
        if isinstance(spec, tuple) and len(spec) == 2:
            return JobSpec(spec[0], spec[1], **self._defaults)
        return spec

    # -- reading -----------------------------------------------------------------------------

    def get_job(self, job_id: str | None = None, *, custom_id: str | None = None) -> Job | None:
        """The job of this queue with that id, or with that custom id; `None` if there is none."""
        if job_id is not None and custom_id is not None:
            raise ValidationError("give job_id or custom_id, not both")
        if custom_id is not None:
            return self._manager.get_job(queue=self._name, custom_id=custom_id)
        job = self._manager.get_job(job_id)
        return job if job is not None and job.queue == self._name else None

    def get_jobs(
        self,
        states: JobState | str | Iterable[JobState | str] | None = None,
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        with_data: bool = True,
    ) -> list[Job]:
        """A page of the jobs in those states (`None`: in any), in the order in which they entered
        their state. `with_data=False` leaves payloads out; `job.data` then looks them up.
        Costs O(offset + limit)."""
        return self._manager.get_jobs(
            self._name,
            states,
            offset=offset,
            limit=limit,
            newest_first=newest_first,
            with_data=with_data,
        )

    def counts(self) -> JobCounts:
        """How many jobs are in each state, judged now. O(log n)."""
        return self._manager.counts(self._name)

    # -- control -----------------------------------------------------------------------------

    def pause(self) -> None:
        """Nothing is pulled from now on; what runs already goes on."""
        self._manager.pause(self._name)

    def resume(self) -> None:
        """Ends a pause."""
        self._manager.resume(self._name)

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._manager.is_paused(self._name)

    def drain(self, delayed: bool = True) -> int:
        """Removes what waits, the delayed jobs too unless told otherwise; returns how many."""
        return self._manager.drain(self._name, delayed)

    def obliterate(self, force: bool = False) -> int:
        """Removes every job, finished ones and dead letters included; returns how many. Raises
        `JobStateError` while jobs are active, unless `force`: their handlers then run on, but
        what they return has no effect."""
        return self._manager.obliterate(self._name, force)

    def remove(self, job: Job | str) -> bool:
        """Removes a job. Raises `JobNotFoundError`, `JobStateError` while it is active."""
        return self._manager.remove(job, self._name)

    def retry(self, job: Job | str) -> bool:
        """Runs a failed or completed job again, with fresh attempts. Raises `JobNotFoundError`,
        `JobStateError` for one that is pending or active."""
        return self._manager.retry(job, self._name)

    def wait_until_empty(self, timeout: Duration | None = None) -> None:
        """Blocks until nothing is pending or active. Raises `WaitTimeoutError`."""
        self._manager.wait_until_empty(self._name, timeout)


def _check_defaults(defaults: dict[str, Any]) -> None:
    from ..model.options import OptionsCache

    OptionsCache().resolve(dict(defaults), lambda: MAX_DURATION_MS)
