"""The tables of the file, their version, and the way from an older version to this one.

`PRAGMA user_version` is the version and `application_id` says that the file is ours. Both stand in
the first page and change in the same transaction as the tables. A table has few columns: those
that are searched for or sorted by; the rest of a job is one JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sqlite3 import Connection

from ...durations import shown
from ...errors import SchemaVersionError, StorageCorruptError, StorageError
from .connection import Header

APPLICATION_ID = 0x62717079
"""The letters "bqpy"."""

VERSION = 2

# Tables with a rowid, although ids are text: without one, SQLite moves all of a row beyond about
# 1,000 bytes out of line, and a payload of 1,500 bytes takes twice the time and the space.
_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value)",
    # state: model.job's numbers. run_at, entered: epoch milliseconds. seq: the admission number.
    # data, result: 0 where it stands in the tables below, or where there is no result.
    """CREATE TABLE jobs (
        id TEXT PRIMARY KEY NOT NULL,
        queue TEXT NOT NULL,
        seq INTEGER NOT NULL,
        state INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        run_at INTEGER NOT NULL,
        entered INTEGER NOT NULL,
        meta TEXT NOT NULL,
        data BLOB,
        result BLOB
    )""",
    # Only finished jobs may be many times what memory holds, so only they are read by pages. SQLite
    # uses such an index where the query has the very same condition in it.
    "CREATE INDEX completed ON jobs (queue, entered, seq) WHERE state = 3",
    "CREATE INDEX failed ON jobs (queue, entered, seq) WHERE state = 4",
    "CREATE TABLE payloads (id TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE results (id TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL)",
    """CREATE TABLE rest (
        kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) WITHOUT ROWID""",
)

TABLES = ("meta", "jobs", "payloads", "results", "rest")

Step = Callable[[Connection], None]


def _with_ties(connection: Connection) -> None:
    """Jobs that wait for jobs: a job's `side` has `links`, and `rest` has edges and proofs. No
    table changes; but a release that knows of none of it would take such a row for damaged."""


MIGRATIONS: tuple[tuple[int, Step], ...] = ((2, _with_ties),)
"""(version, what makes it from the one before), without gaps, the newest last. A step runs inside a
transaction and neither begins nor ends one. Once released, a step is never changed."""


def create(connection: Connection) -> None:
    """Gives an empty database a write-ahead log and its tables, these in one transaction.

    Safe to repeat after a kill at any point: until the transaction is there, the file is empty.
    """
    # Takes effect before the first page is written only, so it stands before the journal's mode.
    # Space that is no longer used can then be taken off the file without writing it anew.
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if _pragma(connection, "page_count") > 0 and _pragma(connection, "auto_vacuum") != 2:
        connection.execute("VACUUM")  # somebody's empty database: one page, without that setting
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        rollback(connection)
        raise


def rollback(connection: Connection) -> None:
    """Ends the transaction under way, if there still is one: after a full disk SQLite may have
    ended it already."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def version_of(connection: Connection) -> int:
    """The file's schema version; 0 in a database that has none."""
    return _pragma(connection, "user_version")


def missing_tables(connection: Connection) -> list[str]:
    """Which of `TABLES` the database does not have."""
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return [name for name in TABLES if (name,) not in rows]


def check_header(found: Header, path: str, newest: int = VERSION) -> None:
    """Raises `StorageError` for a database of another application, `SchemaVersionError` for a
    newer one of ours."""
    if found.application_id != APPLICATION_ID:
        raise StorageError(
            f"{shown(path)} is an SQLite database of another application (its application_id is "
            f"{found.application_id:#x} and not {APPLICATION_ID:#x}): name another file. It has "
            "not been touched"
        )
    check_version(found.version, path, newest)


def check_version(version: int, path: str, newest: int = VERSION) -> None:
    """Raises `SchemaVersionError` for a version that this release does not know."""
    if version > newest:
        raise SchemaVersionError(
            f"{shown(path)} has schema version {version}, and this release of bunqueue_py knows "
            f"versions up to {newest}: open it with the release that wrote it, or a newer one. "
            "The file has not been touched"
        )
    if version < 1:
        raise StorageCorruptError(
            f"{shown(path)} says that it is a bunqueue_py database of schema version {version}, "
            "which never was: the header is damaged. The file has not been touched"
        )


def migrate(
    connection: Connection,
    path: str,
    copy: Callable[[str], None],
    *,
    to: int = VERSION,
    steps: Sequence[tuple[int, Step]] = MIGRATIONS,
) -> int:
    """Brings the file to version `to` and returns the version it had.

    `copy(target)` is called first, with the name `<path>.v<N>.bak`, and must leave a whole copy
    there. All steps then are one transaction: whatever fails, the file is as it was, and the copy
    is there besides.
    """
    found = version_of(connection)
    check_version(found, path, to)
    if found == to:
        return found
    missing = [(version, step) for version, step in steps if found < version <= to]
    if [version for version, _ in missing] != list(range(found + 1, to + 1)):
        raise StorageError(
            f"{shown(path)} has schema version {found}, and this release of bunqueue_py has no way "
            f"from there to version {to}: open it once with a release in between. "
            "The file has not been touched"
        )
    copy(f"{path}.v{found}.bak")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for version, step in missing:
            step(connection)
            connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        rollback(connection)
        raise
    return found


def read_meta(connection: Connection, key: str) -> str | int | None:
    """What `meta` says under that key, `None` if nothing."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    value: str | int | None = None if row is None else row[0]
    return value


def write_meta(connection: Connection, key: str, value: str | int) -> None:
    """Writes one value; by itself a transaction, unless one is open."""
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def _pragma(connection: Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
