"""`Harness`: the engine on a clock that a test owns, on the test's own thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ..client.job import Job
from ..client.queue import Queue
from ..client.worker import Worker
from ..durations import moment_to_ms, ms_to_moment, shown
from ..errors import BunqueueError, ValidationError
from ..manager import QueueManager
from ..model.events import JobEvent, event_of
from ..model.job import ACTIVE
from ..model.options import checked_bool, checked_int, checked_name, checked_queue_name
from ..storage.base import Storage
from ..storage.memory import MemoryStorage
from ..types import FailureReason, JobState
from . import hints
from .clock import START
from .ids import SeededIds
from .report import AddedJobs, CrashReport, RunReport, Timeline, matches
from .stage import Stage
from .stepping import HANG, StageClock
from .trouble import expire_lock

_PARTS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
MAX_WAITS = 1_000
_LAST_MS = moment_to_ms(datetime(9000, 1, 1, tzinfo=timezone.utc), "")
_WAITS = (
    JobState.ACTIVE,
    JobState.WAITING,
    JobState.PRIORITIZED,
    JobState.DELAYED,
    JobState.WAITING_CHILDREN,
)


def hang() -> Any:
    """What a handler returns to play one that never ends: its job stays active, and its slot taken,
    until a timeout, `expire_lock`, `lose_worker` or `crash_and_restart` takes the job away."""
    return HANG


class Harness:
    """Queues and workers on a virtual clock, without threads: nothing happens but in the calls of
    this object, one thing after the other, in the same order in every run.

    The engine is the real one: encoding, locks, retries, limits, timeouts, sweeps, and the code of
    the workers. `storage` as for `QueueManager` (`None`: memory). `start`: the clock's moment.
    `seed`: of ids and jitter. `immediate=True` runs each job as it is added; one that a handler
    adds runs after that handler. For one thread; a context manager.

    Raises `ValidationError`, and `StorageError` if the storage cannot be opened.

    >>> with Harness() as h:
    ...     reminders = h.queue("reminders")
    ...     worker = h.worker(reminders, lambda job: print(job.now, job.data))
    ...     job = reminders.add("nudge", {"id": 1}, delay=timedelta(days=3))
    ...     h.advance(days=4)
    2030-01-04 00:00:00+00:00 {'id': 1}
    """

    def __init__(
        self,
        storage: MemoryStorage | Storage | str | os.PathLike[str] | None = None,
        start: datetime = START,
        seed: int = 0,
        immediate: bool = False,
    ) -> None:
        clock = StageClock(start)
        checked_int(seed, "seed", -(1 << 63), 1 << 63)
        checked_bool(immediate, "immediate")
        self._clock = clock
        self._stage = Stage(storage, clock, SeededIds(seed), immediate=immediate)
        self._events: list[JobEvent] = []

    def __repr__(self) -> str:
        return f"<Harness at {self.now.isoformat()}>"

    def __str__(self) -> str:
        return hints.picture(self._stage)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stage.manager.__exit__(kind, error, trace)

    def close(self) -> None:
        """Closes the workers and the manager; `events` and `timeline` can still be read."""
        self._stage.manager.close()

    # -- the parts ---------------------------------------------------------------------------

    @property
    def manager(self) -> QueueManager:
        """The manager, to hand to the code under test. A `Worker` made with it is stepped too."""
        return self._stage.manager

    @property
    def now(self) -> datetime:
        """The timeline's moment."""
        return self._clock.now

    def queue(self, name: str) -> Queue:
        """The queue of that name."""
        return Queue(name, self._stage.manager)

    def worker(
        self,
        queue: Queue | str,
        handler: Callable[[Job], Any] | Mapping[str, Callable[[Job], Any]],
        **options: Any,
    ) -> Worker:
        """A started `Worker`, with its options. It takes one job at a time, so priorities count
        at every start, unless `prefetch` is given. What it is runs in `run_until_idle`, `advance`
        and `drain`; a crash starts it anew."""
        stage = self._stage
        worker = Worker(queue, handler, manager=stage.manager, **options).start()
        name = queue if isinstance(queue, str) else queue.name
        stage.cast.append((worker, name, handler, options))
        return worker

    # -- running -----------------------------------------------------------------------------

    def run_until_idle(self, raise_errors: bool = False, max_jobs: int = 10_000) -> RunReport:
        """Runs all that is ready, and what that leads to, while time stands still.

        `raise_errors`: the first job that fails for good raises its handler's own exception
        (`JobFailedError` where no handler did it). Raises `BunqueueError` when `max_jobs` have run
        and more are ready.
        """
        checked_bool(raise_errors, "raise_errors")
        checked_int(max_jobs, "max_jobs", 1, 1 << 40)
        self._check_open()
        return self._reported(lambda: self._stage.settle(max_jobs, raise_errors=raise_errors))

    def advance(self, *, to: datetime | None = None, **parts: float) -> None:
        """Moves time on by `timedelta(**parts)`, or to a moment of the timeline: everything that
        is due on the way happens at its own moment, in order, and jobs that become ready run
        there. In a handler: that is how long the handler takes.

        Raises `ValidationError` for a moment in the past, or without a time zone, and for parts
        that `timedelta` does not know; nothing has moved then.
        """
        target = self._target(to, parts)
        self._check_open()
        self._stage.advance_to(target)

    def drain(self, raise_errors: bool = True) -> RunReport:
        """Moves time on from due moment to due moment until no job is left, or none to which time
        makes a difference: in a queue without a worker, or paused, or in a handler that never
        ends. Those are in the report's `waits`. With `raise_errors` as in `run_until_idle`."""
        checked_bool(raise_errors, "raise_errors")
        self._check_open()
        return self._reported(lambda: self._stage.drain(raise_errors=raise_errors))

    def set_wall_clock(self, moment: datetime) -> None:
        """A jump of the wall clock alone, in either direction: it moves jobs with `run_at` and
        schedulers with `cron`, and nothing else. They run in the next call that runs jobs."""
        self._clock.set_wall_clock(moment)

    # -- trouble -----------------------------------------------------------------------------

    def fail_next(
        self, queue: Queue | str, error: BaseException | type[BaseException] | str, times: int = 1
    ) -> None:
        """Has the next `times` runs of that queue raise `error` (text: a `RuntimeError`) in place
        of calling their handler."""
        name = _name_of(queue)
        checked_int(times, "times", 1, 1_000_000)
        if isinstance(error, str):
            error = RuntimeError(error)
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not is_class and not isinstance(error, BaseException):
            raise ValidationError(f"error must be an exception or text, not {shown(error)}")
        if is_class:
            try:
                error()  # type: ignore[operator]
            except Exception as why:
                raise ValidationError(
                    f"error must be a class that is made without arguments, or an exception: {why}"
                ) from None
        self._stage.plan_failures(name, error, times)

    def expire_lock(self, job: Job | str) -> None:
        """The lock of an active job runs out now, heard or not: an attempt is charged, and it runs
        again after its back-off. Raises `JobNotFoundError`, `JobStateError`."""
        self._check_open()
        expire_lock(self._stage, _id_of(job))

    def hang(self) -> Any:
        """The same as the function `hang`."""
        return HANG

    def lose_worker(self, worker: Worker) -> None:
        """The process of that worker dies: what its handlers still return never arrives, and
        the locks of its jobs run out in time. Raises `ValidationError` for a worker that does not
        run here."""
        if not isinstance(worker, Worker) or worker not in self._stage.workers:
            raise ValidationError(
                f"worker must be one that runs in this harness, not {shown(worker)}"
            )
        self._stage.lose(worker)

    def crash_and_restart(self) -> CrashReport:
        """The process dies and is started again: memory is dropped, the storage opened again as
        it was at the last commit (every call that has returned is committed), and recovered.

        Queues and jobs made before go on, and so do the workers of `worker()`, with their handlers
        and listeners; what subscribed to `manager.events` does not. On memory storage all is gone:
        the report says so, and so do later assertions. Not from within a handler.
        """
        stage = self._stage
        self._check_open()
        if stage.busy:
            raise BunqueueError(
                "a handler cannot play the death of its own process and go on: let it return "
                "hang(), and call crash_and_restart() in the test, after run_until_idle()"
            )
        kept = stage.manager.kept
        if kept is not None and not hasattr(kept, "_abandon"):
            raise BunqueueError(f"{shown(kept)} cannot be played dead: use a path")
        before = [i for i, r in stage.state.index.items() if r.state <= ACTIVE]
        stage.crash()
        index = stage.state.index
        return CrashReport(list(index), [i for i in before if i not in index], kept is None)

    # -- looking -----------------------------------------------------------------------------

    @property
    def events(self) -> list[JobEvent]:
        """Every event so far, in order, over crashes."""
        loads = self._stage.state.loads
        history = self._stage.history
        self._events += [event_of(raw, loads) for raw in history.since(len(self._events))]
        return list(self._events)

    def timeline(self, job: Job | str) -> Timeline:
        """Every event of that job; `print` it to read it."""
        job_id = _id_of(job)
        loads = self._stage.state.loads
        return Timeline(event_of(raw, loads) for raw in self._stage.history if raw[2] == job_id)

    def added(self, queue: Queue | str, name: str | None = None, data: Any = None) -> list[Job]:
        """The jobs that were added to that queue during this test, whatever has become of them:
        with that name, if one is given, and with that payload. A mapping in `data` matches one
        that has its keys and more, at any depth."""
        queue_name = _name_of(queue)
        if name is not None:
            checked_name(name, "name")
        stage = self._stage
        ids = stage.history.added(queue_name)
        # one that a scheduler added and that is gone, without a run, left nothing to show
        every = [job for job in map(self._known, ids) if job is not None]
        found = [
            job
            for job in every
            if (name is None or job.name == name) and (data is None or matches(job.data, data))
        ]
        wanted = "" if name is None else f" {name!r}"
        wanted += "" if data is None else f" with {shown(data)}"
        others = ", ".join(f"{job.name!r} {shown(job.data)}" for job in every[-5:])
        return AddedJobs(
            found, f"no job{wanted} was added to {queue_name!r}, but {others or 'none at all'}"
        )

    def assert_completed(self, job: Job | str) -> None:
        """Passes if that job has completed, even if it has left the queue since; otherwise the
        `AssertionError` shows what is in the queues."""
        __tracebackhide__ = True
        if self._end_of(_id_of(job)) != ("completed", None):
            raise self._unlike(job, "should have completed")

    def assert_failed(self, job: Job | str, reason: str | None = None) -> None:
        """Passes if that job has failed for good, for that reason if one is given."""
        __tracebackhide__ = True
        if reason is not None and reason not in tuple(FailureReason):
            raise ValidationError(
                f"reason must be among {', '.join(FailureReason)}, not {shown(reason)}"
            )
        kind, why = self._end_of(_id_of(job))
        if kind != "failed" or reason not in (None, why):
            raise self._unlike(job, f"should have failed{'' if reason is None else f' ({reason})'}")

    def _unlike(self, job: Job | str, wish: str) -> AssertionError:
        job_id, stage = _id_of(job), self._stage
        told = self.timeline(job_id)
        return AssertionError(
            f"{hints.named(stage, job_id)} {wish}, but it {hints.state_of(stage, job_id)}\n"
            + hints.way_on(stage, job_id)
            + (f"Its timeline:\n  {str(told).replace(chr(10), chr(10) + '  ')}\n" if told else "")
            + hints.picture(stage)
        )

    def _end_of(self, job_id: str) -> tuple[str, str | None]:
        """How the job ended: `completed`, or `failed` and why; of one that is gone too."""
        job = self._stage.manager.get_job(job_id)
        if job is not None:
            return str(job.state), job.failed_reason
        for kind, _, about, _, _, carried in reversed(self._stage.history):
            if about != job_id or kind not in ("completed", "failed", "retried", "dlq_retried"):
                continue
            reason = None if carried is None else carried.get("reason")
            return kind, None if reason is None else str(reason)
        return "unknown", None

    def _latest(self, job_id: str) -> Job:
        return self._stage.manager.get_job(job_id) or self._stage.jobs[job_id]

    def _known(self, job_id: str) -> Job | None:
        return self._stage.manager.get_job(job_id) or self._stage.jobs.get(job_id)

    def _reported(self, run: Callable[[], object]) -> RunReport:
        stage = self._stage
        runs, first = stage.runs, len(stage.history)
        run()
        ended: dict[str, list[Job]] = {"completed": [], "failed": []}
        for kind, _, job_id, _, _, carried in stage.history.since(first):
            final = kind == "completed" or (kind == "failed" and carried and carried["terminal"])
            if final and job_id is not None:
                ended[kind].append(self._latest(job_id))
        waits: list[Job] = []
        waiting = 0
        for name in sorted(stage.state.queues):
            counts = stage.manager.counts(name)
            waiting += counts.total - counts.completed - counts.failed
            waits += stage.manager.get_jobs(name, _WAITS, limit=MAX_WAITS - len(waits))
        return RunReport(
            ended["completed"],
            ended["failed"],
            waits,
            waiting,
            stage.runs - runs,
            "\n".join(
                f"  {hints.line(stage, job)}. {hints.way_out(stage, job)}"
                for job in waits[: hints.SHOWN_JOBS]
            ),
        )

    def _target(self, to: datetime | None, parts: dict[str, float]) -> int:
        now = self._clock.timeline_ms()
        unknown = [part for part in parts if part not in _PARTS]
        if unknown:
            raise ValidationError(
                f"advance() takes {', '.join(_PARTS)}, or to=; it does not know {unknown[0]!r}"
            )
        if to is not None:
            if parts:
                raise ValidationError("advance() takes parts of a timedelta or to=, not both")
            target = moment_to_ms(to, "to")
        else:
            try:
                # rounded up, as every duration is
                target = now - ((-timedelta(**parts)) // timedelta(milliseconds=1))
            except (TypeError, ValueError, OverflowError) as error:
                raise ValidationError(
                    f"advance() takes numbers that make a timedelta: {error}"
                ) from None
        if target < now:
            raise ValidationError(
                f"the timeline never goes back: it is {self.now.isoformat()}, and "
                f"{ms_to_moment(target).isoformat()} has passed. For a jump of the wall clock "
                "there is set_wall_clock(); for an earlier start, Harness(start=...)"
            )
        if target > _LAST_MS:
            raise ValidationError("the timeline ends with the year 9000; advance() by less")
        return target

    def _check_open(self) -> None:
        self._stage.manager._check_open()


def _id_of(job: Job | str) -> str:
    if isinstance(job, Job):
        return job.id
    if not isinstance(job, str):
        raise ValidationError(f"job must be a Job or a job id, not {shown(job)}")
    return job


def _name_of(queue: Queue | str) -> str:
    return queue.name if isinstance(queue, Queue) else checked_queue_name(queue)
