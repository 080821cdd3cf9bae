"""One process, one manager a file: a lock file beside the database, locked while it is owned.

The system frees the lock when its holder dies, however it dies, so a lock file that was left
behind stands in nobody's way. The file says who holds it, for the error text.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import suppress

from ...clock import Clock
from ...durations import shown
from ...errors import StorageLockedError
from .connection import explained

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_POLL_MS = 50
_FIRST_POLL_MS = 5
_FAR_AWAY = 1 << 30
"""Windows forbids others to read locked bytes, so the locked one stands far behind the text."""

_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class Ownership:
    """Ownership of one database. Made by `take`; ends with `release`, or in a forked child with
    `disown`. Not for several threads at once."""

    __slots__ = ("_beside", "_database", "_descriptor", "_lock_path", "_process", "path")

    def __init__(self, path: str, lock_path: str, descriptor: int) -> None:
        self.path = path
        self._lock_path = lock_path
        self._descriptor: int | None = descriptor
        self._process = os.getpid()
        self._database: tuple[int, int] | None = None
        #: SQLite's files beside it
        self._beside: dict[str, tuple[int, int] | None] = {}

    @classmethod
    def take(cls, path: str, timeout_ms: int | None, clock: Clock) -> Ownership:
        """Owns the database at the real path `path`, which need not be there yet.

        Blocks for up to `timeout_ms` (0: not at all, `None`: without end) while another manager
        owns it, in this or in another process; then raises `StorageLockedError`, which names the
        holder.
        """
        lock_path = path + ".lock"
        begun = clock.effort()[0]
        pause = _FIRST_POLL_MS
        while True:
            descriptor = _try(lock_path)
            if descriptor is not None:
                return cls(path, lock_path, descriptor)
            if timeout_ms is not None:
                left = timeout_ms - (clock.effort()[0] - begun)
                if left <= 0:
                    raise _locked(path, lock_path, timeout_ms)
                pause = min(pause, int(left) + 1)
            _sleep(clock, pause)
            pause = min(pause * 2, _POLL_MS)

    @property
    def held(self) -> bool:
        """Whether it is neither released nor disowned."""
        return self._descriptor is not None

    def remember_database(self) -> None:
        """Notes which file is at the path now: the one that was opened."""
        found = os.stat(self.path)
        self._database = (found.st_dev, found.st_ino)
        self.remember_log()

    def remember_log(self) -> None:
        """Notes which files SQLite has beside the database now that a connection is open: its log
        and the log's index. They are the same until the last connection is closed."""
        names = [self.path + ending for ending in ("-wal", "-shm")]
        self._beside = {name: _identity(name) for name in names}

    def still_ours(self) -> bool:
        """Whether the database at the path is the one that was opened and the lock on it ours."""
        return self.trouble() is None

    def trouble(self) -> str | None:
        """What is wrong with the ownership, in a sentence; `None` if nothing.

        A lock file that somebody deleted is made and locked anew, if nobody was faster.
        """
        if self._descriptor is None:
            return f"{shown(self.path)} is no longer owned by this manager"
        found = _identity(self.path)
        if self._database is not None and found != self._database:
            what = "deleted or moved away" if found is None else "replaced by another file"
            return (
                f"{shown(self.path)} was {what} while this manager had it open: what is written "
                "goes to the old file, which is lost with this process. Restart with the right "
                "file in place"
            )
        for name, known in self._beside.items():
            if known is not None and _identity(name) != known:
                return (
                    f"{shown(name)}, a part of the database, was deleted or replaced while this "
                    "manager had it open: what is written would be lost if this process died. "
                    "Close the manager and open it again; that brings all to the database"
                )
        if _identity(self._lock_path) == _identity_of(self._descriptor):
            return None
        descriptor = _try(self._lock_path)
        if descriptor is None:
            return (
                f"the lock file {shown(self._lock_path)} was deleted or replaced, and "
                f"{_holder(self._lock_path)[0]} has taken it: two managers have the database open. "
                "End one of them"
            )
        os.close(self._descriptor)
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Gives the database up and removes the lock file. May be called twice; every connection
        must be closed before."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            # Removed while still locked, so only the holder ever removes one. Who waits for this
            # very file sees, once it has the lock, that the file is no longer there.
            if sys.platform != "win32" and _identity(self._lock_path) == _identity_of(descriptor):
                with suppress(OSError):
                    os.unlink(self._lock_path)
            # Closing would not do: a child that is between fork and exec has the same lock open.
            _unlock(descriptor)
        finally:
            os.close(descriptor)

    def __del__(self) -> None:
        # Ctrl-C between two steps of an opening: nobody has it, and nobody could release it
        with suppress(Exception):
            if os.getpid() == self._process:
                self.release()
            else:
                self.disown()

    def disown(self) -> None:
        """In a forked child: closes the child's copy of the lock, which stays the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _try(lock_path: str) -> int | None:
    """The descriptor of the locked lock file, `None` if somebody else has it locked."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        try:
            descriptor = os.open(lock_path, flags, 0o666)
        except OSError as error:
            raise explained(error, lock_path) from error
        try:
            if not _lock(descriptor, lock_path):
                os.close(descriptor)
                return None
            if _identity(lock_path) == _identity_of(descriptor):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Its holder removed the file between the two steps: what is locked has no name any more.
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    text = f"{os.getpid()}\n{_host()}\n".encode()
    # A full disk must not keep anybody from opening the database: it costs the name in an error.
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text)
        os.ftruncate(descriptor, len(text))


def _locked(path: str, lock_path: str, timeout_ms: int) -> StorageLockedError:
    holder, pid = _holder(lock_path)
    waited = f" after waiting {timeout_ms / 1000:g} s" if timeout_ms else ""
    return StorageLockedError(
        f"{shown(path)} is owned by {holder}{waited}: a file serves one manager at a time. Close "
        "that one, wait for it with SqliteStorage(lock_timeout=...), or read beside it with "
        "QueueManager.open_readonly",
        pid=pid,
    )


def _holder(lock_path: str) -> tuple[str, int | None]:
    try:
        with open(lock_path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1000).split("\n")
        pid = int(lines[0])
    except (OSError, ValueError):
        return "another process", None
    host = lines[1] if len(lines) > 1 else ""
    if host and host != _host():
        return f"process {pid} on {host}", pid
    if pid == os.getpid():
        return f"another manager of this process ({pid})", pid
    return f"process {pid}", pid


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _identity_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _sleep(clock: Clock, ms: int) -> None:
    bell = threading.Lock()
    bell.acquire()
    clock.wait(bell, ms)


if sys.platform == "win32":  # tried with a played `msvcrt` only: nobody has run it there yet

    def _lock(descriptor: int, lock_path: str) -> bool:
        os.lseek(descriptor, _FAR_AWAY, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise explained(error, lock_path) from error
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR_AWAY, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _lock(descriptor: int, lock_path: str) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise explained(error, lock_path) from error
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
