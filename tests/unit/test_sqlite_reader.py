"""Reading the file from another process, whatever its owner is doing."""

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import StorageCorruptError, StorageError
from bunqueue_py.storage.sqlite import connection as connecting
from bunqueue_py.storage.sqlite import reader as module
from bunqueue_py.storage.sqlite.backup import backup
from bunqueue_py.storage.sqlite.connection import read
from bunqueue_py.storage.sqlite.opening import checkpoint, close_database, open_database
from bunqueue_py.storage.sqlite.reader import Reader, list_jobs
from bunqueue_py.storage.sqlite.verify import verify
from bunqueue_py.types import JobCounts, JobState
from tests.unit.sqlite_files import (
    ACTIVE,
    COMPLETED,
    FAILED,
    GATED,
    add_job,
    as_root,
    crash_copy,
    folder,
    make_file,
    mounted,
    names,
    neighbour,
    opened,
    posix,
    remount,
)

NOW = 1_900_000_000_000
ALL = tuple(state for state in JobState if state not in (JobState.PAUSED, JobState.UNKNOWN))
Row = tuple[object, ...]


def seq(row: Row) -> object:
    return row[2]


def whole(row: Row) -> Row:
    return row


def waiting(path: Path) -> int:
    return Reader(str(path)).counts(NOW)["emails"].waiting


# -- what it shows -----------------------------------------------------------------------------


@pytest.fixture
def various(path: Path) -> Path:
    """Some jobs in every state; the numbers are in the order in which they were added."""
    with opened(path) as connection:
        add_job(connection, 1, entered=10)
        add_job(connection, 2, entered=10, run_at=NOW - 5)  # came due after the others entered
        add_job(connection, 3, entered=30)
        add_job(connection, 4, entered=20, priority=-1)
        add_job(connection, 5, entered=25, priority=7)
        add_job(connection, 6, entered=5, priority=7, run_at=NOW + 1)
        add_job(connection, 7, entered=6, run_at=NOW + 1)
        add_job(connection, 8, state=GATED)
        add_job(connection, 9, state=ACTIVE, run_at=NOW + 1)
        add_job(connection, 10, state=COMPLETED, entered=200)
        add_job(connection, 11, state=COMPLETED, entered=100, result=b"11")
        add_job(connection, 12, state=COMPLETED, entered=100, result=b"12", data=0)
        add_job(connection, 13, state=FAILED, entered=300)
        add_job(connection, 14, state=FAILED, entered=250)
        add_job(connection, 15, queue="other", state=FAILED)
        connection.execute("INSERT INTO payloads VALUES ('job-000012', x'f0')")
        connection.execute("INSERT INTO results VALUES ('job-000010', x'f1')")
        connection.execute("INSERT INTO rest VALUES ('queue', 'emails', '{\"paused\": true}')")
        connection.execute("INSERT INTO rest VALUES ('proof', 'x', '{}')")
    return path


def test_it_counts_the_jobs_of_each_queue_by_state(various: Path) -> None:
    assert Reader(str(various)).counts(NOW) == {
        "emails": JobCounts(
            waiting=4,
            prioritized=1,
            delayed=2,
            waiting_children=1,
            active=1,
            completed=3,
            failed=2,
        ),
        "other": JobCounts(failed=1),
    }


def test_what_is_delayed_is_judged_by_the_moment_given(various: Path) -> None:
    reader = Reader(str(various))
    assert reader.counts(NOW + 1)["emails"].delayed == 0
    assert reader.counts(0)["emails"].delayed == 3
    assert reader.jobs("emails", (JobState.DELAYED,), NOW, seq) == [6, 7]
    assert reader.jobs("emails", (JobState.DELAYED,), NOW + 1, seq) == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((JobState.WAITING,), [1, 4, 3, 2]),
        ((JobState.PRIORITIZED,), [5]),
        ((JobState.WAITING, JobState.PRIORITIZED), [1, 4, 5, 3, 2]),
        ((JobState.DELAYED,), [6, 7]),
        ((JobState.WAITING_CHILDREN,), [8]),
        ((JobState.ACTIVE,), [9]),
        ((JobState.COMPLETED,), [11, 12, 10]),
        ((JobState.FAILED,), [14, 13]),
        ((JobState.COMPLETED, JobState.FAILED), [11, 12, 10, 14, 13]),
        ((), []),
        ((JobState.ACTIVE, JobState.ACTIVE), [9]),
    ],
)
def test_jobs_come_in_the_order_in_which_they_entered_their_state(
    various: Path, states: tuple[JobState, ...], expected: list[int]
) -> None:
    reader = Reader(str(various))
    assert reader.jobs("emails", states, NOW, seq) == expected
    assert reader.jobs("emails", states, NOW, seq, newest_first=True) == expected[::-1]
    pages = [
        reader.jobs("emails", states, NOW, seq, offset=offset, limit=2)
        for offset in range(0, len(expected) + 1, 2)
    ]
    assert [number for page in pages for number in page] == expected


def test_a_walk_passes_every_job_once_in_the_order_of_adding(various: Path) -> None:
    reader = Reader(str(various))
    seen: list[object] = []
    after: str | None = ""
    while after is not None:
        page, after = reader.walk("emails", ALL, NOW, seq, after=after, limit=4)
        assert len(page) <= 4
        seen += page
    assert seen == list(range(1, 15))
    assert reader.walk("nobody", ALL, NOW, seq) == ([], None)


def test_a_job_is_found_by_id_with_payload_and_result_from_wherever_they_stand(
    various: Path,
) -> None:
    reader = Reader(str(various))
    assert reader.job("job-000011", whole) == (
        "job-000011",
        "emails",
        11,
        COMPLETED,
        0,
        0,
        100,
        "{}",
        b"{}",
        b"11",
    )
    for job_id, data, result in (
        ("job-000012", b"\xf0", b"12"),
        ("job-000010", b"{}", b"\xf1"),
        ("job-000001", b"{}", None),
    ):
        row = reader.job(job_id, whole)
        assert row is not None
        assert row[8:] == (data, result)
    assert reader.job("job-000099", whole) is None


def test_without_data_payloads_and_results_are_not_read(various: Path) -> None:
    rows = Reader(str(various)).jobs("emails", (JobState.COMPLETED,), NOW, whole, with_data=False)
    assert [row[8:] for row in rows] == [(None, None)] * 3


def test_dead_letters_come_oldest_first_by_pages(various: Path) -> None:
    reader = Reader(str(various))
    assert reader.dead_letters("emails", seq) == [14, 13]
    assert reader.dead_letters("emails", seq, offset=1, limit=1) == [13]


def test_what_else_is_kept_comes_by_kind(various: Path) -> None:
    reader = Reader(str(various))
    assert reader.rest("queue") == [("emails", '{"paused": true}')]
    assert reader.rest("nothing") == []


def test_names_and_ids_are_values_and_never_part_of_a_query(various: Path) -> None:
    reader = Reader(str(various))
    for odd in ("' OR 1=1 --", '"; DROP TABLE jobs', ":now", "emails\0"):
        assert reader.job(odd, whole) is None
        assert reader.jobs(odd, ALL, NOW, whole) == []
        assert reader.rest(odd) == []


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
@pytest.mark.parametrize("newest_first", [False, True])
def test_finished_jobs_are_read_by_the_index_without_sorting(
    various: Path, state: JobState, newest_first: bool
) -> None:
    plans: list[str] = []

    def action(connection: sqlite3.Connection) -> None:
        class Explaining:
            def execute(self, query: str, values: object) -> sqlite3.Cursor:
                plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", values)  # type: ignore[arg-type]
                plans.extend(row[3] for row in plan)
                return connection.execute(query, values)  # type: ignore[arg-type]

        list_jobs(Explaining(), "emails", (state,), NOW, newest_first=newest_first)  # type: ignore[arg-type]

    read(str(various), action)
    assert f"SEARCH jobs USING INDEX {state} (queue=?)" in plans
    assert not any("TEMP B-TREE" in step for step in plans)


def test_a_walk_goes_by_the_key(various: Path) -> None:
    def action(connection: sqlite3.Connection) -> list[str]:
        query = (
            f"EXPLAIN QUERY PLAN {module._BARE} WHERE id > '' AND queue = 'q' ORDER BY id LIMIT 5"
        )
        return [row[3] for row in connection.execute(query)]

    assert read(str(various), action) == ["SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id>?)"]


def test_decode_runs_when_nothing_is_open_any_more(
    various: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: list[sqlite3.Connection] = []

    class Counted(sqlite3.Connection):
        def close(self) -> None:
            open_now.remove(self)
            super().close()

    def connect(path: str, query: str) -> sqlite3.Connection:
        open_now.append(sqlite3.connect(connecting.uri(path, query), uri=True, factory=Counted))
        return open_now[-1]

    reader = Reader(str(various))
    monkeypatch.setattr(connecting, "connect", connect)

    def decode(row: Row) -> int:
        return len(open_now)

    assert reader.jobs("emails", ALL, NOW, decode) == [0] * 14
    assert reader.job("job-000001", decode) == 0


def test_a_row_that_cannot_be_decoded_raises_what_decode_raises(various: Path) -> None:
    def decode(row: Row) -> None:
        raise LookupError("unknown")

    with pytest.raises(LookupError, match="unknown"):
        Reader(str(various)).job("job-000001", decode)


# -- beside an owner ---------------------------------------------------------------------------


@posix
def test_another_process_sees_what_is_committed_while_the_owner_runs(path: Path) -> None:
    # forked before the file is open, since SQLite does not go over a fork
    make_file(path)
    reader = Reader(str(path))  # which holds nothing, and does

    def look() -> None:
        assert waiting(path) == 1
        assert reader.job("job-000001", seq) == 1

    with neighbour(lambda: None, look) as other, opened(path) as connection:
        add_job(connection, 1)
        connection.execute("BEGIN IMMEDIATE")
        add_job(connection, 2)
        assert other.finish() == 0
        assert waiting(path) == 1
        connection.execute("COMMIT")
        assert waiting(path) == 2


def test_a_reader_follows_its_owner_through_checkpoints_closing_and_opening(path: Path) -> None:
    make_file(path)
    reader = Reader(str(path))

    def seen() -> int:
        counts = reader.counts(NOW)
        return counts["emails"].waiting if counts else 0

    number = 0
    for _ in range(3):
        owner = open_database(str(path))
        for _ in range(3):
            add_job(owner.connection, number)
            number += 1
            assert seen() == number
            assert checkpoint(owner.connection)
            assert seen() == number
        close_database(owner.connection, str(path))
        assert names(path.parent) == ["jobs.db"]
        assert seen() == number
        assert names(path.parent) == ["jobs.db"]


def test_a_reader_holds_nothing_between_its_calls(path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        reader = Reader(str(path))
        page, after = reader.walk("emails", ALL, NOW, seq, limit=1)
        assert page == [1]
        assert after == "job-000001"
        for number in range(2, 50):
            add_job(connection, number, data=bytes(4000))
        assert checkpoint(connection)  # or the log would grow for as long as somebody walks
        assert os.path.getsize(f"{path}-wal") == 0


def test_a_file_that_is_replaced_is_read_anew(path: Path, tmp_path: Path) -> None:
    make_file(path, jobs=3)
    reader = Reader(str(path))
    assert reader.counts(NOW)["emails"].waiting == 3
    make_file(tmp_path / "other.db", jobs=5)
    os.replace(tmp_path / "other.db", path)
    assert reader.counts(NOW)["emails"].waiting == 5


def test_a_file_left_by_a_crash_is_read_with_its_log(path: Path, tmp_path: Path) -> None:
    with opened(path) as connection:
        add_job(connection, 1)
        cut = crash_copy(path, tmp_path / "cut.db")
    before = {name: (tmp_path / name).read_bytes() for name in ("cut.db", "cut.db-wal")}
    assert waiting(cut) == 1
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    owner = open_database(str(cut))  # whose owner then finds it unclean, as it was
    assert not owner.clean
    close_database(owner.connection, str(cut))


def test_reading_a_file_that_was_closed_in_good_order_leaves_no_trace(various: Path) -> None:
    before = folder(various.parent)
    reader = Reader(str(various))
    reader.counts(NOW)
    reader.job("job-000001", whole)
    reader.walk("emails", ALL, NOW, whole)
    assert folder(various.parent) == before


def test_an_owner_that_comes_while_a_closed_file_is_read_makes_the_reader_begin_anew(
    path: Path,
) -> None:
    # It was read without locks, and a checkpoint changes pages under such a reader.
    make_file(path, jobs=3)
    attempts: list[int] = []

    def action(connection: sqlite3.Connection) -> int:
        count: int = connection.execute("SELECT COUNT(*) FROM jobs").fetchone()[0]
        if not attempts:
            with opened(path) as owner:
                add_job(owner, 77)
        attempts.append(count)
        return count

    assert read(str(path), action) == 4
    assert attempts == [3, 4]


def test_an_owner_that_stays_is_noticed_too(path: Path) -> None:
    make_file(path, jobs=3)
    attempts: list[int] = []
    owners = []

    def action(connection: sqlite3.Connection) -> int:
        count: int = connection.execute("SELECT COUNT(*) FROM jobs").fetchone()[0]
        if not attempts:
            owners.append(open_database(str(path)).connection)
            add_job(owners[0], 77)
        attempts.append(count)
        return count

    assert read(str(path), action) == 4
    assert attempts == [3, 4]
    close_database(owners[0], str(path))


def test_an_error_out_of_a_page_that_changed_under_the_reader_is_no_answer(path: Path) -> None:
    make_file(path, jobs=3)
    attempts: list[int] = []

    def action(connection: sqlite3.Connection) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            with opened(path) as owner:
                add_job(owner, 77)
            raise ValueError("nonsense, half old and half new")
        return "whole"

    assert read(str(path), action) == "whole"

    def wrong(connection: sqlite3.Connection) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        read(str(path), wrong)


def test_a_file_that_changes_at_every_attempt_is_given_up_with_a_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_TRIES", 3)
    make_file(path, jobs=3)
    attempts: list[int] = []

    def action(connection: sqlite3.Connection) -> None:
        attempts.append(1)
        with opened(path) as owner:
            add_job(owner, 100 + len(attempts))

    with pytest.raises(StorageError, match="again and again"):
        read(str(path), action)
    assert len(attempts) == 3


def test_nothing_can_be_written_through_a_readers_connection(path: Path) -> None:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM jobs")

    make_file(path, jobs=3)
    with pytest.raises(StorageError, match="cannot be written to"):
        read(str(path), write)
    with opened(path) as connection, pytest.raises(StorageError, match="cannot be written to"):
        add_job(connection, 7)
        read(str(path), write)
    assert waiting(path) == 4


@posix
@pytest.mark.slow
def test_readers_see_every_commit_whole_while_owners_come_and_go(
    path: Path, slow_rounds: Callable[[int, int], int]
) -> None:
    # Two rows a commit. Readers ask for as long as the owner's process lives.
    make_file(path)
    rounds = slow_rounds(30, 300)
    done = path.parent.parent / "done"

    def own() -> None:
        number = 0
        for turn in range(rounds):
            with opened(path) as connection:
                for _ in range(5):
                    connection.execute("BEGIN IMMEDIATE")
                    add_job(connection, number, data=bytes(3000))
                    add_job(connection, number + 1, data=bytes(3000))
                    connection.execute("COMMIT")
                    number += 2
                    if turn % 3 == 0:
                        checkpoint(connection)
        done.touch()

    def look() -> None:
        reader, before, after, asked = Reader(str(path)), 0, False, 0
        while not after:
            after = done.exists()
            counts = reader.counts(NOW)
            seen = counts["emails"].waiting if counts else 0
            assert seen % 2 == 0
            assert seen >= before
            before, asked = seen, asked + 1
            if asked % 10 == 0:
                assert verify(str(path), NOW, whole).problems == ()
                assert backup(str(path), path.parent.parent / "copy.db", SystemClock())
                assert verify(str(path.parent.parent / "copy.db"), NOW, whole).ok
        assert before == rounds * 10

    with neighbour(lambda: None, look) as reading, neighbour(lambda: None, own) as owning:
        reading.go_on()
        assert owning.finish() == 0
        assert reading.finish() == 0


# -- what cannot be read -----------------------------------------------------------------------


def make_text(path: Path) -> None:
    path.write_text("hello " * 1000)


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title)")


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda path: None, StorageError, "No such file"),
        (Path.touch, StorageError, "no manager has opened it yet"),
        (Path.mkdir, StorageError, "is no file"),
        (make_text, StorageCorruptError, "no SQLite database"),
        (make_foreign, StorageError, "another application"),
    ],
)
def test_what_is_no_file_of_ours_is_told_at_once_and_nothing_is_made(
    path: Path, make: Callable[[Path], None], kind: type[StorageError], says: str
) -> None:
    make(path)
    before = names(path.parent)
    with pytest.raises(kind, match=says) as caught:
        Reader(str(path))
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)
    assert names(path.parent) == before


def test_a_file_that_is_deleted_under_a_reader_is_told(path: Path) -> None:
    make_file(path)
    reader = Reader(str(path))
    os.unlink(path)
    with pytest.raises(StorageError, match="No such file"):
        reader.counts(NOW)
    assert names(path.parent) == []


def test_an_older_version_is_told_how_it_is_migrated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(path)
    monkeypatch.setattr(module.schema, "VERSION", 7)
    with pytest.raises(StorageError, match="migrates"):
        Reader(str(path))


# -- who may not write -------------------------------------------------------------------------


@as_root
def test_a_reader_on_a_read_only_file_system_reads_what_was_closed(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        path = make_file(disk / "jobs.db", jobs=3)
        remount(disk, "ro")
        assert waiting(path) == 3


@as_root
def test_a_user_who_may_only_read_reads_beside_the_owner_and_after_it() -> None:
    # not in tmp_path, into which nobody else may look
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.chmod(place, 0o755)
        path = place / "jobs.db"

        def look() -> None:
            os.setgid(65534)
            os.setuid(65534)
            with pytest.raises(PermissionError):
                (place / "file").touch()
            assert waiting(path) == 1

        with neighbour(lambda: None, look) as other, opened(path) as connection:
            add_job(connection, 1)
            assert other.finish() == 0
        with neighbour(look):
            pass
        assert names(place) == ["jobs.db"]
