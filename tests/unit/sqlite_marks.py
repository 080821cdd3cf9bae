"""A storage driven as `ops` drives it: one shard's lock and marks, and a cut of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bunqueue_py import SqliteStorage
from bunqueue_py.clock import Clock, SystemClock
from bunqueue_py.model.job import COMPLETED, PENDING, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import INLINE_BYTES, JobRow, row_of
from bunqueue_py.shard.dirty import Dirty
from bunqueue_py.storage.base import Cut
from bunqueue_py.sync import SHARD, make_lock
from tests.storage_check import full_rows

BIG = b'"' + b"x" * INLINE_BYTES + b'"'
OPTIONS = Options()


class Queue:
    def __init__(self, name: str) -> None:
        self.name = name


def record(
    job_id: str,
    *,
    queue: str = "emails",
    state: int = PENDING,
    data: bytes = b"{}",
    name: str = "welcome",
    at: int = 1000,
) -> JobRecord:
    made = JobRecord(job_id, Queue(queue), name, OPTIONS, 0, data)
    made.created_ms = made.run_at_ms = made.entered_ms = at
    made.state = state
    return made


class Driven:
    """The storage, open and started; `found` is what was in it, and `clean` how it was closed."""

    def __init__(
        self,
        storage: SqliteStorage,
        *,
        threaded: bool = False,
        clock: Clock | None = None,
        serializer: str = "json",
    ) -> None:
        self.storage = storage
        recovered = storage.open(serializer, OPTIONS, clock or SystemClock())
        self.clean = recovered.clean
        self.found = full_rows(recovered.jobs)
        self.rest = list(recovered.rest)
        self.lock = make_lock("shard 0", SHARD)
        self.dirty = Dirty(storage.marked)
        self._seq = 0
        #: set by a cut
        self.cut_made = threading.Event()
        # what the tests are about is not whether the disk keeps what it is told to
        storage._session._committer.connection.execute(  # type: ignore[union-attr]
            "PRAGMA synchronous = OFF"
        ).fetchall()
        storage.start(self._collect, lambda: len(self.dirty), threaded=threaded)

    def _collect(self, cut: Cut) -> None:
        with self.lock:
            self.dirty.swap(cut())
        self.cut_made.set()

    def add(
        self,
        made: JobRecord | str,
        result: bytes | None = None,
        *,
        admit: bool = True,
        **settings: Any,
    ) -> int:
        """Marks a job that comes in (and has completed, if it has a result); returns the number of
        the cut that it is in. Without a thread `admit` writes it."""
        if isinstance(made, str):
            made = record(made, **settings)
        if result is not None:
            made.state, made.result_size = COMPLETED, len(result)
        self._seq += 1
        with self.lock:
            self.dirty.add(row_of(made, self._seq, result), made.data)
            if result is not None:
                self.dirty.result(made.id, result, -1)
            cut = self.storage.cut
        if admit:
            self.storage.admit()
        return cut

    def mark(self, made: JobRecord, seq: int = 1) -> None:
        with self.lock:
            self.dirty.mark(row_of(made, seq))
        self.storage.admit()

    def remove(self, made: JobRecord) -> None:
        with self.lock:
            self.dirty.tombstone(made.id, len(made.data), made.result_size)
        self.storage.admit()

    def keep(self, kind: str, key: str, body: Any) -> None:
        with self.lock:
            self.dirty.keep(kind, key, body)
        self.storage.admit()

    @property
    def ids(self) -> list[str]:
        """The jobs that were found; fails for one that could not be understood."""
        assert all(isinstance(row, tuple) for row in self.found), self.found
        return [row[0] for row in self.found if isinstance(row, tuple)]

    def row(self, job_id: str) -> JobRow:
        return next(row for row in self.found if isinstance(row, tuple) and row[0] == job_id)


@contextmanager
def driven(path: Path | str, **settings: Any) -> Iterator[Driven]:
    """A storage of its own for that file, closed in good order at the end."""
    drive = Driven(SqliteStorage(path), **settings)
    try:
        yield drive
    finally:
        drive.storage.close()


def found_in(path: Path | str) -> list[str]:
    """The ids of the jobs that the next one to open the file finds."""
    with driven(path) as drive:
        return drive.ids
