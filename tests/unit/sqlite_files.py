"""What the tests of the SQLite files share: files of ours with jobs in them, and looking at what
is in a folder without asking SQLite."""

import os
import shutil
import signal
import sqlite3
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import pytest

from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.opening import close_database, open_database

STATES = PENDING, GATED, ACTIVE, COMPLETED, FAILED = range(5)

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts a file system: root only"
)
posix = pytest.mark.skipif(os.name == "nt", reason="of POSIX")


@contextmanager
def opened(path: Path | str) -> Iterator[sqlite3.Connection]:
    """The owner's connection, closed in good order at the end. It does not wait for the disk, or
    the tests would do little else."""
    connection = open_database(str(path)).connection
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    try:
        yield connection
    finally:
        close_database(connection, str(path))


def add_job(
    connection: sqlite3.Connection,
    number: int,
    *,
    queue: str = "emails",
    state: int = PENDING,
    priority: int = 0,
    run_at: int = 0,
    entered: int = 0,
    data: bytes | int = b"{}",
    result: bytes | int = 0,
) -> str:
    """Writes the row of one job, and returns its id."""
    job_id = f"job-{number:06}"
    connection.execute(
        "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, '{}', ?, ?)",
        (job_id, queue, number, state, priority, run_at, entered, data, result),
    )
    return job_id


def make_file(path: Path | str, jobs: int = 0, size: int = 100) -> Path:
    """A file of ours with that many jobs, closed in good order."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    schema.create(connection)
    connection.execute("BEGIN")
    for number in range(jobs):
        add_job(connection, number, data=bytes(size))
    connection.execute("COMMIT")
    close_database(connection, str(path))
    return Path(path)


def crash_copy(source: Path, target: Path) -> Path:
    """The file with its log as a crash would leave them now, at another path. The index of the log
    is not taken along: after a power cut there is none either."""
    for suffix in ("", "-wal", "-journal"):
        if os.path.exists(f"{source}{suffix}"):
            shutil.copy(f"{source}{suffix}", f"{target}{suffix}")
    return target


def torn_copy(connection: sqlite3.Connection, source: Path, target: Path) -> Path:
    """The same, with a checkpoint broken off after its first page, which tells of pages that only
    the log has. Makes that checkpoint in `source`."""
    crash_copy(source, target)
    assert connection.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0
    with open(source, "rb") as whole, open(target, "r+b") as torn:
        torn.write(whole.read(connection.execute("PRAGMA page_size").fetchone()[0]))
        assert os.path.getsize(target) < os.path.getsize(source)
    return target


def make_unclean(path: Path, jobs: int = 0) -> Path:
    """A file of ours whose owner was killed; all that it wrote is in the file itself."""
    make_file(path, jobs)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = 0 WHERE key = 'clean'")
    connection.commit()
    connection.close()
    return path


def folder(path: Path) -> dict[str, bytes]:
    """Name and content of every file in it. To be asked only while no SQLite connection of this
    process is open: closing the files takes away SQLite's locks."""
    return {each.name: each.read_bytes() for each in sorted(path.iterdir()) if each.is_file()}


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def damage(path: Path, offset: int, content: bytes) -> None:
    """Overwrites a part of the file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def garble_schema(path: Path) -> None:
    """Puts bytes that are no text into the statement that made a table, so that SQLite's message
    about it cannot be read either."""
    damage(path, path.read_bytes().index(b"CREATE TABLE jobs") + 3, b"\xff")


def fork(child: Callable[[], object]) -> int:
    """The pid of a forked child that runs the call and ends with it: code 1 if it raised."""
    with warnings.catch_warnings():
        # Python 3.12+ warns of a fork beside threads, which pytest-xdist has
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        child()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Neighbour:
    """Another process: has run `begin`, and will run `end` when told to go on."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object] | None) -> None:
        ready_read, ready_write = os.pipe()
        go_read, go_write = os.pipe()
        self._go: int | None = go_write

        def child() -> None:
            os.close(go_write)
            begin()
            os.write(ready_write, b"x")
            os.read(go_read, 1)
            if end is not None:
                end()

        self._exit_code: int | None = None
        self.pid = fork(child)
        os.close(ready_write)
        os.close(go_read)
        is_ready = os.read(ready_read, 1) == b"x"
        os.close(ready_read)
        if not is_ready:
            raise AssertionError(f"the other process ended with {self.finish()}")

    def go_on(self) -> None:
        """Lets it run `end`, and does not wait for that."""
        if self._go is not None:
            os.close(self._go)
            self._go = None

    def finish(self) -> int:
        """Lets it run `end` and waits for it; its exit code."""
        if self._exit_code is None:
            self.go_on()
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.finish() == -signal.SIGKILL


@contextmanager
def neighbour(
    begin: Callable[[], object], end: Callable[[], object] | None = None
) -> Iterator[Neighbour]:
    other = Neighbour(begin, end)
    try:
        yield other
    finally:
        assert other.finish() in (0, -signal.SIGKILL)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system of its own, in memory, mounted on a new folder; skips the test where even root
    may not do that, as in most containers."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


class CountingClock:
    """Time passes where somebody waits, and nobody really does. `calls` maps the number of a wait
    to what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.waits: list[int] = []
        self.meanwhile: dict[int, Callable[[], object]] = {}
        self.timeline_ms = lambda: self.now
        self.wall_ms = lambda: self.now

    def effort(self) -> tuple[float, float]:
        return float(self.now), 0.0

    def wait(self, lock: Lock, timeout_ms: int | None) -> bool:
        assert timeout_ms is not None
        assert 0 < timeout_ms <= 1000
        self.waits.append(timeout_ms)
        self.now += timeout_ms
        call = self.meanwhile.get(len(self.waits))
        if call is not None:
            call()
        return False
