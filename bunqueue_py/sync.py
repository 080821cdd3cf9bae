"""Every lock by name and rank, and the one place that starts threads.

| rank  | lock                                  | may take while held               |
| ----- | ------------------------------------- | --------------------------------- |
| 10    | manager lifecycle                     | all below                         |
| 20    | one worker's own state                | nothing above 1000, no shard      |
| 40    | bringing back what only the file has  | shards, leaves, a connection      |
| 50    | the storage writer's cut and commit   | shards, leaves                    |
| 100+i | shard i                               | leaves; several only ascending    |
| 1000  | leaves: stores, buffers, loops        | nothing                           |
| 1020  | an SQLite connection, a child's pipe  | nothing; under 10, 40, 50 only    |

With `BUNQUEUE_CHECK_LOCKS=1` in the environment when a lock is made, it checks this table at every
use and raises `LockOrderError`; otherwise it is a plain `threading.Lock`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

MANAGER = 10
WORKER = 20
RECALL = 40
STORAGE = 50
SHARD = 100
LEAF = 1000
CONNECTION = 1020


class LockOrderError(RuntimeError):
    """A lock was taken against the table above, or twice by one thread."""


class AnyLock(Protocol):
    """What a plain and a checking lock share."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Held(threading.local):
    def __init__(self) -> None:
        self.locks: list[CheckingLock] = []


_held = _Held()


class CheckingLock:
    """A lock that knows its rank and complains when the order is broken."""

    __slots__ = ("_inner", "name", "rank")

    def __init__(self, name: str, rank: int) -> None:
        self._inner = threading.Lock()
        self.name = name
        self.rank = rank

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        held = _held.locks
        if held and blocking:
            last = max(held, key=lambda lock: lock.rank)
            if any(lock is self for lock in held):
                raise LockOrderError(f"{self.name} (rank {self.rank}) is taken twice by one thread")
            if self.rank <= last.rank:
                raise LockOrderError(
                    f"{self.name} (rank {self.rank}) is taken while {last.name} "
                    f"(rank {last.rank}) is held"
                )
            if self.rank >= CONNECTION and last.rank not in (MANAGER, RECALL, STORAGE):
                raise LockOrderError(
                    f"{self.name} is taken while {last.name} (rank {last.rank}) is held: SQLite "
                    "waits for the disk, and nobody may have to wait for that"
                )
            if last.rank == WORKER and self.rank < LEAF:
                raise LockOrderError(
                    f"{self.name} (rank {self.rank}) is taken while {last.name} is held: "
                    "under a worker's own lock only leaves may be taken"
                )
        taken = self._inner.acquire(blocking, timeout)
        if taken:
            held.append(self)
        return taken

    def release(self) -> None:
        held = _held.locks
        if self in held:
            held.remove(self)
        self._inner.release()

    def locked(self) -> bool:
        return self._inner.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<CheckingLock {self.name} rank {self.rank}>"


def make_lock(name: str, rank: int) -> AnyLock:
    """A lock of that rank: plain, or checking when `BUNQUEUE_CHECK_LOCKS=1`."""
    if os.environ.get("BUNQUEUE_CHECK_LOCKS") == "1":
        return CheckingLock(name, rank)
    return threading.Lock()


def contention(lock: AnyLock) -> Callable[[], bool]:
    """Says at each call, without blocking, whether some thread has the lock. `locked` does not
    tell of one that has just been given it and still waits for the interpreter."""
    plain: Any = lock._inner if isinstance(lock, CheckingLock) else lock
    acquire, leave, without_blocking = plain.acquire, plain.__exit__, (False,)

    def contended() -> bool:
        # all in C: no exception can land between taking it and letting it go
        return not list(map(leave, filter(acquire, without_blocking)))

    return contended


def nothing_held() -> None:
    """Raises `LockOrderError` if this thread holds a checking lock: called where foreign code is
    about to run."""
    if _held.locks:
        names = ", ".join(lock.name for lock in _held.locks)
        raise LockOrderError(f"foreign code is about to run while {names} is held")


def spawn(name: str, target: Callable[[], None]) -> threading.Thread:
    """Starts and returns a daemon thread named `bunqueue-<name>`; the caller owns and joins it.

    Where an exception lands here, such as Ctrl-C while the thread starts, `target` is not called:
    nobody would own it, and whoever tries again would have two of them.
    """
    wanted: list[bool] = []
    gate = threading.Lock()
    gate.acquire()

    def run() -> None:
        gate.acquire()
        if wanted:
            target()

    thread = threading.Thread(target=run, name=f"bunqueue-{name}", daemon=True)
    try:
        thread.start()
        wanted.append(True)
    except BaseException:
        wanted.clear()
        gate.release()
        raise
    gate.release()
    return thread


def on_main_thread() -> bool:
    """Whether the caller runs on the thread that Ctrl-C interrupts."""
    return threading.current_thread() is threading.main_thread()


CHILD_NAME = "bunqueue-child"
"""How the name of a worker's process begins."""


def in_child_of_worker() -> bool:
    """Whether this process runs the handlers of a worker with `executor="process"`; known by its
    name, which it has before it imports the application's modules."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.current_process().name.startswith(CHILD_NAME)
