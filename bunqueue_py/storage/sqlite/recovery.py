"""What the owner reads when it opens the file: every job, and everything else that is kept."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any

from ...durations import shown
from ...errors import StorageCorruptError, StorageError
from ...model.job import PENDING
from ...model.rows import DATA, JobRow, PlainRow
from .connection import SQLITE_ERRORS, explained
from .meta import LIMIT
from .rows import ABSENT, COLUMNS, RowDecoder, UndecodableRowError, text_of

_log = logging.getLogger("bunqueue_py.storage")

# A result that stands apart is not needed to go on with the job, and may be long.
STORED = f"""SELECT {", ".join(COLUMNS[:-2])},
    CASE WHEN data = 0 OR data IS NULL
        THEN (SELECT p.data FROM payloads p WHERE p.id = jobs.id) ELSE data END,
    result"""
"""The columns of a job as `RowDecoder` takes them, its payload from wherever it stands."""

# By rowid: in the order in which the table lies on disk, which is about that of admission. Nothing
# is computed: SQLite would copy every payload once more for a CASE.
_JOBS = f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE rowid > ? ORDER BY rowid"
_ROWID = "SELECT rowid FROM jobs WHERE rowid > ? ORDER BY rowid LIMIT 1 OFFSET ?"
_BEFORE_ALL = -1 << 63
_DATA_COLUMN = COLUMNS.index("data")

PROGRESS_EVERY = 100_000


def stored_jobs(
    connection: Connection, decoder: RowDecoder, path: str
) -> Generator[JobRow | PlainRow | StorageError, None, None]:
    """Every job with its payload, about in the order of admission, a short row for one of which
    there is little to say; in the place of one that cannot be understood an `UndecodableRowError`.
    Says in the log how far it is. Raises `StorageError` if the file cannot be read on."""
    decode, plain = decoder.row, decoder.plain
    done, last = 0, _BEFORE_ALL
    latest, head = None, None
    try:
        (total,) = connection.execute("SELECT COUNT(*) FROM jobs").fetchone()
        while True:
            before = done
            try:
                for raw in connection.execute(_JOBS, (last,)):
                    done += 1
                    if done % PROGRESS_EVERY == 0:
                        _log.info("%s: read %s of %s jobs", path, f"{done:,}", f"{total:,}")
                    job_id, queue, seq, state, priority, run_at, entered, meta, data, result = raw
                    if meta != latest:
                        # most rows are of the same kind as the one before
                        head = plain.get(meta)
                        latest = meta
                    if (
                        head is not None
                        and state == PENDING
                        and priority == 0
                        and result == ABSENT
                        and data.__class__ is bytes
                        and job_id.__class__ is queue.__class__ is str
                        and seq.__class__ is run_at.__class__ is entered.__class__ is int
                        and 0 <= (seq | run_at | entered) < LIMIT
                    ):
                        # what `decode` would make of it, without the call
                        name, options = head
                        yield job_id, queue, seq, run_at, entered, name, options, data
                        continue
                    if data.__class__ is not bytes:
                        raw = _with_payload(connection, raw)
                    try:
                        row = decode(raw)
                    except UndecodableRowError as error:
                        yield error
                    else:
                        yield _missing(raw) if row[DATA] is None else row
                    head = plain.get(meta)
                return
            except sqlite3.OperationalError as error:
                if not _is_of_text(error):
                    raise
            found = connection.execute(_ROWID, (last, done - before)).fetchone()
            (last,) = found or (0,)
            with lenient(connection):
                raw = connection.execute(f"{_JOBS} LIMIT 1", (last - 1,)).fetchone()
            if found is None or raw is None:
                raise StorageCorruptError(
                    f"{shown(path)}: it is damaged: a row that has just been there is not found "
                    "again. Open a backup of it"
                )
            done += 1
            yield whole_row(decoder, _with_payload(connection, raw))
    except SQLITE_ERRORS as error:
        raise explained(error, path) from error


def _with_payload(connection: Connection, raw: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of `COLUMNS` with the payload, should that stand apart."""
    data = raw[_DATA_COLUMN]
    if data is not None and data != ABSENT:
        return raw
    found = connection.execute("SELECT data FROM payloads WHERE id = ?", (raw[0],)).fetchone()
    return raw if found is None else (*raw[:_DATA_COLUMN], *found, *raw[_DATA_COLUMN + 1 :])


def whole_row(decoder: RowDecoder, raw: tuple[Any, ...]) -> JobRow | UndecodableRowError:
    """The row of what was selected as `STORED`, with its payload; or why there is none."""
    try:
        row = decoder.row(raw)
    except UndecodableRowError as error:
        return error
    return _missing(raw) if row[DATA] is None else row


def _missing(raw: tuple[Any, ...]) -> UndecodableRowError:
    return UndecodableRowError(f"the payload of job {shown(raw[0])} is missing", raw)


def stored_rest(connection: Connection, path: str) -> list[tuple[str, str, Any]]:
    """Kind, key and body of everything else. What cannot be understood is left where it is, and
    the log says so."""
    with lenient(connection):
        rows = connection.execute("SELECT kind, key, body FROM rest").fetchall()
    found = []
    for kind, key, body in rows:
        try:
            found.append((text_of(kind), text_of(key), json.loads(text_of(body))))
        except (ValueError, RecursionError) as error:
            _log.error(
                "%s: %s of %s cannot be understood, and is passed over: %s",
                path,
                shown(kind),
                shown(key),
                error,
            )
    return found


@contextmanager
def lenient(connection: Connection) -> Iterator[None]:
    """Reads text that is not UTF-8 as the bytes that it is, instead of failing for all rows."""
    connection.text_factory = text_or_bytes
    try:
        yield
    finally:
        connection.text_factory = str


def text_or_bytes(stored: bytes) -> str | bytes:
    """A text factory that takes what is not UTF-8 as the bytes that it is."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _is_of_text(error: sqlite3.OperationalError) -> bool:
    # Python's own: SQLite does not look at what it hands on
    return str(error).startswith("Could not decode to UTF-8")
