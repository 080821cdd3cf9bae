"""The file as another process sees it, beside the owner that runs.

Every call opens the file, reads within one transaction and closes it again, so nothing is held in
between: not the log, which a reader that stays would make grow, nor a file that is replaced
meanwhile. What the owner has not committed yet is not seen.

What SQLite needs where there is a log, that is while the owner runs and after a crash: the right to
read the file, its -wal and its -shm; it puts its mark into the -shm, or does without if it may not
write that. A file that was closed in good order has no log, and nothing is made or written at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sqlite3 import Connection
from typing import Any, TypeVar

from ...durations import shown
from ...errors import StorageError
from ...model.job import ACTIVE, COMPLETED, FAILED, GATED, PENDING
from ...types import JobCounts, JobState
from . import schema
from .connection import header, read
from .recovery import text_or_bytes
from .rows import bindable, to_json

T = TypeVar("T")

Row = tuple[Any, ...]
"""The columns of `jobs` in their order, `data` and `result` from wherever they stand."""

Decode = Callable[[Row], T]

_COLUMNS = "id, queue, seq, state, priority, run_at, entered, meta"
_WHOLE = f"""SELECT {_COLUMNS},
    CASE WHEN data = 0 OR data IS NULL
        THEN (SELECT p.data FROM payloads p WHERE p.id = jobs.id) ELSE data END,
    CASE WHEN result = 0 OR result IS NULL
        THEN (SELECT r.data FROM results r WHERE r.id = jobs.id) ELSE result END
    FROM jobs"""
_BARE = f"SELECT {_COLUMNS}, NULL, NULL FROM jobs"

# The numbers stand in the text, as in the conditions of the indexes over finished jobs.
_CONDITIONS = {
    JobState.WAITING: f"state = {PENDING} AND priority <= 0 AND run_at <= :now",
    JobState.PRIORITIZED: f"state = {PENDING} AND priority > 0 AND run_at <= :now",
    JobState.DELAYED: f"state = {PENDING} AND run_at > :now",
    JobState.WAITING_CHILDREN: f"state = {GATED}",
    JobState.ACTIVE: f"state = {ACTIVE}",
    JobState.COMPLETED: f"state = {COMPLETED}",
    JobState.FAILED: f"state = {FAILED}",
}
_FINISHED = (JobState.COMPLETED, JobState.FAILED)

# A delayed job that came due entered its state then, and no row was written for that.
_ENTERED = (
    f"CASE WHEN state = {PENDING} AND run_at <= :now THEN MAX(entered, run_at) ELSE entered END"
)


def check(connection: Connection, path: str) -> None:
    """Raises `StorageError` unless the database is ours and of the version that is known here."""
    found = header(connection)
    if found.blank:
        raise StorageError(f"{shown(path)} is empty: no manager has opened it yet")
    schema.check_header(found, path)
    if found.version < schema.VERSION:
        raise StorageError(
            f"{shown(path)} has schema version {found.version}, and this release reads version "
            f"{schema.VERSION}: open it with a QueueManager once, which migrates it"
        )


def count_jobs(
    connection: Connection, now_ms: int, queue: str | None = None
) -> dict[str, JobCounts]:
    """The counts of each queue that has jobs, or of that one, judged at `now_ms`. Reads the whole
    table. No job counts as paused: whether a queue is stands in `rest`."""
    columns = ", ".join(f"SUM({condition})" for condition in _CONDITIONS.values())
    names = [state.name.lower() for state in _CONDITIONS]
    only = "" if queue is None else "WHERE queue = :queue "
    rows = connection.execute(
        f"SELECT queue, {columns} FROM jobs {only}GROUP BY queue", {"now": now_ms, "queue": queue}
    )
    # a sum over nothing but damaged rows is none
    return {
        queue: JobCounts(**{name: n or 0 for name, n in zip(names, sums, strict=True)})
        for queue, *sums in rows
    }


def count_priorities(connection: Connection, queue: str) -> dict[int, int]:
    """How many of the queue's jobs are pending, of each priority, the highest first."""
    rows = connection.execute(
        f"SELECT priority, COUNT(*) FROM jobs WHERE queue = ? AND state = {PENDING} "
        "GROUP BY priority ORDER BY priority DESC",
        (queue,),
    )
    return dict(rows.fetchall())


def find_job(connection: Connection, job_id: str) -> Row | None:
    """The row of that job."""
    row: Row | None = connection.execute(f"{_WHOLE} WHERE id = ?", (bindable(job_id),)).fetchone()
    return row


def rows_with_text(connection: Connection, queue: str, text: str) -> Iterator[Row]:
    """The jobs of the queue in whose `meta` that text stands as a JSON string, the newest first,
    without payloads. Reads the whole table, if it is not broken off."""
    return connection.execute(
        f"{_BARE} WHERE queue = ? AND instr(meta, ?) ORDER BY id DESC", (queue, to_json(text))
    )


def letters(connection: Connection, queue: str) -> Iterator[Row]:
    """The jobs of the queue that failed for good, the first that did first, without payloads."""
    return connection.execute(
        f"{_BARE} WHERE queue = ? AND state = {FAILED} ORDER BY entered, seq", (queue,)
    )


def list_jobs(
    connection: Connection,
    queue: str,
    states: Sequence[JobState],
    now_ms: int,
    *,
    offset: int = 0,
    limit: int = 100,
    newest_first: bool = False,
    with_data: bool = True,
) -> list[Row]:
    """A page of the jobs in those states, in the order in which they entered them. O(offset +
    limit) for completed or for failed jobs alone; otherwise the whole table is read."""
    order = " DESC" if newest_first else ""
    entered = "entered" if len(states) == 1 and states[0] in _FINISHED else _ENTERED
    return connection.execute(
        f"{_WHOLE if with_data else _BARE} WHERE queue = :queue AND ({_any_of(states)}) "
        f"ORDER BY {entered}{order}, seq{order} LIMIT :limit OFFSET :offset",
        {"queue": queue, "now": now_ms, "limit": limit, "offset": offset},
    ).fetchall()


def walk_jobs(
    connection: Connection,
    queue: str,
    states: Sequence[JobState],
    now_ms: int,
    *,
    after: str = "",
    limit: int = 100,
    with_data: bool = True,
) -> list[Row]:
    """The next jobs in those states by id, which is the order in which they were added. `after` is
    the id of the last one of the page before. All pages together read the table once."""
    return connection.execute(
        f"{_WHOLE if with_data else _BARE} WHERE id > :after AND queue = :queue "
        f"AND ({_any_of(states)}) ORDER BY id LIMIT :limit",
        {"queue": queue, "now": now_ms, "limit": limit, "after": after},
    ).fetchall()


def whole_rows(connection: Connection, batch: int) -> Iterator[Row]:
    """Every job's row by id, `batch` of them in memory at a time."""
    cursor = connection.execute(f"{_WHOLE} ORDER BY id")
    while rows := cursor.fetchmany(batch):
        yield from rows


def list_rest(connection: Connection, kind: str) -> list[tuple[Any, Any]]:
    """Key and body of everything of that kind in `rest`, by key; bytes where the text has what
    UTF-8 has no place for."""
    return connection.execute(
        "SELECT key, body FROM rest WHERE kind = ? ORDER BY key", (kind,)
    ).fetchall()


def list_rest_of(connection: Connection, kind: str, owner: str) -> list[tuple[Any, Any]]:
    """`list_rest` of what belongs to that owner: its key is the owner's name, NUL, and more."""
    return connection.execute(
        "SELECT key, body FROM rest WHERE kind = ? AND key > ? AND key < ? ORDER BY key",
        (kind, bindable(f"{owner}\0"), bindable(f"{owner}\1")),
    ).fetchall()


def _any_of(states: Sequence[JobState]) -> str:
    return " OR ".join(f"({_CONDITIONS[state]})" for state in states) or "FALSE"


class Reader:
    """What is in the file, for a process that does not own it. `decode` makes a job of a row; it
    runs when the file is closed again. Any thread may call, several at once."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        """Raises `StorageError` if there is no database of ours at the real path `path`."""
        self.path = path
        self.read(lambda connection: None)

    def counts(self, now_ms: int) -> dict[str, JobCounts]:
        """See `count_jobs`."""
        return self.read(lambda connection: count_jobs(connection, now_ms))

    def job(self, job_id: str, decode: Decode[T]) -> T | None:
        """The job with that id, `None` if there is none."""
        row = self.read(lambda connection: find_job(connection, job_id))
        return None if row is None else decode(row)

    def jobs(
        self,
        queue: str,
        states: Sequence[JobState],
        now_ms: int,
        decode: Decode[T],
        *,
        offset: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        with_data: bool = True,
    ) -> list[T]:
        """See `list_jobs`."""
        rows = self.read(
            lambda connection: list_jobs(
                connection,
                queue,
                states,
                now_ms,
                offset=offset,
                limit=limit,
                newest_first=newest_first,
                with_data=with_data,
            )
        )
        return [decode(row) for row in rows]

    def walk(
        self,
        queue: str,
        states: Sequence[JobState],
        now_ms: int,
        decode: Decode[T],
        *,
        after: str = "",
        limit: int = 100,
        with_data: bool = True,
    ) -> tuple[list[T], str | None]:
        """See `walk_jobs`; and what the next page comes after, `None` after the last one."""
        rows = self.read(
            lambda connection: walk_jobs(
                connection, queue, states, now_ms, after=after, limit=limit, with_data=with_data
            )
        )
        return [decode(row) for row in rows], rows[-1][0] if len(rows) == limit else None

    def dead_letters(
        self, queue: str, decode: Decode[T], *, offset: int = 0, limit: int = 100
    ) -> list[T]:
        """The jobs of the queue that failed for good, the first that did first."""
        return self.jobs(queue, (JobState.FAILED,), 0, decode, offset=offset, limit=limit)

    def rest(self, kind: str) -> list[tuple[Any, Any]]:
        """See `list_rest`."""
        return self.read(lambda connection: list_rest(connection, kind))

    def read(self, action: Callable[[Connection], T]) -> T:
        """What `action(connection)` returns, called within one read transaction; it may be called
        several times. Text that is no UTF-8 comes as bytes."""

        def checked(connection: Connection) -> T:
            check(connection, self.path)
            connection.text_factory = text_or_bytes
            return action(connection)

        return read(self.path, checked)

    def __repr__(self) -> str:
        return f"Reader({self.path!r})"
