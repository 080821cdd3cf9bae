"""What `health()` and `workers` tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class TaskHealth:
    """One background task. `last_run` is `None` before its first pass; `duration` of the last pass
    and `lateness`, by how much it came after its moment, are in seconds. `failures` count from the
    start, `failures_in_a_row` since the last success. `circuit` is "closed" or, after
    `circuit_failures` in a row, "open"; `error` is what it raised last."""

    name: str
    runs: int
    last_run: datetime | None
    duration: float
    lateness: float
    failures: int
    failures_in_a_row: int
    circuit: str
    error: str | None

    def __str__(self) -> str:
        last = "never" if self.last_run is None else self.last_run.isoformat()
        text = f"{self.name}: {self.circuit}, {self.runs:,} runs, {self.failures:,} failures"
        return f"{text}, last {last}" + ("" if self.error is None else f", {self.error}")


@dataclass(frozen=True)
class StorageStatus:
    """The disk. `persistent` is False in memory, where the rest says that all is well.
    `rows_waiting` changes are not on disk, the oldest for `lag` seconds; `failing_since` and
    `error` are `None` while writing works."""

    persistent: bool
    failing_since: datetime | None = None
    error: str | None = None
    rows_waiting: int = 0
    lag: float = 0.0


@dataclass(frozen=True)
class OverdueHandler:
    """A handler that still runs although its run has ended: it is past its `timeout`, or its lock
    was lost. The engine no longer counts it; its worker's slot is taken until it returns.
    `timeout` in seconds, `None` where it had none."""

    job_id: str
    queue: str
    worker: str
    started_at: datetime | None
    timeout: float | None


@dataclass(frozen=True)
class WorkerInfo:
    """One worker of this manager. `active` counts the jobs that it holds, prefetched ones
    included, `processed` what it has completed, `failed` the runs that failed in it. `last_seen`
    is now for an idle one; for a busy one it is its last heartbeat. `stale`: it has been silent for
    `worker_stale_after`."""

    id: str
    name: str
    queues: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    active: int
    processed: int
    failed: int
    started_at: datetime
    last_seen: datetime
    stale: bool


@dataclass(frozen=True)
class HealthReport:
    """How a manager is doing. `ok` is whether there are no `problems`, which are sentences.
    `scheduler_late` is by how many seconds the background thread is behind right now.

    >>> from bunqueue_py import QueueManager
    >>> with QueueManager() as manager:
    ...     report = manager.health()
    >>> report.ok, [task.name for task in report.tasks][:2]
    (True, ['deadlines', 'schedules'])
    """

    ok: bool
    problems: tuple[str, ...]
    tasks: tuple[TaskHealth, ...]
    storage: StorageStatus
    workers: tuple[WorkerInfo, ...]
    overdue: tuple[OverdueHandler, ...]
    scheduler_late: float

    def __str__(self) -> str:
        head = "healthy" if self.ok else "\n".join(self.problems)
        return "\n".join([head, *map(str, self.tasks)])
