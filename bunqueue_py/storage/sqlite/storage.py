"""`SqliteStorage`: one SQLite file as the storage of a manager, put together from its parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ...clock import Clock, SystemClock
from ...durations import shown, timeout_to_ms, to_ms
from ...errors import StorageError, StorageLockedError, ValidationError
from ...model.options import Options, checked_int
from ...model.rows import JobRow, Marks
from ...sync import LEAF, make_lock
from ...types import Duration, Report
from ..base import Changed, Collect, Count, Recovered, Storage, StorageHealth
from . import backup, verify
from .desk import Ticket
from .lookup import Lookup, read_job, read_result
from .paths import PathInput, absolute, from_here, path_text
from .rows import RowDecoder
from .session import Session, Settings, open_session
from .writer import Writer

MAX_UNFLUSHED = 100_000_000


class SqliteStorage:
    """Keeps everything in the SQLite file at `path`, for one manager at a time.

    Nothing is opened, and no file is looked at, until a `QueueManager` takes it; when that is
    closed another may. A relative path is that of the current folder of now.

    `flush_interval`: how long changes are gathered before they are written together; a crash loses
    what is younger than that and the commits before and after it. `max_lag` (from 1 ms): whoever
    changes something waits once the oldest change that is not on disk is that old, so it also
    bounds `flush_interval` in a busy program. `max_unflushed`: how many changes may wait while the
    disk fails, 1 to 100,000,000; after that pushes are refused. `lock_timeout`: how long to wait
    for another manager to let the file go (`None`: without end). `unflushed_dir`: a folder for what
    could not be written at close, if it cannot stand beside the file.

    Raises `ValidationError` naming the option.

    >>> SqliteStorage("/var/lib/shop/jobs.db", max_lag=0.5)
    SqliteStorage('/var/lib/shop/jobs.db')
    """

    __slots__ = (
        "__weakref__",
        "_disowned",
        "_lock",
        "_path",
        "_session",
        "_settings",
        "_taken",
        "_writer",
        "admit",
    )

    persistent = True
    max_value_bytes = 1_000_000_000  # SQLite's own bound on a BLOB, unless it was built otherwise

    def __init__(
        self,
        path: PathInput,
        *,
        flush_interval: Duration = 0.01,
        max_lag: Duration = 0.1,
        max_unflushed: int = 100_000,
        lock_timeout: Duration | None = 0,
        unflushed_dir: PathInput | None = None,
    ) -> None:
        self._path = absolute(path, "path")
        self._settings = Settings(
            flush_interval_ms=to_ms(flush_interval, "flush_interval"),
            max_lag_ms=to_ms(max_lag, "max_lag", zero=False),
            max_unflushed=checked_int(max_unflushed, "max_unflushed", 1, MAX_UNFLUSHED),
            lock_timeout_ms=timeout_to_ms(lock_timeout, "lock_timeout"),
            unflushed_dir=None if unflushed_dir is None else _folder(unflushed_dir),
        )
        # under it only whether somebody has it: opening and closing wait for the disk
        self._lock = make_lock("storage", LEAF)
        self._taken = False
        self._session: Session | None = None
        #: stays after the close: a call that marked something before may ask about it later
        self._writer = cast(Writer, _NotOpen(self._path))
        #: `Storage.admit`, the writer's own: every verb calls it
        self.admit: Callable[[], None] = lambda: self._writer.admit()

    def __repr__(self) -> str:
        return f"SqliteStorage({self._path!r})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: it stands for one opening of the file. Hand "
            "on the path, and make a SqliteStorage of it where it is to be opened"
        )

    # -- life --------------------------------------------------------------------------------

    def open(self, serializer_name: str, default: Options, clock: Clock) -> Recovered:
        """See `Storage.open`. Takes in what an earlier process could not write. Waits up to
        `lock_timeout` for the file; raises `StorageLockedError` if it is still owned then, or if
        this object serves another manager already."""
        with self._lock:
            if self._taken:
                raise StorageLockedError(
                    f"{self!r} serves a manager of this process already, and serves one at a "
                    "time: close that manager first, or make another SqliteStorage for another "
                    "file",
                    pid=os.getpid(),
                )
            self._taken = True
        try:
            session, rest = open_session(
                self._path, self._settings, serializer_name, default, clock
            )
            self._session, self._writer = session, session.writer
            self.admit = session.writer.admit
            return Recovered(session.clean, session.jobs, rest)
        except BaseException:
            opened, self._session = self._session, None
            if opened is not None:
                opened.close(0)
            self._taken = False
            raise

    def start(
        self, collect: Collect, count: Count, *, threaded: bool, changed: Changed | None = None
    ) -> None:
        """See `Storage.start`."""
        session = self._session
        if session is None:
            raise _not_open(self._path)
        session.start(collect, count, threaded=threaded, changed=changed)

    def close(self, timeout_ms: int | None = None) -> None:
        """See `Storage.close`. After it a manager may open the storage again. If a commit hangs
        beyond the timeout the file stays this process's; another call tries again to end it."""
        with self._lock:
            session, self._session = self._session, None
        if session is None:
            return
        try:
            session.close(timeout_ms)
        finally:
            if session.ended:
                self._taken = False
            else:
                self._session = session

    def _trust_the_system(self) -> None:
        """Has commits survive the process but not the power; the testing kit needs no more."""
        if self._session is not None:
            self._session.trust_the_system()

    def _abandon(self) -> None:
        """Has the file look as if this process had died now; the testing kit plays crashes so."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.abandon()
            self._taken = False

    def disown(self) -> None:
        """See `Storage.disown`. The child may open the storage once its parent has let go."""
        # no lock: the thread that held it may not be in this process
        session, self._session = self._session, None
        self._lock = make_lock("storage", LEAF)
        self._taken = False
        if session is not None:
            session.disown()
            # kept, since to let go of a connection is to close it
            self._disowned = session

    # -- writing: see `Storage` --------------------------------------------------------------

    @property
    def cut(self) -> int:
        """See `Storage.cut`."""
        return self._writer.cut

    @property
    def troubled(self) -> bool:
        """See `Storage.troubled`."""
        return self._writer.troubled

    def marked(self) -> None:
        """See `Storage.marked`."""
        self._writer.marked()

    def refuse(self, *, durable: bool) -> None:
        """See `Storage.refuse`."""
        self._writer.refuse(durable=durable)

    def wait_committed(self, cut: int, job_id: str | None = None) -> None:
        """See `Storage.wait_committed`."""
        self._writer.wait_committed(cut, job_id)

    def watch(self, cut: int, tell: Callable[[], object]) -> Ticket | None:
        """`wait_committed` for an event loop: see `Writer.watch`."""
        return self._writer.watch(cut, tell)

    def flush(self, timeout_ms: int | None = None) -> None:
        """See `Storage.flush`."""
        self._writer.flush(timeout_ms)

    def step(self) -> bool:
        """See `Storage.step`."""
        return self._writer.step()

    def unwritten(self) -> list[Marks]:
        """See `Storage.unwritten`."""
        return self._writer.unwritten()

    def health(self) -> StorageHealth:
        """See `Storage.health`."""
        return self._writer.health()

    # -- reading -----------------------------------------------------------------------------

    def read_job(self, job_id: str) -> JobRow | None:
        """See `Storage.read_job`."""
        return read_job(self._lookup(), self._writer.unwritten, job_id)

    def read_result(self, job_id: str) -> bytes | None:
        """See `Storage.read_result`."""
        return read_result(self._lookup(), self._writer.unwritten, job_id)

    def completed_ids(
        self, queue: str, until_ms: int, after: tuple[int, int], limit: int
    ) -> list[tuple[int, int, str]]:
        """See `Storage.completed_ids`."""
        return self._lookup().completed_ids(queue, until_ms, after, limit)

    def _lookup(self) -> Lookup:
        session = self._session
        if session is None:
            raise _not_open(self._path)
        return session.lookup

    def backup(self, path: PathInput) -> None:
        """Copies the database to `path`, whole and as it is at one moment, while its manager goes
        on: with everything that was accepted before the call. Blocks until the copy is on disk.

        `path` is a new file, or a bunqueue_py database that nobody has open: the finished copy
        replaces it in one step, and after an error it is as it was. Needs no manager: another
        process may make a copy of what is in the file. Raises `StorageError`, `ValidationError`.
        """
        session = self._session
        if session is not None:
            try:
                session.writer.flush()
            except StorageError as error:
                raise StorageError(
                    f"{shown(self._path)} is not copied, because the copy would lack what waits "
                    f"to be written: {error}"
                ) from error
        backup.backup(self._real(), path, SystemClock())

    def verify(self, path: PathInput | None = None) -> Report:
        """Reads all of the database (or the one at `path`) and tells what is wrong with it.

        The file may be in use meanwhile, by this or another process; its log gets no shorter until
        it is read. Raises `StorageError` if there is no such file, or it is not ours.
        """
        real = self._real() if path is None else os.path.realpath(absolute(path, "path"))
        return verify.verify(real, SystemClock().timeline_ms(), RowDecoder(Options()).row)

    def _real(self) -> str:
        session = self._session
        return os.path.realpath(self._path) if session is None else session.path


class _NotOpen:
    """What stands in the place of the writer until a manager opens the storage."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_open(self._path)


def _not_open(path: str) -> StorageError:
    return StorageError(f"{shown(path)} is not open: give the storage to a QueueManager")


def _folder(path: PathInput) -> str:
    text = path_text(path, "unflushed_dir")
    if not text:
        raise ValidationError("unflushed_dir must name a folder, not be empty")
    return os.path.normpath(from_here(text, "unflushed_dir"))


if TYPE_CHECKING:
    _keeps_its_promises: type[Storage] = SqliteStorage
