"""`Queue`: one queue, as applications use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from typing_extensions import Unpack

from ..durations import MAX_DURATION_MS, shown
from ..errors import ValidationError
from ..model.checks import checked_iterable
from ..model.figures import MinuteCount
from ..model.job_logs import LogPage
from ..model.options import JobOptions, JobSpec, OtherOptions, check_known, checked_queue_name
from ..types import Deduplication, Duration, JobCounts, JobState
from .groups import QueueGroups, QueueLimits
from .job import Job
from .parts import DeadLetterQueue, DeduplicationKeys
from .protocol import Manager
from .schedulers import QueueSchedulers
from .stalls import StallCheck

NOT_GIVEN: Any = object()
"""Of an option whose `None` overrides a default of the queue."""


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
        self._deduplication = DeduplicationKeys(manager, self._name)
        self._stalls = StallCheck(manager, self._name)
        self._groups = QueueGroups(manager, self._name)
        self._limits = QueueLimits(manager, self._name)
        self._schedulers = QueueSchedulers(manager, self._name)

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

    @property
    def deduplication(self) -> DeduplicationKeys:
        """Its deduplication keys."""
        return self._deduplication

    @property
    def stalls(self) -> StallCheck:
        """How it finds runs that were lost."""
        return self._stalls

    @property
    def groups(self) -> QueueGroups:
        """Its groups: `queue.groups["acme"].pause()`."""
        return self._groups

    @property
    def limits(self) -> QueueLimits:
        """How much of it may run at once, and how often it may start."""
        return self._limits

    @property
    def schedulers(self) -> QueueSchedulers:
        """What adds jobs to it by itself, again and again."""
        return self._schedulers

    # -- adding ------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        data: Any = None,
        *,
        custom_id: str | None = NOT_GIVEN,
        deduplication: Deduplication | None = NOT_GIVEN,
        **options: Unpack[OtherOptions],
    ) -> Job:
        """Adds a job and returns it; if a live job of this queue has the same `custom_id`, or its
        `deduplication` key is taken, that one (`job.duplicate` is then True).

        Raises `ValidationError` or `SerializationError` naming what is wrong, and `TypeError`
        for an unknown option, before anything has changed.
        """
        if options or self._defaults:
            given: dict[str, Any] = {**options}
            if custom_id is not NOT_GIVEN:
                given["custom_id"] = custom_id
            if deduplication is not NOT_GIVEN:
                given["deduplication"] = deduplication
            if self._defaults:
                given = self._merged(given)
            return self._manager.push(self._name, data, name=name, **given)
        # by name, without the dictionaries that handing options on would make
        return self._manager.push(
            self._name,
            data,
            name=name,
            custom_id=None if custom_id is NOT_GIVEN else custom_id,
            deduplication=None if deduplication is NOT_GIVEN else deduplication,
        )

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
            made = JobSpec(spec.name, spec.data, **self._merged(spec.options))
            made.origin = spec
            return made
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
        Costs O(offset + limit); with waiting jobs in groups, O(groups) besides."""
        return self._manager.get_jobs(
            self._name,
            states,
            offset=offset,
            limit=limit,
            newest_first=newest_first,
            with_data=with_data,
        )

    def iter_jobs(
        self, states: JobState | str | Iterable[JobState | str] | None = None
    ) -> Iterator[Job]:
        """Every job in those states (`None`: in any), read a page at a time: nothing is held
        between pages, and memory does not grow with the queue. In no particular order.

        Jobs may change meanwhile. None comes twice; one that keeps its state and its place comes
        once; one that is changed, or comes in after the first was read, may come or not.
        """
        return self._manager.iter_jobs(self._name, states)

    def counts_per_priority(self) -> dict[int, int]:
        """How many jobs wait (ready or delayed) of each priority that there is, highest first.
        O(distinct priorities)."""
        return self._manager.counts_per_priority(self._name)

    def counts(self) -> JobCounts:
        """How many jobs are in each state, judged now. O(log n)."""
        return self._manager.counts(self._name)

    def logs(self, job_id: Job | str, offset: int = 0, limit: int = 100) -> LogPage:
        """A page of the job's log: `entries`, oldest first, from the `offset`-th kept line on, and
        `total`, how many lines the job has ever written. Empty for a job that is not known."""
        return self._manager.job_logs(job_id, offset, limit)

    def metrics(self, kind: Literal["completed", "failed"]) -> list[MinuteCount]:
        """How many jobs completed, or failed for good, minute by minute: the minutes that have
        any, oldest first, of the last 14 days (`completed_metrics_days`). On a file they survive
        restarts; a crash may cost the counts of the last seconds."""
        return self._manager.minute_counts(self._name, kind)

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
        `JobStateError` for one that is pending or active, `DuplicateJobError` where its
        deduplication key belongs to another live job now."""
        return self._manager.retry(job, self._name)

    def retry_all(self, state: JobState | str = JobState.FAILED, limit: int | None = None) -> int:
        """Runs failed (or completed) jobs again, oldest first: all that there are now, or at most
        `limit`; those that `retry` would refuse are passed over. Works in small bites; one that
        was interrupted is simply called again. Returns how many run again."""
        return self._manager.retry_all(self._name, state, limit)

    def clean(self, older_than: Duration, *, state: JobState | str, limit: int = 1000) -> list[str]:
        """Removes the jobs that entered `state` at least `older_than` ago, oldest first and at
        most `limit` (0 to 100,000); returns their ids. `state`: waiting, prioritized, delayed,
        completed or failed; what is active is never cleaned."""
        return self._manager.clean(self._name, older_than, state=state, limit=limit)

    def promote(self, job: Job | str) -> bool:
        """Makes a delayed job ready at once, behind those that are ready already; False if it is
        ready itself. Raises `JobNotFoundError`, `JobStateError` for one that does not wait."""
        return self._manager.promote(job, self._name)

    def promote_all(self, limit: int | None = None) -> int:
        """Makes the delayed jobs ready, soonest first: all that there are now, or at most
        `limit`; returns how many."""
        return self._manager.promote_all(self._name, limit)

    def discard(self, job: Job | str) -> bool:
        """Fails a job that waits, for good, with reason `discarded`: it stands among the dead
        letters then. Raises `JobNotFoundError`, `JobStateError` for one that does not wait."""
        return self._manager.discard(job, self._name)

    def update_data(self, job: Job | str, data: Any) -> bool:
        """Replaces the data of a job that waits or has failed; of an active one only with the
        `Job` that was pulled. False if they are the same.

        Raises `SerializationError` before anything has changed, `JobNotFoundError`, `LockError`
        for an active job that this `Job` does not hold, `JobStateError` for a completed one.
        """
        return self._manager.update_data(job, data, self._name)

    def change_priority(self, job: Job | str, priority: int, lifo: bool | None = None) -> bool:
        """Gives a job that waits another priority, and another `lifo` if given. Among its new
        equals it stands where it would, had it been added so. False if that is what it has.
        O(log n). Raises `JobNotFoundError`, `JobStateError` for one that does not wait."""
        return self._manager.change_priority(job, priority, lifo, self._name)

    def change_delay(self, job: Job | str, delay: Duration) -> bool:
        """Has a job that waits run `delay` from now, whatever it was before; 0 makes it ready.
        False if nothing changes. Raises `JobNotFoundError`, `JobStateError` for one that does not
        wait."""
        return self._manager.change_delay(job, delay, self._name)

    def wait_until_empty(self, timeout: Duration | None = None) -> None:
        """Blocks until nothing is pending or active. Raises `WaitTimeoutError`."""
        self._manager.wait_until_empty(self._name, timeout)


def _check_defaults(defaults: dict[str, Any]) -> None:
    from ..model.options import OptionsCache

    OptionsCache().resolve(dict(defaults), lambda: MAX_DURATION_MS)
