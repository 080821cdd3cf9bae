"""Copies of a file in use, and whether a file is whole."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import (
    StorageCorruptError,
    StorageError,
    StorageFullError,
    StorageLockedError,
    ValidationError,
)
from bunqueue_py.storage.sqlite import backup as module
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.backup import PARTIAL
from bunqueue_py.storage.sqlite.opening import close_database, open_database
from bunqueue_py.storage.sqlite.ownership import Ownership
from bunqueue_py.storage.sqlite.verify import MAX_PROBLEMS, verify
from bunqueue_py.types import JobCounts, Report
from tests.unit.sqlite_files import (
    ACTIVE,
    COMPLETED,
    FAILED,
    GATED,
    PENDING,
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
    torn_copy,
)

NOW = 1_900_000_000_000


@pytest.fixture
def target(tmp_path: Path) -> Path:
    inner = tmp_path / "backups"
    inner.mkdir()
    return inner / "copy.db"


def backup(path: Path, target: Path | str | bytes) -> str:
    return module.backup(str(path), target, SystemClock())


def numbers(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT seq FROM jobs ORDER BY seq")]


# -- backup ------------------------------------------------------------------------------------


def test_a_copy_of_a_file_in_use_has_all_that_was_committed_and_opens_as_a_file_of_its_own(
    path: Path, target: Path
) -> None:
    with opened(path) as connection:
        for number in range(50):
            add_job(connection, number, data=bytes(3000))
        assert backup(path, target) == str(target)
        assert names(target.parent) == ["copy.db"]
        add_job(connection, 50)
    assert numbers(target) == list(range(50))
    assert numbers(path) == list(range(51))
    owner = open_database(str(target))
    assert not owner.clean  # what ran when it was made was not ended in good order
    assert owner.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert owner.connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    close_database(owner.connection, str(target))


def test_a_file_that_nobody_has_open_is_copied_without_a_trace(path: Path, target: Path) -> None:
    make_file(path, jobs=5)
    before = folder(path.parent)
    backup(path, bytes(target))
    assert folder(path.parent) == before
    assert numbers(target) == list(range(5))
    owner = open_database(str(target))
    assert owner.clean
    close_database(owner.connection, str(target))


def test_a_file_left_by_a_crash_is_copied_with_its_log(
    path: Path, target: Path, tmp_path: Path
) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        cut = crash_copy(path, tmp_path / "cut.db")
    backup(cut, target)
    assert numbers(target) == [1]


def test_a_copy_is_of_one_moment_although_the_owner_goes_on_writing(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGES", 1)
    make_file(path, jobs=20, size=3000)
    with opened(path) as connection:
        steps = []

        class Busy(sqlite3.Connection):
            def backup(self, *arguments: object, **options: object) -> None:
                def write(*_: object) -> None:  # a commit between any two pages
                    steps.append(1)
                    add_job(connection, 1000 + len(steps))
                    connection.execute("UPDATE jobs SET entered = entered + 1")

                options["progress"] = write
                super().backup(*arguments, **options)  # type: ignore[arg-type]

        from bunqueue_py.storage.sqlite import connection as connecting

        real = sqlite3.connect
        monkeypatch.setattr(
            connecting.sqlite3,
            "connect",
            lambda *arguments, **options: real(*arguments, factory=Busy, **options),
        )
        backup(path, target)
        monkeypatch.undo()
    assert len(steps) >= 20
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT COUNT(*), MAX(entered) FROM jobs").fetchone() == (20, 0)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_older_copy_is_replaced_by_a_newer_one(path: Path, target: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        backup(path, target)
        add_job(connection, 2)
        backup(path, target)
    assert names(target.parent) == ["copy.db"]
    assert numbers(target) == [1, 2]


@pytest.mark.parametrize("in_a_checkpoint", [False, True])
def test_an_older_copy_that_was_opened_and_crashed_is_replaced_with_its_log(
    path: Path, target: Path, tmp_path: Path, in_a_checkpoint: bool
) -> None:
    # left where it is, the log would be taken for one of the new copy
    make_file(path, jobs=3)
    with opened(tmp_path / "other.db") as connection:
        for number in range(100, 140):
            add_job(connection, number, data=bytes(1000))
        if in_a_checkpoint:
            torn_copy(connection, tmp_path / "other.db", target)
        else:
            crash_copy(tmp_path / "other.db", target)
    assert names(target.parent) == ["copy.db", "copy.db-wal"]
    backup(path, target)
    assert names(target.parent) == ["copy.db"]
    assert numbers(target) == [0, 1, 2]


def test_an_empty_file_is_filled(path: Path, target: Path) -> None:
    make_file(path, jobs=3)
    target.touch()
    backup(path, target)
    assert numbers(target) == [0, 1, 2]


@posix
def test_through_a_link_the_file_behind_it_is_replaced_and_not_the_link(
    path: Path, target: Path
) -> None:
    make_file(path, jobs=3)
    os.symlink(target, target.with_name("link"))
    assert backup(path, target.with_name("link")) == str(target)
    assert numbers(target) == [0, 1, 2]
    assert target.with_name("link").is_symlink()


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE songs (title)")


def make_text(path: Path) -> None:
    path.write_text("precious\n" * 1000)


def make_short(path: Path) -> None:
    path.write_text("x")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_foreign, StorageError),
        (make_text, StorageCorruptError),
        (make_short, StorageError),
    ],
)
def test_a_file_that_is_not_ours_is_never_replaced(
    path: Path, target: Path, make: Callable[[Path], None], kind: type[StorageError]
) -> None:
    make_file(path, jobs=3)
    make(target)
    before = folder(target.parent)
    with pytest.raises(kind, match="target is there already and is not replaced") as caught:
        backup(path, target)
    assert type(caught.value) is kind
    assert folder(target.parent) == before


def test_the_file_itself_is_no_target_under_any_name(path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        os.symlink(path, path.with_name("link"))
        for name in ("jobs.db", "link"):
            with pytest.raises(ValidationError, match=r"must not be .*itself"):
                backup(path, path.with_name(name))
    assert numbers(path) == [1]


def test_a_file_that_a_manager_has_open_is_no_target(path: Path, target: Path) -> None:
    make_file(path, jobs=3)
    owned = Ownership.take(str(target), 0, SystemClock())
    with opened(target) as connection:
        add_job(connection, 77)
        with pytest.raises(StorageLockedError, match="owned by"):
            backup(path, target)
    owned.release()
    assert numbers(target) == [77]


def test_a_target_that_a_shell_has_open_is_refused(path: Path, target: Path) -> None:
    make_file(path, jobs=3)
    make_file(target, jobs=1)
    with closing(sqlite3.connect(target, isolation_level=None)) as shell:
        shell.execute("BEGIN")
        shell.execute("SELECT * FROM jobs").fetchall()
        with pytest.raises(StorageError, match="another program has it open"):
            backup(path, target)
    assert numbers(target) == [0]


@pytest.mark.parametrize("value", ["", ":memory:", 3, None])
def test_a_target_that_can_be_no_file_is_refused(path: Path, value: object) -> None:
    make_file(path)
    with pytest.raises(ValidationError, match="target"):
        backup(path, value)  # type: ignore[arg-type]


def test_a_target_in_a_folder_that_is_not_there_is_refused(path: Path, tmp_path: Path) -> None:
    make_file(path)
    with pytest.raises(StorageError, match="no folder"):
        backup(path, tmp_path / "nowhere" / "copy.db")


def test_what_is_not_there_or_not_ours_cannot_be_copied(
    path: Path, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="no such file"):
        backup(path, target)
    make_foreign(path)
    with pytest.raises(StorageError, match="another application"):
        backup(path, target)
    os.unlink(path)
    make_text(path)
    with pytest.raises(StorageCorruptError, match=str(path)):
        backup(path, target)
    assert names(target.parent) == []


def test_damage_in_the_source_is_told_of_the_source(path: Path, target: Path) -> None:
    make_unclean(path, jobs=300)
    os.truncate(path, 8 * 4096)
    with pytest.raises(StorageCorruptError, match=str(path)):
        backup(path, target)
    assert names(target.parent) == []


def test_a_schema_that_cannot_even_be_quoted_is_damage(path: Path, target: Path) -> None:
    make_file(path, jobs=3)
    backup(path, target)
    for garbled in (path, target):
        garble_schema(garbled)
    report = checked(path)
    assert not report.ok
    assert "damaged" in report.problems[0]
    make_file(path.with_name("other.db"), jobs=3)
    for source in (path, path.with_name("other.db")):  # as source and as target
        with pytest.raises(StorageCorruptError, match="damaged"):
            backup(source, target)


class Interrupt(BaseException):
    """As Ctrl-C."""


@pytest.mark.parametrize("at", ["_copy", "_sync_file", "_sync_folder"])
def test_a_copy_that_is_broken_off_leaves_the_older_one(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    make_file(path, jobs=3)
    make_file(target, jobs=1)
    real = getattr(module, at)

    def broken(*arguments: object) -> None:
        real(*arguments)
        raise Interrupt

    monkeypatch.setattr(module, at, broken)
    with pytest.raises(Interrupt):
        backup(path, target)
    assert names(target.parent) == ["copy.db"]
    assert numbers(target) == ([0, 1, 2] if at == "_sync_folder" else [0])


@posix
def test_a_kill_leaves_the_older_copy_and_the_next_attempt_tidies_up(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(path, jobs=3)
    make_file(target, jobs=1)

    def child() -> None:
        monkeypatch.setattr(module, "_sync_file", lambda partial: os.kill(os.getpid(), 9))
        backup(path, target)

    with pytest.raises(AssertionError, match="ended with -9"), neighbour(child):
        pass
    assert names(target.parent) == ["copy.db", "copy.db" + PARTIAL, "copy.db.lock"]
    assert numbers(target) == [0]
    backup(path, target)
    assert names(target.parent) == ["copy.db"]
    assert numbers(target) == [0, 1, 2]


@as_root
def test_a_full_disk_leaves_the_older_copy(path: Path, tmp_path: Path) -> None:
    make_file(path, jobs=300, size=4000)
    with mounted(tmp_path / "small", "-o", "size=500k") as disk:
        make_file(disk / "copy.db", jobs=1)
        with pytest.raises(StorageFullError, match=r"small/copy\.db"):
            backup(path, disk / "copy.db")
        assert names(disk) == ["copy.db"]
        assert numbers(disk / "copy.db") == [0]


# -- verify ------------------------------------------------------------------------------------


def whole(row: tuple[object, ...]) -> None:
    assert len(row) == 10


def checked(path: Path, decode: Callable[[tuple[object, ...]], object] = whole) -> Report:
    return verify(str(path), NOW, decode)


def test_a_whole_file_is_reported_with_what_is_in_it(path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        add_job(connection, 2, priority=5)
        add_job(connection, 3, priority=-5, run_at=NOW)
        add_job(connection, 4, run_at=NOW + 1)
        add_job(connection, 5, state=GATED, queue="other")
        add_job(connection, 6, state=ACTIVE)
        add_job(connection, 7, state=COMPLETED, result=b"1")
        add_job(connection, 8, state=COMPLETED)
        add_job(connection, 9, state=FAILED)
        add_job(connection, 10, state=PENDING, data=0)
        connection.execute("INSERT INTO payloads VALUES ('job-000010', zeroblob(10000))")
        connection.execute("INSERT INTO results VALUES ('job-000008', zeroblob(10000))")
        during = checked(path)
    after = checked(path)
    for report in (during, after):
        assert report.ok
        assert report.problems == ()
        assert report.schema_version == schema.VERSION
        assert report.jobs == JobCounts(
            waiting=3,
            prioritized=1,
            delayed=1,
            waiting_children=1,
            active=1,
            completed=2,
            failed=1,
        )
    assert during.log_bytes > 0
    assert after.log_bytes == 0
    assert after.file_bytes == path.stat().st_size


def test_verify_changes_nothing_and_makes_no_file(path: Path) -> None:
    make_file(path, jobs=5)
    before = folder(path.parent)
    assert checked(path).ok
    assert folder(path.parent) == before


def test_an_empty_database_of_ours_is_whole(path: Path) -> None:
    make_file(path)
    assert checked(path).jobs == JobCounts()


ORPHANS = {
    "1 payloads that belong to no job, for example x": "INSERT INTO payloads VALUES ('x', x'00')",
    "1 results that belong to no job, for example x": "INSERT INTO results VALUES ('x', x'00')",
    "2 jobs without a payload, for example job-000001": "UPDATE jobs SET data = 0 WHERE seq > 0",
    "3 jobs without a payload, for example job-000000": "UPDATE jobs SET data = NULL",
    "1 jobs that have their payload twice, for example job-000001": (
        "INSERT INTO payloads VALUES ('job-000001', x'00')"
    ),
    "1 jobs that have their result twice, for example job-000002": (
        "INSERT INTO results SELECT 'job-000002', x'00' FROM jobs WHERE seq = 2"
    ),
    "1 jobs in a state that does not exist, for example job-000001": (
        "UPDATE jobs SET state = 5 WHERE seq = 1"
    ),
    "there is no table rest": "DROP TABLE rest",
}


@pytest.mark.parametrize(("problem", "statement"), ORPHANS.items())
def test_what_does_not_belong_together_is_told(path: Path, problem: str, statement: str) -> None:
    make_file(path, jobs=3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET result = x'31', state = 3 WHERE seq = 2")
        connection.execute(statement)
    report = checked(path)
    assert not report.ok
    assert report.problems == (problem,)
    assert report.jobs is not None


def test_a_queue_of_which_no_state_can_be_read_is_counted_as_nothing(path: Path) -> None:
    make_file(path, jobs=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'state INTEGER NOT NULL', 'state')"
        )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET state = NULL")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'state,', 'state INTEGER NOT NULL,')"
        )
    report = checked(path)
    assert not report.ok
    assert report.jobs == JobCounts()


def test_rows_that_cannot_be_read_are_named_and_the_others_counted(path: Path) -> None:
    make_file(path, jobs=5)

    def decode(row: tuple[object, ...]) -> None:
        if row[2] in (1, 3):
            raise ValueError(f"no {row[2]}")

    report = checked(path, decode)
    assert report.problems == (
        "the row of job job-000001 cannot be read: ValueError: no 1",
        "the row of job job-000003 cannot be read: ValueError: no 3",
    )
    assert report.jobs == JobCounts(waiting=5)


def test_decode_gets_payloads_and_results_from_wherever_they_stand(path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1, data=b"near")
        add_job(connection, 2, data=0, state=COMPLETED)
        connection.execute("INSERT INTO payloads VALUES ('job-000002', x'f0')")
        connection.execute("INSERT INTO results VALUES ('job-000002', x'f1')")
    seen = {}

    def decode(row: tuple[object, ...]) -> None:
        seen[row[0]] = row[8:]

    assert checked(path, decode).ok
    assert seen == {"job-000001": (b"near", None), "job-000002": (b"\xf0", b"\xf1")}


def test_of_many_problems_the_first_ones_are_told(path: Path) -> None:
    make_file(path, jobs=MAX_PROBLEMS + 50)

    def decode(row: tuple[object, ...]) -> None:
        raise ValueError

    assert len(checked(path, decode).problems) == MAX_PROBLEMS


def test_damage_is_reported_and_not_raised(path: Path) -> None:
    make_file(path, jobs=300)
    content = path.read_bytes()
    leaf = next(
        at
        for at in range(0, len(content), 4096)
        if content[at] == 13 and b"job-000150" in content[at : at + 4096]
    )
    damage(path, leaf, b"\xff" * 4096)
    report = checked(path)
    assert not report.ok
    assert report.jobs is None
    assert len(report.problems) > 1  # what was found before it could not go on
    assert "damaged" in report.problems[-1]
    os.truncate(path, 4 * 4096)
    report = checked(path)
    assert not report.ok
    assert report.schema_version is None
    assert "damaged" in report.problems[0]
    make_text(path)
    assert "no SQLite database" in checked(path).problems[0]


def test_an_index_that_says_something_else_than_its_table_is_found(path: Path) -> None:
    # the quick check at opening does not see that
    make_file(path, jobs=3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET state = 3")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'state = 3', 'state = 0')")
        connection.execute("PRAGMA writable_schema = RESET")
    report = checked(path)
    assert not report.ok
    assert "completed" in report.problems[0]


@pytest.mark.parametrize("make", [make_foreign, Path.touch, lambda path: None])
def test_what_is_not_ours_is_an_error_and_no_report(
    path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    with pytest.raises(StorageError, match=str(path)):
        checked(path)


def test_running_out_of_memory_is_no_problem_of_the_file(path: Path) -> None:
    make_file(path, jobs=3)

    def decode(row: tuple[object, ...]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        checked(path, decode)
