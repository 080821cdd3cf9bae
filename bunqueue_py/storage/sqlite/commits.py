"""What the writer does to the file: one transaction a cut, checkpoints, space given back.

Not a lock in sight: the writer sees to it that one thread at a time is in here.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from sqlite3 import Connection
from typing import Any, cast

from ...model.rows import DATA, RESULT, Marks, full_row
from .connection import code_of
from .opening import shrink
from .packed import MAX_PACKED, MIN_PACKED, Packed, count_short, make_numbers, pack, pack_ended
from .rows import RowEncoder, bindable, to_json
from .statements import Statement, Statements, variable_limit

_log = logging.getLogger("bunqueue_py.storage")

_MIB = 1024 * 1024
MAX_STATEMENT_BYTES = 8 * _MIB
"""Payloads that stand apart: as many in one statement, or one alone."""

CHECKPOINT_BYTES = 4 * _MIB
LOG_BOUND_BYTES = 32 * _MIB
FREE_BOUND_BYTES = 16 * _MIB
PATIENCE_MS = 100
MOST_PATIENCE = 50
"""How long everybody may have to wait for readers, so that the log can be cut off: so long for each
`LOG_BOUND_BYTES` that it has, and so many times that at most. Readers that come and go, one always
there, must not make it grow for ever: it is cut off when the patience is twice as long as one of
them stays, since another may come while the first is waited for."""

LOOK_MS = 5
_never = threading.Event()

_VACUUM_PAGES = 1024

_KEEPS_CONNECTION = frozenset((5, 6, 9, 13))
"""Busy, locked, interrupted, full: nothing is wrong with the connection itself."""


class Committer:
    """The writing connection and what is to be done with it.

    `log_bytes` is how long the write-ahead log is, as far as it is known.
    """

    __slots__ = (
        "_broken",
        "_connect",
        "_encoder",
        "_numbered",
        "_packs",
        "_page",
        "_ratio",
        "_seen",
        "_since",
        "_statements",
        "_truncate_at",
        "_warned",
        "connection",
        "log_bytes",
    )

    def __init__(self, connection: Connection, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._encoder = RowEncoder()
        self._broken = False
        self._truncate_at = LOG_BOUND_BYTES
        self._warned = 0
        #: bytes of rows written since the last look at the log, and how many of the log one makes
        self._since = 0
        self._ratio = 2.0
        self._seen = 0
        self.log_bytes = 0
        self._use(connection)

    def _use(self, connection: Connection) -> None:
        self.connection = connection
        self._numbered = False
        # columns are made of the bytes of UTF-8; an empty database of somebody may say otherwise
        self._packs: bool = connection.execute("PRAGMA encoding").fetchone()[0] == "UTF-8"
        self._statements = Statements(variable_limit(connection))
        self._page: int = connection.execute("PRAGMA page_size").fetchone()[0]
        # when a long log begins anew, what is beyond is cut off the file
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BOUND_BYTES}").fetchone()

    # -- a cut -------------------------------------------------------------------------------

    def commit(self, marks: Marks) -> None:
        """Writes all of it or nothing. Raises what went wrong; the next call tries a new
        connection if this one may be to blame."""
        if self._broken:
            self._reconnect()
        try:
            ended = self._ended(marks)
            changed = self._write(self._steps(marks, ended), len(ended))
            if ended and changed != len(marks.jobs):
                # rows are missing that should be there: somebody has taken them out of the file
                self._write(self._steps(marks, []))
        except sqlite3.Error as error:
            self._broken = code_of(error) not in _KEEPS_CONNECTION
            raise
        self._since += 2 * self._page + _weight(marks)

    def _write(self, steps: Iterator[tuple[str, list[Any]]], counted: int = 0) -> int:
        """Returns how many rows the first steps have changed, as many as are to be counted."""
        execute = self.connection.execute
        first, second = next(steps, None), next(steps, None)
        if first is None:
            return 0
        if second is None:
            # a transaction of its own, in one step instead of three
            return execute(*first).rowcount
        changed = 0
        try:
            execute("BEGIN IMMEDIATE")
            for i, step in enumerate(chain((first, second), steps)):
                cursor = execute(*step)
                if i < counted:
                    changed += cursor.rowcount
            execute("COMMIT")
        except BaseException:
            # after some errors SQLite has ended it by itself; and none may hide the first one
            if self.connection.in_transaction:
                with suppress(sqlite3.Error):
                    execute("ROLLBACK")
            raise
        return changed

    def _ended(self, marks: Marks) -> list[Packed]:
        """The statements for all of the jobs, if of each only its run or its end is new; none
        otherwise."""
        rows, ended = marks.jobs, marks.ended
        if not self._packs or len(rows) < MIN_PACKED or len(ended) != len(rows):
            return []
        # a row that another change has replaced is not the same any more
        if list(ended.values()) != list(rows.values()):
            return []
        self._make_numbers()
        found = [pack_ended(p, self._encoder) for p in _parts(ended.values(), MAX_PACKED)]
        return [] if None in found else cast("list[Packed]", found)

    def _steps(self, marks: Marks, ended: list[Packed]) -> Iterator[tuple[str, list[Any]]]:
        make, jobs = self._statements, marks.jobs
        if ended:
            yield from ended
        else:
            rows = [row for row in jobs.values() if row is not None]
            yield from self._puts(rows, len(marks.ended))
            if len(rows) != len(jobs):
                yield from _drops(make.drop_jobs, jobs)
        for put, drop, blobs in (
            (make.put_payloads, make.drop_payloads, marks.payloads),
            (make.put_results, make.drop_results, marks.results),
        ):
            if blobs:
                yield from _puts(put, blobs)
                yield from _drops(drop, blobs)
        if marks.rest:
            yield from self._rest(marks.rest)

    def _puts(self, rows: list[Any], ended: int) -> Iterator[Packed]:
        put, done = self._statements.put_jobs, 0
        # packed, whole rows of all kinds take a little longer than they do unpacked
        odd = len(rows) - ended - count_short(rows)
        if self._packs and len(rows) >= max(MIN_PACKED, 2 * odd):
            self._make_numbers()
            for part in _parts(rows, MAX_PACKED):
                packed = pack(part, self._encoder, put.after)
                if packed is None:
                    break
                yield packed
                done += len(part)
        for part in _parts(islice(rows, done, None), put.max_rows):
            values: list[Any] = []
            self._encoder.add(part, values)
            yield put.filled(values)

    def _make_numbers(self) -> None:
        if not self._numbered:
            make_numbers(self.connection)
            self._numbered = True

    def _rest(self, rest: dict[tuple[str, str], Any]) -> Iterator[tuple[str, list[Any]]]:
        put, drop = self._statements.put_rest, self._statements.drop_rest
        kept = [(kind, key, body) for (kind, key), body in rest.items() if body is not None]
        for part in _parts(kept, put.max_rows):
            values: list[Any] = []
            for kind, key, body in part:
                values += (kind, bindable(key), to_json(body))
            yield put.filled(values)
        gone = (pair for pair, body in rest.items() if body is None)
        for part in _parts(gone, drop.max_rows):
            values = []
            for kind, key in part:
                values += (kind, bindable(key))
            yield drop.filled(values)

    def _reconnect(self) -> None:
        try:
            self.connection.close()
        except sqlite3.Error:
            _log.debug("closing a broken connection failed", exc_info=True)
        self._use(self._connect())
        self._broken = False

    # -- the log and the space ---------------------------------------------------------------

    def after_commit(self) -> None:
        """Takes the log into the file if much has been written since that was done last."""
        if self._since * self._ratio >= CHECKPOINT_BYTES:
            self._checkpoint()

    def tidy(self) -> bool:
        """What there is to do when nothing is to be written; says whether more is to be done."""
        if self._since or self._seen:
            self._checkpoint(idle=True)
        return self._give_back()

    def _checkpoint(self, *, idle: bool = False) -> None:
        execute = self.connection.execute
        before, since = self.log_bytes, self._since
        _, log, done = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self._since = 0
        size = max(0, log) * self._page
        if since > CHECKPOINT_BYTES // 16 and size != self._seen:
            grown = size - before if size > before else size
            self._ratio = min(32.0, max(0.5, grown / since))
        self._seen = size
        # what is in the file already is written over from now on
        self.log_bytes = 0 if log == done else size
        if size > self._truncate_at or (idle and log == done and log > 0):
            self._truncate(size)

    def _truncate(self, size: int) -> None:
        execute = self.connection.execute
        (timeout,) = execute("PRAGMA busy_timeout").fetchone()
        # Whoever begins to read from here on reads the file alone: those that are there now count.
        patience = PATIENCE_MS * min(MOST_PATIENCE, max(1, size // LOG_BOUND_BYTES))
        # Not one call that waits by itself: SQLite would wait for the place in the index that the
        # first reader had, which the next one takes, and the next.
        execute("PRAGMA busy_timeout=0").fetchone()
        try:
            for _ in range(max(1, patience // LOOK_MS)):
                busy, _, _ = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if not busy:
                    break
                _never.wait(LOOK_MS / 1000)
        finally:
            execute(f"PRAGMA busy_timeout={timeout}").fetchone()
        if not busy:
            self.log_bytes = self._seen = self._warned = 0
            self._truncate_at = LOG_BOUND_BYTES
            return
        # not at every checkpoint: whoever reads may go on for hours
        self._truncate_at = size + max(LOG_BOUND_BYTES, size) // 4
        if size >= max(LOG_BOUND_BYTES, 2 * self._warned):
            self._warned = size
            _log.warning(
                "the write-ahead log has grown to %.0f MiB, because all along another program has "
                "been reading the database; it shrinks when its long transactions end",
                size / _MIB,
            )

    def _give_back(self) -> bool:
        """Takes a bite of the space that is no longer used off the file, if there is much."""
        before = self._free_bytes()
        if before <= FREE_BOUND_BYTES:
            return False
        shrink(self.connection, _VACUUM_PAGES)
        self._since += _VACUUM_PAGES * self._page
        return FREE_BOUND_BYTES < self._free_bytes() < before

    def _free_bytes(self) -> int:
        pages: int = self.connection.execute("PRAGMA freelist_count").fetchone()[0]
        return pages * self._page


def _weight(marks: Marks) -> int:
    """About how many bytes those rows have, going by some sixty of the jobs."""
    step = 1 + len(marks.jobs) // 64
    some = [full_row(row) for row in islice(marks.jobs.values(), 0, None, step) if row is not None]
    size = step * sum(len(row[DATA] or b"") + len(row[RESULT] or b"") + 300 for row in some)
    for blobs in (marks.payloads, marks.results):
        size += sum(len(data) for data in blobs.values() if data is not None)
    return size + 300 * len(marks.rest)


def _parts(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rows = iter(rows)
    while part := list(islice(rows, size)):
        yield part


def _puts(put: Statement, blobs: dict[str, bytes | None]) -> Iterator[tuple[str, list[Any]]]:
    values: list[Any] = []
    size = 0
    for job_id, data in blobs.items():
        if data is None:
            continue
        if values and (size + len(data) > MAX_STATEMENT_BYTES or len(values) == 2 * put.max_rows):
            yield put.filled(values)
            values, size = [], 0
        values += (job_id, data)
        size += len(data)
    if values:
        yield put.filled(values)


def _drops(drop: Statement, shelf: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    gone = (job_id for job_id, value in shelf.items() if value is None)
    for part in _parts(gone, drop.max_rows):
        yield drop.filled(part)
