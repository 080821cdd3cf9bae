"""Ctrl-C while a manager is made or closed: nothing of it is left, and the file is free."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import bunqueue_py.manager as manager_module
import bunqueue_py.ops.close as close_module
import bunqueue_py.ops.cut as cut_module
import bunqueue_py.storage.sqlite.session as session_module
import bunqueue_py.storage.sqlite.storage as storage_module
from bunqueue_py import (
    ManagerConfig,
    Queue,
    QueueManager,
    SqliteStorage,
    StorageError,
    StorageLockedError,
)
from bunqueue_py.storage.sqlite.writer import Writer
from bunqueue_py.testing.pytest_plugin import no_thread_left
from tests.faulty_disk import Disk
from tests.threads.patience import TIMEOUT, until
from tests.threads.test_interrupts import Trap

JOBS = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with QueueManager(tmp_path / "jobs.db", background=False) as manager:
        Queue("q", manager).add_bulk([("n", n) for n in range(JOBS)])
    return tmp_path / "jobs.db"


def breaks(*args: object, **options: object) -> Any:
    raise KeyboardInterrupt


def then_breaks(call: Callable[..., object]) -> Callable[..., None]:
    def both(*args: Any, **options: Any) -> None:
        call(*args, **options)
        raise KeyboardInterrupt

    return both


PLACES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before the storage hands over": (storage_module, "Recovered", breaks),
    "while the session is made": (session_module, "stored_jobs", breaks),
    "in the recovery": (cut_module, "restore", breaks),
    "when the writer has begun": (Writer, "start", then_breaks(Writer.start)),
    "before the webhooks are there": (manager_module, "Webhooks", breaks),
    "at the very end": (manager_module, "_disown_in_children", breaks),
}


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_an_opening_that_is_broken_off_leaves_nothing_and_the_file_free(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, background: bool
) -> None:
    with no_thread_left(TIMEOUT):
        storage = SqliteStorage(path)
        with monkeypatch.context() as patched:
            patched.setattr(*PLACES[place])
            with pytest.raises(KeyboardInterrupt):
                QueueManager(storage, background=background)
        for again in (storage, path):
            with QueueManager(again, background=background) as manager:
                assert manager.counts("q").waiting == JOBS


def test_an_opening_that_is_refused_closes_nobody_elses_storage(path: Path) -> None:
    storage = SqliteStorage(path)
    with QueueManager(storage, background=False) as manager:
        with pytest.raises(StorageLockedError):
            QueueManager(storage, background=False)
        manager.push("q", durable=True)
        assert manager.counts("q").waiting == JOBS + 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="of POSIX")
@pytest.mark.parametrize("fails", [False, True])
def test_a_close_that_is_broken_off_is_done_by_the_next_and_loses_nothing(
    path: Path, disk: Disk, fails: bool
) -> None:
    with no_thread_left(TIMEOUT):
        manager = QueueManager(path)
        storage: Any = manager._state.storage
        writer = storage._writer
        go, held = threading.Event(), threading.Event()

        def hold() -> None:
            with writer._commit:  # as a disk that takes its time
                held.set()
                assert go.wait(TIMEOUT)

        def press() -> None:
            until(lambda: writer._desk.closing, "the last flush is waited for")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        # a program that was started in the background ignores it
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        others = [threading.Thread(target=hold), threading.Thread(target=press)]
        others[0].start()
        assert held.wait(TIMEOUT)
        for n in range(JOBS):
            manager.push("q", n)
        others[1].start()
        with pytest.raises(KeyboardInterrupt):
            manager.close()
        signal.signal(signal.SIGINT, before)
        with pytest.raises(StorageLockedError):
            QueueManager(path)
        if fails:
            disk.fail()
        go.set()
        for other in others:
            other.join()
        if fails:
            with pytest.raises(StorageError, match="come in when the database is opened"):
                manager.close()
            disk.mend()
        assert manager.close()
        assert manager.close()
        with QueueManager(path) as again:
            assert again.counts("q").waiting == 2 * JOBS
            assert manager.close(), "another manager has the file now"
            again.push("q", durable=True)


def test_a_storage_that_was_left_open_is_closed_at_the_end_of_the_interpreter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = QueueManager(path)
    manager.push("q", 1)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "close", breaks)
        with pytest.raises(KeyboardInterrupt):
            manager.close()
    manager._at_exit()
    with QueueManager(path) as again:
        assert again.counts("q").waiting == JOBS + 1


class Everywhere(Trap):
    """Throws in what of the standard library the engine calls, too."""

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.hit is None and frame.f_code.co_filename.endswith("contextlib.py"):
            return self._line
        return super()._call(frame, event, arg)


@pytest.mark.parametrize("call", [close_module.seal, lambda state: cut_module.collect(state, list)])
def test_whatever_takes_every_shard_keeps_none_when_it_is_broken_off(
    call: Callable[[Any], object],
) -> None:
    for at in count(1):
        manager = QueueManager(background=False, config=ManagerConfig(shards=4))
        state = manager._state
        for n in range(8):
            manager.push(f"q{n}", n)
        trap = Everywhere(at, KeyboardInterrupt)
        with suppress(KeyboardInterrupt), trap:
            call(state)
        assert not any(shard.lock.locked() for shard in state.shards.shards), trap.hit
        manager.close()
        if trap.hit is None:
            break
