"""One opening of the file by its owner, from the lock on it to its release."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ...clock import Clock
from ...durations import shown
from ...errors import StorageError
from ...model.options import Options
from ..base import Changed, Collect, Count
from .commits import Committer
from .connection import SQLITE_ERRORS, connect_writable, explained, leak
from .lookup import Lookup
from .opening import check_serializer, close_database, open_database
from .ownership import Ownership
from .paths import check_place
from .recovery import stored_jobs, stored_rest
from .rows import RowDecoder
from .unflushed import Places, take_in_unflushed
from .writer import Writer

_log = logging.getLogger("bunqueue_py.storage")


class Settings(NamedTuple):
    """What `SqliteStorage` was told, checked; durations in milliseconds."""

    flush_interval_ms: int
    max_lag_ms: int
    max_unflushed: int
    lock_timeout_ms: int | None
    unflushed_dir: str | None


def open_session(
    path: str, settings: Settings, serializer_name: str, default: Options, clock: Clock
) -> tuple[Session, list[tuple[str, str, Any]]]:
    """Owns, checks, makes or migrates the file, and takes in what an earlier process could not
    write; also returns what is in it beside jobs. On any error everything is as it was."""
    real = check_place(path, "path")
    places = Places(real, settings.unflushed_dir)
    _check_folder(places.folder)
    ownership = Ownership.take(real, settings.lock_timeout_ms, clock)
    try:
        opened = open_database(real)
        try:
            ownership.remember_database()
            check_serializer(opened.connection, serializer_name, real)
            take_in_unflushed(opened.connection, places)
            rest = stored_rest(opened.connection, real)
            committer = Committer(opened.connection, partial(_reconnect, ownership))
            writer = Writer(
                committer,
                places,
                clock,
                flush_interval_ms=settings.flush_interval_ms,
                max_lag_ms=settings.max_lag_ms,
                max_unflushed=settings.max_unflushed,
                guard=partial(_guard, ownership),
            )
            return Session(ownership, committer, writer, default, clean=opened.clean), rest
        except BaseException as error:
            _close(opened.connection, real, clean=opened.clean)
            if isinstance(error, (*SQLITE_ERRORS, OSError)):
                raise explained(error, real) from error
            raise
    except BaseException:
        ownership.release()
        raise


class Session:
    """The file while it is open. `clean` is whether it was closed in good order before, or is new;
    `jobs` what was in it then; `lookup` what is in it now. `ended`: the file is free again."""

    __slots__ = (
        "_committer",
        "_ownership",
        "_started",
        "clean",
        "ended",
        "jobs",
        "lookup",
        "path",
        "writer",
    )

    def __init__(
        self,
        ownership: Ownership,
        committer: Committer,
        writer: Writer,
        default: Options,
        *,
        clean: bool,
    ) -> None:
        self.path = ownership.path
        self._ownership = ownership
        self._committer = committer
        self.writer = writer
        self.clean = clean
        self.jobs = stored_jobs(committer.connection, RowDecoder(default), self.path)
        self.lookup = Lookup(self.path, default)
        self._started = False
        self.ended = False

    def start(
        self, collect: Collect, count: Count, *, threaded: bool, changed: Changed | None
    ) -> None:
        """See `Storage.start`."""
        # a statement that is still read from would keep the log from ever getting shorter
        self.jobs.close()
        self._started = True
        self.writer.start(collect, count, threaded=threaded, changed=changed)

    def close(self, timeout_ms: int | None) -> None:
        """See `Storage.close`; to be called again until it has `ended`."""
        problem = None
        try:
            self.writer.close(timeout_ms)
        except StorageError as error:
            problem = error
        if not self.writer.join(timeout_ms if problem is None else 0):
            # It may yet come back, and write: nobody else may have the file until then.
            raise problem or StorageError(
                f"{shown(self.path)}: a commit that was under way when the storage was closed has "
                "not ended yet"
            )
        self.ended = True
        self.jobs.close()
        try:
            self.lookup.close()
            lost = self._ownership.trouble()
            if lost is not None and problem is None:
                problem = StorageError(lost)
            # who never got as far as writing knows no more than was known before
            clean = problem is None and (self._started or self.clean)
            _close(self._committer.connection, self.path, clean=clean)
        finally:
            self._ownership.release()
        if problem is not None:
            raise problem

    def trust_the_system(self) -> None:
        """Commits no longer wait for the disk: enough to survive the process, not the power."""
        self._committer.connection.execute("PRAGMA synchronous=OFF")

    def abandon(self) -> None:
        """What the death of the process leaves behind: the file as of the last commit, free for
        the next owner, and not closed in good order. Only where no thread writes."""
        self.ended = True
        self.jobs.close()
        self.lookup.close()
        _close(self._committer.connection, self.path, clean=False)
        self._ownership.release()

    def disown(self) -> None:
        """See `Storage.disown`."""
        self._ownership.disown()
        self.lookup.disown()
        leak(self._committer.connection)


def _check_folder(folder: str | None) -> None:
    if folder is None or (os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)):
        return
    what = "cannot be written to" if os.path.isdir(folder) else "is no folder"
    raise StorageError(
        f"unflushed_dir {shown(folder)} {what}, so changes that could not be written to the "
        "database would have no place there: make it, or name another"
    )


def _reconnect(ownership: Ownership) -> sqlite3.Connection:
    connection = connect_writable(ownership.path)
    try:
        # which opens the log: another one, if the last connection had been closed
        connection.execute("SELECT COUNT(*) FROM meta").fetchone()
        ownership.remember_log()
    except BaseException:
        connection.close()
        raise
    return connection


def _guard(ownership: Ownership) -> None:
    trouble = ownership.trouble()
    if trouble is not None:
        raise StorageError(trouble)


def _close(connection: sqlite3.Connection, path: str, *, clean: bool) -> None:
    """Closes it, whatever happens; what is written is safe by now."""
    if not clean:
        with suppress(sqlite3.Error):
            connection.close()
        return
    try:
        close_database(connection, path)
    except StorageError as error:
        _log.warning(
            "the database could not be marked as closed in good order, so it will be checked when "
            "it is opened the next time: %s",
            error,
        )
