"""Opening the file: which paths serve, what is made, and what is refused and left as it was."""

import errno
import gc
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bunqueue_py.errors import (
    SchemaVersionError,
    StorageCorruptError,
    StorageError,
    StorageFullError,
    ValidationError,
)
from bunqueue_py.storage.sqlite import connection as module
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.connection import (
    connect,
    connect_frozen,
    connect_writable,
    explained,
    header,
    keep_log,
    leak,
    read,
)
from bunqueue_py.storage.sqlite.opening import (
    check_serializer,
    checkpoint,
    close_database,
    open_database,
    shrink,
)
from bunqueue_py.storage.sqlite.paths import MAX_PATH_BYTES, absolute, check_place
from bunqueue_py.storage.sqlite.storage import SqliteStorage
from tests.unit.sqlite_files import (
    add_job,
    as_root,
    crash_copy,
    damage,
    folder,
    garble_schema,
    make_file,
    make_unclean,
    mounted,
    names,
    neighbour,
    opened,
    posix,
    remount,
    torn_copy,
)

ODD_NAMES = [
    "plain.db",
    "with space.db",
    "what?.db",
    "50%.db",
    "%41%00.db",
    "a#b&c=d;e.db",
    'quote\'d "twice".db',
    "new\nline.db",
    "naïve Übung 日本.db",
    "back\\slash.db",
    os.fsdecode(b"not utf-8 \xff\xfe.db"),
    " .db",
    "?mode=memory",
    "no suffix",
]


class OddPath:
    """Says that it is a path, and is what it is given."""

    def __init__(self, path: object) -> None:
        self.path = path

    def __fspath__(self) -> object:
        return self.path


def count(connection: sqlite3.Connection) -> int:
    number: int = connection.execute("SELECT COUNT(*) FROM jobs").fetchone()[0]
    return number


# -- the path ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "None keeps all in memory"),
        (b"", "None keeps all in memory"),
        (":memory:", "None keeps all in memory"),
        (b":memory:", "None keeps all in memory"),
        ("file:jobs.db", "no URI"),
        ("file::memory:?cache=shared", "no URI"),
        ("jobs\0.db", "NUL"),
        (b"jobs\0.db", "NUL"),
        ("jobs\ud83d.db", "encoded"),
        (OddPath(3), "must be a path"),
        (OddPath("jobs\ud83d.db"), "encoded"),
        ("data/", "no folder"),
        (3, "must be a path"),
        (True, "must be a path"),
        (None, "must be a path"),
        (["jobs.db"], "must be a path"),
        ("x" * 231, "230"),
        ("d/" * 240 + "x", f"{MAX_PATH_BYTES}"),
        ("ü" * 116, "230"),
    ],
)
def test_what_can_name_no_file_is_refused_before_any_file_is_looked_at(
    value: object, says: str
) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        absolute(value)  # type: ignore[arg-type]
    assert "storage" in str(caught.value)


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    given = absolute("jobs.db")
    monkeypatch.chdir(tmp_path / "later")
    assert check_place(given) == str((tmp_path / "jobs.db").resolve())
    assert absolute("jobs.db") != given


@posix
def test_a_relative_path_in_a_folder_that_is_gone_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match="relative to the current folder"):
        absolute("jobs.db")
    with pytest.raises(StorageError, match="unflushed_dir 'spare' is relative"):
        SqliteStorage(tmp_path / "jobs.db", unflushed_dir="spare")
    # as a daemon gives it, whose folder somebody removed
    whole = str(tmp_path / "jobs.db")
    assert absolute(whole) == whole


def test_every_way_to_write_a_path_leads_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_file(tmp_path / "jobs.db")
    os.symlink(tmp_path / "jobs.db", tmp_path / "link.db")
    os.symlink(tmp_path, tmp_path / "here")
    ways = (
        "jobs.db",
        "./jobs.db",
        b"jobs.db",
        Path("jobs.db"),
        tmp_path / "jobs.db",
        "link.db",
        "here/jobs.db",
        "here/../" + tmp_path.name + "/jobs.db",
    )
    assert {check_place(absolute(way)) for way in ways} == {str(tmp_path.resolve() / "jobs.db")}


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file(tmp_path: Path) -> None:
    os.symlink(tmp_path / "real.db", tmp_path / "link.db")
    with opened(check_place(absolute(tmp_path / "link.db"))):
        pass
    assert names(tmp_path) == ["link.db", "real.db"]


@posix
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is a folder"):
        check_place(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValidationError, match="device, pipe or socket"):
        check_place(str(tmp_path / "pipe"))
    with pytest.raises(ValidationError, match="device, pipe or socket"):
        check_place("/dev/null")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(StorageError, match="cannot be reached"):
        check_place(str(tmp_path / "loop"))


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"there is no folder '.*/nowhere'"):
        check_place(str(tmp_path / "nowhere" / "jobs.db"))
    with pytest.raises(StorageError, match="expanduser"):
        check_place(absolute("~/jobs.db"))
    assert names(tmp_path) == []


@posix
def test_a_file_where_a_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        check_place(str(tmp_path / "file" / "jobs.db"))


@posix
def test_a_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    # each name would have a log of its own, and a lock
    make_file(tmp_path / "jobs.db")
    os.link(tmp_path / "jobs.db", tmp_path / "same.db")
    for name in ("jobs.db", "same.db"):
        with pytest.raises(StorageError, match="hard links"):
            check_place(str(tmp_path / name))


@pytest.mark.parametrize(
    ("refused", "says"), [("data", "files cannot be made"), ("jobs.db", "open_readonly")]
)
def test_what_may_not_be_written_is_refused_naming_what_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, says: str
) -> None:
    make_file(path)
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda p, mode: os.path.basename(p) != refused and real(p, mode)
    )
    with pytest.raises(StorageError, match=says):
        check_place(str(path))


@pytest.mark.parametrize("name", ODD_NAMES)
@posix
def test_a_file_may_have_any_name(path: Path, name: str) -> None:
    odd = check_place(absolute(path.with_name(name)))
    with opened(odd) as connection:
        add_job(connection, 1)
        assert read(odd, count) == 1  # beside the owner
    assert names(path.parent) == [name]
    assert read(odd, count) == 1
    assert names(path.parent) == [name]


# -- a new file --------------------------------------------------------------------------------


def test_a_new_file_has_our_mark_and_version_in_its_first_page_at_once(path: Path) -> None:
    owner = open_database(str(path))
    assert (owner.clean, owner.created, owner.migrated_from) == (True, True, None)
    # a copy, since reading the file itself would take its locks away
    content = folder_of_copy(path)
    assert content[:16] == b"SQLite format 3\0"
    assert content[60:64] == schema.VERSION.to_bytes(4, "big")
    assert content[68:72] == b"bqpy"
    close_database(owner.connection, str(path))
    assert names(path.parent) == ["jobs.db"]


def folder_of_copy(path: Path) -> bytes:
    target = path.parent.parent / "copy.db"
    with neighbour(lambda: target.write_bytes(path.read_bytes())):
        pass
    return target.read_bytes()


def test_the_owners_connection_is_set_up_for_durability(path: Path) -> None:
    connection = open_database(str(path)).connection

    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert pragma("journal_mode") == "wal"
    assert pragma("synchronous") == 2
    assert pragma("wal_autocheckpoint") == 0
    assert pragma("auto_vacuum") == 2
    assert pragma("busy_timeout") == 5000
    assert pragma("fullfsync") == 1
    assert connection.isolation_level is None
    close_database(connection, str(path))


@pytest.mark.parametrize("with_setting", [False, True])
def test_an_empty_file_and_an_empty_database_are_filled(path: Path, with_setting: bool) -> None:
    path.touch()
    inode = path.stat().st_ino
    with opened(path) as connection:
        add_job(connection, 1)
    assert path.stat().st_ino == inode
    os.unlink(path)
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute(f"PRAGMA auto_vacuum = {'INCREMENTAL' if with_setting else 'NONE'}")
        foreign.execute("VACUUM")
    assert path.stat().st_size >= 512
    with opened(path) as connection:
        add_job(connection, 1)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_space_that_is_no_longer_used_can_be_taken_off_the_file(path: Path) -> None:
    make_file(path, jobs=500, size=2000)
    big = path.stat().st_size
    with opened(path) as connection:
        connection.execute("DELETE FROM jobs")
        shrink(connection, 10_000)
    assert path.stat().st_size < big / 10


def test_a_kill_before_the_tables_are_there_leaves_a_file_that_is_filled(
    path: Path, tmp_path: Path
) -> None:
    connection = connect_writable(str(path), create=True)
    keep_log(connection, str(path))
    cut = crash_copy(path, tmp_path / "cut.db")
    connection.close()
    owner = open_database(str(cut))
    assert owner.created
    close_database(owner.connection, str(cut))


def test_a_kill_before_the_first_checkpoint_loses_nothing(path: Path, tmp_path: Path) -> None:
    # All is in the log, and the file's header still says that there is nothing.
    connection = connect_writable(str(path), create=True)
    keep_log(connection, str(path))
    schema.create(connection)
    add_job(connection, 1)
    cut = crash_copy(path, tmp_path / "cut.db")
    connection.close()
    with closing(connect_frozen(str(cut))) as frozen:
        assert header(frozen).blank
    owner = open_database(str(cut))
    assert (owner.created, owner.clean) == (False, False)
    assert count(owner.connection) == 1
    close_database(owner.connection, str(cut))


def test_a_kill_in_a_checkpoint_loses_nothing(path: Path, tmp_path: Path) -> None:
    make_file(path)
    owner = open_database(str(path)).connection
    for number in range(50):
        add_job(owner, number, data=bytes(1000))
    cut = torn_copy(owner, path, tmp_path / "cut.db")
    owner.close()
    with closing(connect_frozen(str(cut))) as frozen, pytest.raises(sqlite3.DatabaseError):
        header(frozen)
    again = open_database(str(cut))
    assert (again.created, again.clean) == (False, False)
    assert count(again.connection) == 50
    assert again.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    close_database(again.connection, str(cut))


@pytest.mark.parametrize("application", [0, 7])
def test_a_foreign_file_with_a_checkpoint_broken_off_is_refused_untouched(
    path: Path, application: int
) -> None:
    other = path.with_name("other.db")
    with closing(sqlite3.connect(other, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute("CREATE TABLE things (id)")
        connection.execute("INSERT INTO things VALUES (zeroblob(50000))")
        torn_copy(connection, other, path)
    other.unlink()
    before = folder(path.parent)
    with pytest.raises(StorageError, match="another application"):
        open_database(str(path))
    assert folder(path.parent) == before


def test_a_file_system_that_takes_no_log_is_refused_naming_the_file() -> None:
    # memory takes none either
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
        pytest.raises(StorageError, match=r"/data/jobs\.db.*write-ahead log.*'memory'"),
    ):
        keep_log(connection, "/data/jobs.db")


def test_an_sqlite_that_is_too_old_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(StorageError, match=r"3\.34\.1.*3\.35"):
        open_database(str(path))
    assert names(path.parent) == []


# -- what is not ours --------------------------------------------------------------------------


def refuses(path: Path, kind: type[StorageError], says: str) -> None:
    """Opening fails like that, and every file in the folder is as it was."""
    before = folder(path.parent)
    with pytest.raises(kind, match=says) as caught:
        open_database(str(path))
    assert type(caught.value) is kind
    assert repr(str(path)) in str(caught.value)
    assert folder(path.parent) == before


def make_foreign(path: Path, *, application_id: int = 0, log: bool = False) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if log:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {application_id}")
        connection.execute("CREATE TABLE songs (title)")
        connection.execute("INSERT INTO songs VALUES ('x')")


@pytest.mark.parametrize("application_id", [0, 0x0F055112])
@pytest.mark.parametrize("log", [False, True])
def test_a_database_of_another_application_is_refused_untouched(
    path: Path, application_id: int, log: bool
) -> None:
    make_foreign(path, application_id=application_id, log=log)
    refuses(path, StorageError, rf"another application.*{application_id:#x}")


def test_a_foreign_database_that_is_in_use_is_refused_and_its_log_left_alone(
    path: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.db"
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE songs (title)")
        crash_copy(source, path)
    # all of it is in the log: the file itself is one page without a table
    with closing(connect_frozen(str(path))) as frozen:
        assert header(frozen).blank
    before = folder(path.parent)
    with pytest.raises(StorageError, match="another application"):
        open_database(str(path))
    after = folder(path.parent)
    after.pop("jobs.db-shm", None)  # SQLite cannot read a log without an index of it
    assert after == before


def test_a_foreign_database_that_says_so_in_its_first_page_is_not_even_read(
    path: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.db"
    make_foreign(source, log=True)
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("INSERT INTO songs VALUES ('y')")
        crash_copy(source, path)
    assert names(path.parent) == ["jobs.db", "jobs.db-wal"]
    refuses(path, StorageError, "another application")  # or there would be a -shm


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"hello, world\n" * 400,
        bytes(8192),
        b"SQLite format 3\0",
        b"SQLite format 3\0" + bytes(84),
        b"SQLite format 3\0" + bytes(8176),
        b"\x7fELF" + bytes(range(256)) * 20,
    ],
)
def test_a_file_that_is_no_database_is_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refuses(path, StorageCorruptError, "no SQLite database|damaged")


def test_a_database_of_a_newer_release_is_refused_untouched(path: Path) -> None:
    make_file(path, jobs=3)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    assert names(path.parent) == ["jobs.db"]
    refuses(path, SchemaVersionError, f"version {schema.VERSION + 1}.*newer")


def test_a_newer_version_that_stands_in_the_log_alone_is_refused_too(
    path: Path, tmp_path: Path
) -> None:
    source = make_file(tmp_path / "source.db")
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        crash_copy(source, path)
    before = folder(path.parent)
    with pytest.raises(SchemaVersionError, match="newer"):
        open_database(str(path))
    after = folder(path.parent)
    after.pop("jobs.db-shm", None)
    assert after == before


def test_a_version_that_never_was_is_damage(path: Path) -> None:
    make_file(path)
    damage(path, 60, bytes(4))
    refuses(path, StorageCorruptError, "never was")


# -- after a crash -----------------------------------------------------------------------------


def test_a_file_that_was_closed_in_good_order_is_not_checked(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_file(path, jobs=3)
    with caplog.at_level(logging.INFO, "bunqueue_py"):
        owner = open_database(str(path))
    assert (owner.clean, owner.created) == (True, False)
    assert caplog.messages == []
    close_database(owner.connection, str(path))


def test_after_a_crash_the_file_is_checked_and_its_log_read(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as connection:
        for number in range(10):
            add_job(connection, number)
        cut = crash_copy(path, tmp_path / "cut.db")
    with caplog.at_level(logging.INFO, "bunqueue_py"):
        owner = open_database(str(cut))
    assert not owner.clean
    assert count(owner.connection) == 10
    assert "not closed in good order" in caplog.text
    assert str(cut) in caplog.text
    close_database(owner.connection, str(cut))
    owner = open_database(str(cut))
    assert owner.clean
    close_database(owner.connection, str(cut))


def test_a_file_counts_as_unclean_from_its_opening_on(path: Path, tmp_path: Path) -> None:
    make_file(path)
    with opened(path):
        cut = crash_copy(path, tmp_path / "cut.db")
    owner = open_database(str(cut))
    assert not owner.clean
    close_database(owner.connection, str(cut))


def page_of(path: Path, table: str) -> int:
    """The offset of the table's root page."""
    with closing(sqlite3.connect(path)) as connection:
        root, size = connection.execute(
            "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size() WHERE name = ?",
            (table,),
        ).fetchone()
    return int((root - 1) * size)


def test_a_damaged_page_found_after_a_crash_refuses_the_file_untouched(path: Path) -> None:
    make_unclean(path, jobs=300)
    damage(path, page_of(path, "jobs"), b"\xff" * 4096)
    refuses(path, StorageCorruptError, "damaged")


def test_a_damaged_index_found_after_a_crash_refuses_the_file_untouched(path: Path) -> None:
    make_unclean(path, jobs=300)
    damage(path, page_of(path, "sqlite_autoindex_jobs_1") + 4000, b"\xff" * 96)
    refuses(path, StorageCorruptError, r"damaged, and has not been touched: .*\.recover")


@pytest.mark.parametrize("make", [make_file, make_unclean])
def test_a_schema_that_cannot_even_be_quoted_is_damage(
    path: Path, make: Callable[[Path], Path]
) -> None:
    make(path)
    garble_schema(path)
    refuses(path, StorageCorruptError, "damaged")
    with pytest.raises(StorageCorruptError, match="damaged"):
        read(str(path), count)


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_was_cut_off_is_refused_untouched(path: Path, keep: float, clean: bool) -> None:
    (make_file if clean else make_unclean)(path, 300)
    os.truncate(path, int(path.stat().st_size * keep) // 4096 * 4096)
    refuses(path, StorageCorruptError, "damaged")


def test_a_file_cut_off_in_the_middle_of_its_first_page_is_refused_untouched(path: Path) -> None:
    make_file(path, jobs=10)
    os.truncate(path, 300)
    refuses(path, StorageCorruptError, "damaged|no SQLite database")


def test_an_empty_file_beside_a_log_that_is_not_is_refused_untouched(
    path: Path, tmp_path: Path
) -> None:
    with opened(tmp_path / "source.db") as connection:
        add_job(connection, 1)
        crash_copy(tmp_path / "source.db", path)
    os.truncate(path, 0)  # SQLite by itself would throw the log away
    refuses(path, StorageCorruptError, "cut off or replaced")


def test_a_log_left_by_a_file_that_was_deleted_does_not_spoil_the_new_one(
    path: Path, tmp_path: Path
) -> None:
    with opened(tmp_path / "source.db") as connection:
        add_job(connection, 1)
        crash_copy(tmp_path / "source.db", path)
    os.unlink(path)
    owner = open_database(str(path))
    assert owner.created
    assert count(owner.connection) == 0
    close_database(owner.connection, str(path))
    assert names(path.parent) == ["jobs.db"]


def test_a_table_that_is_missing_is_damage(path: Path) -> None:
    make_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE results")
    assert names(path.parent) == ["jobs.db"]
    refuses(path, StorageCorruptError, "no table results")


def commit_one_by_one(path: Path, target: Path, jobs: int) -> Path:
    with opened(path) as connection:
        for number in range(jobs):
            add_job(connection, number)
        return crash_copy(path, target)


def test_a_log_cut_anywhere_opens_with_what_was_committed_before_the_cut(
    path: Path, tmp_path: Path
) -> None:
    cut = commit_one_by_one(path, tmp_path / "whole.db", 12)
    log = Path(f"{cut}-wal").read_bytes()
    seen = []
    for size in range(len(log) - 8192, len(log) + 1, 512):
        target = tmp_path / "cut.db"
        target.write_bytes(cut.read_bytes())
        Path(f"{target}-wal").write_bytes(log[:size])
        owner = open_database(str(target))
        numbers = [row[0] for row in owner.connection.execute("SELECT seq FROM jobs ORDER BY seq")]
        close_database(owner.connection, str(target))
        assert numbers == list(range(len(numbers)))
        seen.append(len(numbers))
    assert seen == sorted(seen)
    assert seen[-1] == 12
    assert seen[0] < 12


def test_damage_in_the_log_costs_what_comes_after_it_and_nothing_before(
    path: Path, tmp_path: Path
) -> None:
    cut = commit_one_by_one(path, tmp_path / "cut.db", 12)
    log = Path(f"{cut}-wal")
    damage(log, log.stat().st_size // 2, b"\xff" * 100)
    owner = open_database(str(cut))
    numbers = [row[0] for row in owner.connection.execute("SELECT seq FROM jobs ORDER BY seq")]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 12
    close_database(owner.connection, str(cut))


def test_a_transaction_that_a_shell_left_half_done_is_undone(path: Path, tmp_path: Path) -> None:
    # Somebody switched the log off and was killed in the middle of a change.
    make_file(path, jobs=300, size=2000)
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("PRAGMA journal_mode = DELETE")
        shell.execute("PRAGMA cache_size = 5")
        shell.execute("BEGIN")
        shell.execute("UPDATE jobs SET seq = -1, data = zeroblob(2000)")
        cut = crash_copy(path, tmp_path / "cut.db")
    assert Path(f"{cut}-journal").stat().st_size > 512
    owner = open_database(str(cut))
    assert owner.connection.execute("SELECT MIN(seq) FROM jobs").fetchone() == (0,)
    assert count(owner.connection) == 300
    close_database(owner.connection, str(cut))


def test_a_close_that_fails_still_closes_and_the_file_counts_as_unclean(path: Path) -> None:
    owner = open_database(str(path))
    with closing(connect(str(path), "mode=rw")) as other:
        other.execute("BEGIN IMMEDIATE")
        owner.connection.execute("PRAGMA busy_timeout = 1")
        with pytest.raises(StorageError, match="another program holds it locked"):
            close_database(owner.connection, str(path))
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            owner.connection.execute("SELECT 1")
    again = open_database(str(path))
    assert not again.clean
    close_database(again.connection, str(path))


def test_a_reader_that_stays_is_told_from_an_emptied_log(path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        assert checkpoint(connection)
        with closing(connect(str(path), "mode=ro")) as reader:
            reader.execute("BEGIN")
            assert count(reader) == 1
            add_job(connection, 2)
            assert not checkpoint(connection, patience_ms=1)
            assert connection.execute("PRAGMA busy_timeout").fetchone() == (5000,)
        assert checkpoint(connection)


def test_the_serializers_name_is_kept_and_compared(path: Path) -> None:
    with opened(path) as connection:
        check_serializer(connection, "json", str(path))
        check_serializer(connection, "json", str(path))
        with pytest.raises(StorageError, match=r"'json'.*'pickle'"):
            check_serializer(connection, "pickle", str(path))
        assert schema.read_meta(connection, "serializer") == "json"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")
def test_a_refused_file_is_not_kept_open(path: Path) -> None:
    path.write_bytes(b"hello" * 1000)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StorageCorruptError):
            open_database(str(path))
    assert sorted(os.listdir("/proc/self/fd")) == before


# -- locks of SQLite's own ---------------------------------------------------------------------


@posix
def test_looking_at_a_file_does_not_take_the_locks_of_its_owner_in_the_same_process(
    path: Path,
) -> None:
    # Reading the header by open() would: on POSIX, closing any descriptor of a file does.
    with opened(path) as connection:
        add_job(connection, 1)
        with closing(connect_frozen(str(path))) as frozen:
            header(frozen)
        read(str(path), count)
        check_place(str(path))

        # which SQLite allows to whoever is alone; a forked child would not do as that
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0); "
        code += "c.execute('PRAGMA journal_mode = DELETE')"
        intruder = subprocess.run(
            [sys.executable, "-ISc", code, str(path)], capture_output=True, text=True, check=False
        )
        assert "database is locked" in intruder.stderr


def test_a_leaked_connection_outlives_every_reference_to_it(path: Path) -> None:
    connection = connect(str(path), "mode=rwc")
    before = sys.getrefcount(connection)
    leak(connection)
    assert sys.getrefcount(connection) == before + 1
    import ctypes

    ctypes.pythonapi.Py_DecRef(ctypes.py_object(connection))  # this is no forked child
    connection.close()


@posix
def test_a_forked_child_that_leaks_its_connection_leaves_a_successors_log_alone(path: Path) -> None:
    # Closing it, when nobody else has the file open, would remove the log of that name.
    held = [open_database(str(path)).connection]

    def forget() -> None:
        leak(held[0])
        held.clear()
        gc.collect()  # a connection is part of a cycle

    def succeed() -> None:
        successor = open_database(str(path)).connection
        add_job(successor, 1)
        leak(successor)

    with neighbour(lambda: None, forget) as child:
        close_database(held.pop(), str(path))
        with neighbour(succeed) as successor:
            successor.kill()
        assert child.finish() == 0
    with opened(path) as connection:
        assert count(connection) == 1


# -- what SQLite's errors mean -----------------------------------------------------------------


class Told(sqlite3.OperationalError):
    """An error as SQLite's, with a code as Python 3.11 has it or none."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.sqlite_errorcode = code


@pytest.mark.parametrize(
    ("message", "code", "kind", "says"),
    [
        ("database or disk is full", 13, StorageFullError, "make room"),
        ("attempt to write a readonly database", 8, StorageError, "read-only"),
        ("disk I/O error", 10, StorageError, "the system's log"),
        ("database disk image is malformed", 11, StorageCorruptError, "backup"),
        ("malformed database schema (jobs)", 11, StorageCorruptError, "backup"),
        ("file is not a database", 26, StorageCorruptError, "no SQLite database"),
        ("unable to open database file", 14, StorageError, "folder"),
        ("database is locked", 5, StorageError, "another program"),
        ("database table is locked", 6, StorageError, "another program"),
        ("locking protocol", 15, StorageError, "another program"),
        ("access permission denied", 3, StorageError, "denied"),
        ("no such column: x", 1, StorageError, "no such column: x"),
    ],
)
@pytest.mark.parametrize("with_code", [True, False])
def test_each_error_says_what_happened_to_which_file_and_what_to_do(
    message: str, code: int, kind: type[StorageError], says: str, with_code: bool
) -> None:
    error = explained(Told(message, code if with_code else None), "/data/jobs.db")
    assert type(error) is kind
    assert says in str(error)
    assert "/data/jobs.db" in str(error)
    assert message in str(error)
    assert not error.accepted


def test_extended_codes_are_told_apart_only_where_that_helps() -> None:
    moved = explained(Told("attempt to write a readonly database", 1032), "/data/jobs.db")
    assert "moved, replaced or deleted" in str(moved)
    busy = explained(Told("database is locked", 261), "/data/jobs.db")
    assert "another program" in str(busy)


def test_an_io_error_on_a_disk_without_room_is_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_no_room", lambda path: True)
    error = explained(Told("disk I/O error", 4874), "/data/jobs.db")
    assert type(error) is StorageFullError


def test_errors_of_the_system_are_explained_too() -> None:
    full = explained(OSError(errno.ENOSPC, "No space left on device"), "/data/jobs.db")
    assert type(full) is StorageFullError
    denied = explained(PermissionError(errno.EACCES, "Permission denied"), "/data/jobs.db")
    assert type(denied) is StorageError
    assert "Permission denied" in str(denied)


# -- real faults -------------------------------------------------------------------------------


def provoke(call: Callable[[], object], path: Path) -> StorageError:
    with pytest.raises(sqlite3.Error) as caught:
        call()
    return explained(caught.value, str(path))


def test_a_database_at_its_bound_is_full(path: Path) -> None:
    with opened(path) as connection:
        connection.execute("PRAGMA max_page_count = 20").fetchall()
        error = provoke(lambda: add_job(connection, 1, data=bytes(200_000)), path)
        assert type(error) is StorageFullError
        connection.execute("PRAGMA max_page_count = 1000000").fetchall()
        add_job(connection, 1, data=bytes(200_000))


def test_a_lock_that_another_program_holds_is_told(path: Path) -> None:
    with opened(path) as connection, closing(connect(str(path), "mode=rw")) as other:
        other.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA busy_timeout = 1")
        error = provoke(lambda: add_job(connection, 1), path)
        assert type(error) is StorageError
        assert "another program" in str(error)
        other.execute("ROLLBACK")
        add_job(connection, 1)


def test_opening_a_file_that_another_program_holds_locked_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(path)
    real = module.connect
    monkeypatch.setattr(module, "connect", lambda path, query: real(path, query, 0.001))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="another program holds it locked"):
            open_database(str(path))


@as_root
def test_a_full_disk_is_told_and_once_there_is_room_all_goes_on(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-o", "size=1m") as disk:
        path = disk / "jobs.db"
        owner = open_database(str(path))
        connection = owner.connection
        written = 0
        with pytest.raises(sqlite3.Error) as caught:
            while True:
                add_job(connection, written, data=bytes(20_000))
                written += 1
        assert type(explained(caught.value, str(path))) is StorageFullError
        assert not connection.in_transaction
        assert count(connection) == written
        remount(disk, "size=4m")
        add_job(connection, written, data=bytes(20_000))
        close_database(connection, str(path))
        assert read(str(path), count) == written + 1


@as_root
def test_a_full_disk_refuses_a_new_file_clearly_and_leaves_nothing_that_hinders(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "small", "-o", "size=1m") as disk:
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        with pytest.raises(StorageFullError, match="make room"):
            open_database(str(disk / "jobs.db"))
        os.unlink(disk / "ballast")
        owner = open_database(str(disk / "jobs.db"))
        assert owner.created
        close_database(owner.connection, str(disk / "jobs.db"))


@as_root
def test_on_a_read_only_file_system_nothing_is_opened_for_writing_and_reading_works(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "disk") as disk:
        path = make_file(disk / "jobs.db", jobs=3)
        remount(disk, "ro")
        with pytest.raises(StorageError, match=r"cannot be written to.*open_readonly"):
            check_place(str(path))
        with pytest.raises(StorageError, match="files cannot be made"):
            check_place(str(disk / "new.db"))
        with pytest.raises(StorageError, match=r"cannot be opened|read-only"):
            open_database(str(path))
        assert read(str(path), count) == 3


@as_root
def test_a_crashed_file_on_a_read_only_file_system_is_a_clear_error(
    path: Path, tmp_path: Path
) -> None:
    # SQLite reads no log without an index of it, which it cannot make there
    with opened(path) as connection:
        add_job(connection, 1)
        with mounted(tmp_path / "disk") as disk:
            cut = crash_copy(path, disk / "jobs.db")
            remount(disk, "ro")
            with pytest.raises(StorageError, match="make files beside it"):
                read(str(cut), count)
