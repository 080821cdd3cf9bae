"""How SQLite is spoken to: connections of each kind, and what its errors mean.

No file that SQLite may have open is ever opened by other means, not even to read its header: on
POSIX, closing any descriptor of a file takes away the locks that SQLite holds on it in the same
process, and another process would then break into a running transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Callable
from sqlite3 import Connection
from typing import NamedTuple, TypeVar

from ...durations import shown
from ...errors import StorageCorruptError, StorageError, StorageFullError
from .paths import uri

T = TypeVar("T")

MIN_SQLITE = (3, 35)
BUSY_SECONDS = 5.0
"""How long SQLite waits for a lock that another program holds before it says so."""

_FULL, _READONLY, _IOERR, _CORRUPT, _NOTADB = 13, 8, 10, 11, 26
_CANTOPEN, _PERM, _AUTH, _BUSY, _LOCKED, _PROTOCOL = 14, 3, 23, 5, 6, 15
_READONLY_DBMOVED = 1032

# Python 3.10 hands on SQLite's message and not its code; these are as old as SQLite.
_MESSAGES = {
    "database or disk is full": _FULL,
    "attempt to write a readonly database": _READONLY,
    "disk I/O error": _IOERR,
    "database disk image is malformed": _CORRUPT,
    "malformed database schema": _CORRUPT,
    "file is not a database": _NOTADB,
    "file is encrypted or is not a database": _NOTADB,
    "unable to open database file": _CANTOPEN,
    "access permission denied": _PERM,
    "authorization denied": _AUTH,
    "database is locked": _BUSY,
    "database table is locked": _LOCKED,
    "database schema is locked": _LOCKED,
    "locking protocol": _PROTOCOL,
}
_TEXTS = {
    _FULL: "the disk is full, or the file has reached a bound that was set for it: make room. "
    "Nothing that was written before is lost",
    _READONLY: "it cannot be written to: the file system is mounted read-only, or this process "
    "has lost the right to write the file, or files beside it",
    _IOERR: "the disk or the file system reported a failure: look into the system's log",
    _CORRUPT: "it is damaged: open a backup of it, or save what can be read with the command "
    "`.recover` of the sqlite3 shell",
    _NOTADB: "it is no SQLite database, or its first page is damaged: name another file, or open "
    "a backup",
    _CANTOPEN: "it cannot be opened: look whether the folder is there, whether this process may "
    "read the file and make files beside it, and how many files it has open",
    _PERM: "access is denied",
    _AUTH: "access is denied",
    _BUSY: "another program holds it locked: end the transaction that it left open (a database "
    "shell, a backup tool)",
}
_TEXTS[_LOCKED] = _TEXTS[_PROTOCOL] = _TEXTS[_BUSY]


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a call into SQLite raises. The second comes where SQLite quotes in its message what stands
in a damaged schema, and Python cannot read that."""


def code_of(error: BaseException) -> int | None:
    """SQLite's result code (the primary one), `None` where it cannot be told."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        text = str(error)
        if not text and type(error) is sqlite3.DatabaseError:
            return _CORRUPT  # as Python 3.10 tells of what it cannot read in the message
        return next((code for start, code in _MESSAGES.items() if text.startswith(start)), None)
    return code & 0xFF


def explained(error: sqlite3.Error | UnicodeDecodeError | OSError, path: str) -> StorageError:
    """The error to raise, `from error`: `StorageFullError`, `StorageCorruptError` or plain
    `StorageError`, which says what happened to the file at `path` and what to do."""
    where = shown(path)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFullError(f"{where}: {_TEXTS[_FULL]}")
        return StorageError(f"{where}: {error.strerror or error}")
    if isinstance(error, UnicodeDecodeError):
        return StorageCorruptError(f"{where}: {_TEXTS[_CORRUPT]}")
    code, told = code_of(error), f" (SQLite: {error})"
    if code == _FULL or (code == _IOERR and _no_room(path)):
        return StorageFullError(f"{where}: {_TEXTS[_FULL]}{told}")
    if code in (_CORRUPT, _NOTADB):
        return StorageCorruptError(f"{where}: {_TEXTS[code]}{told}")
    if getattr(error, "sqlite_errorcode", None) == _READONLY_DBMOVED:
        return StorageError(f"{where}: the file was moved, replaced or deleted while open{told}")
    if code is None or code not in _TEXTS:
        return StorageError(f"{where}: SQLite reports: {error}")
    return StorageError(f"{where}: {_TEXTS[code]}{told}")


def same_kind(
    error: StorageError, message: str, *, accepted: bool = False, job_id: str | None = None
) -> StorageError:
    """An error of that kind, with another text, because of that one."""
    kind = next(
        (k for k in (StorageFullError, StorageCorruptError) if isinstance(error, k)), StorageError
    )
    made = kind(message, accepted=accepted, job_id=job_id)
    made.__cause__ = error
    return made


def _no_room(path: str) -> bool:
    # A full disk fails as an I/O error where the log's index is made longer.
    try:
        free = os.statvfs(os.path.dirname(path))
    except (OSError, AttributeError):  # there is no statvfs on Windows
        return False
    return free.f_bavail * free.f_frsize < 65_536


def check_sqlite() -> None:
    """Raises `StorageError` if Python's SQLite is too old."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StorageError(
            f"the SQLite library of this Python is {sqlite3.sqlite_version}, and bunqueue_py needs "
            "3.35 or newer: install a newer Python, or the system's newer libsqlite3; without a "
            "file (storage=None) it is not needed"
        )


def connect(path: str, query: str, busy_seconds: float = BUSY_SECONDS) -> Connection:
    """A connection that begins no transaction by itself; any thread may use it, one at a time."""
    check_sqlite()
    return sqlite3.connect(
        uri(path, query),
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )


def connect_writable(path: str, *, create: bool = False) -> Connection:
    """The owner's connection: commits survive the power, checkpoints are the owner's business.

    Raises `StorageError` where the file system does not take a write-ahead log.
    """
    connection = connect(path, "mode=rwc" if create else "mode=rw")
    try:
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",  # on macOS fsync alone does not reach the disk; elsewhere the same
            "checkpoint_fullfsync = ON",
            "trusted_schema = OFF",
            "wal_autocheckpoint = 0",
            "auto_vacuum = INCREMENTAL",  # for a file that is about to be made; see `schema.create`
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def keep_log(connection: Connection, path: str) -> None:
    """Sees to it that the database keeps a write-ahead log, or raises `StorageError`."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageError(
            f"{shown(path)}: the file system does not take SQLite's write-ahead log (SQLite stays "
            f"with {mode!r}), as some network file systems do not: choose a local folder"
        )


def connect_readonly(path: str) -> Connection:
    """A connection that never writes the database, beside a running owner or after a crash.

    SQLite makes the files -wal and -shm if they are not there, and leaves them; see `read`.
    """
    connection = connect(path, "mode=ro")
    connection.execute("PRAGMA trusted_schema = OFF").fetchall()
    return connection


def connect_frozen(path: str) -> Connection:
    """A connection to the database as it is without its log. Looks at no other file, makes none,
    locks nothing: for a file that nobody is changing."""
    return connect(path, "mode=ro&immutable=1")


class Header(NamedTuple):
    """What a database says of itself; `tables` counts its indexes and views too."""

    application_id: int
    version: int
    tables: int

    @property
    def blank(self) -> bool:
        """There is nothing in it; read without its log, that may have something."""
        return self == (0, 0, 0)


def header(connection: Connection) -> Header:
    """Reads the header through that connection."""
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT COUNT(*) FROM sqlite_schema")
    return Header(*(connection.execute(query).fetchone()[0] for query in queries))


def early_header(connection: Connection, path: str) -> Header:
    """Reads the header through a frozen connection, whatever the log will say. A checkpoint that a
    kill broke off leaves a first page that tells of pages which only the log has so far; `tables`
    then only says that there are some."""
    try:
        return header(connection)
    except sqlite3.DatabaseError as error:
        if code_of(error) != _CORRUPT or not has_log(path):
            raise
    # has SQLite take the file for as long as it is
    connection.execute("PRAGMA writable_schema = ON").fetchall()
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return Header(application_id, version, tables=1)


def has_log(path: str) -> bool:
    """Whether the database has a log or a journal beside it, so that alone it does not tell all."""
    return os.path.exists(path + "-wal") or os.path.exists(path + "-journal")


_TRIES = 20


def read(path: str, action: Callable[[Connection], T]) -> T:
    """What `action(connection)` returns, called within one read transaction.

    For readers that do not own the file. Where it has no log nobody has it open, and it is read
    frozen, so that nothing is made beside it; should an owner come in the middle, all is read once
    more, so `action` may be called several times. Raises what `explained` makes of an error.
    """
    failure: BaseException | None = None
    for _ in range(_TRIES):
        stamp = _stamp(path)
        frozen = stamp is not None
        try:
            found = _read_once(path, frozen, action)
        except Exception as error:  # of whatever kind: it may be that of a page half-changed
            failure = error
            if _stamp(path) != stamp or (not frozen and code_of(error) == _CANTOPEN):
                continue  # an owner came, or went and took the log along
            break
        if not frozen or _stamp(path) == stamp:
            return found
        failure = StorageError(f"{shown(path)} is opened and closed again and again; try later")
    if isinstance(failure, SQLITE_ERRORS):
        raise explained(failure, path) from failure
    assert failure is not None
    raise failure


def _read_once(path: str, frozen: bool, action: Callable[[Connection], T]) -> T:
    connection = connect_frozen(path) if frozen else connect_readonly(path)
    try:
        connection.execute("BEGIN")
        return action(connection)
    finally:
        connection.close()


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    """What no owner can change the file without changing; `None` while it has a log."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise explained(error, path) from error
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{shown(path)} is no file")
    if has_log(path):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def leak(connection: Connection) -> None:
    """Keeps the connection, and the files that it has open, until the process ends: for a forked
    child, where closing it could take the log away from under the parent's successors."""
    try:
        import ctypes
    except ImportError:  # a Python built without it: whoever holds the connection must go on to
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
