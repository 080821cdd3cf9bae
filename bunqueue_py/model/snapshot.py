"""`JobSnapshot`: what was true of a job when it was read, the base of what users hold."""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

from ..types import JobState
from .job import ACTIVE, REMOVED, JobRecord
from .options import Options
from .side import SideView, side_view

_WAITING, _PRIORITIZED = JobState.WAITING, JobState.PRIORITIZED

UNREAD: Any = object()
"""The payload of a snapshot that nobody has decoded yet."""

OPTIONS, DATA = 2, 3
"""Where the options and the encoded payload stand in a snapshot's fields."""


def _field(i: int) -> Any:
    return property(lambda self: self._fields[i])


class JobSnapshot:
    """What was true of a job when its record was read, under its shard's lock.

    The base of what users hold; `manager` is opaque here. One is made on every push and pull, so
    what was read goes into one tuple (`fields_of`): a store for each field would cost several
    times as much.
    """

    __slots__ = ("_cancelled", "_fields", "_id", "_manager", "_value", "duplicate", "token")

    _queue: str = _field(0)
    _name: str = _field(1)
    _options: Options = _field(2)
    _encoded: bytes | None = _field(3)
    _priority: int = _field(4)
    _state: JobState = _field(5)
    _created_ms: int = _field(6)
    _run_at_ms: int = _field(7)
    _started_ms: int | None = _field(8)
    _finished_ms: int | None = _field(9)
    _attempts_made: int = _field(10)
    _custom_id: str | None = _field(11)
    _side: SideView | None = _field(12)
    _unique_key: str | None = _field(13)

    _manager: Any
    _value: Any
    _fields: tuple[Any, ...]
    _id: str
    token: str | None
    #: True when an existing job came back in place of a new one.
    duplicate: bool

    # There is no `__init__`, for the same reason: the two verbs of one job set these in line.

    @classmethod
    def of(
        cls,
        manager: Any,
        job_id: str,
        token: str | None,
        fields: tuple[Any, ...],
        duplicate: bool = False,
    ) -> Self:
        """One of which the payload has not been decoded yet."""
        view = cls()
        view._manager = manager
        view._value = UNREAD
        view.duplicate = duplicate
        view._id = job_id
        view.token = token
        view._fields = fields
        return view

    def detach(self, *, with_data: bool = True) -> Self:
        """Gives up the token (looking a job up gives no hold on its delivery), and the payload
        if so asked; returns itself."""
        self.token = None
        if not with_data:
            self._fields = (*self._fields[:3], None, *self._fields[4:])
        return self


def fields_of(record: JobRecord, state: JobState) -> tuple[Any, ...]:
    """What a snapshot has read of the record."""
    side = record.side
    return (
        record.queue.name,
        record.name,
        record.options,
        record.data,
        record.priority,
        state,
        record.created_ms,
        record.run_at_ms,
        record.started_ms,
        record.entered_ms if ACTIVE < record.state < REMOVED else None,
        record.attempts_made,
        record.custom_id,
        None if side is None else side_view(side),
        record.unique_key,
    )


def new_fields(
    record: JobRecord, queue_name: str, now: int, side: SideView | None = None
) -> tuple[Any, ...]:
    """What `fields_of` reads of a record that was admitted now, is ready, and has nothing of its
    own but names and that side: on the way of nearly every job, and from what is at hand there."""
    priority = record.priority
    return (
        queue_name,
        record.name,
        record.options,
        record.data,
        priority,
        _PRIORITIZED if priority > 0 else _WAITING,
        now,
        now,
        None,
        None,
        0,
        record.custom_id,
        side,
        record.unique_key,
    )
