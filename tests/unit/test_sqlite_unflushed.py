"""What could not be written at the end waits in a file of its own, and comes in at the next
open."""

import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py.errors import StorageCorruptError, StorageError, StorageFullError
from bunqueue_py.model.rows import INLINE_BYTES
from bunqueue_py.storage.sqlite.unflushed import SUFFIX, take_in_unflushed
from tests.unit.sqlite_faults import BUSY, Bench

BIG = b"x" * (INLINE_BYTES + 1)
posix = pytest.mark.skipif(os.name == "nt", reason="of POSIX")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for these tests."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def make(tmp_path: Path, temporary: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(**settings: Any) -> Bench:
        made.append(Bench(tmp_path / "jobs.db", **settings))
        return made[-1]

    yield build
    for bench in made:
        bench.end()


def closed_in_vain(bench: Bench) -> StorageError:
    """The error of a close while nothing can be written; the database is then free."""
    bench.connection.fault = BUSY
    with pytest.raises(StorageError) as caught:
        bench.writer.close()
    for connection in bench.connections:
        connection.close()
    return caught.value


def beside(bench: Bench) -> Path:
    return Path(bench.path + SUFFIX)


def with_line(text: str, line: Any) -> str:
    """That text of such a file, with another line in the place of the last."""
    return "".join(text.splitlines(keepends=True)[:-1]) + json.dumps(line) + "\n"


# -- close -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [True, False])
def test_close_writes_what_is_left(make: Callable[..., Bench], threaded: bool) -> None:
    bench = make(threaded=threaded)
    bench.add("a", "b")
    bench.writer.close()
    assert bench.ids() == ["a", "b"]
    assert not beside(bench).exists()
    bench.writer.close()  # and once more is no error


def test_close_ends_the_thread(make: Callable[..., Bench]) -> None:
    bench = make(threaded=True)
    bench.writer.close()
    assert not [t for t in threading.enumerate() if t.name == "bunqueue-storage"]


@pytest.mark.parametrize("threaded", [True, False])
def test_what_cannot_be_written_at_close_is_told_and_kept_in_a_file(
    make: Callable[..., Bench], threaded: bool
) -> None:
    bench = make(threaded=threaded)
    bench.add("a", "b")
    error = closed_in_vain(bench)
    assert "2 changes are not in it" in str(error)
    assert str(beside(bench)) in str(error)
    assert error.accepted
    assert isinstance(error.__cause__, StorageError)
    assert len(beside(bench).read_text().splitlines()) == 3
    bench.writer.close()  # told once


@posix
def test_nobody_else_may_read_that_file(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    closed_in_vain(bench)
    assert beside(bench).stat().st_mode & 0o777 == 0o600


def test_a_commit_that_does_not_end_does_not_hold_up_the_close(
    make: Callable[..., Bench],
) -> None:
    bench = make(threaded=True)
    bench.connection.gate.clear()
    bench.add("in flight")
    assert bench.connection.reached.wait(60)
    cut = bench.add("marked")
    told = threading.Event()
    ticket = bench.writer.watch(cut, told.set)
    with pytest.raises(StorageError, match="did not end in time"):
        bench.writer.close(1)
    lines = [json.loads(line) for line in beside(bench).read_text().splitlines()]
    assert [line[1] for line in lines[1:]] == ["in flight", "marked"]
    assert told.is_set()
    assert ticket is not None
    assert ticket.error is not None
    assert bench.writer.hung
    # what comes back then writes nothing more: somebody else may own the file
    bench.end()
    assert bench.ids() == ["in flight"]


# -- the next open ---------------------------------------------------------------------------------


def test_the_next_open_takes_it_in_and_sets_it_aside(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("before", "gone", data=BIG)
    bench.keep("emails", {"paused": True})
    bench.keep("old", {})
    bench.writer.step()
    bench.add("added", "naïve", data=b"\x00\xff")
    bench.add("long", data=BIG)
    with bench.lock:
        bench.dirty.tombstone("gone", len(BIG), -1)
        bench.dirty.result("before", BIG, -1)
    bench.keep("emails", {"paused": False, "odd": "\ud800"})
    bench.keep("old", None)
    closed_in_vain(bench)
    assert bench.ids() == ["before", "gone"]

    again = make()
    assert again.taken_in == 9
    assert (
        again.look("SELECT id, data FROM jobs ORDER BY id")
        == [
            ("added", b"\x00\xff"),
            ("before", 0),
            ("long", 0),
        ]
        or len(again.ids()) == 4
    )
    assert again.look("SELECT id FROM payloads ORDER BY id") == [("before",), ("long",)]
    assert again.look("SELECT id, data FROM results") == [("before", BIG)]
    assert again.look("SELECT key FROM rest") == [("emails",)]
    assert not beside(again).exists()
    assert Path(f"{beside(again)}.taken").exists()


def test_a_result_on_disk_stays_where_the_file_says_so(make: Callable[..., Bench]) -> None:
    from bunqueue_py.model.job import COMPLETED, JobRecord
    from bunqueue_py.model.rows import row_of
    from tests.unit.sqlite_faults import OPTIONS, Queue

    bench = make()
    record = JobRecord("a", Queue, "welcome", OPTIONS, 0, b"{}")
    record.created_ms = record.run_at_ms = record.entered_ms = 1000
    record.state, record.result_size = COMPLETED, 2
    with bench.lock:
        bench.dirty.mark(row_of(record, 1, b"42"))
    bench.writer.step()
    record.entered_ms = 2000
    with bench.lock:
        bench.dirty.mark(row_of(record, 1))
    closed_in_vain(bench)
    again = make()
    assert again.look("SELECT entered, result FROM jobs") == [(2000, b"42")]


def test_an_open_without_such_a_file_takes_in_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    bench.writer.close()
    bench.connection.close()
    assert make().taken_in == 0


def test_a_file_from_before_the_last_opening_is_too_old(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.add("a")
    closed_in_vain(bench)
    hidden = Path(f"{bench.path}.hidden")
    beside(bench).rename(hidden)  # as if it lay in a folder that this open does not look into
    between = make()
    between.add("b")
    between.writer.close()
    between.connection.close()
    hidden.rename(beside(bench))
    again = make()
    assert again.taken_in == 0
    assert again.ids() == ["b"]
    assert "from before the last opening" in caplog.text
    assert Path(f"{beside(again)}.stale").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.splitlines()[0] + "\n",
        lambda text: "",
        lambda text: "[]\n",
        lambda text: '{"other": "file"}\n',
        lambda text: "\x00" * 100,
        lambda text: "[" * 100_000 + "\n",
        lambda text: text.replace('"schema"', '"other"'),
        lambda text: text.replace('"opening"', '"other"'),
        lambda text: with_line(text, 7),
        lambda text: with_line(text, ["other", "a"]),
        lambda text: with_line(text, [["job"], "a"]),
        lambda text: with_line(text, ["job"]),
        lambda text: with_line(text, ["job", "a", "b"]),
        lambda text: with_line(text, ["rest", "kind", "key", "body", "more"]),
        lambda text: with_line(text, ["payload", "a", None]),
        lambda text: with_line(text, ["payload", "a", ["b"]]),
        lambda text: with_line(text, ["payload", "a", 1 << 70]),
        lambda text: with_line(text, ["payload", "\ud800", ""]),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_changed(
    make: Callable[..., Bench], damage: Callable[[str], str]
) -> None:
    bench = make()
    bench.add("a", "b")
    closed_in_vain(bench)
    text = damage(beside(bench).read_text())
    beside(bench).write_text(text)
    with pytest.raises(StorageCorruptError, match="move it away to go on without them"):
        make()
    assert bench.ids() == []
    assert beside(bench).read_text() == text


def test_a_file_of_another_schema_version_is_refused(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    closed_in_vain(bench)
    head, rest = beside(bench).read_text().split("\n", 1)
    beside(bench).write_text(json.dumps({**json.loads(head), "schema": 99}) + "\n" + rest)
    with pytest.raises(StorageError, match="schema version 99"):
        make()


def test_what_cannot_be_taken_in_stays_where_it_is(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add_many(500)
    closed_in_vain(bench)
    connection = sqlite3.connect(bench.path, isolation_level=None)
    connection.execute(
        "CREATE TRIGGER full AFTER INSERT ON jobs WHEN NEW.id = 'many-400' "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(StorageCorruptError):
        take_in_unflushed(connection, bench.places)
    assert not connection.in_transaction
    assert bench.ids() == []
    assert beside(bench).exists()
    connection.execute("DROP TRIGGER full")
    connection.close()
    assert make().taken_in == 500


# -- other places ----------------------------------------------------------------------------------


def blocked(bench: Bench) -> None:
    """Nothing can be written beside the database: a folder stands in the way."""
    Path(f"{beside(bench)}.partial").mkdir()


def test_the_given_folder_is_next(make: Callable[..., Bench], tmp_path: Path) -> None:
    folder = tmp_path / "spare"
    folder.mkdir()
    bench = make(folder=str(folder))
    bench.add("a")
    blocked(bench)
    assert str(folder) in str(closed_in_vain(bench))
    assert make(folder=str(folder)).ids() == ["a"]


def test_the_temporary_folder_is_the_last(make: Callable[..., Bench], temporary: Path) -> None:
    bench = make(folder=str(temporary / "missing"))
    bench.add("a")
    blocked(bench)
    assert str(temporary) in str(closed_in_vain(bench))
    (left,) = temporary.iterdir()
    assert left.name.startswith("jobs.db-")
    assert make().ids() == ["a"]


def test_where_nothing_can_be_written_the_error_says_that_they_are_lost(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = make()
    bench.add("a")
    blocked(bench)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    error = closed_in_vain(bench)
    assert "1 changes are not in it and are LOST" in str(error)


def test_a_full_disk_is_told_as_such(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    bench.connection.fault = sqlite3.OperationalError("database or disk is full")
    with pytest.raises(StorageError) as caught:
        bench.writer.close()
    assert isinstance(caught.value.__cause__, StorageFullError)


def test_a_half_written_file_leaves_nothing_behind(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    bench = make()
    bench.add("a")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = closed_in_vain(bench)
    assert "LOST" in str(error)
    assert "No space left on device" in str(error)
    assert not list(Path(bench.path).parent.glob("*.jsonl*"))
    assert not list(temporary.iterdir())


def test_the_file_of_another_database_of_that_name_is_left_alone(
    make: Callable[..., Bench], temporary: Path
) -> None:
    bench = make()
    bench.add("a")
    blocked(bench)
    closed_in_vain(bench)
    (left,) = temporary.iterdir()
    head, rest = left.read_text().split("\n", 1)
    left.write_text(json.dumps({**json.loads(head), "database": "/other/jobs.db"}) + "\n" + rest)
    assert make().taken_in == 0
    assert left.exists()


@posix
def test_a_link_in_the_temporary_folder_is_left_alone(
    make: Callable[..., Bench], temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.add("a")
    blocked(bench)
    closed_in_vain(bench)
    (left,) = temporary.iterdir()
    elsewhere = temporary.parent / "elsewhere"
    left.rename(elsewhere)
    left.symlink_to(elsewhere)
    assert make().taken_in == 0
    assert "symbolic link; it is left alone" in caplog.text


def left_by_another_user(make: Callable[..., Bench], temporary: Path) -> Path:
    """What could not be written, in a file of somebody else's."""
    bench = make()
    bench.add("a")
    blocked(bench)
    closed_in_vain(bench)
    (left,) = temporary.iterdir()
    os.chown(left, 12345, 12345)
    return left


@posix
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file away: root only"
)
def test_a_file_of_another_user_is_left_alone(
    make: Callable[..., Bench], temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left_by_another_user(make, temporary)
    assert make().taken_in == 0
    assert "no file of this user's" in caplog.text


@posix
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file away: root only"
)
def test_a_file_of_another_user_that_nobody_may_read_keeps_nobody_from_the_database(
    make: Callable[..., Bench],
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = left_by_another_user(make, temporary)
    plain_open = os.open

    def open_as_user(path: Any, *rest: Any) -> int:
        if str(path) == str(left):
            raise PermissionError(13, "Permission denied", path)
        return plain_open(path, *rest)

    monkeypatch.setattr(os, "open", open_as_user)
    assert make().taken_in == 0
    os.chown(left, os.geteuid(), -1)
    with pytest.raises(StorageError, match="Permission denied"):  # what is ours may matter
        make()


@posix
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file away: root only"
)
def test_what_the_databases_owner_left_is_taken_in_by_root_too(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    closed_in_vain(bench)
    for path in (bench.path, beside(bench)):
        os.chown(path, 12345, 12345)
    assert make().taken_in == 1


@posix
@pytest.mark.parametrize("where", ["beside", "temporary"])
def test_a_pipe_in_its_place_is_not_waited_for(
    make: Callable[..., Bench], temporary: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.add("a")
    if where == "temporary":
        blocked(bench)
    closed_in_vain(bench)
    left = beside(bench) if where == "beside" else next(temporary.iterdir())
    left.unlink()
    os.mkfifo(left)
    assert make().taken_in == 0
    assert "left alone" in caplog.text


def test_one_that_is_there_already_is_not_overwritten(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.add("a")
    beside(bench).write_text("somebody's notes")
    closed_in_vain(bench)
    assert Path(f"{beside(bench)}.stale").read_text() == "somebody's notes"
    assert make().ids() == ["a"]
