"""Log records that say which job they belong to."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from typing import Any

from .job import Job

CURRENT_JOB: ContextVar[Job | None] = ContextVar("bunqueue_py current job", default=None)
"""In a task of a coroutine handler, its job. A thread of a worker is asked itself."""


class JobLogFilter(logging.Filter):
    """Gives every log record that a handler makes a `job_id` and a `queue`; others get `"-"`.

    Put it on a handler of `logging`, and name the two in its format. Of a batch it is the first
    job. It never holds a record back.

    >>> import logging
    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(JobLogFilter())
    >>> handler.setFormatter(logging.Formatter("%(queue)s %(job_id)s %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the two attributes."""
        job = current_job()
        record.job_id = "-" if job is None else job.id
        record.queue = "-" if job is None else job.queue
        return True


def current_job() -> Job | None:
    """The job whose handler calls; `None` outside of one."""
    job = CURRENT_JOB.get()
    if job is None:
        slot: Any = getattr(threading.current_thread(), "bunqueue_slot", None)
        if slot is not None:
            job = slot.current
    return job
