"""What the handlers in a worker's processes may ask the parent for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import BunqueueError, LockError
from .job import Job
from .wire import NO_BLOB

Answer = tuple[list[Any], bytes]
"""Whether it was done, with what came of it (encoded, where it is the application's); or the class
and the text of the error."""


def _progress(job: Job, values: Sequence[Any], blob: bytes) -> None:
    percent, text = values
    try:
        job.update_progress(percent, text)
    except BunqueueError:
        pass  # the run is over, as the process is told or has been told


def _log(job: Job, values: Sequence[Any], blob: bytes) -> None:
    text, level = values
    try:
        job.log(text, level)
    except BunqueueError:
        pass  # the same


def _extend_lock(job: Job, values: Sequence[Any], blob: bytes) -> Answer:
    backend = job._manager.backend
    return _answer(lambda: [True, backend.extend(job.id, job.token, values[0])])


def _update_data(job: Job, values: Sequence[Any], blob: bytes) -> Answer:
    return _answer(lambda: [True, job.update_data(job._manager.decode(blob))])


def _children(job: Job, values: Sequence[Any], blob: bytes) -> Answer:
    what, job_id, *bounds = values
    manager = job._manager
    ask = {
        "children_values": manager.children_values,
        "failed_children": manager.failed_children,
        "ignored_failures": manager.ignored_failures,
        "unprocessed_children": manager.unprocessed_children,
    }[what]
    try:
        return [True], manager.backend.encode(ask(job_id, *bounds))
    except BunqueueError as error:
        return _refusal(error), NO_BLOB


def _answer(call: Callable[[], list[Any]]) -> Answer:
    try:
        return call(), NO_BLOB
    except BunqueueError as error:
        return _refusal(error), NO_BLOB


def _refusal(error: BunqueueError) -> list[Any]:
    return [False, type(error).__name__, str(error)]


REQUESTS: Mapping[str, Callable[[Job, Sequence[Any], bytes], Answer | None]] = {
    "progress": _progress,
    "log": _log,
    "extend_lock": _extend_lock,
    "update_data": _update_data,
    "children": _children,
}
"""By the kind of message, what is done for a process; its answer, where it waits for one."""


def answered(kind: str, job: Job | None, values: Sequence[Any], blob: bytes) -> Answer | None:
    """What the process that asks so is told; `None` where it waits for nothing. `job`: whose run
    it is about; without one that run has ended."""
    if job is not None:
        return REQUESTS[kind](job, values, blob)
    if kind in ("progress", "log"):
        return None
    return _refusal(LockError("this run has ended, and its lock with it")), NO_BLOB
