"""How a manager is doing, looked up when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..durations import ms_to_moment, optional_moment
from ..model.health import (
    HealthReport,
    OverdueHandler,
    StorageStatus,
    TaskHealth,
    WorkerInfo,
)
from ..model.job import COMPLETED
from ..registry.task_errors import TaskLine
from ..registry.workers import WorkerEntry
from ..state import State


class Overdue(NamedTuple):
    """A handler that runs although its run has ended; times in ms."""

    job_id: str
    entry: WorkerEntry
    started_ms: int | None
    timeout_ms: int | None


def overdue(state: State, now: int) -> list[Overdue]:
    """The handlers whose deliveries have ended under them. Holds no lock."""
    found = []
    for entry in state.workers.entries():
        for run in entry.card.running():
            record = state.index.get(run.job_id)
            if record is not None:
                delivery = record.delivery
                if record.state == COMPLETED or (
                    delivery is not None and delivery.token == run.token
                ):
                    continue
            elif state.proofs.get(run.job_id) is not None:
                continue
            # one that is only about to report its end has not run for that long
            ran = now - (run.started_ms or entry.started_ms)
            if ran >= (run.lease_ms if run.timeout_ms is None else run.timeout_ms):
                found.append(Overdue(run.job_id, entry, run.started_ms, run.timeout_ms))
    return found


def worker_info(state: State, entry: WorkerEntry) -> WorkerInfo:
    """What is told of a worker."""
    now, card = state.now(), entry.card
    return WorkerInfo(
        id=entry.id,
        name=card.name,
        queues=(entry.queue,),
        concurrency=card.concurrency,
        host=entry.host,
        pid=entry.pid,
        active=card.active,
        processed=card.processed,
        failed=card.failed,
        started_at=ms_to_moment(entry.started_ms),
        last_seen=ms_to_moment(entry.seen_ms(now)),
        stale=is_stale(state, entry, now),
    )


def is_stale(state: State, entry: WorkerEntry, now: int) -> bool:
    """Whether the worker has been silent for too long, told of or not."""
    return now - entry.seen_ms(now) >= state.periods.worker_stale_after


def report(state: State, behind_ms: int, standing: Iterable[str]) -> HealthReport:
    """All of it. `behind_ms`: for how long the scheduler owes a pass; `standing`: what the checks
    have found and not seen end yet."""
    now = state.now()
    tasks = tuple(map(_task_health, state.errors.lines()))
    storage = _storage(state)
    workers = tuple(worker_info(state, entry) for entry in state.workers.entries())
    late = tuple(
        OverdueHandler(
            found.job_id,
            found.entry.queue,
            found.entry.card.name,
            optional_moment(found.started_ms),
            None if found.timeout_ms is None else found.timeout_ms / 1000,
        )
        for found in overdue(state, now)
    )
    problems = [
        f"background task {task.name!r} fails: {task.error}"
        for task in tasks
        if task.failures_in_a_row
    ]
    if storage.failing_since is not None:
        problems.append(
            f"the storage has failed since {storage.failing_since.isoformat()}: {storage.error}"
        )
    if behind_ms >= state.periods.scheduler_late_after:
        problems.append(f"the background thread is {behind_ms / 1000:g} s late")
    problems += [
        f"worker {info.name!r} has been silent since {info.last_seen.isoformat()}"
        for info in workers
        if info.stale
    ]
    problems += [
        f"the handler of job {one.job_id} still runs in worker {one.worker!r} although its run "
        "has ended"
        for one in late
    ]
    bound = state.config.listener_backlog_alarm
    problems += [
        f"listener {mailbox.name!r} is {mailbox.backlog:,} events behind"
        for mailbox in state.events.buffers()
        if mailbox.backlog > bound
    ]
    # what was found just now may be among it
    problems += [text for text in standing if text not in problems]
    return HealthReport(
        not problems, tuple(problems), tasks, storage, workers, late, behind_ms / 1000
    )


def _task_health(line: TaskLine) -> TaskHealth:
    return TaskHealth(
        name=line.name,
        runs=line.runs,
        last_run=optional_moment(line.last_run_ms),
        duration=line.duration_ms / 1000,
        lateness=line.late_ms / 1000,
        failures=line.failures,
        failures_in_a_row=line.in_a_row,
        circuit="closed" if line.open_since_ms is None else "open",
        error=line.error if line.in_a_row else None,
    )


def _storage(state: State) -> StorageStatus:
    storage = state.storage
    if storage is None:
        return StorageStatus(persistent=False)
    found = storage.health()
    return StorageStatus(
        persistent=storage.persistent,
        failing_since=optional_moment(found.failing_since_ms),
        error=None if found.error is None else str(found.error),
        rows_waiting=found.rows_waiting,
        lag=found.lag_ms / 1000,
    )
