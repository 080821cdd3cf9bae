"""A writer over a real file whose connection fails or stands still on demand, a shard's worth of
marks, and a clock for its thread that waits for nobody."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import StorageError
from bunqueue_py.model.job import COMPLETED, JobRecord
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import Marks, row_of
from bunqueue_py.ops.mark import mark_completed
from bunqueue_py.shard.dirty import Dirty
from bunqueue_py.shard.queue_state import QueueState
from bunqueue_py.storage.sqlite.commits import Committer
from bunqueue_py.storage.sqlite.connection import connect_writable
from bunqueue_py.storage.sqlite.opening import open_database
from bunqueue_py.storage.sqlite.unflushed import Places, take_in_unflushed
from bunqueue_py.storage.sqlite.writer import Writer
from bunqueue_py.sync import SHARD, make_lock

BUSY = sqlite3.OperationalError("database is locked")
IOERR = sqlite3.OperationalError("disk I/O error")


class FaultyConnection:
    """A connection that raises `fault`, if there is one, instead of executing what begins with
    `at`; and that stands still at it while `gate` is closed, having set `reached`."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self.inner = inner
        self.at = ""
        self.fault: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.executed: list[str] = []

    def execute(self, text: str, parameters: Any = ()) -> sqlite3.Cursor:
        if text.startswith(self.at):
            if not self.gate.is_set() and not text.startswith("PRAGMA"):
                self.reached.set()
                assert self.gate.wait(60)
            if self.fault is not None:
                raise self.fault.with_traceback(None)
        self.executed.append(text.split("(")[0])
        return self.inner.execute(text, parameters)

    def executescript(self, text: str) -> sqlite3.Cursor:
        return self.inner.executescript(text)

    def close(self) -> None:
        self.inner.close()

    @property
    def in_transaction(self) -> bool:
        return self.inner.in_transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HurriedClock(SystemClock):
    """Timed waits are over at once, and move `now`; those without end are real, and counted."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.slept: list[int | None] = []
        self.endless = threading.Semaphore(0)

    def wait(self, lock: threading.Lock, timeout_ms: int | None) -> bool:  # type: ignore[override]
        self.slept.append(timeout_ms)
        if timeout_ms is None:
            self.endless.release()
            return lock.acquire(True, 60)
        if lock.acquire(False):
            return True
        self.now += timeout_ms / 1000
        return False


class Queue:
    name = "emails"


OPTIONS = Options()


class Bench:
    """A writer and one shard that marks into it."""

    def __init__(
        self,
        path: Path,
        *,
        threaded: bool = False,
        folder: str | None = None,
        guard: Callable[[], None] | None = None,
        **settings: int,
    ) -> None:
        self.path = str(path)
        self.connections: list[FaultyConnection] = []
        self.connect_fault: BaseException | None = None
        self.collect_fault: BaseException | None = None
        self.changes: list[StorageError | None] = []
        opened = open_database(self.path).connection
        self.places = Places(self.path, folder)
        try:
            self.taken_in = take_in_unflushed(opened, self.places)
        except BaseException:
            opened.close()
            raise
        self.clock = HurriedClock()
        self.writer = Writer(
            Committer(self._faulty(opened), self._connect),  # type: ignore[arg-type]
            self.places,
            self.clock,
            guard=guard,
            now=lambda: self.clock.now,
            **settings,
        )
        self.lock = make_lock("shard 0", SHARD)
        self.dirty = Dirty(self.writer.marked)
        self.writer.start(
            self._collect,
            lambda: len(self.dirty),
            threaded=threaded,
            changed=self.changes.append,
        )

    def _faulty(self, connection: sqlite3.Connection) -> FaultyConnection:
        connection.execute("PRAGMA synchronous = OFF").fetchall()
        self.connections.append(FaultyConnection(connection))
        return self.connections[-1]

    def _connect(self) -> Any:
        if self.connect_fault is not None:
            raise self.connect_fault
        return self._faulty(connect_writable(self.path))

    def _collect(self, begin: Callable[[], list[Marks]]) -> None:
        if self.collect_fault is not None:
            raise self.collect_fault
        with self.lock:
            self.dirty.swap(begin())

    @property
    def connection(self) -> FaultyConnection:
        return self.connections[-1]

    def add(self, *job_ids: str, data: bytes = b"{}") -> int:
        """Marks new jobs, in one hold; returns the number of the cut they are in."""
        with self.lock:
            for job_id in job_ids:
                record = JobRecord(job_id, Queue, "welcome", OPTIONS, 0, data)
                record.created_ms = record.run_at_ms = record.entered_ms = 1000
                self.dirty.add(row_of(record, 1), data)
            return self.writer.cut

    def add_plain(self, *job_ids: str) -> list[JobRecord]:
        """Marks new jobs as a push does that has nothing to say of them."""
        with self.lock:
            records = [JobRecord(job_id, Queue, "welcome", OPTIONS, 0, b"{}") for job_id in job_ids]
            for seq, record in enumerate(records, 1):
                record.created_ms = record.run_at_ms = record.entered_ms = 1000
                record.key = seq
                self.dirty.add_new(record, "emails", seq, 1000)
            return records

    def complete(self, *records: JobRecord) -> None:
        """Marks that those have run and are completed."""
        with self.lock:
            for i, record in enumerate(records):
                record.state, record.started_ms, record.entered_ms = COMPLETED, 2000 + i, 3000
                mark_completed(self.dirty, cast(QueueState, Queue), record, None)

    def add_many(self, number: int, prefix: str = "many") -> int:
        return self.add(*(f"{prefix}-{i}" for i in range(number)))

    def remove(self, job_id: str) -> None:
        with self.lock:
            self.dirty.tombstone(job_id, 2, -1)

    def keep(self, key: str, body: Any) -> None:
        with self.lock:
            self.dirty.keep("queue", key, body)

    def ids(self) -> list[str]:
        """The jobs on disk, seen from outside."""
        return [row[0] for row in self.look("SELECT id FROM jobs ORDER BY id")]

    def look(self, query: str) -> list[tuple[Any, ...]]:
        outside = sqlite3.connect(self.path)
        try:
            return outside.execute(query).fetchall()
        finally:
            outside.close()

    def end(self) -> None:
        """Whatever state it is in, ends the thread and closes what is open."""
        for connection in self.connections:
            connection.fault = None
            connection.gate.set()
        self.connect_fault = self.collect_fault = None
        self.writer.close()
        for thread in threading.enumerate():
            if thread.name == "bunqueue-storage":
                thread.join(60)
        for connection in self.connections:
            connection.close()
