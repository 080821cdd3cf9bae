"""Single jobs and results that memory has let go of: what is unwritten, over what is on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sqlite3 import Connection
from typing import Any

from ...durations import shown
from ...errors import StorageError
from ...model.job import COMPLETED
from ...model.options import Options
from ...model.rows import (
    DATA,
    INLINE_BYTES,
    RESULT,
    RESULT_SIZE,
    JobRow,
    Marks,
    full_row,
    with_data,
)
from ...sync import CONNECTION, make_lock
from .connection import SQLITE_ERRORS, connect_readonly, explained, leak
from .recovery import STORED, text_or_bytes, whole_row
from .rows import RowDecoder, UndecodableRowError, bindable

Unwritten = Callable[[], list[Marks]]

_JOB = f"{STORED} FROM jobs WHERE id = ?"
_PAYLOAD = "SELECT data FROM payloads WHERE id = ?"
_RESULT = """SELECT CASE WHEN typeof(result) = 'blob'
        THEN result ELSE (SELECT r.data FROM results r WHERE r.id = jobs.id) END
    FROM jobs WHERE id = ?"""

# The number stands in the text, as in the condition of the index.
_COMPLETED = f"""SELECT entered, seq, id FROM jobs
    WHERE queue = ? AND state = {COMPLETED} AND entered <= ? AND (entered, seq) > (?, ?)
    ORDER BY entered, seq LIMIT ?"""

_TRIES = 5
_UNKNOWN: Any = object()


class Lookup:
    """A read-only connection of its own beside the writer's, opened when it is first needed. Locks
    itself; to be used with no shard's lock held. Nothing is read in a transaction that goes on, so
    no checkpoint waits for it."""

    __slots__ = ("_closed", "_connection", "_decoder", "_lock", "path")

    def __init__(self, path: str, default: Options) -> None:
        self.path = path
        self._lock = make_lock("storage reads", CONNECTION)
        self._decoder = RowDecoder(default)
        self._connection: Connection | None = None
        self._closed = False

    def job(self, job_id: str) -> JobRow | None:
        """The job on disk, with its payload. Raises `UndecodableRowError`."""
        with self._lock:
            raw = self._one(_JOB, job_id)
            row = None if raw is None else whole_row(self._decoder, raw)
        if isinstance(row, UndecodableRowError):
            raise row
        return row

    def payload(self, job_id: str) -> bytes | None:
        """The payload that stands apart from its job's row on disk."""
        with self._lock:
            return self._blob(_PAYLOAD, job_id)

    def result(self, job_id: str) -> bytes | None:
        """The job's result on disk, from wherever it stands."""
        with self._lock:
            return self._blob(_RESULT, job_id)

    def completed_ids(
        self, queue: str, until_ms: int, after: tuple[int, int], limit: int
    ) -> list[tuple[int, int, str]]:
        """See `Storage.completed_ids`."""
        with self._lock:
            return self._all(_COMPLETED, bindable(queue), until_ms, *after, limit)

    def _blob(self, query: str, job_id: str) -> bytes | None:
        found = self._one(query, job_id)
        return None if found is None or found[0].__class__ is not bytes else found[0]

    def _one(self, query: str, job_id: str) -> tuple[Any, ...] | None:
        rows = self._all(query, bindable(job_id))
        return rows[0] if rows else None

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._closed:
            raise StorageError(f"{shown(self.path)} is closed")
        try:
            if self._connection is None:
                self._connection = connect_readonly(self.path)
                self._connection.text_factory = text_or_bytes
            return self._connection.execute(query, values).fetchall()
        except SQLITE_ERRORS as error:
            # whatever is wrong with this one, the next read opens another
            self._drop()
            raise explained(error, self.path) from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Ends it, once a read that is under way has ended."""
        with self._lock:
            self._closed = True
            self._drop()

    def disown(self) -> None:
        """In a forked child: leaks the connection, and keeps it as long as this object lives."""
        if self._connection is not None:
            leak(self._connection)


def read_job(disk: Lookup, unwritten: Unwritten, job_id: str) -> JobRow | None:
    """The job as it was handed over last, with its payload; `None` if there is none."""
    for _ in range(_TRIES):
        marks = unwritten()
        row = _newest((part.jobs for part in marks), job_id)
        if row is _UNKNOWN:
            return disk.job(job_id)
        if row is None:
            return None
        row = full_row(row)
        if row[DATA] is not None:
            return row
        data = _newest((part.payloads for part in marks), job_id)
        if data is _UNKNOWN:
            data = disk.payload(job_id)
        if data is not None:
            return with_data(row, data)
        # it has a short payload since, or is gone: look again
    raise StorageError(f"{shown(disk.path)}: the payload of job {job_id} is missing")


def read_result(disk: Lookup, unwritten: Unwritten, job_id: str) -> bytes | None:
    """The job's encoded result as it was handed over last; `None` if it has none."""
    marks = unwritten()
    for part in marks:
        row = part.jobs.get(job_id, _UNKNOWN)
        if row is _UNKNOWN:
            continue
        if row is None or (row := full_row(row))[RESULT_SIZE] < 0:
            return None
        if row[RESULT] is not None:
            return row[RESULT]  # type: ignore[no-any-return]
        if row[RESULT_SIZE] > INLINE_BYTES:
            data = _newest((part.results for part in marks), job_id)
            return disk.result(job_id) if data is _UNKNOWN else data
        # it says that the one written before stays: an older row has it, or the disk
    return disk.result(job_id)


def _newest(shelves: Iterable[dict[str, Any]], job_id: str) -> Any:
    for shelf in shelves:
        value = shelf.get(job_id, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
    return _UNKNOWN
