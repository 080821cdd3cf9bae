"""A job to call a handler with, without a queue around it."""

from __future__ import annotations

import atexit
from datetime import datetime
from typing import Any

from typing_extensions import Unpack

from ..client.job import Job
from ..config import ManagerConfig
from ..durations import moment_to_ms
from ..errors import ValidationError
from ..manager import QueueManager
from ..model.options import JobOptions, checked_int
from .clock import START, VirtualClock
from .ids import SeededIds


def handler_context(
    data: Any = None,
    attempt: int = 1,
    *,
    name: str = "default",
    queue: str = "test",
    now: datetime = START,
    **options: Unpack[JobOptions],
) -> Job:
    """A job as a handler is handed it: active, in its `attempt`-th run, at the virtual moment
    `now`. The payload was encoded and decoded, and what the handler does with the job (progress,
    its lock, its data) is done to an engine of its own, in memory; `refresh()` shows it.

    Raises what `Queue.add` raises for the same arguments.

    >>> def greet(job):
    ...     return f"hello {job.data['name']}, this is run {job.attempt}"
    >>> greet(handler_context({"name": "ada"}, attempt=2))
    'hello ada, this is run 2'
    """
    checked_int(attempt, "attempt", 1, 1000)
    moment_to_ms(now, "now")
    options.setdefault("attempts", max(3, attempt))
    if attempt > options["attempts"]:
        raise ValidationError(
            f"attempt must be at most attempts ({options['attempts']}), not {attempt}"
        )
    for option in ("delay", "run_at"):
        if option in options:
            raise ValidationError(f"the job runs already: {option} makes no sense here; give now")
    manager = QueueManager(
        config=ManagerConfig(shards=1),
        clock=VirtualClock(now),
        background=False,
        _ids=SeededIds(),
    )
    # it has no thread and no file: it is simply forgotten with the job
    atexit.unregister(manager._at_exit)
    job = manager.push(queue, data, name=name, **options)
    for run in range(1, attempt):
        manager.fail(_pulled(manager, queue), f"run {run} failed")
        if manager.get_state(job) == "delayed":
            manager.promote(job)
    return _pulled(manager, queue)


def _pulled(manager: QueueManager, queue: str) -> Job:
    job = manager.pull(queue)
    assert job is not None
    return job
