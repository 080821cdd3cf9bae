"""What brings everything that is marked to disk, cut after cut."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic  # noqa: TID251 - the lag is real, whatever clock the engine was given

from ...clock import Clock
from ...durations import shown
from ...errors import StorageError, StorageFullError, WaitTimeoutError
from ...model.rows import Marks, no_marks
from ...sync import STORAGE, make_lock, spawn
from ..base import Changed, Collect, Count, StorageHealth
from .commits import Committer
from .connection import explained, same_kind
from .desk import CUT_ROWS, TIDY, Desk, Ticket
from .exempt import is_exempt
from .unflushed import Places, dump

_log = logging.getLogger("bunqueue_py.storage")

_LOOK_EVERY = 0.001
_GUARD_EVERY = 1.0


class Writer:
    """Writes through its `Committer`, on a thread named `bunqueue-storage` or by `step`.

    `guard` is called before a commit, once a second or while writing fails; it raises if the file
    is no longer ours. `troubled` says that whoever pushes must ask `refuse` first.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_collect",
        "_commit",
        "_committer",
        "_count",
        "_desk",
        "_failing_since_ms",
        "_guard",
        "_guard_at",
        "_held",
        "_look_at",
        "_max_unflushed",
        "_now",
        "_over",
        "_parts",
        "_places",
        "_thread",
        "_threaded",
        "_wound_up",
        "commits",
        "hung",
        "rows_written",
        "troubled",
    )

    def __init__(
        self,
        committer: Committer,
        places: Places,
        clock: Clock,
        *,
        flush_interval_ms: int = 10,
        max_lag_ms: int = 100,
        max_unflushed: int = 100_000,
        guard: Callable[[], None] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._committer = committer
        self._places = places
        self._clock = clock
        self._max_unflushed = max_unflushed
        self._guard = guard
        self._changed: Changed | None = None
        self._now = now
        self._desk = Desk(flush_interval_ms / 1000, max_lag_ms / 1000)
        # whoever holds it cuts, commits, tidies
        self._commit = make_lock("storage writer", STORAGE)
        #: handed over and not merged yet; merged and not on disk yet
        self._parts: list[Marks] = []
        self._held = no_marks()
        self._collect: Collect = _nothing_to_collect
        self._count: Count = lambda: 0
        self._thread: threading.Thread | None = None
        self._threaded = False
        self._over = threading.Event()
        self._look_at = 0.0
        self._guard_at = 0.0
        self._failing_since_ms: int | None = None
        self.troubled = False
        self.hung = False
        self._wound_up = False
        self.commits = 0
        self.rows_written = 0

    def start(
        self, collect: Collect, count: Count, *, threaded: bool, changed: Changed | None = None
    ) -> None:
        """Begins to write; see `Storage.start`."""
        self._changed = changed
        self._collect, self._count, self._threaded = collect, count, threaded
        if threaded:
            self._thread = spawn("storage", self._run)

    # -- for those who mark ------------------------------------------------------------------

    @property
    def cut(self) -> int:
        """The number of the cut that what is marked now will be in; read under a shard's lock."""
        return self._desk.cut

    def marked(self) -> None:
        """Something is marked, for the first time since the last cut. Under a shard's lock."""
        self._desk.marked(self._now())

    def refuse(self, *, durable: bool) -> None:
        """Raises `StorageError` if a push must not be accepted now: a durable one while writing
        fails, any while `max_unflushed` rows wait. Nothing has changed then."""
        failing, rows = self._desk.failing, self._unwritten_rows()
        if durable and failing is not None:
            raise same_kind(
                failing, f"a durable job cannot be accepted while writing fails: {failing}"
            )
        if rows >= self._max_unflushed:
            why = "the disk does not keep up" if failing is None else str(failing)
            raise StorageFullError(
                f"{rows:,} changes wait to be written, and max_unflushed is "
                f"{self._max_unflushed:,}: {why}"
            ) from failing
        if failing is None:
            self.troubled = False

    def admit(self) -> None:
        """Blocks, holding no lock, while the writer is too far behind; without a thread, writes.

        Never blocks our own threads, nor one with a running event loop, nor while writing fails.
        """
        now = self._now()
        if now >= self._look_at:
            self._look(now)

    def _look(self, now: float) -> None:
        desk = self._desk
        if not self._threaded:
            if desk.first_at is not None and desk.may_retry(now):
                self.step()
            return
        self._look_at = now + _LOOK_EVERY
        marked = self._count()
        rows = marked + self._held.size()
        if rows >= self._max_unflushed:
            self.troubled = True
        if marked >= CUT_ROWS:
            desk.hurry()
        while True:
            bell = None if is_exempt() else desk.hold_up(rows, self._now())
            if bell is None:
                return
            self._clock.wait(bell, None)
            rows = self._unwritten_rows()

    def wait_committed(self, cut: int, job_id: str | None = None) -> None:
        """Blocks until that cut is on disk. Raises `StorageError` with `accepted` if writing fails
        meanwhile; it is then still tried."""
        ticket = self._wait(cut, None, force=False)
        if ticket is not None and ticket.error is not None:
            raise same_kind(
                ticket.error,
                f"what was asked for is done in memory, and is not on disk: {ticket.error}. "
                "It is written as soon as that is possible again",
                accepted=True,
                job_id=job_id,
            )

    def watch(self, cut: int, tell: Callable[[], object]) -> Ticket | None:
        """A ticket whose `tell` is called, from any thread, when that cut is on disk or could not
        be written; `None` if it is there already. One with an error tells nobody any more."""
        return self._desk.watch(cut, tell, force=False)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Blocks until everything marked so far is on disk, trying at once if writing has failed.
        Raises `StorageError` if it fails again, `WaitTimeoutError`."""
        ticket = self._wait(self._desk.everything(), timeout_ms, force=True)
        if ticket is not None and ticket.error is not None:
            raise same_kind(
                ticket.error, f"not everything is on disk: {ticket.error}", accepted=True
            )

    def _wait(self, cut: int, timeout_ms: int | None, *, force: bool) -> Ticket | None:
        bell = threading.Lock()
        bell.acquire()
        ticket = self._desk.watch(cut, bell.release, force=force or not self._threaded)
        if ticket is None or ticket.error is not None:
            return ticket
        if not self._threaded:
            self.step()
            return ticket
        left_ms = timeout_ms
        until = self._now() + (timeout_ms or 0) / 1000
        while not self._clock.wait(bell, left_ms):
            if timeout_ms is not None:
                left_ms = round((until - self._now()) * 1000)
                if left_ms <= 0:
                    raise WaitTimeoutError(
                        f"not everything was on disk after {timeout_ms / 1000:g} s; it is still "
                        "being written"
                    )
        return ticket

    def unwritten(self) -> list[Marks]:
        """What was handed over and may not be on disk, the newest first: to be looked at after
        the shard's own marks and before what is on disk."""
        # the parts first: they are merged into what is held before they are let go
        return [*reversed(self._parts), self._held]

    def health(self) -> StorageHealth:
        """How it is doing now."""
        desk = self._desk
        return StorageHealth(
            self._unwritten_rows(),
            desk.age(self._now()) * 1000,
            self._failing_since_ms,
            desk.failing,
            self.commits,
            self.rows_written,
            self._committer.log_bytes,
        )

    def _unwritten_rows(self) -> int:
        return self._count() + self._held.size()

    # -- writing -----------------------------------------------------------------------------

    def step(self) -> bool:
        """Makes a cut and writes it now; says whether everything is on disk."""
        began = self._now()
        before, problem = self._desk.failing, None
        with self._commit:
            self._desk.begin_attempt()
            try:
                self._collect(self._begin_cut)
                self._merge()
                cut, rows = self._desk.cut - 1, self._held.size()
                if rows:
                    self._look_around(began)
                    self._committer.commit(self._held)
                    self._held = no_marks()
                    self.commits += 1
                    self.rows_written += rows
            except Exception as error:  # whatever it is: without the writer nothing is kept at all
                problem = self._explained(error)
                self.troubled = True
                if before is None:
                    self._failing_since_ms = self._clock.timeline_ms()
                tickets = self._desk.failed(problem, self._now())
            else:
                self._failing_since_ms = None
                tickets = self._desk.landed(cut, rows, began, self._now())
        for ticket in tickets:
            _tell(ticket.tell)
        self._report(before, problem)
        return problem is None

    def _begin_cut(self) -> list[Marks]:
        self._desk.begin_cut()
        return self._parts

    def _merge(self) -> None:
        parts = self._parts
        for part in parts:
            if self._held.size():
                part.put_over(self._held)
            else:
                self._held = part
        self._parts = []

    def _look_around(self, now: float) -> None:
        if self._guard is not None and (now >= self._guard_at or self._desk.failing is not None):
            self._guard()
            self._guard_at = now + _GUARD_EVERY

    def _explained(self, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        if isinstance(error, (sqlite3.Error, OSError)):
            problem = explained(error, self._places.path)
        else:
            problem = StorageError(
                f"{shown(self._places.path)}: writing failed with {type(error).__name__}: {error}"
            )
        problem.__cause__ = error
        return problem

    def _report(self, before: StorageError | None, problem: StorageError | None) -> None:
        if problem is not None and (before is None or str(before) != str(problem)):
            _log.error(
                "%s. %s changes wait in memory; they are written as soon as that is possible",
                problem,
                f"{self._unwritten_rows():,}",
                exc_info=problem.__cause__,
            )
        if problem is None and before is not None:
            _log.warning("%s is written to again", self._places.path)
        if self._changed is not None and (problem is None) is not (before is None):
            _tell(partial(self._changed, problem))

    def _run(self) -> None:
        desk = self._desk
        try:
            while not desk.closing:
                what, wait = desk.due(self._now())
                if wait is None or wait > 0:
                    desk.sleep(self._clock, wait)
                elif what == TIDY:
                    self._tidy()
                elif self.step():
                    self._care(self._committer.after_commit)
            if not self.hung:
                self.step()
        finally:
            self._over.set()

    def _tidy(self) -> None:
        more = self._care(self._committer.tidy)
        self._desk.tidied(self._now(), more=bool(more))

    def _care(self, duty: Callable[[], object]) -> object:
        with self._commit:
            try:
                return duty()
            except Exception as error:  # what is written is safe; the next commit meets it again
                _log.warning("%s: %s", duty.__name__, self._explained(error))
                return None

    # -- the end -----------------------------------------------------------------------------

    def close(self, timeout_ms: int | None = None) -> None:
        """Writes what is left and ends the thread; the connection stays open. Whoever could still
        mark anything has been stopped before. Safe twice.

        Raises `StorageError` if not all could be written in time; it says where the rest is. If
        it is `hung` then, a commit is still under way: the connection must not be closed, nor
        the file given up.
        """
        desk, thread = self._desk, self._thread
        if not desk.close() and self._wound_up:
            return
        if thread is None or thread is threading.current_thread():
            self.step()
        else:
            self.hung = not self.join(timeout_ms)
        if self.hung:
            # the thread has the lock, for who knows how long; it cuts no more when it comes back
            self._collect(self._begin_cut)
            late = StorageError(f"{shown(self._places.path)}: a commit did not end in time")
            for ticket in desk.failed(late, self._now(), last=True):
                _tell(ticket.tell)
        left = no_marks()
        for marks in reversed(self.unwritten()):
            marks.put_over(left)
        problem = None
        if left.size():
            assert desk.failing is not None
            problem = dump(left, self._places, desk.failing)
        # Ctrl-C may have come before: then another call does what is left
        self._wound_up = True
        if problem is not None:
            raise problem

    def join(self, timeout_ms: int | None = None) -> bool:
        """After `close`: whether the thread has ended, within that time."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        # not by the thread's own `join`: when Ctrl-C breaks that off, some versions of Python take
        # the thread for ended
        ended = self._over.wait(None if timeout_ms is None else timeout_ms / 1000)
        if ended:
            thread.join()
        return ended


def _nothing_to_collect(begin: Callable[[], list[Marks]]) -> None:
    begin()


def _tell(listener: Callable[[], object]) -> None:
    try:
        listener()
    except Exception:  # not ours: the loop behind it may be closed, and others want to be told too
        _log.exception("whoever was to be told how writing goes did not take it")
