"""What could not be written before the process ended, in a file of its own until the next open.

One JSON line each: first a header, then a line for every change, as the SQL parameters it would
have had; bytes as {"base64": ...}. The file is there whole or not at all.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from sqlite3 import Connection
from typing import IO, Any

from ...durations import shown
from ...errors import StorageCorruptError, StorageError
from ...model.rows import Marks
from . import schema
from .rows import RowEncoder, bindable, to_json
from .statements import Statements, variable_limit

_log = logging.getLogger("bunqueue_py.storage")

SUFFIX = ".unflushed.jsonl"
_TAKEN = ".taken"
_STALE = ".stale"
_OPENINGS = "openings"


class Places:
    """Where a database's unwritten changes may go: beside it, then to the folder that was given,
    then to the system's temporary folder. `opening` is the number of this opening of the file, so
    that changes are never taken for newer than what another opening wrote."""

    __slots__ = ("folder", "opening", "path")

    def __init__(self, path: str, folder: str | None = None) -> None:
        self.path = path
        self.folder = folder
        self.opening = 0

    def __iter__(self) -> Iterator[str]:
        yield self.path + SUFFIX
        # elsewhere, databases of one name meet
        name = f"{os.path.basename(self.path)}-{zlib.crc32(os.fsencode(self.path)):08x}{SUFFIX}"
        if self.folder is not None:
            yield os.path.join(self.folder, name)
        yield os.path.join(tempfile.gettempdir(), name)


def dump(marks: Marks, places: Places, why: StorageError) -> StorageError:
    """Writes the changes to the first place that takes them; returns the error that says so, or
    that they are lost."""
    count = marks.size()
    head = f"{shown(places.path)} could not be written to, and {count:,} changes are not in it"
    refusals = []
    for place in places:
        try:
            _write(place, _lines(marks, places))
        except OSError as error:
            refusals.append(f"{place}: {error.strerror or error}")
            continue
        made = StorageError(
            f"{head}: they are in {shown(place)}, and come in when the database is opened the next "
            f"time. The reason: {why}",
            accepted=True,
        )
        break
    else:
        made = StorageError(
            f"{head} and are LOST, because no other file could be written either "
            f"({'; '.join(refusals)}). The reason: {why}",
            accepted=True,
        )
        _log.critical("%s", made)
    made.__cause__ = why
    return made


def take_in_unflushed(connection: Connection, places: Places) -> int:
    """Writes what an earlier process could not into the database, sets the file it was in aside
    (its name then ends in `.taken`), and returns how many changes there were.

    To be called at every opening, after any migration and before anything is read: it numbers the
    openings. A file of another opening than the last is too old, and is set aside as `.stale`.
    Raises `StorageError` if such a file cannot be read; nothing has been changed then.
    """
    last = schema.read_meta(connection, _OPENINGS)
    opening = last if isinstance(last, int) else 0
    found = [(place, *parts) for place in places if (parts := _read(place, places.path))]
    fresh = [(place, lines) for place, head, lines in found if head["opening"] == opening]
    connection.execute("BEGIN IMMEDIATE")
    try:
        for place, lines in fresh:
            try:
                _apply(connection, lines)
            # whatever a line that nobody of us wrote leads to
            except (*_MALFORMED, *_UNBINDABLE) as error:
                raise _damaged(place, places.path, error) from error
        schema.write_meta(connection, _OPENINGS, opening + 1)
        connection.execute("COMMIT")
    except BaseException:
        schema.rollback(connection)
        raise
    places.opening = opening + 1
    for place, head, lines in found:
        current = head["opening"] == opening
        _set_aside(place, _TAKEN if current else _STALE)
        if current:
            _log.warning("took in %s changes that were in %s", f"{len(lines):,}", place)
        else:
            _log.error(
                "%s holds %s changes from before the last opening of %s: they are not taken in, "
                "because what came after them is in the file already; set aside",
                place,
                f"{len(lines):,}",
                places.path,
            )
    return sum(len(lines) for _, lines in fresh)


# -- writing ---------------------------------------------------------------------------------------


def _lines(marks: Marks, places: Places) -> Iterator[list[Any] | dict[str, Any]]:
    yield {
        "bunqueue_py": "unflushed",
        "schema": schema.VERSION,
        "database": places.path,
        "opening": places.opening,
        "changes": marks.size(),
    }
    encoder = RowEncoder()
    for job_id, row in marks.jobs.items():
        values: list[Any] = []
        if row is not None:
            encoder.add((row,), values)
        yield ["job", *(values or (job_id,))]
    for kind, blobs in (("payload", marks.payloads), ("result", marks.results)):
        for job_id, data in blobs.items():
            yield [kind, job_id] if data is None else [kind, job_id, data]
    for (kind, key), body in marks.rest.items():
        entry = ["rest", kind, bindable(key)]
        yield entry if body is None else [*entry, to_json(body)]


def _write(place: str, lines: Iterable[Any]) -> None:
    partial = place + ".partial"
    with suppress(FileNotFoundError):
        os.unlink(partial)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        with open(os.open(partial, flags, 0o600), "w", encoding="ascii") as file:
            for line in lines:
                file.write(json.dumps(line, default=_base64, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if os.path.lexists(place):
            # not taken in by this opening, so never to be taken in: but nobody's to throw away
            _set_aside(place, _STALE)
        os.replace(partial, place)
        _sync_folder(os.path.dirname(place))
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _base64(data: bytes | bytearray) -> dict[str, str]:
    return {"base64": b64encode(data).decode()}


# -- reading ---------------------------------------------------------------------------------------


def _open(place: str, path: str) -> IO[str] | None:
    """The file, `None` if there is none. In the temporary folder anybody may put one: what belongs
    neither to this user nor to the database's owner is left alone, and no pipe is waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(place, error) from error
    if stat.S_ISLNK(found.st_mode):
        _log.warning("%s is a symbolic link; it is left alone", place)
        return None
    if not _trusted(found, path):
        _log.warning("%s is no file of this user's; it is left alone", place)
        return None
    try:
        descriptor = os.open(place, flags)
    except OSError as error:
        raise _unreadable(place, error) from error
    if _trusted(os.fstat(descriptor), path):
        return open(descriptor, encoding="ascii")
    os.close(descriptor)
    raise _unreadable(place, OSError(0, "it was replaced meanwhile"))


def _trusted(found: os.stat_result, path: str) -> bool:
    if not stat.S_ISREG(found.st_mode):
        return False
    return os.name == "nt" or found.st_uid in (os.geteuid(), os.stat(path).st_uid)


def _unreadable(place: str, error: OSError) -> StorageError:
    return StorageError(
        f"{shown(place)} may hold changes that could not be written to the database, and "
        f"cannot be read: {error.strerror}. Nothing has been changed"
    )


def _read(place: str, path: str) -> tuple[dict[str, Any], list[list[Any]]] | None:
    """Header and changes of the file at that place, `None` if there is none for that database."""
    file = _open(place, path)
    if file is None:
        return None
    try:
        with file:
            head, *lines = (json.loads(line, object_hook=_bytes) for line in file)
        if head["bunqueue_py"] != "unflushed" or head["changes"] != len(lines):
            raise ValueError("it is cut off")
        elsewhere, version, _ = head["database"] != path, head["schema"], head["opening"]
    except (OSError, *_MALFORMED) as error:
        raise _damaged(place, path, error) from error
    if elsewhere and place != path + SUFFIX:
        return None
    if version != schema.VERSION:
        raise StorageError(
            f"{shown(place)} holds changes for schema version {shown(version)}: open the database "
            "once with the release that wrote them. Nothing has been changed"
        )
    return head, lines


_MALFORMED = (ValueError, LookupError, TypeError, RecursionError)
_UNBINDABLE = (
    OverflowError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""What SQLite, and Python before it, make of values of the wrong kind."""


def _damaged(place: str, path: str, error: Exception) -> StorageCorruptError:
    return StorageCorruptError(
        f"{shown(place)} should hold changes that could not be written to {shown(path)}, and is "
        f"damaged ({type(error).__name__}: {error}). Mend it, or move it away to go on without "
        "them. Nothing has been changed"
    )


def _bytes(parts: dict[str, Any]) -> Any:
    return bytearray(b64decode(parts["base64"])) if parts.keys() == {"base64"} else parts


def _apply(connection: Connection, lines: Iterable[list[Any]]) -> None:
    make = Statements(variable_limit(connection))
    put = {
        "job": make.put_jobs,
        "payload": make.put_payloads,
        "result": make.put_results,
        "rest": make.put_rest,
    }
    drop = {
        "job": make.drop_jobs,
        "payload": make.drop_payloads,
        "result": make.drop_results,
        "rest": make.drop_rest,
    }
    for what, *values in lines:
        statement = put[what] if len(values) == put[what].width else drop[what]
        if len(values) != statement.width:
            raise ValueError(f"a line has {len(values)} values for a {what}")
        connection.execute(*statement.filled(values))


def _set_aside(place: str, ending: str) -> None:
    target, number = place + ending, 1
    while os.path.lexists(target):
        number += 1
        target = f"{place}{ending}.{number}"
    os.rename(place, target)


def _sync_folder(folder: str) -> None:
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
