"""The writer: everything marked reaches the disk, whole or not at all, and whoever relies on it
hears of it. The thread is real where there is one, the time it waits is not."""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py.errors import StorageError, StorageFullError, WaitTimeoutError
from bunqueue_py.model.job import ACTIVE, COMPLETED, Delivery
from bunqueue_py.model.rows import INLINE_BYTES, Marks
from bunqueue_py.ops.mark import mark_start, mark_starts
from bunqueue_py.storage.sqlite import commits, desk
from bunqueue_py.storage.sqlite.desk import GROUP_WAIT, TIDY, WRITE, Desk
from bunqueue_py.storage.sqlite.statements import MAX_ROWS
from bunqueue_py.sync import LockOrderError, spawn
from tests.unit.sqlite_faults import BUSY, IOERR, Bench, HurriedClock

BIG = b"x" * (INLINE_BYTES + 1)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(**settings: Any) -> Bench:
        made.append(Bench(tmp_path / "jobs.db", **settings))
        return made[-1]

    yield build
    for bench in made:
        bench.end()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


@pytest.fixture
def threaded(make: Callable[..., Bench]) -> Bench:
    return make(threaded=True)


def inserts(bench: Bench) -> list[str]:
    return [text for text in bench.connection.executed if not text.startswith("PRAGMA")]


def in_thread(target: Callable[[], object], name: str = "") -> tuple[threading.Thread, list[Any]]:
    """A thread that runs it, and where its result or error will be."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(target())
        except Exception as error:
            got.append(error)

    if name:
        return spawn(name, run), got
    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


# -- a cut is one transaction ----------------------------------------------------------------------


def test_everything_that_is_marked_is_on_disk_after_a_step(bench: Bench) -> None:
    bench.add("a", "b")
    bench.add("c", data=BIG)
    bench.keep("emails", {"paused": True})
    assert bench.writer.step()
    assert bench.ids() == ["a", "b", "c"]
    assert bench.look("SELECT id, data FROM payloads") == [("c", BIG)]
    assert bench.look("SELECT * FROM rest") == [("queue", "emails", '{"paused":true}')]


def test_what_is_gone_leaves_the_disk(bench: Bench) -> None:
    bench.add("a", "b", data=BIG)
    bench.dirty.result("a", BIG, -1)
    bench.keep("emails", {})
    bench.writer.step()
    bench.remove("a")
    with bench.lock:
        bench.dirty.payload("b", b"{}", len(BIG))
        bench.dirty.tombstone("a", len(BIG), len(BIG))
    bench.keep("emails", None)
    assert bench.writer.step()
    assert bench.ids() == ["b"]
    for table in ("payloads", "results", "rest"):
        assert bench.look(f"SELECT * FROM {table}") == []


def test_a_cut_of_one_statement_is_a_transaction_by_itself(bench: Bench) -> None:
    bench.add("a", "b", "c")
    bench.writer.step()
    assert inserts(bench) == ["INSERT INTO jobs"]


def test_a_cut_of_several_statements_is_one_transaction(bench: Bench) -> None:
    bench.add("a", "b", "c", data=BIG)
    bench.writer.step()
    assert inserts(bench) == [
        "BEGIN IMMEDIATE",
        "INSERT INTO jobs",
        "INSERT INTO payloads",
        "COMMIT",
    ]


def test_many_rows_take_few_statements(bench: Bench) -> None:
    bench.add_many(2 * MAX_ROWS + 1)
    bench.writer.step()
    assert inserts(bench) == ["BEGIN IMMEDIATE", *["INSERT INTO jobs"] * 3, "COMMIT"]
    assert bench.look("SELECT COUNT(*) FROM jobs") == [(2 * MAX_ROWS + 1,)]


PLAIN_IDS = [f"{i:036d}" for i in range(100)]


def test_plain_jobs_come_and_end_in_one_statement_for_any_number(bench: Bench) -> None:
    records = bench.add_plain(*PLAIN_IDS)
    bench.writer.step()
    bench.complete(*records)
    bench.writer.step()
    texts = [text for text in inserts(bench) if "numbers" not in text]
    assert [text.split()[0] for text in texts] == ["INSERT", "UPDATE"]
    found = bench.look("SELECT id, state, entered, data FROM jobs ORDER BY id")
    assert found == [(job_id, COMPLETED, 3000, b"{}") for job_id in PLAIN_IDS]


def test_runs_under_way_at_the_cut_go_along_with_those_that_have_ended(bench: Bench) -> None:
    records = bench.add_plain(*PLAIN_IDS)
    bench.writer.step()
    bench.complete(*records[:97])
    with bench.lock:
        for record in records[97:]:
            delivery = Delivery.of(record, "token", None, None, None, True)
            record.start(delivery, 2500)
            mark_start(bench.dirty, delivery)
        mark_starts(bench.dirty)
    bench.writer.step()
    texts = [text for text in inserts(bench) if "numbers" not in text]
    assert [text.split()[0] for text in texts] == ["INSERT", "UPDATE"]
    found = bench.look("SELECT state, entered, COUNT(*) FROM jobs GROUP BY 1 ORDER BY 1")
    assert found == [(ACTIVE, 2500, 3), (COMPLETED, 3000, 97)]


def test_a_job_that_ends_is_written_whole_if_somebody_took_it_out_of_the_file(
    bench: Bench,
) -> None:
    records = bench.add_plain(*PLAIN_IDS)
    bench.writer.step()
    with closing(sqlite3.connect(bench.path, isolation_level=None)) as outside:
        outside.execute("DELETE FROM jobs WHERE id = ?", (PLAIN_IDS[7],))
    bench.complete(*records)
    bench.writer.step()
    assert bench.look("SELECT COUNT(*) FROM jobs WHERE state = 3") == [(100,)]


def test_jobs_that_come_in_and_end_between_two_tries_are_written_whole(bench: Bench) -> None:
    records = bench.add_plain(*PLAIN_IDS)
    bench.connection.fault = IOERR
    assert not bench.writer.step()
    bench.complete(*records)
    bench.connection.fault = None
    assert bench.writer.step()
    assert bench.look("SELECT COUNT(*) FROM jobs WHERE state = 3 AND data = x'7b7d'") == [(100,)]


def test_a_database_that_is_not_of_utf_8_is_written_value_by_value(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.execute("CREATE TABLE t (a)")
        connection.execute("DROP TABLE t")
    bench = make()
    assert bench.look("PRAGMA encoding") == [("UTF-16le",)]
    records = bench.add_plain(*PLAIN_IDS)
    bench.writer.step()
    bench.complete(*records)
    bench.writer.step()
    found = bench.look("SELECT id, state, data FROM jobs ORDER BY id")
    assert found == [(job_id, COMPLETED, b"{}") for job_id in PLAIN_IDS]


def test_of_a_cut_of_several_kinds_all_is_written(bench: Bench) -> None:
    records = bench.add_plain(*PLAIN_IDS)
    bench.writer.step()
    bench.complete(*records[:60])
    bench.add_plain(*(f"{i:036d}" for i in range(100, 190)))
    bench.add("odd")
    bench.remove(PLAIN_IDS[99])
    bench.keep("emails", {"paused": True})
    assert bench.writer.step()
    assert bench.look("SELECT state, COUNT(*) FROM jobs GROUP BY state") == [(0, 130), (3, 60)]
    assert bench.look("SELECT COUNT(*) FROM rest") == [(1,)]


def test_long_payloads_do_not_all_go_into_one_statement(bench: Bench) -> None:
    third = bytes(commits.MAX_STATEMENT_BYTES // 3)
    bench.add("a", "b", "c", "d", data=third)
    bench.writer.step()
    assert inserts(bench).count("INSERT INTO payloads") == 2
    assert bench.look("SELECT COUNT(*), SUM(LENGTH(data)) FROM payloads") == [(4, 4 * len(third))]


def test_nothing_is_written_where_nothing_is_marked(bench: Bench) -> None:
    assert bench.writer.step()
    bench.add("a")
    bench.remove("a")  # within the cut: it never was
    assert bench.writer.step()
    assert inserts(bench) == []


def test_its_figures_say_what_waits_and_what_was_done(bench: Bench) -> None:
    bench.add("a", "b")
    bench.clock.now += 0.25
    health = bench.writer.health()
    assert (health.rows_waiting, health.lag_ms, health.error) == (2, 250.0, None)
    bench.writer.step()
    health = bench.writer.health()
    assert (health.rows_waiting, health.lag_ms) == (0, 0.0)
    assert (health.commits, health.rows_written) == (1, 2)


def test_stepping_under_a_shards_lock_is_a_breach_of_the_order(bench: Bench) -> None:
    with bench.lock, pytest.raises(LockOrderError):
        bench.writer.step()


# -- a failure keeps everything --------------------------------------------------------------------


@pytest.mark.parametrize("at", ["INSERT INTO jobs", "INSERT INTO payloads", "BEGIN", "COMMIT"])
def test_a_cut_that_fails_anywhere_is_not_there_at_all_and_is_kept(bench: Bench, at: str) -> None:
    bench.add("a", data=BIG)
    bench.connection.at, bench.connection.fault = at, BUSY
    assert not bench.writer.step()
    assert bench.ids() == []
    assert bench.look("SELECT * FROM payloads") == []
    assert bench.writer.health().rows_waiting == 2
    bench.connection.fault = None
    assert bench.writer.step()
    assert bench.ids() == ["a"]
    assert bench.look("SELECT id FROM payloads") == [("a",)]


def test_what_is_in_flight_is_seen_until_it_is_on_disk(bench: Bench) -> None:
    bench.add("a")
    assert all("a" not in marks.jobs for marks in bench.writer.unwritten())
    bench.connection.fault = BUSY
    bench.writer.step()
    assert [marks.jobs["a"] for marks in bench.writer.unwritten() if "a" in marks.jobs]
    bench.connection.fault = None
    bench.writer.step()
    assert all(not marks.size() for marks in bench.writer.unwritten())


def test_newer_marks_go_over_those_that_failed(bench: Bench) -> None:
    bench.add("a", "b")
    bench.keep("emails", 1)
    bench.connection.fault = BUSY
    bench.writer.step()
    bench.remove("a")
    bench.add("c")
    bench.keep("emails", 2)
    bench.connection.fault = None
    assert bench.writer.step()
    assert bench.ids() == ["b", "c"]
    assert bench.look("SELECT body FROM rest") == [("2",)]


def test_a_full_disk_says_so_and_all_goes_on_when_there_is_room_again(bench: Bench) -> None:
    bench.connection.inner.execute("PRAGMA max_page_count = 60").fetchall()
    bench.add_many(100)
    assert bench.writer.step()
    for i in range(200):
        bench.add(f"large-{i}", data=bytes(INLINE_BYTES))
    bench.keep("emails", {})  # several statements: SQLite itself ends the transaction
    assert not bench.writer.step()
    error = bench.writer.health().error
    assert isinstance(error, StorageFullError)
    assert "disk is full" in str(error.__cause__)
    assert len(bench.ids()) == 100
    bench.connection.inner.execute("PRAGMA max_page_count = 100000").fetchall()
    assert bench.writer.step()
    assert len(bench.ids()) == 300
    assert bench.writer.health().error is None
    assert len(bench.connections) == 1  # nothing was wrong with that


def test_an_interrupt_in_the_middle_of_a_commit_loses_nothing(bench: Bench) -> None:
    bench.add("a", data=BIG)
    bench.connection.at, bench.connection.fault = "INSERT INTO payloads", KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.writer.step()
    assert not bench.connection.in_transaction
    bench.connection.fault = None
    bench.add("b")
    assert bench.writer.step()
    assert bench.ids() == ["a", "b"]


def test_a_broken_connection_is_replaced(bench: Bench) -> None:
    bench.add("a")
    bench.connection.fault = IOERR
    assert not bench.writer.step()
    assert bench.writer.step()
    assert len(bench.connections) == 2
    assert bench.ids() == ["a"]


def test_a_connection_that_cannot_be_replaced_is_tried_again(bench: Bench) -> None:
    bench.add("a")
    bench.connection.fault = IOERR
    bench.writer.step()
    bench.connect_fault = StorageError("the folder is gone")
    assert not bench.writer.step()
    assert str(bench.writer.health().error) == "the folder is gone"
    bench.connect_fault = None
    assert bench.writer.step()
    assert bench.ids() == ["a"]


def test_a_file_that_is_no_longer_ours_is_not_written_to(make: Callable[..., Bench]) -> None:
    asked: list[None] = []
    trouble: list[StorageError] = []

    def guard() -> None:
        asked.append(None)
        if trouble:
            raise trouble[0]

    bench = make(guard=guard)
    for job_id in "abc":
        bench.add(job_id)
        bench.writer.step()
    assert len(asked) == 1  # once a second will do
    trouble.append(StorageError("replaced by another file"))
    bench.clock.now += 1
    bench.add("d")
    for tries in (2, 3):  # while it fails, each time
        assert not bench.writer.step()
        assert len(asked) == tries
    assert bench.ids() == ["a", "b", "c"]
    trouble.clear()


def test_a_lasting_failure_is_logged_once_and_its_end_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("a")
    bench.connection.fault = BUSY
    for _ in range(20):
        bench.writer.step()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "another program holds it locked" in caplog.text
    assert "1 changes wait in memory" in caplog.text
    assert ["locked" in str(problem) for problem in bench.changes] == [True]
    bench.connection.fault = None
    bench.writer.step()
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert [problem is None for problem in bench.changes] == [False, True]


def test_another_reason_for_the_failure_is_logged_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("a")
    for fault in (BUSY, sqlite3.OperationalError("database or disk is full"), BUSY):
        bench.connection.fault = fault
        bench.writer.step()
    assert len(caplog.records) == 3


def test_what_json_cannot_hold_is_an_error_that_says_so(bench: Bench) -> None:
    bench.keep("emails", object())
    assert not bench.writer.step()
    assert "TypeError" in str(bench.writer.health().error)
    bench.keep("emails", {})
    assert bench.writer.step()


# -- what a push hears of it -----------------------------------------------------------------------


def test_while_all_is_well_nobody_need_ask(bench: Bench) -> None:
    bench.add("a")
    bench.writer.step()
    assert not bench.writer.troubled
    bench.writer.refuse(durable=True)


def test_while_writing_fails_durable_jobs_are_refused_and_others_are_not(bench: Bench) -> None:
    bench.add("a")
    bench.connection.fault = BUSY
    bench.writer.step()
    assert bench.writer.troubled
    bench.writer.refuse(durable=False)
    with pytest.raises(StorageError, match="a durable job cannot be accepted") as caught:
        bench.writer.refuse(durable=True)
    assert not caught.value.accepted
    bench.connection.fault = None
    bench.writer.step()
    bench.writer.refuse(durable=True)
    assert not bench.writer.troubled


def test_past_max_unflushed_every_job_is_refused(make: Callable[..., Bench]) -> None:
    bench = make(max_unflushed=3)
    bench.connection.fault = BUSY
    bench.add("a", "b")
    bench.writer.step()
    bench.writer.refuse(durable=False)
    bench.add("c")
    with pytest.raises(StorageFullError, match=r"3 changes wait .* max_unflushed is 3") as caught:
        bench.writer.refuse(durable=False)
    assert not caught.value.accepted
    assert "locked" in str(caught.value)


def test_whoever_waits_for_a_commit_that_fails_hears_that_the_job_stands(bench: Bench) -> None:
    bench.connection.fault = sqlite3.OperationalError("database or disk is full")
    cut = bench.add("a")
    with pytest.raises(StorageFullError, match="done in memory, and is not on disk") as caught:
        bench.writer.wait_committed(cut, "a")
    assert (caught.value.accepted, caught.value.job_id) == (True, "a")
    bench.connection.fault = None
    bench.writer.wait_committed(bench.add("b"), "b")
    assert bench.ids() == ["a", "b"]


def test_waiting_for_what_is_on_disk_writes_nothing(bench: Bench) -> None:
    cut = bench.add("a")
    bench.writer.step()
    before = list(bench.connection.executed)
    bench.writer.wait_committed(cut)
    assert bench.connection.executed == before


def test_flush_writes_everything_or_says_why_not(bench: Bench) -> None:
    bench.writer.flush()
    bench.add("a")
    bench.writer.flush()
    assert bench.ids() == ["a"]
    bench.add("b")
    bench.connection.fault = BUSY
    for _ in range(2):  # it tries each time
        with pytest.raises(StorageError, match="not everything is on disk"):
            bench.writer.flush()
    bench.connection.fault = None
    bench.writer.flush()
    assert bench.ids() == ["a", "b"]


@pytest.mark.parametrize("with_thread", [True, False])
def test_flush_says_so_even_if_no_cut_can_be_made(
    make: Callable[..., Bench], with_thread: bool
) -> None:
    bench = make(threaded=with_thread)
    bench.collect_fault = RuntimeError("a bug")
    bench.add("a")
    with pytest.raises(StorageError, match="writing failed with RuntimeError: a bug"):
        bench.writer.flush()
    bench.collect_fault = None
    bench.writer.flush()
    assert bench.ids() == ["a"]


def test_without_a_thread_admit_writes(bench: Bench) -> None:
    bench.add("a")
    bench.writer.admit()
    assert bench.ids() == ["a"]
    executed = len(bench.connection.executed)
    bench.writer.admit()
    assert len(bench.connection.executed) == executed


def test_without_a_thread_admit_tries_again_only_when_it_is_time(bench: Bench) -> None:
    bench.connection.fault = BUSY
    bench.add("a")
    bench.writer.admit()  # raises nothing: the job is accepted
    bench.connection.fault = None
    bench.add("b")
    bench.writer.admit()
    assert bench.ids() == []
    bench.clock.now += desk.FIRST_RETRY
    bench.writer.admit()
    assert bench.ids() == ["a", "b"]


# -- the thread ------------------------------------------------------------------------------------


def test_the_thread_writes_what_is_marked(threaded: Bench) -> None:
    threaded.add("a")
    threaded.writer.flush()
    assert threaded.ids() == ["a"]
    assert threaded.writer.health().commits == 1


def test_the_thread_waits_an_interval_for_more(threaded: Bench) -> None:
    assert threaded.clock.endless.acquire(timeout=60)
    threaded.add("a")
    # it sleeps again, with all written and after it has tidied up
    assert threaded.clock.endless.acquire(timeout=60)
    assert threaded.ids() == ["a"]
    assert threaded.clock.slept == [None, 10, 1000, None]


def test_an_idle_thread_sleeps_without_end(threaded: Bench) -> None:
    for _ in range(2):
        assert threaded.clock.endless.acquire(timeout=60)
        threaded.add_many(10)
    assert threaded.clock.endless.acquire(timeout=60)
    assert threaded.clock.slept[-1] is None
    wal = f"{threaded.path}-wal"
    assert os.path.getsize(wal) == 0  # idle, it has brought the log into the file


def test_a_durable_wait_cuts_the_interval_short(threaded: Bench) -> None:
    assert threaded.clock.endless.acquire(timeout=60)
    threaded.writer.wait_committed(threaded.add("a"))
    assert threaded.ids() == ["a"]


def test_a_mark_during_a_commit_is_not_in_that_commit(threaded: Bench) -> None:
    threaded.connection.gate.clear()
    first = threaded.add("a")
    assert threaded.connection.reached.wait(60)
    second = threaded.add("b")
    assert second == first + 1
    waiting, got = in_thread(lambda: threaded.writer.wait_committed(second))
    threaded.connection.gate.set()
    waiting.join(60)
    assert got == [None]
    assert threaded.ids() == ["a", "b"]
    assert threaded.writer.health().commits == 2


def test_those_who_wait_at_once_share_a_commit(threaded: Bench) -> None:
    threaded.connection.gate.clear()
    threaded.add("first")
    assert threaded.connection.reached.wait(60)
    while threaded.clock.endless.acquire(blocking=False):
        pass

    def durable(number: int) -> Callable[[], object]:
        return lambda: threaded.writer.wait_committed(threaded.add(f"job-{number}"))

    threads = [in_thread(durable(number)) for number in range(8)]
    for _ in threads:
        assert threaded.clock.endless.acquire(timeout=60)
    threaded.connection.gate.set()
    for thread, got in threads:
        thread.join(60)
        assert got == [None]
    assert len(threaded.ids()) == 9
    assert threaded.writer.health().commits == 2


def test_a_watcher_is_told_with_no_lock_held(threaded: Bench) -> None:
    told = threading.Event()

    def tell() -> None:
        threaded.add("from within")  # takes a shard's lock
        told.set()

    ticket = threaded.writer.watch(threaded.add("a"), tell)
    assert ticket is not None
    assert told.wait(60)
    assert ticket.error is None
    assert threaded.writer.watch(1, tell) is None


def test_one_who_cannot_be_told_keeps_nobody_else_from_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def broken() -> None:
        raise RuntimeError("the loop is closed")

    cut = bench.add("a")
    bench.writer.watch(cut, broken)
    bench.writer.watch(cut, lambda: told.append("second"))
    assert bench.writer.step()
    assert told == ["second"]
    assert "the loop is closed" in caplog.text


def test_everybody_who_waits_hears_of_a_failure_and_later_ones_at_once(threaded: Bench) -> None:
    threaded.connection.gate.clear()
    threaded.connection.fault = BUSY
    cut = threaded.add("a")
    assert threaded.connection.reached.wait(60)
    threads = [in_thread(lambda: threaded.writer.wait_committed(cut, "a")) for _ in range(3)]
    threaded.connection.gate.set()
    for thread, got in threads:
        thread.join(60)
        assert isinstance(got[0], StorageError)
        assert got[0].accepted
    threaded.connection.fault = None
    threaded.writer.flush()
    assert threaded.ids() == ["a"]


def test_the_thread_tries_again_later_and_later(threaded: Bench) -> None:
    tries = threading.Semaphore(0)

    class Counted(sqlite3.OperationalError):
        def __str__(self) -> str:
            tries.release()
            return "database is locked"

    threaded.connection.fault = Counted()
    threaded.add("a")
    while len([ms for ms in threaded.clock.slept if ms is not None and ms >= 100]) < 12:
        assert tries.acquire(timeout=60)
    waits = [ms for ms in threaded.clock.slept if ms is not None and ms >= 100]
    assert waits[:10] == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]
    assert set(waits[10:]) == {30000}


def test_flush_gives_up_after_its_time(threaded: Bench) -> None:
    threaded.connection.gate.clear()
    threaded.add("a")
    assert threaded.connection.reached.wait(60)
    with pytest.raises(WaitTimeoutError, match=r"not everything was on disk after 0\.5 s"):
        threaded.writer.flush(500)
    threaded.connection.gate.set()
    threaded.writer.flush()
    assert threaded.ids() == ["a"]


# -- whoever marks keeps pace ----------------------------------------------------------------------


def stuck(bench: Bench) -> None:
    """A commit is under way that does not end, and has been for longer than is good."""
    bench.connection.gate.clear()
    bench.add("stuck")
    assert bench.connection.reached.wait(60)
    while bench.clock.endless.acquire(blocking=False):
        pass
    bench.clock.now += 0.101


def push(bench: Bench) -> Callable[[], object]:
    def marking() -> None:
        bench.add("a")
        bench.writer.admit()

    return marking


def test_whoever_marks_waits_while_a_change_is_older_than_max_lag(threaded: Bench) -> None:
    stuck(threaded)
    thread, got = in_thread(push(threaded))
    assert threaded.clock.endless.acquire(timeout=60)  # it waits
    assert got == []
    threaded.connection.gate.set()
    thread.join(60)
    assert got == [None]


def test_nobody_waits_while_all_changes_are_young(threaded: Bench) -> None:
    stuck(threaded)
    threaded.clock.now -= 0.02
    push(threaded)()


def test_whoever_marks_waits_behind_too_many_rows(threaded: Bench) -> None:
    stuck(threaded)
    threaded.clock.now -= 0.1
    threaded.add_many(int(threaded.writer._desk.room) + 1)
    thread, got = in_thread(push(threaded))
    assert threaded.clock.endless.acquire(timeout=60)
    assert got == []
    threaded.connection.gate.set()
    thread.join(60)
    assert got == [None]


def test_our_own_threads_do_not_wait(threaded: Bench) -> None:
    stuck(threaded)
    thread, got = in_thread(push(threaded), "worker-1")
    thread.join(60)
    assert got == [None]


def test_a_thread_with_a_running_loop_does_not_wait(threaded: Bench) -> None:
    stuck(threaded)

    async def main() -> None:
        push(threaded)()

    thread, got = in_thread(lambda: asyncio.run(main()))
    thread.join(60)
    assert got == [None]


def test_whoever_waits_goes_on_when_writing_fails(threaded: Bench) -> None:
    threaded.connection.fault = BUSY
    stuck(threaded)
    thread, got = in_thread(push(threaded))
    assert threaded.clock.endless.acquire(timeout=60)
    threaded.connection.gate.set()
    thread.join(60)
    assert got == [None]
    push(threaded)()  # and while it fails nobody waits


def test_whoever_waits_goes_on_at_close(threaded: Bench) -> None:
    stuck(threaded)
    thread, got = in_thread(push(threaded))
    assert threaded.clock.endless.acquire(timeout=60)
    closing, _ = in_thread(threaded.writer.close)
    thread.join(60)
    assert got == [None]
    threaded.connection.gate.set()
    closing.join(60)
    assert threaded.ids() == ["a", "stuck"]


def test_too_much_unwritten_makes_a_push_ask_even_if_nothing_fails(
    make: Callable[..., Bench],
) -> None:
    bench = make(threaded=True, max_unflushed=10)
    stuck(bench)
    bench.clock.now -= 0.1
    bench.add_many(10)
    bench.writer.admit()
    assert bench.writer.troubled
    with pytest.raises(StorageFullError, match="the disk does not keep up"):
        bench.writer.refuse(durable=False)
    bench.connection.gate.set()
    bench.writer.flush()
    bench.writer.refuse(durable=False)
    assert not bench.writer.troubled


# -- the desk: when what is due --------------------------------------------------------------------


@pytest.fixture
def table() -> Desk:
    return Desk(0.01, 0.1)


def test_nothing_is_due_where_nothing_is_marked(table: Desk) -> None:
    assert table.due(5.0) == (TIDY, None)


def test_a_mark_is_due_after_the_interval(table: Desk) -> None:
    table.marked(5.0)
    table.marked(5.005)
    assert table.due(5.004) == (WRITE, pytest.approx(0.006))
    assert table.due(5.02) == (WRITE, 0.0)
    table.hurry()
    assert table.due(5.004) == (WRITE, 0.0)


def test_the_age_is_that_of_the_oldest_in_flight_included(table: Desk) -> None:
    table.marked(5.0)
    table.begin_cut()
    table.marked(6.0)
    assert table.age(7.0) == 2.0
    table.failed(StorageError("no"), 7.0)
    table.begin_cut()
    assert table.age(8.0) == 3.0
    table.landed(2, 10, 8.0, 9.0)
    assert table.age(9.0) == 0.0


def tell() -> None:
    """Nobody waits in these tests."""


def test_a_commit_that_served_one_is_followed_at_once(table: Desk) -> None:
    table.watch(1, tell, force=False)
    assert table.due(5.0) == (WRITE, 0.0)
    table.begin_cut()
    table.landed(1, 1, 5.0, 5.1)
    table.watch(2, tell, force=False)
    assert table.due(5.1) == (WRITE, 0.0)


def test_a_commit_that_served_several_waits_a_moment_for_as_many(table: Desk) -> None:
    for _ in range(3):
        table.watch(1, tell, force=False)
    table.begin_cut()
    table.watch(2, tell, force=False)  # came while it was under way
    assert len(table.landed(1, 3, 5.0, 5.1)) == 3
    table.watch(2, tell, force=False)
    assert table.due(5.1) == (WRITE, pytest.approx(GROUP_WAIT))
    table.watch(2, tell, force=False)
    table.watch(2, tell, force=False)
    assert table.due(5.1) == (WRITE, 0.0)


def test_nobody_is_waited_for_longer_than_that(table: Desk) -> None:
    for _ in range(3):
        table.watch(1, tell, force=False)
    table.begin_cut()
    table.landed(1, 3, 5.0, 5.1)
    table.watch(2, tell, force=False)
    assert table.due(5.1 + 2 * GROUP_WAIT) == (WRITE, 0.0)


def test_those_who_may_come_back_are_waited_for_before_their_tickets_are_there(
    table: Desk,
) -> None:
    for _ in range(3):
        table.watch(1, tell, force=False)
    table.begin_cut()
    table.landed(1, 3, 5.0, 5.1)
    table.marked(5.1)  # the first one is back; in a moment it will wait
    assert table.due(5.1) == (WRITE, pytest.approx(GROUP_WAIT))
    # nobody came
    assert table.due(5.1 + GROUP_WAIT) == (WRITE, pytest.approx(0.01 - GROUP_WAIT))


def test_a_ticket_rings_as_soon_as_nobody_else_is_waited_for(table: Desk) -> None:
    clock = HurriedClock()
    for _ in range(3):
        table.watch(1, tell, force=False)
    table.sleep(clock, None)  # rung by those
    table.begin_cut()
    table.landed(1, 3, 5.0, 5.1)
    table.marked(5.1)
    table.due(5.1)
    table.watch(2, tell, force=False)
    table.sleep(clock, GROUP_WAIT)  # by time: two more are waited for
    assert clock.now == pytest.approx(1000 + GROUP_WAIT)
    table.begin_cut()
    table.landed(2, 1, 5.1, 5.2)
    table.marked(5.2)
    table.due(5.2)
    table.watch(3, tell, force=False)
    table.sleep(clock, 10)  # by the bell
    assert clock.now == pytest.approx(1000 + GROUP_WAIT)


def test_a_late_ticket_rings_although_several_were_served_once(table: Desk) -> None:
    clock = HurriedClock()
    for _ in range(3):
        table.watch(1, tell, force=False)
    table.sleep(clock, None)
    table.begin_cut()
    table.landed(1, 3, 5.0, 5.1)
    table.marked(6.0)
    table.due(6.0)
    table.watch(2, tell, force=False)
    table.sleep(clock, 10)
    assert clock.now == 1000


def test_a_forced_attempt_is_not_answered_by_the_one_before(table: Desk) -> None:
    table.marked(5.0)
    table.watch(1, tell, force=False)
    table.begin_attempt()
    table.begin_cut()
    forced = table.watch(1, tell, force=True)
    refused = table.failed(StorageError("no"), 5.1)
    assert forced is not None
    assert forced not in refused
    assert len(refused) == 1
    assert table.due(5.1) == (WRITE, 0.0)
    table.begin_attempt()
    assert table.failed(StorageError("no"), 5.2) == [forced]
    assert table.due(5.2) == (WRITE, pytest.approx(2 * desk.FIRST_RETRY))


def test_after_a_success_the_next_failure_is_tried_again_soon(table: Desk) -> None:
    for _ in range(5):
        table.begin_cut()
        table.failed(StorageError("no"), 5.0)
    assert table.due(5.0) == (WRITE, pytest.approx(16 * desk.FIRST_RETRY))
    table.begin_cut()
    table.landed(6, 1, 5.0, 5.1)
    table.begin_cut()
    table.failed(StorageError("no"), 6.0)
    assert table.due(6.0) == (WRITE, pytest.approx(desk.FIRST_RETRY))


def test_there_is_room_for_what_is_written_in_half_of_the_lag(table: Desk) -> None:
    assert table.room == 2 * desk.CUT_ROWS
    for _ in range(50):
        # one is under way while the next one gathers: 100,000 rows/s
        rows = round(table.room / 2)
        table.landed(1, rows, 5.0, 5.0 + rows / 100_000)
    assert table.room == pytest.approx(5000, rel=0.01)
    for _ in range(50):
        table.landed(1, 100, 5.0, 5.1)
    assert table.room == desk.MIN_ROOM
    table.landed(1, 1000, 5.0, 5.01)
    room = table.room
    table.landed(1, 1, 5.0, 6.0)  # says nothing about how fast it could be
    assert table.room == room > desk.MIN_ROOM


def test_a_unit_greater_than_the_room_does_not_close_it(table: Desk) -> None:
    # 100,000 rows/s, in which 2,500 take a quarter of the lag
    table.landed(1, 20_000, 5.0, 5.2)
    assert table.room == pytest.approx(2500)


def test_a_slow_commit_is_believed_at_once_and_a_fast_one_little_by_little(table: Desk) -> None:
    table.room = 8000.0
    table.landed(1, 4000, 5.0, 5.1)  # four times as long as it may take
    assert table.room == pytest.approx(2000)
    table.landed(1, 1000, 5.0, 5.001)
    assert table.room == pytest.approx(2500)
    table.landed(1, 1250, 5.0, 5.02)  # so near to what it may take
    assert table.room == pytest.approx(2500 * 1.25)


def test_a_small_commit_that_was_quick_enough_says_nothing_of_the_room(table: Desk) -> None:
    table.room = 8000.0
    table.landed(1, 300, 5.0, 5.02)  # 15,000 rows/s, if it had not waited for disk and GIL
    assert table.room == 8000
    table.landed(1, 300, 5.0, 5.03)
    assert table.room == pytest.approx(8000 * 25 / 30)


def test_whoever_was_held_up_is_not_followed_by_a_small_commit(table: Desk) -> None:
    table.marked(5.0)
    table.begin_cut()
    table.marked(5.001)
    bell = table.hold_up(5000, 5.002)
    assert bell is not None
    table.landed(1, 4000, 5.0, 5.02)
    assert bell.acquire(blocking=False)
    # what they mark now gathers
    assert table.due(5.02) == (WRITE, pytest.approx(0.01))


def test_in_a_flood_the_writer_gathers_anew_after_each_commit(table: Desk) -> None:
    table.marked(5.0)
    table.begin_cut()
    table.marked(5.001)
    table.landed(1, 500, 5.0, 5.02)
    assert table.due(5.02) == (WRITE, pytest.approx(0.01))
    table.hurry()
    assert table.due(5.02) == (WRITE, 0.0)


def test_a_long_interval_is_not_kept_twice() -> None:
    table = Desk(1.0, 0.1)
    table.begin_cut()
    table.marked(5.0)
    table.landed(1, 500, 5.98, 5.99)
    assert table.due(5.99) == (WRITE, pytest.approx(0.025))


def test_what_is_in_flight_does_not_hurry_the_next_cut(bench: Bench) -> None:
    writer = bench.writer
    writer._threaded, writer._desk.room = True, 1e9
    writer._held = Marks(dict.fromkeys(map(str, range(desk.CUT_ROWS))), {}, {}, {}, {})
    bench.add("a")
    writer.admit()
    assert writer._desk.due(bench.clock.now) == (WRITE, pytest.approx(0.01))
    bench.add_many(desk.CUT_ROWS)
    bench.clock.now += 0.001  # so often it is looked at
    writer.admit()
    assert writer._desk.due(bench.clock.now) == (WRITE, 0.0)


def test_nobody_who_waits_is_kept_waiting_for_more_to_gather(table: Desk) -> None:
    table.begin_cut()
    table.marked(5.001)
    table.landed(1, 500, 5.0, 5.02)
    table.watch(2, lambda: None, force=False)
    assert table.due(5.02) == (WRITE, 0.0)


def test_a_writer_that_is_slow_does_not_gather_first(table: Desk) -> None:
    table.begin_cut()
    table.marked(5.001)
    table.landed(1, 500, 5.0, 5.03)
    assert table.due(5.03) == (WRITE, 0.0)


# -- the log and the space -------------------------------------------------------------------------


def wal_bytes(bench: Bench) -> int:
    return os.path.getsize(f"{bench.path}-wal")


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_BYTES", 64 * 1024)
    monkeypatch.setattr(commits, "LOG_BOUND_BYTES", 512 * 1024)
    monkeypatch.setattr(commits, "FREE_BOUND_BYTES", 64 * 1024)
    monkeypatch.setattr(commits, "PATIENCE_MS", 1)
    monkeypatch.setattr(commits, "LOOK_MS", 1)


def write_much(bench: Bench, rounds: int, content: bytes = b"x") -> None:
    for number in range(rounds):
        bench.add(*(f"{number}-{i}" for i in range(50)), data=1000 * content)
        assert bench.writer.step()
        bench.writer._committer.after_commit()


@pytest.mark.usefixtures("small_bounds")
def test_the_log_does_not_grow_while_nobody_reads(bench: Bench) -> None:
    write_much(bench, 40)  # two MiB
    assert wal_bytes(bench) < 300_000
    assert bench.writer.health().log_bytes < 300_000


@pytest.mark.usefixtures("small_bounds")
def test_the_thread_sees_to_the_log_between_its_commits(threaded: Bench) -> None:
    for number in range(40):
        threaded.add(*(f"{number}-{i}" for i in range(50)), data=bytes(1000))
        threaded.writer.flush()
        # never idle: what tidies up then is not what is tried here
        threaded.clock.now -= 10
    assert wal_bytes(threaded) < 300_000


@pytest.mark.usefixtures("small_bounds")
def test_a_reader_that_stays_makes_the_log_grow_and_it_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    write_much(bench, 1)
    for content in (b"x", b"z"):  # once is not for ever
        caplog.clear()
        reader = sqlite3.connect(bench.path)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM jobs").fetchone()
        write_much(bench, 30, content)
        assert bench.writer.health().log_bytes > commits.LOG_BOUND_BYTES
        # at each doubling
        assert caplog.text.count("the write-ahead log has grown") in (2, 3)
        reader.close()
        write_much(bench, 10, b"y")
        assert wal_bytes(bench) <= commits.LOG_BOUND_BYTES
        bench.writer._committer.tidy()
        assert wal_bytes(bench) == 0


@pytest.mark.usefixtures("small_bounds")
def test_a_reader_does_not_hold_up_the_writer_for_long(bench: Bench) -> None:
    reader = sqlite3.connect(bench.path)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM jobs").fetchone()
    write_much(bench, 15)
    reader.close()
    pragmas = [text for text in bench.connection.executed if text.startswith("PRAGMA")]
    cut_off = pragmas.index("PRAGMA wal_checkpoint")
    while pragmas[cut_off - 1] != "PRAGMA busy_timeout=0":
        cut_off = pragmas.index("PRAGMA wal_checkpoint", cut_off + 1)
    assert pragmas[cut_off + 1] == "PRAGMA busy_timeout=5000"


@pytest.mark.usefixtures("small_bounds")
def test_the_longer_the_log_the_longer_readers_are_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MOST_PATIENCE", 10)
    write_much(bench, 1)
    reader = sqlite3.connect(bench.path)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM jobs").fetchone()
    bench.connection.executed.clear()
    write_much(bench, 130)
    patience: list[int] = []
    looking = False
    for text in bench.connection.executed:
        if text.startswith("PRAGMA busy_timeout="):
            looking = text.endswith("=0")
            patience += [0] * looking
        elif looking and text.startswith("PRAGMA wal_checkpoint"):
            patience[-1] += 1
    assert patience[0] == 1
    assert patience == sorted(patience)
    assert patience[-1] == 10
    assert len(patience) < 30, "and the less often"
    reader.close()


@pytest.mark.usefixtures("small_bounds")
def test_readers_that_relieve_each_other_are_outlasted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One is there at every moment, and each takes the place of the one before.
    monkeypatch.setattr(commits, "PATIENCE_MS", 1000)

    def reader() -> sqlite3.Connection:
        connection = sqlite3.connect(bench.path, check_same_thread=False)
        connection.execute("BEGIN")
        connection.execute("SELECT COUNT(*) FROM jobs").fetchone()
        return connection

    readers = [reader()]
    looks: list[int] = []

    class Relief:
        def wait(self, seconds: float) -> None:
            looks.append(len(readers))
            if len(looks) % 3 == 0:
                readers.pop().close()
                readers.append(reader())

    monkeypatch.setattr(commits, "_never", Relief())
    write_much(bench, 11)
    assert looks
    assert len(looks) <= 6, "two of them at most, and the third reads the file alone"
    assert wal_bytes(bench) < commits.LOG_BOUND_BYTES
    readers.pop().close()


@pytest.mark.usefixtures("small_bounds")
def test_space_that_is_no_longer_used_is_given_back_when_idle(bench: Bench) -> None:
    committer = bench.writer._committer
    write_much(bench, 100)
    committer.tidy()
    before = os.path.getsize(bench.path)
    for number in range(100):
        for i in range(50):
            bench.remove(f"{number}-{i}")
    bench.writer.step()
    while committer.tidy():
        pass
    committer.tidy()
    assert os.path.getsize(bench.path) < 200_000 < 5_000_000 < before


def test_a_checkpoint_that_fails_fails_nothing_else(
    threaded: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    threaded.connection.at, threaded.connection.fault = "PRAGMA wal_checkpoint", IOERR
    assert threaded.clock.endless.acquire(timeout=60)
    threaded.add("a")
    assert threaded.clock.endless.acquire(timeout=60)
    assert threaded.ids() == ["a"]
    assert threaded.writer.health().error is None
    assert "tidy" in caplog.text
    threaded.connection.fault = None
