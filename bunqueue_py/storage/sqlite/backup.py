"""A consistent copy of the file while its owner goes on."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from sqlite3 import Connection

from ...clock import Clock
from ...durations import shown
from ...errors import StorageCorruptError, StorageError, StorageFullError, ValidationError
from . import schema
from .connection import (
    SQLITE_ERRORS,
    connect,
    connect_frozen,
    early_header,
    explained,
    has_log,
    header,
    read,
)
from .ownership import Ownership
from .paths import PathInput, absolute, check_place

PARTIAL = ".bunqueue-partial"
"""What the name of a copy ends with until it is whole."""

_PAGES = 1000
"""Copied at a time; in between Ctrl-C is heard."""


def backup(path: str, target: PathInput, clock: Clock) -> str:
    """Copies the database at the real path `path` to `target`, as it was at one moment, and
    returns the real path of the copy, which is on disk by then.

    Blocks for as long as the copy takes; who writes meanwhile is not held up. `target` is a new
    file, or one that is a bunqueue_py database, which the finished copy replaces in one step. On
    any error it is as it was. Raises `ValidationError` for the database itself,
    `StorageLockedError` for one that a manager has open, `StorageError` for any other file.
    """
    real = check_place(absolute(target, "target"), "target")
    if not os.path.exists(path):
        raise StorageError(f"{shown(path)} cannot be copied: there is no such file")
    if real == path or (os.path.exists(real) and os.path.samefile(real, path)):
        raise ValidationError(f"target must not be {shown(path)} itself")
    ownership = Ownership.take(real, 0, clock)
    try:
        if os.path.exists(real):
            _check_replaceable(real)
        copy_database(path, real)
    finally:
        ownership.release()
    return real


def _check_replaceable(real: str) -> None:
    try:
        with closing(connect_frozen(real)) as connection:
            found = early_header(connection, real)
        if os.path.getsize(real) == 0 and not has_log(real):
            return  # as the tempfile module makes them
        if found.application_id != schema.APPLICATION_ID:
            raise StorageError(f"{shown(real)} is a database of another application")
        if has_log(real):
            # A log would be taken for that of the copy. Closing the last connection ends it.
            with closing(connect(real, "mode=rw")) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except (*SQLITE_ERRORS, StorageError) as error:
        what = explained(error, real) if isinstance(error, SQLITE_ERRORS) else error
        kind = StorageCorruptError if isinstance(what, StorageCorruptError) else StorageError
        raise kind(
            f"target is there already and is not replaced: {what}. Name a new file, or remove it"
        ) from error
    if has_log(real):
        raise StorageError(
            f"target {shown(real)} is there already, and another program has it open: close that, "
            "or name another file"
        )


def copy_database(path: str, target: str) -> None:
    """Puts a copy of the database at `path` to `target`, in one step at the end. The caller has
    made sure that what is at `target` may go, and has no log."""
    partial = target + PARTIAL
    _remove(partial)
    try:
        read(path, lambda source: _copy(source, path, partial))
        _sync_file(partial)
        os.replace(partial, target)
        _sync_folder(os.path.dirname(target))
    except OSError as error:
        raise explained(error, target) from error
    finally:
        _remove(partial)


def _copy(source: Connection, path: str, partial: str) -> None:
    _remove(partial)  # of an attempt that an owner's coming broke off
    # Having read, it stays at this moment: the copy begins anew for no commit of the owner's.
    found = header(source)
    schema.check_header(found, path, newest=found.version)  # a copy of any version is one
    with closing(connect(partial, "mode=rwc")) as copy:
        try:
            # What an interrupted copy leaves behind is removed anyway, so it needs no journal.
            copy.execute("PRAGMA journal_mode = OFF").fetchall()
            copy.execute("PRAGMA synchronous = OFF").fetchall()
            source.backup(copy, pages=_PAGES, progress=lambda *_: None)
        except sqlite3.Error as error:
            failure = explained(error, partial)
            if isinstance(failure, StorageFullError):
                raise failure from error
            raise  # of the source, as far as can be told


def _remove(partial: str) -> None:
    for name in (partial, partial + "-journal", partial + "-wal", partial + "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    if os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
