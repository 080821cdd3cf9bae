"""Whether the file is whole: its pages, what belongs together in it, and every job's row."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from sqlite3 import Connection

from ...errors import StorageCorruptError
from ...types import JobCounts, Report
from . import schema
from .connection import explained, read
from .reader import Row, check, count_jobs, whole_rows

MAX_PROBLEMS = 100
_BATCH = 500

_ORPHANS = (
    (
        "payloads that belong to no job",
        "SELECT COUNT(*), MIN(id) FROM payloads WHERE id NOT IN (SELECT id FROM jobs)",
    ),
    (
        "results that belong to no job",
        "SELECT COUNT(*), MIN(id) FROM results WHERE id NOT IN (SELECT id FROM jobs)",
    ),
    (
        "jobs without a payload",
        "SELECT COUNT(*), MIN(id) FROM jobs "
        "WHERE (data = 0 OR data IS NULL) AND id NOT IN (SELECT id FROM payloads)",
    ),
    (
        "jobs that have their payload twice",
        "SELECT COUNT(*), MIN(id) FROM payloads "
        "WHERE id IN (SELECT id FROM jobs WHERE typeof(data) = 'blob')",
    ),
    (
        "jobs that have their result twice",
        "SELECT COUNT(*), MIN(id) FROM results "
        "WHERE id IN (SELECT id FROM jobs WHERE typeof(result) = 'blob')",
    ),
    (
        "jobs in a state that does not exist",
        "SELECT COUNT(*), MIN(id) FROM jobs WHERE state NOT BETWEEN 0 AND 4",
    ),
)


def verify(path: str, now_ms: int, decode: Callable[[Row], object]) -> Report:
    """Reads all of the database at the real path `path`, within one transaction, beside an owner
    that may run; `decode` gets every job's row and raises for one that it cannot read.

    Of many problems the first 100 are told. Raises `StorageError` if the file cannot be read or is
    not ours; a damaged one is reported. Blocks for as long as reading takes, and keeps the log of a
    running owner from getting shorter until then.
    """
    try:
        problems, jobs = read(path, lambda connection: _examine(connection, path, now_ms, decode))
    except StorageCorruptError as error:
        problems, jobs = [str(error)], None
    version = None if jobs is None else schema.VERSION
    return Report(not problems, tuple(problems), jobs, _size(path), _size(path + "-wal"), version)


def _examine(
    connection: Connection, path: str, now_ms: int, decode: Callable[[Row], object]
) -> tuple[list[str], JobCounts | None]:
    check(connection, path)
    problems: list[str] = []
    jobs = None
    try:
        problems += _damage(connection)
        problems += [f"there is no table {name}" for name in schema.missing_tables(connection)]
        jobs = _total(count_jobs(connection, now_ms))
        problems += _orphans(connection)
        for problem in _undecodable(connection, decode):
            problems.append(problem)
            if len(problems) >= MAX_PROBLEMS:
                break
    except sqlite3.DatabaseError as error:
        if not problems:
            raise
        problems.append(str(explained(error, path)))
    return problems, jobs


def _damage(connection: Connection) -> list[str]:
    try:
        rows = connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})").fetchall()
    except sqlite3.DatabaseError:
        # It stumbled over what it had just found. Asked for one finding, it stops in time.
        rows = connection.execute("PRAGMA integrity_check(1)").fetchall()
    return [] if rows == [("ok",)] else [str(text) for (text,) in rows]


def _orphans(connection: Connection) -> Iterator[str]:
    for what, query in _ORPHANS:
        count, first = connection.execute(query).fetchone()
        if count:
            yield f"{count:,} {what}, for example {first}"


def _undecodable(connection: Connection, decode: Callable[[Row], object]) -> Iterator[str]:
    for row in whole_rows(connection, _BATCH):
        try:
            decode(row)
        except MemoryError:
            raise
        except Exception as error:  # whatever a damaged row leads to
            yield f"the row of job {row[0]} cannot be read: {type(error).__name__}: {error}"


def _total(counts: dict[str, JobCounts]) -> JobCounts:
    sums: dict[str, int] = {}
    for each in counts.values():
        for part, n in vars(each).items():
            sums[part] = sums.get(part, 0) + n
    return JobCounts(**sums)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
