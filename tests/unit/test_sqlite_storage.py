"""`SqliteStorage` whole: from the path that it is given to the file that it leaves behind."""

import copy
import logging
import os
import pickle
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    SqliteStorage,
    StorageCorruptError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    ValidationError,
)
from bunqueue_py.clock import SystemClock
from bunqueue_py.model.job import COMPLETED, FAILED, JobRecord
from bunqueue_py.model.rows import (
    DATA,
    ID,
    RESULT,
    RESULT_SIZE,
    STATE,
    JobRow,
    Marks,
    full_row,
    no_marks,
    row_of,
)
from bunqueue_py.storage.sqlite import lookup as lookup_module
from bunqueue_py.storage.sqlite import recovery
from bunqueue_py.storage.sqlite import session as session_module
from bunqueue_py.storage.sqlite.commits import Committer
from bunqueue_py.storage.sqlite.lookup import Lookup, read_job, read_result
from bunqueue_py.storage.sqlite.opening import checkpoint
from bunqueue_py.storage.sqlite.rows import UndecodableRowError
from bunqueue_py.storage.sqlite.unflushed import SUFFIX
from bunqueue_py.sync import LockOrderError
from bunqueue_py.testing import VirtualClock
from tests.unit.sqlite_files import (
    CountingClock,
    crash_copy,
    make_unclean,
    names,
    neighbour,
    posix,
)
from tests.unit.sqlite_marks import BIG, OPTIONS, Driven, driven, found_in, record


@pytest.fixture
def storage(path: Path) -> Iterator[SqliteStorage]:
    made = SqliteStorage(path)
    yield made
    made.close()


@pytest.fixture
def drive(storage: SqliteStorage) -> Driven:
    return Driven(storage)


def look(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What another program finds in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query, values).fetchall()


def change(path: Path, query: str, *values: Any) -> None:
    """What somebody does to the file while nobody has it open."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(query, values)
        connection.commit()


# -- what may be given -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"flush_interval": -1}, ["flush_interval", "-1", "negative"]),
        ({"flush_interval": "1"}, ["flush_interval", "'1'", "seconds"]),
        ({"flush_interval": True}, ["flush_interval", "True"]),
        ({"flush_interval": float("nan")}, ["flush_interval", "nan", "36,500 days"]),
        ({"max_lag": 0}, ["max_lag", "0", "0.001"]),
        ({"max_lag": float("inf")}, ["max_lag", "inf", "36,500 days"]),
        ({"max_unflushed": 0}, ["max_unflushed", "0", "from 1 to 100,000,000"]),
        ({"max_unflushed": 100_000_001}, ["max_unflushed", "100000001", "100,000,000"]),
        ({"max_unflushed": 1.0}, ["max_unflushed", "1.0", "int"]),
        ({"max_unflushed": True}, ["max_unflushed", "True", "int"]),
        ({"lock_timeout": -0.5}, ["lock_timeout", "-0.5", "negative"]),
        ({"lock_timeout": timedelta(days=36_501)}, ["lock_timeout", "36,500 days"]),
        ({"unflushed_dir": 5}, ["unflushed_dir", "5", "path"]),
        ({"unflushed_dir": ""}, ["unflushed_dir", "empty", "folder"]),
        ({"unflushed_dir": "a\0b"}, ["unflushed_dir", "NUL"]),
        ({"unflushed_dir": "a\ud83d"}, ["unflushed_dir", "encoded"]),
        ({"path": ""}, ["path", "empty"]),
        ({"path": ":memory:"}, ["path", ":memory:", "None"]),
        ({"path": 7}, ["path", "7"]),
        ({"path": None}, ["path", "None"]),
        ({"path": "jobs/"}, ["path", "folder"]),
    ],
)
def test_what_is_out_of_bounds_is_named_before_anything_is_touched(
    path: Path, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        SqliteStorage(**{"path": path, **options})
    assert all(word in str(caught.value) for word in words), caught.value
    assert names(path.parent) == []


def test_durations_are_seconds_or_timedeltas(path: Path) -> None:
    made = SqliteStorage(
        path,
        flush_interval=timedelta(milliseconds=20),
        max_lag=0.0701,
        lock_timeout=None,
        unflushed_dir=path.parent,
    )
    assert made._settings == (20, 71, 100_000, None, str(path.parent))
    assert SqliteStorage(path, flush_interval=0)._settings[:4] == (0, 100, 100_000, 0)


def test_nothing_is_opened_until_a_manager_opens_it(path: Path) -> None:
    made = SqliteStorage(path)
    assert made.persistent
    assert repr(made) == f"SqliteStorage({str(path)!r})"
    made.close()
    assert names(path.parent) == []


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_given(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    made = SqliteStorage("jobs.db", unflushed_dir=".")
    monkeypatch.chdir(tmp_path)
    Driven(made).add("a")
    made.close()
    assert found_in(path) == ["a"]
    assert made._settings.unflushed_dir == str(path.parent)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied_or_pickled(
    storage: SqliteStorage, duplicate: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match=r"jobs\.db.*cannot be copied or pickled.*the path"):
        duplicate(storage)


NEEDS_A_MANAGER: list[Callable[[SqliteStorage], object]] = [
    lambda s: s.start(lambda _: None, lambda: 0, threaded=False),
    lambda s: s.cut,
    lambda s: s.troubled,
    lambda s: s.marked(),
    lambda s: s.refuse(durable=False),
    lambda s: s.admit(),
    lambda s: s.wait_committed(1),
    lambda s: s.watch(1, lambda: None),
    lambda s: s.flush(),
    lambda s: s.step(),
    lambda s: s.unwritten(),
    lambda s: s.health(),
    lambda s: s.read_job("a"),
    lambda s: s.read_result("a"),
]


@pytest.mark.parametrize("call", NEEDS_A_MANAGER)
def test_a_call_that_needs_a_manager_says_so(
    storage: SqliteStorage, call: Callable[[SqliteStorage], object]
) -> None:
    with pytest.raises(StorageError, match=r"jobs\.db' is not open: give .* to a QueueManager"):
        call(storage)


# -- opening ---------------------------------------------------------------------------------------


def test_a_new_file_is_empty_and_clean(drive: Driven) -> None:
    assert (drive.clean, drive.found, drive.rest) == (True, [], [])


def test_everything_that_was_marked_is_found_at_the_next_opening(path: Path) -> None:
    with driven(path) as drive:
        short = record("a", data=b'{"to":"ada"}')
        drive.add(short)
        drive.add("b", data=BIG)
        drive.add("c", b'"done"')
        drive.add("d", BIG)
        drive.keep("queue", "emails", {"paused": True})
        drive.keep("held_key", "emails\0naïve \ud800", [1, None, "x"])
    with driven(path) as drive:
        assert drive.clean
        assert drive.ids == ["a", "b", "c", "d"]
        assert drive.row("a") == row_of(short, 1)
        assert drive.row("b")[DATA] == BIG
        assert drive.row("c")[RESULT] == b'"done"'
        # to go on with the job its result is not needed, and it may be long
        assert drive.row("d")[RESULT] is None
        assert drive.row("d")[RESULT_SIZE] == len(BIG)
        assert sorted(drive.rest) == [
            ("held_key", "emails\0naïve \ud800", [1, None, "x"]),
            ("queue", "emails", {"paused": True}),
        ]


def test_jobs_are_found_in_the_order_in_which_they_came_in_whatever_their_ids(path: Path) -> None:
    with driven(path) as drive:
        for job_id in ("c", "a", "b"):
            drive.add(job_id)
        drive.storage.step()
        drive.mark(record("c", state=FAILED))
    assert found_in(path) == ["c", "a", "b"]


def test_what_was_removed_is_not_found(path: Path) -> None:
    kept, gone = record("a", data=BIG), record("b", data=BIG)
    with driven(path) as drive:
        drive.add(kept)
        drive.add(gone)
        drive.keep("queue", "emails", {})
        drive.storage.step()
        drive.remove(gone)
        drive.keep("queue", "emails", None)
    assert found_in(path) == ["a"]
    assert look(path, "SELECT id FROM payloads") == [("a",)]
    assert look(path, "SELECT * FROM rest") == []


def test_a_storage_that_was_closed_may_be_opened_again(storage: SqliteStorage) -> None:
    for n in range(3):
        drive = Driven(storage)
        assert drive.ids == [f"job-{i}" for i in range(n)]
        drive.add(f"job-{n}")
        storage.close()


def test_a_storage_serves_one_manager_at_a_time(storage: SqliteStorage, drive: Driven) -> None:
    with pytest.raises(StorageLockedError, match="serves a manager of this process") as caught:
        Driven(storage)
    assert caught.value.pid == os.getpid()
    drive.add("a")
    storage.close()
    assert Driven(storage).ids == ["a"]


def test_two_storages_do_not_share_a_file(path: Path, drive: Driven) -> None:
    with pytest.raises(StorageLockedError, match="another manager of this process"):
        Driven(SqliteStorage(path))
    drive.add("a")
    drive.storage.close()
    assert found_in(path) == ["a"]


def test_a_stand_by_waits_until_the_file_is_free(path: Path, drive: Driven) -> None:
    drive.add("a")
    clock = CountingClock()
    clock.meanwhile[3] = drive.storage.close
    waiting = SqliteStorage(path, lock_timeout=60)
    assert Driven(waiting, clock=clock).ids == ["a"]
    waiting.close()


def test_a_stand_by_gives_up_when_its_time_is_over(path: Path, drive: Driven) -> None:
    clock = CountingClock()
    with pytest.raises(StorageLockedError, match=r"after waiting 0\.2 s"):
        Driven(SqliteStorage(path, lock_timeout=0.2), clock=clock)
    assert sum(clock.waits) >= 200


def test_another_serializer_is_refused_and_nothing_is_lost(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
    storage = SqliteStorage(path)
    with pytest.raises(StorageError, match=r"'json', and 'pickle' cannot read"):
        storage.open("pickle", OPTIONS, SystemClock())
    assert names(path.parent) == ["jobs.db"]
    drive = Driven(storage)
    assert drive.clean
    assert drive.ids == ["a"]
    storage.close()


def test_a_refused_opening_does_not_hide_a_crash(path: Path) -> None:
    make_unclean(path)
    with driven(path, serializer="json"):
        pass
    change(path, "UPDATE meta SET value = 0 WHERE key = 'clean'")
    with pytest.raises(StorageError, match="cannot read"):
        SqliteStorage(path).open("pickle", OPTIONS, SystemClock())
    with driven(path) as drive:
        assert not drive.clean
    with driven(path) as drive:
        assert drive.clean


def test_a_manager_that_did_not_get_as_far_as_writing_does_not_hide_a_crash(path: Path) -> None:
    make_unclean(path, jobs=3)
    storage = SqliteStorage(path)
    for _ in range(2):
        recovered = storage.open("json", OPTIONS, SystemClock())
        assert not recovered.clean
        assert next(iter(recovered.jobs)) is not None
        storage.close()
        storage.close()


def test_after_a_crash_everything_that_was_committed_is_found(path: Path, tmp_path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        drive.add("b", admit=False)
        cut = crash_copy(path, tmp_path / "cut.db")
    with driven(cut) as drive:
        assert drive.ids == ["a"]
        assert not drive.clean


def test_a_refused_place_is_named_before_anything_is_made(path: Path) -> None:
    for refused in (path.parent, path.parent / "missing" / "jobs.db"):
        with pytest.raises((StorageError, ValidationError), match="folder"):
            Driven(SqliteStorage(refused))
    for folder in (path.parent / "missing", Path(__file__)):
        with pytest.raises(StorageError, match=r"unflushed_dir .* is no folder"):
            Driven(SqliteStorage(path, unflushed_dir=folder))
    assert names(path.parent) == []


def test_a_python_with_an_old_sqlite_is_refused_before_anything_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StorageError, match=r"needs 3\.35"):
        Driven(SqliteStorage(path))
    assert names(path.parent) == []


def test_a_failure_while_opening_is_explained_and_frees_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(session_module, "take_in_unflushed", fail)
        with pytest.raises(StorageError, match=r"jobs\.db.*reported a failure"):
            Driven(SqliteStorage(path))
    assert names(path.parent) == ["jobs.db"]
    assert found_in(path) == []


# -- rows that cannot be understood ----------------------------------------------------------------

DAMAGE = [
    ("UPDATE jobs SET meta = 'no JSON' WHERE id = 'b'", "meta"),
    ("UPDATE jobs SET meta = CAST(x'5bff5d' AS TEXT) WHERE id = 'b'", "text that is no UTF-8"),
    ("UPDATE jobs SET queue = CAST(x'ff' AS TEXT) WHERE id = 'b'", "a queue that is no text"),
    ("UPDATE jobs SET state = 17 WHERE id = 'b'", "state"),
    ("UPDATE jobs SET data = NULL WHERE id = 'b'", "payload"),
]


@pytest.mark.parametrize(("damage", "what"), DAMAGE)
def test_a_row_that_cannot_be_understood_is_told_in_its_place(
    path: Path, damage: str, what: str
) -> None:
    with driven(path) as drive:
        for job_id in ("a", "b", "c", "d"):
            drive.add(job_id)
    change(path, damage)
    with driven(path) as drive:
        first, bad, third, fourth = drive.found
    assert [row[ID] for row in (first, third, fourth) if isinstance(row, tuple)] == ["a", "c", "d"]
    assert isinstance(bad, UndecodableRowError), what
    assert "job 'b'" in str(bad)
    assert bad.raw[0] == "b"
    assert look(path, "SELECT COUNT(*) FROM jobs") == [(4,)]


def test_even_if_no_row_can_be_understood_each_is_told(path: Path) -> None:
    with driven(path) as drive:
        for job_id in ("a", "b", "c"):
            drive.add(job_id)
    change(path, "UPDATE jobs SET id = CAST(x'ff' || id AS TEXT)")
    with driven(path) as drive:
        assert [type(row) for row in drive.found] == [UndecodableRowError] * 3
        assert [row.raw[0] for row in drive.found if not isinstance(row, tuple)] == [
            b"\xffa",
            b"\xffb",
            b"\xffc",
        ]


def test_a_setting_that_cannot_be_understood_is_passed_over_with_a_line_in_the_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with driven(path) as drive:
        drive.keep("queue", "a", {"paused": True})
        drive.keep("queue", "b", {})
        drive.keep("queue", "c", {"paused": True})
    change(path, "UPDATE rest SET body = '[' WHERE key = 'a'")
    change(path, "UPDATE rest SET body = CAST(x'22ff22' AS TEXT) WHERE key = 'b'")
    with driven(path) as drive:
        assert drive.rest == [("queue", "c", {"paused": True})]
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(told) == 2
    assert "'queue' of 'a' cannot be understood" in told[0]


def test_reading_many_jobs_says_how_far_it_is(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driven(path) as drive:
        for i in range(5):
            drive.add(f"job-{i}", admit=False)
    monkeypatch.setattr(recovery, "PROGRESS_EVERY", 2)
    caplog.set_level(logging.INFO, "bunqueue_py.storage")
    found_in(path)
    told = [r.getMessage() for r in caplog.records if "read" in r.getMessage()]
    assert [text.split("jobs.db: ")[1] for text in told] == [
        "read 2 of 5 jobs",
        "read 4 of 5 jobs",
    ]


def test_a_file_that_turns_out_damaged_while_it_is_read_says_so(path: Path) -> None:
    with driven(path) as drive:
        for i in range(2000):
            drive.add(f"job-{i:04}", admit=False)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 4))
    storage = SqliteStorage(path)
    recovered = storage.open("json", OPTIONS, SystemClock())
    with pytest.raises(StorageCorruptError, match=r"jobs\.db.*damaged"):
        list(recovered.jobs)
    storage.close()


def test_jobs_can_be_iterated_until_writing_begins(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        drive.add("b")
    storage = SqliteStorage(path)
    recovered = storage.open("json", OPTIONS, SystemClock())
    assert next(iter(recovered.jobs)) is not None
    storage.start(lambda cut: None, lambda: 0, threaded=False)
    assert list(recovered.jobs) == []
    assert storage._session is not None
    # no statement is left that would keep the log from getting shorter
    assert checkpoint(storage._session._committer.connection, patience_ms=1)
    storage.close()


# -- writing ---------------------------------------------------------------------------------------


def test_a_durable_wait_ends_when_its_cut_is_on_disk(path: Path, storage: SqliteStorage) -> None:
    drive = Driven(storage, threaded=True)
    cut = drive.add("a")
    storage.wait_committed(cut, "a")
    assert look(path, "SELECT id FROM jobs") == [("a",)]
    assert storage.cut > cut


def test_flush_writes_what_is_marked_with_and_without_a_thread(path: Path) -> None:
    for threaded in (False, True):
        with driven(path, threaded=threaded) as drive:
            drive.add(f"job-{threaded}")
            drive.storage.flush(60_000)
            assert (f"job-{threaded}",) in look(path, "SELECT id FROM jobs")


def test_without_a_thread_whoever_marks_writes(path: Path, drive: Driven) -> None:
    drive.add("a")
    assert look(path, "SELECT id FROM jobs") == [("a",)]
    drive.add("b", admit=False)
    assert look(path, "SELECT id FROM jobs") == [("a",)]
    assert drive.storage.step()
    assert look(path, "SELECT id FROM jobs") == [("a",), ("b",)]


def test_a_watcher_is_told_when_its_cut_is_on_disk(path: Path, storage: SqliteStorage) -> None:
    drive = Driven(storage, threaded=True)
    told = threading.Event()
    cut = drive.add("a", admit=False)
    ticket = storage.watch(cut, told.set)
    if ticket is not None:
        assert told.wait(60)
        assert ticket.error is None
    assert look(path, "SELECT id FROM jobs") == [("a",)]
    assert storage.watch(cut, told.set) is None


def test_its_figures_are_those_of_the_writer(drive: Driven) -> None:
    assert drive.storage.health()[:1] + drive.storage.health()[2:6] == (0, None, None, 0, 0)
    drive.add("a")
    drive.add("b", data=BIG)
    health = drive.storage.health()
    assert (health.rows_waiting, health.commits, health.rows_written) == (0, 2, 3)
    assert drive.storage.unwritten() == [no_marks()]


def test_the_settings_reach_the_writer(path: Path) -> None:
    storage = SqliteStorage(path, flush_interval=0.5, max_lag=2, max_unflushed=7)
    drive = Driven(storage)
    desk = storage._writer._desk
    assert (desk._interval, desk.max_lag, storage._writer._max_unflushed) == (0.5, 2.0, 7)
    drive.storage.close()


# -- a file that goes away under it ----------------------------------------------------------------


def test_changes_to_a_file_that_was_deleted_wait_and_are_kept_beside_it(path: Path) -> None:
    storage = SqliteStorage(path, max_unflushed=3)
    drive = Driven(storage)
    for suffix in ("", "-wal", "-shm"):
        os.unlink(f"{path}{suffix}")
    cut = drive.add("a", data=BIG)
    assert storage.troubled
    assert "deleted or moved away" in str(storage.health().error)
    assert storage.unwritten()[-1].jobs.keys() == {"a"}
    row = storage.read_job("a")
    assert row is not None
    assert row[DATA] == BIG
    with pytest.raises(StorageError, match="deleted or moved away") as caught:
        storage.wait_committed(cut, "a")
    assert (caught.value.accepted, caught.value.job_id) == (True, "a")
    with pytest.raises(StorageError, match="deleted or moved away"):
        storage.flush()
    with pytest.raises(StorageError, match="durable"):
        storage.refuse(durable=True)
    storage.refuse(durable=False)
    drive.add("b")
    with pytest.raises(StorageFullError, match="max_unflushed is 3"):
        storage.refuse(durable=False)
    with pytest.raises(StorageError, match="is not copied"):
        storage.backup(path.parent / "copy.db")

    with pytest.raises(StorageError, match=r"3 changes are not in it: they are in .*jsonl"):
        storage.close()
    assert names(path.parent) == [f"jobs.db{SUFFIX}"]
    storage.close()
    with driven(path) as drive:
        assert drive.ids == []  # a new file: what was kept is of another
    assert names(path.parent) == ["jobs.db", f"jobs.db{SUFFIX}.stale"]


@posix
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_that_is_deleted_under_it_is_told_and_costs_nothing_that_is_closed(
    path: Path, suffix: str
) -> None:
    drive = Driven(SqliteStorage(path))
    storage = drive.storage
    drive.add("a")
    storage.flush()
    os.unlink(f"{path}{suffix}")
    storage._writer._guard_at = 0  # it looks once a second
    cut = drive.add("b", data=BIG)
    with pytest.raises(StorageError, match="a part of the database, was deleted") as caught:
        storage.wait_committed(cut, "b")
    assert caught.value.accepted
    with pytest.raises(StorageError, match="durable"):
        storage.refuse(durable=True)
    with pytest.raises(StorageError, match="come in when the database is opened"):
        storage.close()
    with driven(path) as drive:
        assert drive.ids == ["a", "b"]


def test_a_new_connection_has_a_log_of_its_own(path: Path) -> None:
    drive = Driven(SqliteStorage(path))
    storage = drive.storage
    drive.add("a")
    storage._writer._committer._broken = True  # as after a failure of the disk
    for job_id in ("b", "c"):
        storage._writer._guard_at = 0
        drive.add(job_id)
        storage.flush()
    storage.close()
    with driven(path) as drive:
        assert drive.ids == ["a", "b", "c"]


def test_changes_that_could_not_be_written_come_in_at_the_next_opening(path: Path) -> None:
    storage = SqliteStorage(path)
    drive = Driven(storage)
    away = path.with_name("away.db")
    os.rename(path, away)
    drive.add("a", data=BIG)
    drive.keep("queue", "emails", {"paused": True})
    with pytest.raises(StorageError, match="3 changes are not in it"):
        storage.close()
    os.rename(away, path)
    drive = Driven(storage)
    assert drive.ids == ["a"]
    assert drive.row("a")[DATA] == BIG
    assert drive.rest == [("queue", "emails", {"paused": True})]
    storage.close()
    assert f"jobs.db{SUFFIX}.taken" in names(path.parent)


def test_a_place_that_was_given_is_taken_where_there_is_none_beside_the_file(
    path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unflushed"
    folder.mkdir()
    storage = SqliteStorage(path, unflushed_dir=folder)
    drive = Driven(storage)
    os.mkdir(f"{path}{SUFFIX}.partial")  # no file can be made by that name
    away = path.with_name("away.db")
    os.rename(path, away)
    drive.add("a")
    with pytest.raises(StorageError, match=str(folder)):
        storage.close()
    assert len(names(folder)) == 1
    os.rename(away, path)
    os.rmdir(f"{path}{SUFFIX}.partial")
    assert Driven(storage).ids == ["a"]
    storage.close()


def test_a_close_that_could_not_write_everything_is_none_in_good_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    storage = SqliteStorage(path)
    Driven(storage).add("a", admit=False)
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit", fail)
        with pytest.raises(StorageError, match="1 changes are not in it"):
            storage.close()
    drive = Driven(storage)
    assert not drive.clean
    assert drive.ids == ["a"]
    storage.close()


@posix
def test_the_log_of_a_file_that_took_its_place_is_left_alone(path: Path) -> None:
    storage = SqliteStorage(path)
    drive = Driven(storage)
    drive.add("a")
    for suffix in ("", "-wal", "-shm"):
        os.rename(f"{path}{suffix}", f"{path.parent / 'old.db'}{suffix}")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE theirs (x)")
        other.execute("INSERT INTO theirs VALUES (1)")
        with pytest.raises(StorageError, match="replaced by another file"):
            storage.close()
        assert os.path.getsize(f"{path}-wal") > 0
    assert look(path, "SELECT * FROM theirs") == [(1,)]
    assert look(path.parent / "old.db", "SELECT id FROM jobs") == [("a",)]


# -- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_closing_writes_what_is_left_and_leaves_one_file(path: Path, threaded: bool) -> None:
    storage = SqliteStorage(path)
    drive = Driven(storage, threaded=threaded)
    drive.add("a", admit=False)
    storage.read_job("a")  # so that it has every connection that it may have
    storage.close()
    assert names(path.parent) == ["jobs.db"]
    storage.close()
    with driven(path) as drive:
        assert drive.clean
        assert drive.ids == ["a"]


def test_a_call_that_marked_just_before_the_close_may_still_ask_about_it(
    storage: SqliteStorage,
) -> None:
    drive = Driven(storage, threaded=True)
    cut = drive.add("a", admit=False)
    storage.close()
    storage.admit()
    storage.wait_committed(cut, "a")
    storage.flush(0)
    assert storage.watch(cut, lambda: None) is None
    assert storage.health().rows_waiting == 0
    assert storage.unwritten() == [no_marks()]
    with pytest.raises(StorageError, match="is not open"):
        storage.read_job("a")


def test_a_close_without_the_mark_of_good_order_loses_nothing(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection, path: str) -> None:
        connection.close()
        raise StorageFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(session_module, "close_database", fail)
        with driven(path) as drive:
            drive.add("a")
    assert "could not be marked as closed in good order" in caplog.text
    with driven(path) as drive:
        assert drive.ids == ["a"]
        assert not drive.clean


def test_whoever_is_told_by_the_writer_may_close_it(path: Path, storage: SqliteStorage) -> None:
    drive = Driven(storage, threaded=True)
    ended = threading.Event()

    def close() -> None:
        storage.close()
        ended.set()

    with drive.lock:
        drive.dirty.add(row_of(record("a"), 1), b"{}")
        # the lock is held, so that it cannot be written yet
        assert storage.watch(storage.cut, close) is not None
    assert ended.wait(60)
    assert names(path.parent) == ["jobs.db"]
    assert found_in(path) == ["a"]


@pytest.mark.slow  # SQLite asks again for a lock every 100 ms at the most
def test_a_commit_that_hangs_keeps_the_file_until_it_has_ended(path: Path) -> None:
    storage = SqliteStorage(path)
    drive = Driven(storage, threaded=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        drive.add("a")
        assert drive.cut_made.wait(60)
        with pytest.raises(StorageError, match="a commit did not end in time"):
            storage.close(1)
        for refused in (storage, SqliteStorage(path)):
            with pytest.raises(StorageLockedError):
                Driven(refused)
        with pytest.raises(StorageError, match="has not ended yet"):
            storage.close(1)
        other.execute("COMMIT")
    storage.close()
    drive = Driven(storage)
    assert drive.ids == ["a"]
    storage.close()
    assert names(path.parent) == ["jobs.db", f"jobs.db{SUFFIX}.taken"]


@posix
def test_a_forked_child_that_disowns_it_leaves_all_to_its_parent(path: Path) -> None:
    storage = SqliteStorage(path)
    drive = Driven(storage)
    drive.add("a")
    storage.read_job("a")

    def child() -> None:
        leaked: list[sqlite3.Connection] = []
        session = storage._session
        assert session is not None
        open_ones = [session.lookup._connection, session._committer.connection]
        for module in (session_module, lookup_module):
            module.leak = leaked.append
        storage.disown()
        assert leaked == open_ones
        assert not session._ownership.held
        storage.disown()
        assert storage._disowned is session
        storage.close()
        with pytest.raises(StorageLockedError) as caught:
            storage.open("json", OPTIONS, SystemClock())
        assert caught.value.pid == os.getppid()

    with neighbour(child):
        pass
    with pytest.raises(StorageLockedError):
        Driven(SqliteStorage(path))
    drive.add("b")
    assert storage.read_job("b") is not None
    storage.close()
    assert found_in(path) == ["a", "b"]


@posix
def test_a_child_may_open_it_once_its_parent_has_let_go(path: Path) -> None:
    storage = SqliteStorage(path)
    Driven(storage).add("a")

    def open_it() -> None:
        drive = Driven(storage)
        assert drive.ids == ["a"]
        drive.add("b")
        storage.close()

    with neighbour(storage.disown, open_it) as other:
        storage.close()
        assert other.finish() == 0
    assert found_in(path) == ["a", "b"]


# -- what memory has let go of ---------------------------------------------------------------------


def finished(job_id: str, result: bytes | None, data: bytes = b"{}") -> JobRecord:
    made = record(job_id, state=COMPLETED, data=data)
    made.result_size = -1 if result is None else len(result)
    return made


def marks(
    *rows: JobRow,
    gone: str = "",
    payloads: dict[str, bytes | None] | None = None,
    results: dict[str, bytes | None] | None = None,
) -> Marks:
    jobs: dict[str, JobRow | None] = {row[ID]: row for row in rows}
    if gone:
        jobs[gone] = None
    return Marks(jobs, payloads or {}, results or {}, {}, {})


@pytest.fixture
def disk(path: Path) -> Iterator[Lookup]:
    """A file with jobs of every kind, and a look at it."""
    with driven(path) as drive:
        drive.add("short", b'"done"', data=b'{"n":1}')
        drive.add("long", BIG, data=BIG)
        drive.add("none")
        found = Lookup(str(path), OPTIONS)
        yield found
        found.close()


def job(disk: Lookup, job_id: str, *unwritten: Marks) -> JobRow | None:
    return read_job(disk, lambda: list(unwritten), job_id)


def result(disk: Lookup, job_id: str, *unwritten: Marks) -> bytes | None:
    return read_result(disk, lambda: list(unwritten), job_id)


def test_a_job_on_disk_is_read_with_its_payload(disk: Lookup) -> None:
    found = [job(disk, job_id, no_marks()) for job_id in ("short", "long", "none", "other")]
    assert [None if row is None else row[DATA] for row in found] == [b'{"n":1}', BIG, b"{}", None]
    assert [None if row is None else row[RESULT_SIZE] for row in found] == [6, len(BIG), -1, None]


def test_what_is_unwritten_comes_before_what_is_on_disk(disk: Lookup) -> None:
    newer, older = record("none", state=FAILED), record("none", state=COMPLETED)
    found = job(disk, "none", marks(row_of(newer, 1)), marks(row_of(older, 1)))
    assert found is not None
    assert found[STATE] == FAILED
    assert job(disk, "none", marks(gone="none"), marks(row_of(older, 1))) is None
    found = job(disk, "new", marks(row_of(record("new"), 1)))
    assert found is not None
    assert found[ID] == "new"


def test_a_long_payload_is_found_in_the_same_marks_in_older_ones_or_on_disk(disk: Lookup) -> None:
    made = row_of(record("new", data=BIG), 1)
    same = marks(made, payloads={"new": BIG})
    older = [marks(row_of(record("new", state=FAILED, data=BIG), 1)), same]
    for unwritten in ([same], older):
        found = job(disk, "new", *unwritten)
        assert found is not None
        assert found[DATA] == BIG
    found = job(disk, "long", marks(row_of(record("long", state=FAILED, data=BIG), 1)))
    assert found is not None
    assert (found[STATE], found[DATA]) == (FAILED, BIG)


def test_a_payload_that_changes_meanwhile_is_looked_for_again(disk: Lookup) -> None:
    long, short = row_of(record("new", data=BIG), 1), row_of(record("new", data=b"[1]"), 1)
    looks = iter([marks(long), marks(long), marks(short)])
    found = read_job(disk, lambda: [next(looks)], "new")
    assert found == short
    with pytest.raises(StorageError, match="the payload of job new is missing"):
        job(disk, "new", marks(long))


def test_a_result_is_found_wherever_it_is(disk: Lookup) -> None:
    assert result(disk, "short", no_marks()) == b'"done"'
    assert result(disk, "long", no_marks()) == BIG
    assert result(disk, "none", no_marks()) is None
    assert result(disk, "other", no_marks()) is None

    brings = marks(row_of(finished("none", b"7"), 1, b"7"))
    stays = marks(row_of(finished("none", b"7"), 1))
    assert result(disk, "none", brings) == b"7"
    assert result(disk, "none", stays, brings) == b"7"
    assert result(disk, "short", marks(row_of(finished("short", b'"done"'), 1))) == b'"done"'

    plain = ("new", "emails", 1, 1000, 1000, "welcome", OPTIONS, b"{}")
    for found in (b"7", None):
        ran = (plain, COMPLETED, 3000, 2000, 0, found, -1 if found is None else 1)
        short = Marks({"new": ran}, {}, {}, {}, {})
        assert result(disk, "new", short) == found
        assert job(disk, "new", short) == full_row(ran)
    assert result(disk, "new", Marks({"new": plain}, {}, {}, {}, {})) is None

    apart = row_of(finished("none", BIG), 1, BIG)
    assert result(disk, "none", marks(apart, results={"none": BIG})) == BIG
    assert result(disk, "none", marks(apart), marks(apart, results={"none": BIG})) == BIG
    assert result(disk, "long", marks(row_of(finished("long", BIG), 1))) == BIG


def test_a_result_that_is_no_longer_the_jobs_is_not_found(disk: Lookup) -> None:
    for job_id in ("short", "long"):
        again = marks(row_of(record(job_id), 1), results={job_id: None})
        assert result(disk, job_id, again) is None
        assert result(disk, job_id, marks(gone=job_id)) is None
    replaced = marks(row_of(finished("long", b"7"), 1, b"7"), results={"long": None})
    assert result(disk, "long", replaced) == b"7"


@pytest.mark.parametrize("odd", ["\ud800", "", "a\0b", "'; --", "x" * 100_000])
def test_an_id_that_no_job_has_is_just_not_found(disk: Lookup, odd: str) -> None:
    assert job(disk, odd, no_marks()) is None
    assert result(disk, odd, no_marks()) is None


@pytest.mark.parametrize(("damage", "what"), DAMAGE)
def test_a_damaged_row_raises_when_it_is_read(path: Path, damage: str, what: str) -> None:
    with driven(path) as drive:
        drive.add("a")
        drive.add("b")
    change(path, damage)
    with driven(path) as drive:
        assert drive.storage.read_job("a") is not None
        with pytest.raises(UndecodableRowError, match="job 'b'"):
            drive.storage.read_job("b")


def test_reads_go_through_the_storage_over_what_it_has_not_written(drive: Driven) -> None:
    drive.add("a", b'"done"')
    drive.add("b", admit=False)
    # what the shard has marked is for its caller to look at
    assert drive.storage.read_job("b") is None
    row = drive.storage.read_job("a")
    assert row is not None
    assert row[STATE] == COMPLETED
    assert drive.storage.read_result("a") == b'"done"'
    drive.storage.step()
    assert drive.storage.read_job("b") is not None


def test_a_read_keeps_no_log_from_getting_shorter(drive: Driven) -> None:
    drive.add("a", BIG, data=BIG)
    drive.storage.read_job("a")
    drive.storage.read_result("a")
    drive.add("b")
    assert drive.storage._session is not None
    assert checkpoint(drive.storage._session._committer.connection, patience_ms=1)


def test_nobody_reads_the_disk_under_a_shards_lock(drive: Driven) -> None:
    drive.add("a")
    with drive.lock, pytest.raises(LockOrderError):
        drive.storage.read_job("a")


def test_a_read_that_fails_is_explained_and_the_next_one_works(
    drive: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.add("a")

    class Broken:
        text_factory: object = str
        closed = False

        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None:
            self.closed = True

    broken = Broken()
    with monkeypatch.context() as patched:
        patched.setattr(lookup_module, "connect_readonly", lambda path: broken)
        with pytest.raises(StorageError, match=r"jobs\.db.*reported a failure"):
            drive.storage.read_job("a")
    assert broken.closed
    assert drive.storage.read_job("a") is not None


# -- copies and checks -----------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_a_backup_has_everything_that_was_accepted_before_it(
    path: Path, tmp_path: Path, threaded: bool
) -> None:
    copied = tmp_path / "copy.db"
    with driven(path, threaded=threaded) as drive:
        for job_id in ("a", "b"):
            drive.add(job_id, admit=False)
            drive.storage.backup(copied)
        drive.add("c")
    assert found_in(copied) == ["a", "b"]
    assert found_in(path) == ["a", "b", "c"]


def test_a_backup_needs_no_manager(path: Path, tmp_path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        SqliteStorage(path).backup(tmp_path / "beside.db")
    SqliteStorage(path).backup(os.fsencode(tmp_path / "after.db"))
    assert found_in(tmp_path / "beside.db") == found_in(tmp_path / "after.db") == ["a"]


def test_a_backup_to_where_none_can_be_is_refused(path: Path, drive: Driven) -> None:
    drive.add("a")
    with pytest.raises(ValidationError, match="target must not be"):
        drive.storage.backup(path)
    with pytest.raises(ValidationError, match="target"):
        drive.storage.backup("")
    with pytest.raises(StorageError, match="no such file"):
        SqliteStorage(path.with_name("other.db")).backup(path.with_name("copy.db"))
    assert "copy.db" not in names(path.parent)


def test_verify_looks_at_its_own_file_or_at_another(path: Path, tmp_path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        drive.add("b", b'"done"')
        report = drive.storage.verify()
        drive.storage.backup(tmp_path / "copy.db")
        change(tmp_path / "copy.db", "UPDATE jobs SET meta = '[' WHERE id = 'a'")
        other = drive.storage.verify(tmp_path / "copy.db")
    assert (report.ok, report.problems) == (True, ())
    assert report.jobs is not None
    assert (report.jobs.waiting, report.jobs.completed) == (1, 1)
    assert not other.ok
    assert "job a" in other.problems[0]


def test_verify_needs_no_manager_and_a_file(path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        SqliteStorage(path).verify()
    with driven(path) as drive:
        drive.add("a")
    assert SqliteStorage(path).verify().ok
    with pytest.raises(ValidationError, match="path"):
        SqliteStorage(path).verify("")
    assert names(path.parent) == ["jobs.db"]


def test_a_storage_works_with_a_clock_that_stands_still(path: Path) -> None:
    with driven(path, clock=VirtualClock()) as drive:
        cut = drive.add("a")
        drive.storage.wait_committed(cut, "a")
        drive.storage.flush()
    assert found_in(path) == ["a"]
