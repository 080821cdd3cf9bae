"""What a manager says and does about its file: a path, backup, verify, a view, the default one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    JobState,
    ManagerClosedError,
    ManagerConfig,
    MemoryStorage,
    QueueManager,
    Report,
    SqliteStorage,
    StorageError,
    StorageLockedError,
    ValidationError,
)
from bunqueue_py.readonly import ReadonlyManager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def opened(storage: Any) -> QueueManager:
    return QueueManager(storage, background=False)


# -- what names a file -----------------------------------------------------------------------------


@pytest.mark.parametrize("made", [str, Path, SqliteStorage])
def test_a_path_as_text_or_path_or_storage_names_the_file(path: Path, made: Any) -> None:
    with opened(made(str(path))) as manager:
        manager.push("q", 1)
        assert str(path) in repr(manager)
    with opened(path) as manager:
        assert manager.pull("q").data == 1


def test_two_managers_do_not_share_a_file_nor_a_storage(path: Path) -> None:
    storage = SqliteStorage(path)
    with opened(storage):
        for second in (storage, path):
            with pytest.raises(StorageLockedError):
                opened(second)
    with opened(storage), opened(None):
        pass


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no-such-folder"):
        opened(tmp_path / "no-such-folder" / "jobs.db")


# -- backup ----------------------------------------------------------------------------------------


def test_a_bound_on_payloads_beyond_what_a_file_can_keep_is_refused_and_makes_no_file(
    path: Path,
) -> None:
    too_much = ManagerConfig(max_data_bytes=1_000_000_001)
    with pytest.raises(ValidationError, match="max_data_bytes must be at most 1,000,000,000 on"):
        QueueManager(path, config=too_much)
    assert not path.exists()
    with QueueManager(path, config=ManagerConfig(max_data_bytes=1_000_000_000)) as manager:
        manager.push("q", 1)
    with QueueManager(config=too_much) as manager:
        manager.push("q", 1)


def test_a_backup_has_all_that_was_accepted_before_it_and_is_a_file_like_any(path: Path) -> None:
    copy = path.with_name("copy.db")
    with opened(path) as manager:
        for n in range(10):
            manager.push("q", n)
        manager.backup(copy)
        manager.push("q", "after")
    with opened(copy) as manager:
        assert [manager.pull("q").data for _ in range(10)] == list(range(10))
        assert manager.pull("q") is None


def test_a_backup_replaces_an_older_one(path: Path) -> None:
    copy = path.with_name("copy.db")
    with opened(path) as manager:
        for n in range(3):
            manager.push("q", n)
            manager.backup(str(copy))
    with opened(copy) as manager:
        assert manager.counts("q").waiting == 3


def test_a_backup_does_not_replace_what_is_no_file_of_ours(path: Path) -> None:
    target = path.with_name("letters.txt")
    target.write_text("dear Ada")
    with opened(path) as manager, pytest.raises(StorageError, match="not replaced"):
        manager.backup(target)
    assert target.read_text() == "dear Ada"


# -- verify ----------------------------------------------------------------------------------------


def test_verify_counts_what_was_accepted_up_to_now(path: Path) -> None:
    with opened(path) as manager:
        manager.push("q", 1)
        manager.ack(manager.pull("q"), 2)
        manager.push("q", 3)
        report = manager.verify()
    assert isinstance(report, Report)
    assert report.ok, report.problems
    assert report.jobs is not None
    assert (report.jobs.waiting, report.jobs.completed) == (1, 1)


@pytest.mark.parametrize("storage", [None, MemoryStorage()])
def test_a_manager_in_memory_has_nothing_to_back_up_or_verify(storage: Any, path: Path) -> None:
    with opened(storage) as manager:
        manager.flush()
        for call in (lambda: manager.backup(path), manager.verify):
            with pytest.raises(ValidationError, match=r"has none: open it as"):
                call()
    assert not path.exists()


def test_a_closed_manager_does_neither(path: Path) -> None:
    with opened(path) as manager:
        pass
    for call in (lambda: manager.backup(f"{path}2"), manager.verify, manager.flush):
        with pytest.raises(ManagerClosedError):
            call()


# -- a view ----------------------------------------------------------------------------------------


def test_open_readonly_is_a_view_beside_the_owner(path: Path) -> None:
    with opened(path) as manager:
        job = manager.push("q", {"n": 1})
        manager.flush()
        with QueueManager.open_readonly(path) as view:
            assert isinstance(view, ReadonlyManager)
            assert view.counts("q").waiting == 1
            assert view.get_job(job.id).data == {"n": 1}  # type: ignore[union-attr]
            with pytest.raises(StorageError):
                view.push("q", 2)
        manager.ack(manager.pull("q"), "done")
        manager.flush()
        with QueueManager.open_readonly(str(path)) as view:
            assert view.get_state(job.id) is JobState.COMPLETED
            assert view.get_result(job.id) == "done"


def test_open_readonly_makes_no_file(path: Path) -> None:
    with pytest.raises(StorageError):
        QueueManager.open_readonly(path)
    assert list(path.parent.iterdir()) == []


# -- the default manager ---------------------------------------------------------------------------


def run(code: str, folder: Path, **environment: str) -> None:
    """Runs the code in a process of its own, in that folder."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_default_manager_opens_the_file_that_the_variable_names(tmp_path: Path) -> None:
    run(
        "from bunqueue_py import Queue; Queue('q').add('n', 1)",
        tmp_path,
        BUNQUEUE_DATA_PATH="jobs.db",
    )
    run(
        """
        from bunqueue_py import Queue, get_default_manager
        assert Queue("q").counts().waiting == 1
        assert "jobs.db" in repr(get_default_manager())
        """,
        tmp_path,
        BUNQUEUE_DATA_PATH="jobs.db",
    )
    with opened(tmp_path / "jobs.db") as manager:
        assert manager.pull("q").data == 1


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [":memory:", "nowhere/jobs.db", "folder", "letters.txt", "a/"])
def test_an_error_of_the_file_names_the_variable_and_nothing_is_kept_in_memory(
    tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "letters.txt").write_text("dear Ada, " * 1000)
    run(
        """
        from bunqueue_py import BunqueueError, Queue, get_default_manager
        for use in (get_default_manager, lambda: Queue("q").add("n")):
            try:
                use()
            except BunqueueError as error:
                assert str(error).startswith("BUNQUEUE_DATA_PATH: "), error
            else:
                raise AssertionError("it was taken")
        """,
        tmp_path,
        BUNQUEUE_DATA_PATH=wrong,
    )
    assert (tmp_path / "letters.txt").read_text().startswith("dear Ada")


@pytest.mark.slow
def test_an_empty_variable_is_as_none(tmp_path: Path) -> None:
    run("from bunqueue_py import Queue; Queue('q').add('n')", tmp_path, BUNQUEUE_DATA_PATH="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("storage", ['"chosen.db"', 'SqliteStorage("chosen.db")'])
def test_what_configure_chose_goes_before_the_variable(tmp_path: Path, storage: str) -> None:
    run(
        f"""
        import os
        from bunqueue_py import Queue, SqliteStorage, ValidationError, configure
        for wrong in (5, ":memory:", SqliteStorage):
            try:
                configure(wrong)
            except ValidationError:
                pass
            else:
                raise AssertionError(wrong)
        configure({storage}, keep_completed=5)
        assert not os.path.exists("chosen.db"), "nothing is opened before the first use"
        Queue("q").add("n")
        """,
        tmp_path,
        BUNQUEUE_DATA_PATH="other.db",
    )
    assert {each.name for each in tmp_path.iterdir()} - {"chosen.db.lock"} == {"chosen.db"}
