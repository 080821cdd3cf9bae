"""What a manager makes of a file: after a close in good order, after a kill, under every fault.

A kill is a copy of the file and its log while they are in use, which is all that a kill leaves.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import Backoff, Deduplication, ManagerConfig, QueueManager, SqliteStorage
from bunqueue_py.clock import SystemClock
from bunqueue_py.errors import (
    ForkedManagerError,
    StorageError,
    StorageFullError,
    StorageLockedError,
)
from bunqueue_py.model.rows import row_of
from bunqueue_py.ops.query import check
from bunqueue_py.ops.restore import restore
from bunqueue_py.storage.base import Recovered
from bunqueue_py.testing import VirtualClock
from tests.storage_check import check_storage
from tests.unit.sqlite_files import as_root, crash_copy, fork, mounted, neighbour, posix, remount

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


class Bench:
    """Managers on files, one after the other, on a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock(START)
        self.number = 0
        self.path = folder / "jobs0.db"
        self.opened: list[QueueManager] = []

    def open(self, **config: Any) -> QueueManager:
        storage = SqliteStorage(self.path)
        manager = QueueManager(
            storage, clock=self.clock, background=False, config=ManagerConfig(**config)
        )
        self.opened.append(manager)
        check(manager._state)
        check_storage(manager, str(self.path))
        return manager

    def kill(self, manager: QueueManager, *, flush: bool = True) -> None:
        """From here on the path is that of what a kill would leave now."""
        if flush:
            manager.flush()
        self.number += 1
        self.path = crash_copy(self.path, self.folder / f"jobs{self.number}.db")

    def reopen(self, manager: QueueManager) -> QueueManager:
        self.kill(manager)
        return self.open()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for manager in bench.opened:
        manager.close()


def connection_of(manager: QueueManager) -> sqlite3.Connection:
    storage: Any = manager._state.storage
    connection: sqlite3.Connection = storage._session._committer.connection
    return connection


def pulled(manager: QueueManager, queue: str = "q") -> Any:
    job = manager.pull(queue)
    assert job is not None
    return job


# -- runs that were under way ----------------------------------------------------------------------


def test_a_run_that_a_kill_cut_off_is_charged_and_waits_for_its_back_off(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1, attempts=3, backoff=Backoff.fixed(10, jitter=0))
    job = pulled(manager)
    again = bench.reopen(manager)
    found = again.get_job(job.id)
    assert found is not None
    assert (found.attempts_made, found.stall_count, again.get_state(job.id)) == (1, 1, "delayed")
    assert again.pull("q") is None
    bench.clock.advance(seconds=10)
    assert pulled(again).id == job.id


def test_the_charge_is_made_once_however_often_the_recovery_is_cut_off(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1, attempts=3, backoff=Backoff.fixed(0))
    job = pulled(manager)
    bench.kill(manager)
    unflushed = QueueManager(bench.path, clock=bench.clock, background=False)
    bench.opened.append(unflushed)
    bench.kill(unflushed, flush=False)
    for _ in range(2):
        again = bench.open()
        found = again.get_job(job.id)
        assert found is not None
        assert (found.attempts_made, found.stall_count) == (1, 1)
        bench.kill(again)


@pytest.mark.parametrize(("attempts", "kills"), [(2, 2), (10, 3)])
def test_a_job_that_kills_its_process_again_and_again_ends_as_worker_lost(
    bench: Bench, attempts: int, kills: int
) -> None:
    """At its last attempt, or at the queue's bound of stalls."""
    manager = bench.open()
    job = manager.push("q", "poison", attempts=attempts, backoff=Backoff.fixed(0))
    for _ in range(kills):
        assert pulled(manager).id == job.id
        manager = bench.reopen(manager)
    (entry,) = manager.dlq_entries("q")
    assert (entry.job.id, entry.reason, entry.job.attempts_made) == (job.id, "worker_lost", kills)
    assert manager.pull("q") is None


def claimed(manager: QueueManager, limit: int) -> list[Any]:
    """What a worker's thread fetches at once; the first has begun."""
    backend = manager._backend
    return list(backend.claim("q", limit, 30_000, "worker", backend.wait_handle()))


def test_of_what_a_worker_has_fetched_a_kill_charges_only_what_has_begun(bench: Bench) -> None:
    manager = bench.open()
    ids = [manager.push("q", n, backoff=Backoff.fixed(0)).id for n in range(5)]
    held = claimed(manager, 4)
    assert [job.id for job in held] == ids[:4]
    for job in held[1:3]:
        assert manager._backend.begin(job.id, job.token)
    # the worker's beat lets this follow, unless the job has ended by then, as the third has
    manager._backend.mark_begun(held[1].id, held[1].token)
    manager.ack(held[2])
    manager._backend.mark_begun(held[2].id, held[2].token)
    check_storage(manager, str(bench.path))
    again = bench.reopen(manager)
    found = [again.get_job(job_id) for job_id in ids]
    assert [job and job.attempts_made for job in found] == [1, 1, 0, 0, 0]
    assert [job and job.stall_count for job in found] == [1, 1, 0, 0, 0]
    assert [job and job.started_at is None for job in found] == [False, False, False, True, True]
    assert found[2] is not None
    assert found[2].state == "completed"
    order = [pulled(again).id for _ in range(4)]
    assert sorted(order) == sorted(ids[:2] + ids[3:])


@pytest.mark.parametrize("bound", [0, 2, 1000])
def test_of_runs_that_began_a_kill_charges_all_that_are_under_way_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """However many rows of begun runs wait for the cut."""
    monkeypatch.setattr("bunqueue_py.ops.mark.MAX_STARTS", bound)
    manager = bench.open()
    ids = [manager.push("q", n, backoff=Backoff.fixed(0)).id for n in range(8)]
    held = manager.pull_batch("q", 7)
    manager.ack(held[0])
    manager.release(held[1])
    manager.fail(held[2], "no")
    check_storage(manager, str(bench.path))
    again = bench.reopen(manager)
    found = [again.get_job(job_id) for job_id in ids]
    assert [job and (job.state, job.attempts_made) for job in found[:3]] == [
        ("completed", 0),
        ("waiting", 0),
        ("waiting", 1),
    ]
    assert [job and job.stall_count for job in found] == [0, 0, 0, 1, 1, 1, 1, 0]


def test_what_was_fetched_and_changed_or_given_back_unbegun_is_charged_neither(
    bench: Bench,
) -> None:
    manager = bench.open()
    ids = [manager.push("q", n, backoff=Backoff.fixed(0)).id for n in range(3)]
    _, second, third = claimed(manager, 3)
    manager.update_progress(second, 0.5)
    manager._backend.give_back_unstarted([(third.id, third.token)])
    check_storage(manager, str(bench.path))
    again = bench.reopen(manager)
    found = [again.get_job(job_id) for job_id in ids]
    assert [job and job.attempts_made for job in found] == [1, 0, 0]


def test_after_a_kill_a_recovered_job_is_fetched_alone(bench: Bench) -> None:
    # or one that kills its process at once would not be charged, being unbegun on disk
    manager = bench.open()
    ids = [manager.push("q", n, backoff=Backoff.fixed(0)).id for n in range(4)]
    again = bench.reopen(manager)
    bench.clock.advance(seconds=1)
    new = [again.push("q", n).id for n in range(3)]
    assert [[job.id for job in claimed(again, 10)] for _ in ids] == [[each] for each in ids]
    assert [job.id for job in claimed(again, 10)] == new


def test_a_close_in_good_order_charges_nothing_and_keeps_the_order(bench: Bench) -> None:
    manager = bench.open()
    ids = [manager.push("q", n).id for n in range(5)]
    assert [pulled(manager).id, pulled(manager).id] == ids[:2]
    manager.close()
    again = bench.open()
    got = [pulled(again) for _ in ids]
    assert [job.id for job in got] == ids
    assert {(job.attempts_made, job.stall_count) for job in got} == {(0, 0)}


def test_a_finished_run_is_not_run_again_once_it_is_flushed(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1)
    job = pulled(manager)
    assert manager.ack(job, {"sum": 7}).applied
    again = bench.reopen(manager)
    assert again.get_state(job.id) == "completed"
    assert again.pull("q") is None


# -- order, keys, settings -------------------------------------------------------------------------


def test_the_order_survives_kills_with_changes_between_them(bench: Bench) -> None:
    """Numbers in memory and on disk must be the same ones: a job that is written anew must not
    fall behind those that are not."""
    manager = bench.open()
    ids = [manager.push("q", n).id for n in range(6)]
    ids.append(manager.push("q", 6, delay=60).id)
    for n in (0, 3, 2):
        manager = bench.reopen(manager)
        manager.update_data(ids[n], f"new {n}")
    manager = bench.reopen(manager)
    bench.clock.advance(seconds=60)
    assert [pulled(manager).id for _ in ids] == ids


def test_two_jobs_of_one_number_on_disk_are_numbered_anew(bench: Bench) -> None:
    manager = bench.open()
    ids = [manager.push("q", n).id for n in range(4)]
    bench.kill(manager)
    with closing(sqlite3.connect(bench.path)) as connection, connection:
        connection.execute("UPDATE jobs SET seq = 2")
    manager = bench.open()
    manager = bench.reopen(manager)
    assert sorted(pulled(manager).id for _ in ids) == sorted(ids)


@pytest.mark.parametrize("plain_before", [0, 3, 24])
@pytest.mark.parametrize(
    "special",
    [
        {"custom_id": "c"},
        {"deduplication": Deduplication("k", ttl=100)},
        {"ttl": 60},
        {"priority": 5},
        {"priority": -5},
        {"lifo": True},
        {"delay": 0.5},
        {"group": "g"},
        {"tags": ["t"]},
    ],
    ids=lambda special: next(iter(special)),
)
def test_one_job_unlike_the_others_takes_its_turn_after_a_kill_as_before(
    bench: Bench, special: dict[str, Any], plain_before: int
) -> None:
    with QueueManager(clock=bench.clock, background=False) as unharmed:
        manager = bench.open()
        for each in (unharmed, manager):
            for n in range(plain_before):
                each.push("q", n)
            each.push("q", "special", **special)
            for n in range(3):
                each.push("q", 10 + n)
        manager = bench.reopen(manager)
        for each in (unharmed, manager):
            again = each.push("q", "again", **special)
            assert again.duplicate is ("custom_id" in special or "deduplication" in special)
            each.push("q", "last")
        bench.clock.advance(seconds=1)
        lists = [
            [job.data for job in each.get_jobs("q", "waiting")] for each in (unharmed, manager)
        ]
        assert lists[0] == lists[1]
        turns = [
            [pulled(each).data for _ in range(plain_before + 5)] for each in (unharmed, manager)
        ]
        assert turns[0] == turns[1]
        check_storage(manager, str(bench.path))


@pytest.mark.parametrize("unlike", [False, True])
def test_a_ttl_and_a_key_of_a_job_among_many_go_on_after_a_kill(bench: Bench, unlike: bool) -> None:
    manager = bench.open()
    if unlike:
        manager.push("q", "unlike", priority=-1)
    manager.push("q", "before")
    brief = manager.push("q", "brief", ttl=60)
    keyed = manager.push("q", "keyed", deduplication=Deduplication("k"), custom_id="c")
    manager.push("q", "after")
    manager = bench.reopen(manager)
    assert manager.counts("q").waiting == 4 + unlike
    assert manager.push("q", 1, deduplication=Deduplication("k")).id == keyed.id
    assert manager.push("q", 1, custom_id="c").id == keyed.id
    bench.clock.advance(seconds=61)
    manager.run_pending()
    assert manager.get_state(brief.id) == "failed"
    assert [pulled(manager).data for _ in range(3)] == ["before", "keyed", "after"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("run_at = run_at + 5, entered = entered + 5", 3),
        ("run_at = run_at - 5", 1),
        ("run_at = run_at + 5", 3),
        ("entered = entered + 5", 3),
        ("seq = 9", 3),
    ],
)
def test_rows_that_do_not_agree_in_their_order_are_listed_by_their_moments(
    bench: Bench, change: str, place: int
) -> None:
    manager = bench.open()
    ids = [manager.push("q", n).id for n in range(4)]
    bench.kill(manager)
    with closing(sqlite3.connect(bench.path)) as connection, connection:
        connection.execute(f"UPDATE jobs SET {change} WHERE id = ?", (ids[1],))
    bench.clock.advance(seconds=1)
    manager = bench.open()  # and all of its structures are checked
    listed = [ids[0], ids[2], ids[3]]
    listed.insert(place, ids[1])
    assert [job.id for job in manager.get_jobs("q", "waiting")] == listed
    new = manager.push("q", "new")
    check(manager._state)
    assert [pulled(manager).id for _ in range(5)][-1] == new.id


def test_an_id_that_a_damaged_storage_tells_twice_is_one_job() -> None:
    with QueueManager(background=False) as source:
        state = source._state
        ids = [source.push("q", n).id for n in range(3)]
        rows = [row_of(state.index[job_id], n) for n, job_id in enumerate(ids, 1)]
        again = row_of(state.index[ids[0]], 4)
    with QueueManager(background=False) as manager:
        restore(manager._state, Recovered(True, [*rows, again], []))
        check(manager._state)
        assert manager.counts("q").waiting == 3
        assert {pulled(manager).id for _ in range(3)} == set(ids)


def test_names_and_settings_survive_a_kill(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1, custom_id="order-7")
    manager.push("q", 2, deduplication=Deduplication("key", ttl=100))
    manager.push("p", 3, group="customer")
    manager.pause("q")
    manager.set_concurrency("p", 2)
    manager.set_rate_limit("p", 5, 60)
    manager.pause_group("p", "customer", True)
    manager = bench.reopen(manager)
    assert manager.push("q", 1, custom_id="order-7").duplicate
    assert manager.push("q", 2, deduplication=Deduplication("key", ttl=100)).duplicate
    assert manager.is_paused("q")
    assert manager.pull("p") is None
    assert manager.limit_status("p").concurrency == 2
    bench.clock.advance(seconds=101)
    assert not manager.push("q", 2, deduplication=Deduplication("key", ttl=100)).duplicate


def test_a_key_held_beyond_its_job_survives_and_its_row_goes_when_its_time_is_over(
    bench: Bench,
) -> None:
    manager = bench.open()
    key = Deduplication("key", ttl=100, hold="ttl")
    manager.push("q", 1, deduplication=key, remove_on_complete=True)
    manager.ack(pulled(manager))
    manager = bench.reopen(manager)
    assert manager.push("q", 2, deduplication=key).duplicate
    bench.kill(manager)
    bench.clock.advance(seconds=101)
    manager = bench.open()
    with closing(sqlite3.connect(bench.path)) as connection:
        assert not connection.execute("SELECT * FROM rest WHERE kind = 'held_key'").fetchall()
    assert not manager.push("q", 2, deduplication=key).duplicate


# -- the wall clock --------------------------------------------------------------------------------


def test_a_clock_set_back_makes_nothing_wait_longer(bench: Bench) -> None:
    manager = bench.open()
    held = Deduplication("held", ttl=100, hold="ttl")
    manager.push("other", 1, deduplication=held, remove_on_complete=True)
    manager.ack(pulled(manager, "other"))
    ready, later = manager.push("q", "ready"), manager.push("q", "later", delay=60)
    manager.push("cool", 1)
    manager.cool_down("cool", 30)
    bench.kill(manager)
    bench.clock = VirtualClock(START - timedelta(days=365))
    manager = bench.open()
    assert pulled(manager).id == ready.id
    assert manager.pull("q") is None
    assert manager.pull("cool") is None
    bench.clock.advance(seconds=30)
    assert manager.pull("cool") is not None
    bench.clock.advance(seconds=30)
    assert pulled(manager).id == later.id
    assert manager.push("other", 2, deduplication=held).duplicate
    bench.clock.advance(seconds=41)
    assert not manager.push("other", 2, deduplication=held).duplicate


def test_a_clock_far_ahead_makes_due_what_has_come_due(bench: Bench) -> None:
    manager = bench.open()
    later = manager.push("q", "later", delay=3600)
    short = manager.push("q", "short", ttl=60)
    manager.push("p", 1, attempts=2, backoff=Backoff.fixed(60))
    lost = pulled(manager, "p")
    bench.kill(manager)
    bench.clock = VirtualClock(START + timedelta(days=365 * 20))
    manager = bench.open()
    manager.run_pending()
    assert manager.get_state(short.id) == "failed"
    assert pulled(manager).id == later.id
    found = manager.get_job(lost.id)
    assert found is not None
    assert found.attempts_made == 1
    check(manager._state)


# -- what cannot be understood ---------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["meta = 'nonsense'", "state = 99", "meta = X'FF'"])
def test_a_row_that_does_not_decode_is_a_dead_letter_with_its_bytes(
    bench: Bench, broken: str
) -> None:
    manager = bench.open()
    good, bad = manager.push("q", "good"), manager.push("q", {"kept": "raw"})
    bench.kill(manager)
    with closing(sqlite3.connect(bench.path)) as connection, connection:
        connection.execute(f"UPDATE jobs SET {broken} WHERE id = ?", (bad.id,))
    for _ in range(2):
        manager = bench.open()
        (entry,) = manager.dlq_entries("q")
        assert (entry.job.id, entry.reason) == (bad.id, "undecodable")
        assert json.loads(manager._state.index[bad.id].data) == {"kept": "raw"}
        assert manager.counts("q").waiting == 1
        bench.kill(manager)
    assert pulled(manager).id == good.id


def test_settings_that_make_no_sense_are_passed_over_and_cost_no_job(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    manager = bench.open()
    job = manager.push("q", 1)
    manager.pause("p")
    bench.kill(manager)
    with closing(sqlite3.connect(bench.path)) as connection, connection:
        rows = [
            ("queue", "q", '{"stalls": [1, 2, 3, 4, 5, 6, 7, 8, 9]}'),
            ("queue", "r", "[1]"),
            ("held_key", "q\0key", '{"no": "list"}'),
        ]
        connection.executemany("INSERT OR REPLACE INTO rest VALUES (?, ?, ?)", rows)
    manager = QueueManager(bench.path, clock=bench.clock, background=False)
    bench.opened.append(manager)
    assert pulled(manager).id == job.id
    assert manager.is_paused("p")
    assert caplog.text.count("passed over") == 3


class OtherSerializer:
    name = "other"

    def dumps(self, value: Any) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes) -> Any:
        return data.decode()


def test_another_serializer_is_refused_and_loses_nothing(bench: Bench) -> None:
    manager = bench.open()
    job = manager.push("q", {"a": 1})
    manager.close()
    with pytest.raises(StorageError, match=r"written with the serializer 'json', and 'other'"):
        bench.open(serializer=OtherSerializer())
    again = bench.open()
    assert pulled(again).id == job.id


def test_a_recovery_that_fails_changes_nothing_and_lets_the_file_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = bench.open()
    manager.push("q", 1, attempts=3)
    job = pulled(manager)
    bench.kill(manager)
    with monkeypatch.context() as patched:

        def fails(*arguments: object) -> None:
            raise MemoryError

        patched.setattr("bunqueue_py.ops.restore._remember_starts", fails)
        with pytest.raises(MemoryError):
            bench.open()
    again = bench.open()
    found = again.get_job(job.id)
    assert found is not None
    assert found.attempts_made == 1


# -- ownership -------------------------------------------------------------------------------------


def test_a_second_manager_is_told_who_has_the_file(bench: Bench) -> None:
    bench.open()
    with pytest.raises(StorageLockedError) as caught:
        QueueManager(bench.path)
    assert caught.value.pid == os.getpid()


@posix
def test_a_manager_of_another_process_is_named_and_its_death_frees_the_file(bench: Bench) -> None:
    def begin() -> None:
        QueueManager(bench.path, background=False).push("q", 1)

    with neighbour(begin) as other:
        with pytest.raises(StorageLockedError) as caught:
            QueueManager(bench.path)
        assert caught.value.pid == other.pid
        other.kill()
        bench.open()


@posix
def test_a_forked_child_is_refused_and_leaves_the_parents_file_alone(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1)

    def child() -> None:
        with pytest.raises(ForkedManagerError):
            manager.push("q", 2)
        with pytest.raises(ForkedManagerError):
            manager.flush()
        with pytest.raises(ForkedManagerError):
            manager.close()

    assert os.waitpid(fork(child), 0)[1] == 0
    manager.push("q", 3)
    manager = bench.reopen(manager)
    assert [pulled(manager).data, pulled(manager).data] == [1, 3]


@posix
def test_a_program_started_meanwhile_keeps_nothing_of_the_file(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 1)
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        manager.close()
        assert pulled(bench.open()).data == 1
    finally:
        sleeper.communicate(b"\n")


# -- a disk that fails -----------------------------------------------------------------------------


def test_a_full_file_keeps_all_in_memory_and_is_written_when_there_is_room(bench: Bench) -> None:
    manager = bench.open()
    manager.push("q", 0)
    manager.flush()
    connection = connection_of(manager)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    for n in range(1, 20):
        manager.push("q", n, name="x" * 100)
        manager.push("big", "y" * 20_000)
    with pytest.raises(StorageFullError, match="make room"):
        manager.flush()
    assert manager._state.storage is not None
    assert manager._state.storage.health().error is not None
    assert manager.push("q", 20).id
    connection.execute("PRAGMA max_page_count = 1000000").fetchone()
    manager.flush()
    assert manager._state.storage.health().error is None
    manager = bench.reopen(manager)
    assert [pulled(manager).data for _ in range(21)] == list(range(21))


def test_what_a_full_file_did_not_take_comes_in_at_the_next_open(bench: Bench) -> None:
    manager = bench.open()
    lost = manager.push("q", 0, attempts=5)
    pulled(manager)
    manager.flush()
    connection = connection_of(manager)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()
    ids = [manager.push("q", "z" * 20_000).id for _ in range(5)]
    with pytest.raises(StorageFullError) as caught:
        manager.flush()
    with pytest.raises(StorageError, match="come in when the database is opened") as at_close:
        manager.close()
    assert at_close.value.accepted
    assert caught.value.accepted
    again = bench.open()
    got = [pulled(again) for _ in range(6)]
    assert [job.id for job in got] == [lost.id, *ids]
    assert {job.attempts_made for job in got} == {0}
    assert not list(bench.folder.glob("*.unflushed.jsonl"))
    assert list(bench.folder.glob("*.unflushed.jsonl.taken"))


@as_root
@posix
def test_a_full_disk_while_running_is_survived(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-o", "size=1m") as folder:
        bench = Bench(folder)
        manager = bench.open()
        manager.push("q", "first")
        manager.flush()
        for _ in range(100):
            manager.push("big", "x" * 20_000)
        with pytest.raises(StorageFullError):
            manager.flush()
        manager.push("q", "second")
        remount(folder, "size=64m")
        manager.flush()
        manager.close()
        again = bench.open()
        assert [pulled(again).data, pulled(again).data] == ["first", "second"]
        assert again.counts("big").waiting == 100
        again.close()


def test_a_file_locked_by_another_program_is_written_when_that_is_done(bench: Bench) -> None:
    manager = bench.open()
    connection_of(manager).execute("PRAGMA busy_timeout = 1").fetchone()
    with closing(sqlite3.connect(bench.path, isolation_level=None)) as outside:
        outside.execute("BEGIN IMMEDIATE")
        manager.push("q", 1)
        with pytest.raises(StorageError, match="another program holds it locked"):
            manager.flush()
        manager.push("q", 2)
        outside.execute("ROLLBACK")
    manager.flush()
    manager = bench.reopen(manager)
    assert [pulled(manager).data, pulled(manager).data] == [1, 2]


@posix
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_is_told_at_close_at_the_latest(bench: Bench, replaced: bool) -> None:
    manager = bench.open()
    manager.push("q", 1)
    manager.flush()
    bench.path.unlink()
    if replaced:
        bench.path.write_bytes(b"somebody else's")
    manager.push("q", 2)
    with pytest.raises(StorageError, match="replaced by another" if replaced else "deleted"):
        manager.close()
    if replaced:
        assert bench.path.read_bytes() == b"somebody else's"


# -- many ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_pending_jobs_recover_in_their_order(
    tmp_path: Path, slow_rounds: Callable[[int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    number = slow_rounds(20_000, 200_000)
    path = tmp_path / "jobs.db"
    with QueueManager(path) as manager:
        for start in range(0, number, 10_000):
            manager.push_batch("q", (("n", n) for n in range(start, start + 10_000)))
    caplog.set_level(logging.INFO)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock = SystemClock()
    began = clock.timeline_ms()
    with QueueManager(path, background=False) as manager:
        took = (clock.timeline_ms() - began) / 1000
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"{number:,} jobs in {took:.2f} s; peak memory grew by {grown / 1024:.0f} MiB")
        check(manager._state)
        assert manager.counts("q").waiting == number
        assert [job.data for job in manager.pull_batch("q", 1000)] == list(range(1000))
    assert f"recovered {number} jobs" in caplog.text
