"""`queue.schedulers` and `manager.schedulers`: what adds jobs by itself, again and again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..model.options import JobSpec
from ..model.schedule import Scheduler
from ..types import Duration

if TYPE_CHECKING:
    from .protocol import Manager

# named, since `list` is a method below
Moments = list[datetime]
Schedulers = list[Scheduler]


class QueueSchedulers:
    """The schedulers of one queue; `queue.schedulers`. Each adds a job at every planned time, once,
    over restarts and crashes where the storage is on disk.

    >>> from bunqueue_py import JobSpec, Queue, QueueManager
    >>> with QueueManager() as manager:
    ...     reports = Queue("reports", manager)
    ...     nightly = reports.schedulers.upsert(
    ...         "nightly", every=86_400, job=JobSpec("report", {"kind": "sales"})
    ...     )
    ...     nightly.runs, len(reports.schedulers)
    (0, 1)
    """

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def __len__(self) -> int:
        return len(self.list())

    def __bool__(self) -> bool:
        return True

    def upsert(
        self,
        id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        limit: int | None = None,
        immediately: bool = False,
        catch_up: bool = False,
        skip_if_no_worker: bool = False,
        prevent_overlap: bool = True,
        job: JobSpec | None = None,
    ) -> Scheduler:
        """The queue has this scheduler: the usual way is to say so whenever the program starts.
        The same definition again changes nothing. Another one holds from the next run on, and the
        count of runs goes on; jobs that have been added stay as they are.

        `every`: a period, whose phase is kept. `cron`: five fields, six with seconds, or a name
        like `@daily`, in the time zone `tz` (needs `pip install bunqueue-py[cron]`). `limit`: so
        many runs in all. `immediately`: when it is new, or its times are, a run at once, which
        counts as the next one if that is nearer than half a period. `catch_up`: one run for those
        that were missed while no process was up; without it, none. `skip_if_no_worker`: no job
        where no worker takes jobs of the queue. `prevent_overlap`: no job while the last one is
        not done. `job`: what to add, with any options but `run_at` and `repeat`; without it, a
        job named as the scheduler.

        Raises `CronError` naming the field of an expression, `ValidationError`,
        `SerializationError`; nothing has changed then.
        """
        return self._manager.scheduler_upsert(
            self._queue,
            id,
            cron=cron,
            every=every,
            tz=tz,
            limit=limit,
            immediately=immediately,
            catch_up=catch_up,
            skip_if_no_worker=skip_if_no_worker,
            prevent_overlap=prevent_overlap,
            job=job,
        )

    def get(self, id: str) -> Scheduler | None:
        """The scheduler as it is now; `None` if there is none of that id."""
        return self._manager.scheduler_get(self._queue, id)

    def remove(self, id: str) -> bool:
        """Ends it; jobs that it has added stay. Says whether there was one."""
        return self._manager.scheduler_remove(self._queue, id)

    def list(self) -> Schedulers:
        """All of them, by id."""
        return self._manager.scheduler_list(self._queue)

    def preview(self, id: str, n: int) -> Moments:
        """The next `n` (0 to 1,000) planned times, fewer where its limit ends them. Raises
        `ValidationError` if there is no such scheduler."""
        return self._manager.scheduler_preview(self._queue, id, n)


class ManagerSchedulers:
    """The schedulers of all queues; `manager.schedulers`. The calls are those of
    `queue.schedulers`, with the queue (its name or a `Queue`) before the id."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def __len__(self) -> int:
        return len(self.list())

    def __bool__(self) -> bool:
        return True

    def upsert(self, queue: Any, id: str, **options: Any) -> Scheduler:
        """See `QueueSchedulers.upsert`."""
        return self._manager.scheduler_upsert(queue, id, **options)

    def get(self, queue: Any, id: str) -> Scheduler | None:
        """See `QueueSchedulers.get`."""
        return self._manager.scheduler_get(queue, id)

    def remove(self, queue: Any, id: str) -> bool:
        """See `QueueSchedulers.remove`."""
        return self._manager.scheduler_remove(queue, id)

    def list(self, queue: Any = None) -> Schedulers:
        """Those of that queue, or of all queues (`None`), by queue and id."""
        return self._manager.scheduler_list(queue)

    def preview(self, queue: Any, id: str, n: int) -> Moments:
        """See `QueueSchedulers.preview`."""
        return self._manager.scheduler_preview(queue, id, n)
