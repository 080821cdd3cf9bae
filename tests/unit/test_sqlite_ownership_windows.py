"""Who owns a file on Windows, as far as that can be told elsewhere: `msvcrt` is played.

A lock there is on bytes of the file, belongs to the descriptor that took it, refuses every other
one at once with EACCES, and keeps others from reading the bytes that are locked.
"""

import errno
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import StorageError, StorageLockedError
from bunqueue_py.storage.sqlite import ownership

Bytes = tuple[int, int, int]
"""Device and inode of a file, and the place of a byte in it."""


class Locks(ModuleType):
    """Plays `msvcrt`."""

    LK_UNLCK, LK_NBLCK = 0, 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[Bytes, int] = {}
        self.fails = 0

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert count == 1
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))
        found = os.fstat(descriptor)
        place = (found.st_dev, found.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
        if mode == self.LK_NBLCK:
            if place in self.held:
                raise OSError(errno.EACCES, "Permission denied")
            self.held[place] = descriptor
        else:
            assert mode == self.LK_UNLCK
            if self.held.pop(place, None) != descriptor:
                raise OSError(errno.EACCES, "nothing of that is locked by it")


@pytest.fixture
def locks() -> Locks:
    return Locks()


@pytest.fixture
def windows(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as it is on Windows, beside the one of this system."""
    assert ownership.__file__ is not None
    spec = importlib.util.spec_from_file_location(
        "bunqueue_py.storage.sqlite.ownership_on_windows", ownership.__file__
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", locks)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def take(windows: Any, path: str, timeout_ms: int | None = 0) -> Any:
    return windows.Ownership.take(path, timeout_ms, SystemClock())


def test_the_locked_byte_stands_behind_the_text_which_all_may_read(
    windows: Any, locks: Locks, path: str
) -> None:
    owned = take(windows, path)
    with open(path + ".lock") as file:
        text = file.read()
    assert text.startswith(f"{os.getpid()}\n")
    ((_, _, place),) = locks.held
    assert place > 1_000_000 > len(text)
    assert os.path.getsize(path + ".lock") == len(text)
    owned.release()


def test_a_second_manager_is_refused_and_told_who_has_it(
    windows: Any, locks: Locks, path: str
) -> None:
    owned = take(windows, path)
    with pytest.raises(StorageLockedError, match="another manager of this process") as told:
        take(windows, path)
    assert told.value.pid == os.getpid()
    assert len(locks.held) == 1
    owned.release()
    assert not locks.held
    take(windows, path).release()


def test_the_lock_file_stays_since_nobody_can_remove_an_open_one(windows: Any, path: str) -> None:
    take(windows, path).release()
    assert os.path.exists(path + ".lock")
    # and stands in nobody's way
    owned = take(windows, path)
    assert owned.still_ours()
    owned.release()
    owned.release()  # twice is once


def test_what_is_no_matter_of_another_holder_is_an_error_of_its_own(
    windows: Any, locks: Locks, path: str
) -> None:
    locks.fails = errno.EIO
    with pytest.raises(StorageError) as told:
        take(windows, path)
    assert not isinstance(told.value, StorageLockedError)
    assert "jobs.db.lock" in str(told.value)
