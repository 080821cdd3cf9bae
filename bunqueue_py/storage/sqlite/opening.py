"""Opening the file as its owner: look first, touch nothing that is not ours or not whole."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from sqlite3 import Connection
from typing import NamedTuple

from ...durations import shown
from ...errors import StorageCorruptError, StorageError
from . import schema
from .backup import copy_database
from .connection import (
    SQLITE_ERRORS,
    Header,
    code_of,
    connect_frozen,
    connect_readonly,
    connect_writable,
    early_header,
    explained,
    has_log,
    header,
    keep_log,
)

_log = logging.getLogger("bunqueue_py.storage")

_READONLY = 8
_SHOWN_PROBLEMS = 5


class Opened(NamedTuple):
    """The owner's connection, and what the file went through: `clean` if it is new or was closed
    in good order, `migrated_from` its older version if it had one."""

    connection: Connection
    clean: bool
    created: bool
    migrated_from: int | None


def open_database(
    path: str,
    *,
    to: int = schema.VERSION,
    steps: Sequence[tuple[int, schema.Step]] = schema.MIGRATIONS,
) -> Opened:
    """Opens, makes or migrates the database at the real path `path`, which the caller owns, and
    marks it as open.

    Raises, with the file as it was: `StorageCorruptError` for a damaged file or no database,
    `SchemaVersionError` for that of a newer release, `StorageError` for that of another
    application and for every other trouble. Blocks for as long as a check of the whole file takes
    if it was not closed in good order.
    """
    try:
        found = _look(path, to)
        connection = connect_writable(path, create=True)
        try:
            keep_log(connection, path)
            if found is None:
                schema.create(connection)
            migrated_from = _migrate(connection, path, to, steps)
            schema.write_meta(connection, "clean", 0)
            if found is None or migrated_from is not None:
                # Whoever looks at the file alone is to see whose it is, and of which version.
                checkpoint(connection)
        except BaseException:
            connection.close()
            raise
    except (*SQLITE_ERRORS, OSError) as error:
        raise explained(error, path) from error
    return Opened(connection, found in (None, 1), found is None, migrated_from)


def close_database(connection: Connection, path: str) -> None:
    """Marks the file as closed in good order, empties its log and closes the connection, which
    ends closed whatever happens."""
    try:
        with closing(connection):
            schema.write_meta(connection, "clean", 1)
            checkpoint(connection)
    except SQLITE_ERRORS as error:
        raise explained(error, path) from error


def checkpoint(connection: Connection, patience_ms: int = 500) -> bool:
    """Brings the log's content into the file and empties the log; `False` if a reader that began
    before is still reading after that time, and the log stays."""
    (before,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {patience_ms}").fetchall()
    try:
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        connection.execute(f"PRAGMA busy_timeout = {before}").fetchall()
    return not busy


def shrink(connection: Connection, pages: int) -> None:
    """Takes up to that many unused pages off the file, in a transaction of its own; the file gets
    shorter with the next checkpoint."""
    # `execute` would stop after one page, of a statement that has rows without columns.
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")


def check_serializer(connection: Connection, name: str, path: str) -> None:
    """Compares the serializer's name with the one that the file was written with; the first one
    is kept. Raises `StorageError` naming both."""
    known = schema.read_meta(connection, "serializer")
    if known is None:
        schema.write_meta(connection, "serializer", name)
    elif known != name:
        raise StorageError(
            f"{shown(path)} was written with the serializer {known!r}, and {name!r} cannot read "
            "what it wrote: open the file with that one, or finish its jobs with it first. "
            "Nothing has been changed"
        )


def _look(path: str, newest: int) -> int | None:
    """What `meta` says of the last close (1: in good order), `None` if there is no database yet.

    A connection that cannot write reads all that is needed, so what is refused is as it was.
    """
    if not os.path.exists(path):
        return None
    log, size = path + "-wal", os.path.getsize(path)
    if size == 1:  # which SQLite takes for an empty one
        raise StorageCorruptError(f"{shown(path)} is no SQLite database: name another file")
    if size == 0 and os.path.exists(log) and os.path.getsize(log) > 0:
        raise StorageCorruptError(
            f"{shown(path)} is empty and its log {shown(log)} is not: the file was cut off or "
            "replaced. Put the right file back; or, to begin anew, remove the log"
        )
    with closing(connect_frozen(path)) as connection:
        found = early_header(connection, path)
        if not has_log(path):
            return _examine(connection, found, path, newest)
        if not found.blank:
            schema.check_header(found, path, newest)
    try:
        with closing(connect_readonly(path)) as connection:
            return _examine(connection, header(connection), path, newest)
    except sqlite3.OperationalError as error:
        if code_of(error) != _READONLY:
            raise
    # A transaction that did not end has left a journal, and nobody can read before it is undone.
    with closing(connect_writable(path)) as connection:
        return _examine(connection, header(connection), path, newest)


def _examine(connection: Connection, found: Header, path: str, newest: int) -> int | None:
    if found.blank:
        return None
    schema.check_header(found, path, newest)
    missing = schema.missing_tables(connection)
    if missing and found.version == schema.VERSION:
        raise StorageCorruptError(
            f"{shown(path)} is damaged: it has no table {', '.join(missing)}. Open a backup of it"
        )
    clean = schema.read_meta(connection, "clean")
    if clean == 1:
        return 1
    _log.info(
        "%s was not closed in good order; checking it (%.1f MB)", path, os.path.getsize(path) / 1e6
    )
    rows = connection.execute(f"PRAGMA quick_check({_SHOWN_PROBLEMS})").fetchall()
    if rows != [("ok",)]:
        problems = "; ".join(str(row[0]).replace("\n", " ") for row in rows)
        raise StorageCorruptError(
            f"{shown(path)} is damaged, and has not been touched: {problems}. Open a backup of it, "
            "or save what can be read with the command `.recover` of the sqlite3 shell"
        )
    return 0


def _migrate(
    connection: Connection, path: str, to: int, steps: Sequence[tuple[int, schema.Step]]
) -> int | None:
    def copy(target: str) -> None:
        _log.info("%s has an older schema; copying it to %s and migrating it", path, target)
        copy_database(path, target)

    found = schema.migrate(connection, path, copy, to=to, steps=steps)
    return None if found == to else found
