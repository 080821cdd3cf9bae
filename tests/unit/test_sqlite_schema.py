"""The tables and their versions: how a file comes from an older one to this one, or stays."""

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bunqueue_py.errors import SchemaVersionError, StorageCorruptError, StorageError
from bunqueue_py.storage.sqlite import schema
from bunqueue_py.storage.sqlite.opening import close_database, open_database
from bunqueue_py.storage.sqlite.reader import Reader
from tests.unit.sqlite_files import (
    add_job,
    make_file,
    names,
    neighbour,
    opened,
    posix,
)

# -- a made-up history: what is version 1 today, and two later versions --------------------------

NEXT, LAST = schema.VERSION + 1, schema.VERSION + 2


def add_colour(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")
    connection.execute("UPDATE jobs SET colour = 'red'")


def colour_by_seq(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE INDEX coloured ON jobs (colour, seq)")
    connection.execute("UPDATE jobs SET colour = colour || seq")


STEPS = ((NEXT, add_colour), (LAST, colour_by_seq))


def migrated(path: Path, to: int = LAST, steps: tuple[tuple[int, schema.Step], ...] = STEPS) -> int:
    """Opens and closes the file; the version that it had, 0 if the right one."""
    owner = open_database(str(path), to=to, steps=steps)
    close_database(owner.connection, str(path))
    return owner.migrated_from or 0


def ask(path: Path, query: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchone()[0]


# -- creation ----------------------------------------------------------------------------------


def test_a_new_database_has_every_table_and_the_version(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.create(connection)
        assert schema.missing_tables(connection) == []
        assert schema.version_of(connection) == schema.VERSION
        assert connection.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_creation_that_fails_half_way_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        monkeypatch.setattr(schema, "_TABLES", (*schema._TABLES, "CREATE TABLE broken ("))
        with pytest.raises(sqlite3.OperationalError):
            schema.create(connection)
        monkeypatch.undo()
        assert not connection.in_transaction
        assert schema.missing_tables(connection) == list(schema.TABLES)
        assert schema.version_of(connection) == 0
        schema.create(connection)
        assert schema.missing_tables(connection) == []


def test_the_version_of_the_tables_is_changed_whenever_they_are() -> None:
    # Whoever changes a table changes VERSION, adds a migration, and then this.
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.create(connection)
        columns = {
            table: ",".join(
                row[0]
                for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            )
            for table in schema.TABLES
        }
    assert schema.VERSION == 2
    assert columns == {
        "meta": "key,value",
        "jobs": "id,queue,seq,state,priority,run_at,entered,meta,data,result",
        "payloads": "id,data",
        "results": "id,data",
        "rest": "kind,key,body",
    }


def test_the_steps_lead_to_this_version_without_a_gap() -> None:
    assert [version for version, _ in schema.MIGRATIONS] == list(range(2, schema.VERSION + 1))


def test_what_meta_says_is_written_over_and_absent_is_none(path: Path) -> None:
    with opened(path) as connection:
        assert schema.read_meta(connection, "serializer") is None
        schema.write_meta(connection, "serializer", "json")
        schema.write_meta(connection, "serializer", "pickle")
        schema.write_meta(connection, "number", 3)
        assert schema.read_meta(connection, "serializer") == "pickle"
        assert schema.read_meta(connection, "number") == 3


# -- migration ---------------------------------------------------------------------------------


def test_an_older_file_is_migrated_step_by_step_with_a_copy_of_what_it_was(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_file(path, jobs=5)
    with caplog.at_level(logging.INFO, "bunqueue_py"):
        assert migrated(path) == schema.VERSION
    assert "older schema" in caplog.text
    copy = path.with_name(f"jobs.db.v{schema.VERSION}.bak")
    assert names(path.parent) == ["jobs.db", copy.name]
    assert ask(path, "PRAGMA user_version") == LAST
    assert ask(path, "SELECT group_concat(colour) FROM jobs") == "red0,red1,red2,red3,red4"
    assert ask(copy, "PRAGMA user_version") == schema.VERSION
    with opened(copy) as connection:  # as good as the original
        assert connection.execute("SELECT COUNT(*) FROM jobs").fetchone() == (5,)
    assert migrated(path) == 0


def test_the_new_version_stands_in_the_file_itself_and_not_in_its_log_alone(path: Path) -> None:
    make_file(path)
    owner = open_database(str(path), to=NEXT, steps=STEPS)
    header = path.parent.parent / "header"
    with neighbour(lambda: header.write_bytes(path.read_bytes()[:100])):
        pass
    assert header.read_bytes()[60:64] == NEXT.to_bytes(4, "big")
    close_database(owner.connection, str(path))


def test_a_file_in_between_takes_the_missing_steps_only(path: Path) -> None:
    make_file(path, jobs=1)
    assert migrated(path, NEXT) == schema.VERSION
    assert ask(path, "SELECT colour FROM jobs") == "red"
    assert migrated(path, LAST) == NEXT
    assert ask(path, "SELECT colour FROM jobs") == "red0"
    assert names(path.parent) == [
        "jobs.db",
        f"jobs.db.v{schema.VERSION}.bak",
        f"jobs.db.v{NEXT}.bak",
    ]


def test_a_new_file_has_nothing_to_migrate(path: Path) -> None:
    assert migrated(path, schema.VERSION, ()) == 0
    assert names(path.parent) == ["jobs.db"]


def broken(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE jobs SET colour = 'blue'")
    connection.execute("SELECT nonsense")


class Interrupt(BaseException):
    """As Ctrl-C."""


def interrupted(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE results")
    raise Interrupt


@pytest.mark.parametrize(("step", "kind"), [(broken, StorageError), (interrupted, Interrupt)])
def test_a_step_that_fails_leaves_the_file_at_its_version_and_the_copy_beside(
    path: Path, step: schema.Step, kind: type[BaseException]
) -> None:
    make_file(path, jobs=5)
    with pytest.raises(kind):
        migrated(path, steps=((NEXT, add_colour), (LAST, step)))
    copy = f"jobs.db.v{schema.VERSION}.bak"
    assert names(path.parent) == ["jobs.db", copy]
    with opened(path) as connection:  # this release goes on with it
        assert schema.version_of(connection) == schema.VERSION
        assert connection.execute("SELECT COUNT(*) FROM jobs").fetchone() == (5,)
    assert migrated(path) == schema.VERSION


@posix
def test_a_kill_in_the_middle_of_a_step_leaves_the_file_at_its_version(path: Path) -> None:
    make_file(path, jobs=500)

    def kill(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA cache_size = 5")  # so that much of it is in the log already
        connection.execute("UPDATE jobs SET seq = -1, data = zeroblob(4000)")
        os.kill(os.getpid(), 9)

    def child() -> None:
        migrated(path, steps=((NEXT, add_colour), (LAST, kill)))

    with pytest.raises(AssertionError, match="ended with -9"), neighbour(child):
        pass
    assert "jobs.db-wal" in names(path.parent)
    owner = open_database(str(path))
    assert owner.clean  # as far as jobs go: none has been run since
    assert owner.connection.execute("SELECT MIN(seq), MAX(seq) FROM jobs").fetchone() == (0, 499)
    close_database(owner.connection, str(path))
    assert migrated(path) == schema.VERSION
    assert ask(path, "SELECT COUNT(*) FROM jobs WHERE colour LIKE 'red%'") == 500


def test_without_a_copy_there_is_no_migration(path: Path) -> None:
    make_file(path, jobs=2)
    copy = path.with_name(f"jobs.db.v{schema.VERSION}.bak")
    copy.mkdir()  # in the way
    (copy / "file").touch()
    with pytest.raises(StorageError, match=r"Is a directory|not empty"):
        migrated(path)
    assert ask(path, "PRAGMA user_version") == schema.VERSION
    assert names(path.parent) == ["jobs.db", copy.name]


def test_the_copy_of_an_attempt_that_failed_gives_way_to_a_new_one(path: Path) -> None:
    make_file(path, jobs=2)
    with pytest.raises(StorageError):
        migrated(path, steps=((NEXT, add_colour), (LAST, broken)))
    with opened(path) as connection:
        add_job(connection, 7)
    migrated(path)
    copy = path.with_name(f"jobs.db.v{schema.VERSION}.bak")
    assert ask(copy, "SELECT COUNT(*) FROM jobs") == 3


def test_a_version_to_which_no_steps_lead_is_refused_untouched(path: Path) -> None:
    make_file(path)
    with pytest.raises(StorageError, match=f"no way from there to version {LAST}"):
        migrated(path, steps=((LAST, colour_by_seq),))
    assert names(path.parent) == ["jobs.db"]
    assert ask(path, "PRAGMA user_version") == schema.VERSION


@pytest.mark.parametrize(
    ("version", "kind"), [(0, StorageCorruptError), (-3, StorageCorruptError), (99, None)]
)
def test_versions_that_never_were_and_later_ones_are_told_apart(
    version: int, kind: type[StorageError] | None
) -> None:
    with pytest.raises(kind or SchemaVersionError, match=str(version)):
        schema.check_version(version, "/data/jobs.db")
    schema.check_version(schema.VERSION, "/data/jobs.db")


def test_a_reader_of_this_release_meets_a_file_that_is_migrated_under_it(path: Path) -> None:
    make_file(path, jobs=5)
    reader = Reader(str(path))
    assert reader.counts(0)["emails"].waiting == 5
    owner = open_database(str(path), to=NEXT, steps=STEPS)
    with pytest.raises(SchemaVersionError, match="newer"):
        reader.counts(0)
    close_database(owner.connection, str(path))
    with pytest.raises(SchemaVersionError, match="newer"):
        reader.counts(0)
