"""One manager a file: who owns it, who is told so, and what ends it."""

import gc
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import BunqueueError, StorageError, StorageLockedError
from bunqueue_py.storage.sqlite import ownership as module
from bunqueue_py.storage.sqlite.ownership import Ownership
from bunqueue_py.testing import VirtualClock
from tests.unit.sqlite_files import (
    CountingClock,
    Neighbour,
    as_root,
    mounted,
    neighbour,
    posix,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="written for POSIX; nobody has run it on Windows yet"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def take(path: str, timeout_ms: int | None = 0) -> Ownership:
    return Ownership.take(path, timeout_ms, SystemClock())


@contextmanager
def held_elsewhere(path: str) -> Iterator[Neighbour]:
    taken: list[Ownership] = []
    with neighbour(lambda: taken.append(take(path)), lambda: taken[0].release()) as holder:
        yield holder


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")


def test_the_lock_file_says_who_holds_it_and_goes_with_the_ownership(path: str) -> None:
    owned = take(path)
    assert owned.held
    with open(path + ".lock") as file:
        assert file.readline() == f"{os.getpid()}\n"
    owned.release()
    assert not owned.held
    assert not os.path.exists(path + ".lock")
    owned.release()  # twice is once


def test_a_second_manager_of_this_process_is_refused_at_once(path: str) -> None:
    owned = take(path)
    with pytest.raises(StorageLockedError, match="another manager of this process") as caught:
        take(path)
    assert caught.value.pid == os.getpid()
    assert repr(path) in str(caught.value)
    owned.release()
    take(path).release()


def test_another_process_is_named_in_the_refusal(path: str) -> None:
    with held_elsewhere(path) as holder:
        with pytest.raises(StorageLockedError, match=f"process {holder.pid}:") as caught:
            take(path)
        assert caught.value.pid == holder.pid
        assert "lock_timeout" in str(caught.value)
        assert "open_readonly" in str(caught.value)


def test_a_holder_on_another_host_is_named_with_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_host", lambda: "web-2")
        owned = take(path)
    with pytest.raises(StorageLockedError, match=f"process {os.getpid()} on web-2"):
        take(path)
    owned.release()


def test_a_lock_file_without_a_pid_still_locks(path: str) -> None:
    owned = take(path)
    os.truncate(path + ".lock", 0)
    with pytest.raises(StorageLockedError, match="owned by another process") as caught:
        take(path)
    assert caught.value.pid is None
    owned.release()


def test_the_lock_file_of_a_killed_process_stands_in_nobodys_way(path: str) -> None:
    with held_elsewhere(path) as holder:
        holder.kill()
        assert os.path.exists(path + ".lock")
        owned = take(path)
        with open(path + ".lock") as file:
            assert file.readline() == f"{os.getpid()}\n"
        owned.release()


def test_a_longer_text_of_an_earlier_holder_leaves_nothing_behind(path: str) -> None:
    with open(path + ".lock", "w") as file:
        file.write("1234567890\nsome-host-with-a-long-name\nand more\n" * 5)
    owned = take(path)
    with open(path + ".lock") as file:
        assert file.read().split("\n")[0] == str(os.getpid())
        file.seek(0)
        assert "more" not in file.read()
    owned.release()


# -- waiting -----------------------------------------------------------------------------------


def test_a_stand_by_gets_the_file_as_soon_as_its_owner_is_done(path: str) -> None:
    clock = CountingClock()
    first = take(path)
    clock.meanwhile[3] = first.release
    second = Ownership.take(path, 60_000, clock)
    assert len(clock.waits) == 3
    assert second.held
    second.release()


def test_a_wait_ends_at_its_time_and_the_error_says_how_long_it_was(path: str) -> None:
    clock = CountingClock()
    owned = take(path)
    with pytest.raises(StorageLockedError, match=r"after waiting 1\.5 s"):
        Ownership.take(path, 1500, clock)
    assert 1500 <= sum(clock.waits) <= 1502
    assert max(clock.waits) <= 50  # so that it is noticed soon
    owned.release()


def test_without_a_timeout_it_waits_for_as_long_as_it_takes(path: str) -> None:
    clock = CountingClock()
    first = take(path)
    clock.meanwhile[500] = first.release
    second = Ownership.take(path, None, clock)
    assert clock.now > 1_000_000 + 20_000
    second.release()


def test_a_wait_on_the_virtual_clock_says_that_it_cannot_end(path: str) -> None:
    owned = take(path)
    with pytest.raises(BunqueueError, match="virtual clock"):
        Ownership.take(path, 1500, VirtualClock())
    owned.release()


@needs_proc
def test_a_refusal_leaves_no_file_open(path: str, tmp_path: Path) -> None:
    owned = take(path)
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(StorageLockedError):
            take(path)
        with pytest.raises(StorageError):
            take(str(tmp_path / "nowhere" / "jobs.db"))
    assert open_descriptors() == before
    owned.release()


# -- the lock file is a file like any other ----------------------------------------------------


def test_a_missing_folder_is_an_error_that_names_the_lock_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/jobs\.db\.lock.*No such file"):
        take(str(tmp_path / "nowhere" / "jobs.db"))


def test_a_link_planted_in_place_of_the_lock_file_is_not_followed(
    path: str, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, path + ".lock")
    with pytest.raises(StorageError, match=r"jobs\.db\.lock"):
        take(path)
    assert victim.read_text() == "precious"


def test_whoever_locked_a_file_that_was_just_removed_looks_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._lock
    removed: list[str] = []

    def lock(descriptor: int, lock_path: str) -> bool:
        if not removed:  # its holder releases between our opening the file and our locking it
            os.unlink(lock_path)
            removed.append(lock_path)
        return real(descriptor, lock_path)

    monkeypatch.setattr(module, "_lock", lock)
    owned = take(path)
    assert removed
    with pytest.raises(StorageLockedError):
        take(path)
    assert owned.still_ours()
    owned.release()


def test_the_lock_is_not_handed_on_to_programs_that_are_started(path: str) -> None:
    owned = take(path)
    assert owned._descriptor is not None
    assert not os.get_inheritable(owned._descriptor)
    owned.release()


def test_the_lock_files_mode_is_left_to_the_umask(path: str) -> None:
    before = os.umask(0o027)
    try:
        owned = take(path)
        assert stat.S_IMODE(os.stat(path + ".lock").st_mode) == 0o640
        owned.release()
    finally:
        os.umask(before)


@as_root
def test_a_full_disk_keeps_nobody_from_owning_a_file(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-o", "size=64k") as folder:
        try:
            (folder / "ballast").write_bytes(bytes(1 << 20))
        except OSError:
            pass
        path = str(folder / "jobs.db")
        owned = take(path)
        with pytest.raises(StorageLockedError, match="another process"):
            take(path)  # who it is found no room
        owned.release()


# -- fork --------------------------------------------------------------------------------------


def test_what_nobody_has_any_more_is_released(path: str) -> None:
    take(path)  # as when Ctrl-C comes between two steps of an opening
    gc.collect()
    take(path).release()


@posix
def test_a_child_that_lets_go_of_it_leaves_the_parents_ownership_alone(path: str) -> None:
    # of a thread, say, that was opening a file at the fork, and is not there any more
    held = [take(path)]

    def child() -> None:
        held.clear()
        gc.collect()

    with neighbour(child) as other:
        assert other.finish() == 0
    assert os.path.exists(path + ".lock")
    assert held[0].still_ours()
    with pytest.raises(StorageLockedError):
        take(path)
    held[0].release()


def test_a_child_that_disowns_leaves_the_parents_ownership_alone(path: str) -> None:
    owned = take(path)

    def child() -> None:
        owned.disown()
        owned.release()  # has nothing left to release
        assert not owned.held
        assert not owned.still_ours()
        with pytest.raises(StorageLockedError) as caught:
            take(path)
        assert caught.value.pid == os.getppid()

    with neighbour(child) as other:
        assert other.finish() == 0
    assert owned.still_ours()
    with pytest.raises(StorageLockedError):
        take(path)
    owned.release()


@pytest.mark.parametrize("removable", [True, False])
def test_a_child_that_is_yet_to_start_its_program_does_not_keep_the_lock(
    path: str, monkeypatch: pytest.MonkeyPatch, removable: bool
) -> None:
    def refuse(_: str) -> None:  # as in a folder where only the owner of a file may remove it
        raise PermissionError

    if not removable:
        monkeypatch.setattr(os, "unlink", refuse)
    # As between fork and exec: it has the descriptor and has heard of nothing.
    owned = take(path)
    with neighbour(lambda: None):
        owned.release()
        take(path).release()


# -- what happens to the files meanwhile -------------------------------------------------------


@pytest.fixture
def owned(path: str) -> Iterator[Ownership]:
    with open(path, "w"):
        pass
    owned = take(path)
    owned.remember_database()
    yield owned
    owned.release()


def test_an_undisturbed_owner_has_no_trouble(owned: Ownership) -> None:
    assert owned.still_ours()
    assert owned.trouble() is None


def test_a_deleted_database_is_noticed(owned: Ownership) -> None:
    os.unlink(owned.path)
    assert not owned.still_ours()
    assert "deleted or moved away" in str(owned.trouble())


def test_a_replaced_database_is_noticed(owned: Ownership, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    os.replace(tmp_path / "other", owned.path)
    assert not owned.still_ours()
    assert "replaced by another file" in str(owned.trouble())


def test_a_database_that_is_not_made_yet_is_no_trouble(path: str) -> None:
    owned = take(path)
    assert owned.still_ours()
    owned.release()


def test_a_deleted_lock_file_is_made_anew(owned: Ownership) -> None:
    os.unlink(owned.path + ".lock")
    assert owned.still_ours()
    with pytest.raises(StorageLockedError) as caught:
        take(owned.path)
    assert caught.value.pid == os.getpid()


def test_a_lock_file_that_another_took_meanwhile_is_trouble_and_stays_his(
    owned: Ownership,
) -> None:
    os.unlink(owned.path + ".lock")
    with held_elsewhere(owned.path) as holder:
        assert not owned.still_ours()
        assert f"process {holder.pid} has taken it" in str(owned.trouble())
        owned.release()
        assert os.path.exists(owned.path + ".lock")


def test_what_was_released_is_not_ours(path: str) -> None:
    owned = take(path)
    owned.release()
    assert not owned.still_ours()
    assert "no longer owned" in str(owned.trouble())
