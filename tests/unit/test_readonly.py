"""The read-only view: what the file holds, as the manager that wrote it would show it."""

import asyncio
import inspect
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Deduplication,
    Job,
    JobCounts,
    JobState,
    JsonSerializer,
    ManagerClosedError,
    PickleSerializer,
    Queue,
    QueueManager,
    ResultExpiredError,
    SchemaVersionError,
    SerializationError,
    SqliteStorage,
    StorageError,
    ValidationError,
    Worker,
)
from bunqueue_py.model.job import FAILED, GATED
from bunqueue_py.model.options import Options
from bunqueue_py.model.rows import row_of
from bunqueue_py.readonly import ReadonlyManager, open_readonly
from bunqueue_py.shard.ready_queue import seq_of
from bunqueue_py.storage.sqlite.opening import checkpoint
from bunqueue_py.testing import SeededIds, VirtualClock
from tests.unit.sqlite_files import crash_copy, folder, make_file, names, neighbour, posix
from tests.unit.sqlite_marks import BIG, Driven, driven, found_in, record

EVERY_STATE = [
    None,
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    ["waiting", "delayed"],
    ["completed", "failed"],
]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def mark_everything(manager: QueueManager, drive: Driven) -> None:
    """Marks all that the manager has in memory, as it would have done by itself."""
    state: Any = manager._state
    with drive.lock:
        for entry in state.index.values():
            result = state.results.get(entry.id)
            drive.dirty.add(row_of(entry, seq_of(entry) or 0, result), entry.data)
            drive.dirty.result(entry.id, result, -1)
        for queue in state.queues.values():
            if queue.paused:
                drive.dirty.keep("queue", queue.name, {"paused": True})
    assert drive.storage.step()


def play(manager: QueueManager, clock: VirtualClock) -> None:
    """Brings jobs into every state, no two in the same millisecond."""

    def tick() -> None:
        clock.advance(milliseconds=1)

    def push(queue: str, data: Any = None, **options: Any) -> Job:
        tick()
        return manager.push(queue, data, **options)

    def pull(queue: str) -> Job:
        tick()
        job = manager.pull(queue)
        assert job is not None
        tick()
        return job

    for result in ({"sent": True}, "x" * 5000, None, [1, 2]):
        push("mail", {"to": "ada"}, name="done")
        manager.ack(pull("mail"), result)
    for text in ("the first", "naïve \ud800"):
        push("mail", "x" * 5000, name="no", attempts=1, tags=("a", "b"))
        manager.fail(pull("mail"), text)
    Queue("mail", manager).dlq.configure(auto_retry=True, retry_interval=60)
    push("mail", 1, attempts=3, backoff=Backoff.fixed(5, jitter=0))
    manager.fail(pull("mail"), ValueError("again"))
    push("mail", 2, priority=7, custom_id="nightly")
    push("mail", 3, priority=-7, lifo=True)
    push("mail", 4, delay=3, group="acme", deduplication=Deduplication("k", ttl=60))
    push("mail", 5, delay=3600, priority=1)
    push("mail", 6, run_at=datetime(2030, 1, 2, tzinfo=timezone.utc), ttl=86_400)
    late = push("mail", 7, delay=60)
    tick()
    late.promote()
    first, second = pull("mail"), pull("mail")
    manager.update_progress(first, 50, "half-way")
    tick()
    manager.release(second)
    push("other", None, name="naïve")
    push("paused", 1)
    push("paused", 2, priority=1)
    push("paused", 3, delay=60)
    manager.pause("paused")
    tick()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds(0)) as made:
        play(made, clock)
        yield made


@pytest.fixture
def view(manager: QueueManager, clock: VirtualClock, path: Path) -> Iterator[ReadonlyManager]:
    """A view of what that manager would have written, while its storage has the file open."""
    with driven(path) as drive:
        mark_everything(manager, drive)
        with open_readonly(path, clock=clock) as made:
            yield made


@pytest.fixture(params=[0, 10, 2 * 86_400], ids=["at once", "ten seconds later", "two days later"])
def later(request: pytest.FixtureRequest, clock: VirtualClock) -> Callable[[], None]:
    """Lets time pass of which the file has heard nothing; nobody works off what comes due."""
    return lambda: clock.advance(seconds=request.param)


def shown(jobs: list[Job]) -> list[dict[str, Any]]:
    return [{**job.to_dict(), "timeline": job.timeline} for job in jobs]


# -- the same as the manager -----------------------------------------------------------------------


def test_counts_and_queues_are_those_of_the_manager(
    manager: QueueManager, view: ReadonlyManager, later: Callable[[], None]
) -> None:
    later()
    assert view.queues() == manager.queues() == ["mail", "other", "paused"]
    for queue in (None, "mail", "other", "paused", "missing"):
        assert view.counts(queue) == manager.counts(queue)
    for queue in ("mail", "other", "missing"):
        assert view.counts_per_priority(queue) == manager.counts_per_priority(queue)
        assert list(view.counts_per_priority(queue)) == list(manager.counts_per_priority(queue))
    assert [view.is_paused(queue) for queue in view.queues()] == [False, False, True]
    assert view.now == manager.now


def test_pages_of_jobs_are_those_of_the_manager(
    manager: QueueManager, view: ReadonlyManager, later: Callable[[], None]
) -> None:
    later()
    pages: list[dict[str, Any]] = [{}, {"offset": 1, "limit": 2}, {"limit": 0}, {"offset": 100}]
    for queue, states, page in product(("mail", "paused", "missing"), EVERY_STATE, pages):
        for newest_first in (False, True):
            expected = manager.get_jobs(queue, states, newest_first=newest_first, **page)
            found = view.get_jobs(queue, states, newest_first=newest_first, **page)
            assert shown(found) == shown(expected), (queue, states, page)


def test_every_job_is_that_of_the_manager(
    manager: QueueManager, view: ReadonlyManager, later: Callable[[], None]
) -> None:
    later()
    jobs = [job for queue in manager.queues() for job in manager.get_jobs(queue)]
    assert len(jobs) == 17
    for expected in jobs:
        found = view.get_job(expected.id)
        assert found is not None
        assert type(found) is Job
        assert shown([found]) == shown([expected])
        assert (found.token, found.duplicate) == (None, False)
        assert found.return_value == expected.return_value
        assert view.get_state(found) == manager.get_state(expected)
        assert view.get_result(found) == manager.get_result(expected)
    assert view.get_job("missing") is None
    assert view.get_job("\ud800") is None
    assert view.get_state("missing") is JobState.UNKNOWN
    assert view.get_result("missing") is None


def test_a_walk_finds_the_jobs_that_the_manager_finds(
    manager: QueueManager,
    view: ReadonlyManager,
    later: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later()
    monkeypatch.setattr("bunqueue_py.readonly._PAGE", 3)
    for states in EVERY_STATE:
        found = list(view.iter_jobs("mail", states))
        expected = sorted(manager.get_jobs("mail", states), key=lambda job: job.id)
        assert shown(found) == shown(expected)  # by id: in the order in which they were added


def test_dead_letters_are_those_of_the_manager(
    manager: QueueManager, view: ReadonlyManager, clock: VirtualClock
) -> None:
    clock.advance(seconds=10)
    first, second = manager.dlq_entries("mail")
    assert view.dlq_entries("mail") == [first, second]
    assert view.dlq_entries("mail")[0].job.data == "x" * 5000
    filters: list[dict[str, Any]] = [
        {"limit": 1},
        {"offset": 1},
        {"reason": "max_attempts_exceeded"},
        {"reason": "timeout"},
        {"older_than": first.entered_at},
        {"newer_than": first.entered_at},
        {"older_than": 3600},
        {"retriable": True},
        {"retriable": False},
        {"retriable": first.next_retry_at is not None, "offset": 1},
    ]
    for wanted in filters:
        assert view.dlq_entries("mail", **wanted) == manager.dlq_entries("mail", **wanted)
    assert view.dlq_len("mail") == manager.dlq_len("mail") == 2
    assert view.dlq_stats("mail") == manager.dlq_stats("mail")
    assert view.dlq_entries("other") == []
    assert view.dlq_stats("other") == manager.dlq_stats("other")


def test_a_job_is_found_by_its_custom_id(manager: QueueManager, view: ReadonlyManager) -> None:
    found = view.get_job(queue="mail", custom_id="nightly")
    assert found is not None
    assert found == manager.get_job(queue="mail", custom_id="nightly")
    assert found.data == 2
    assert view.get_job(queue="mail", custom_id="no") is None  # which is the name of some
    assert view.get_job(queue="other", custom_id="nightly") is None


def test_the_newest_of_a_custom_id_is_found_whatever_is_in_the_text(path: Path) -> None:
    with driven(path) as drive:
        for job_id in ("a", "b", "c"):
            made = record(job_id, name="naïve" if job_id == "c" else "welcome")
            made.custom_id = None if job_id == "c" else "naïve"
            drive.add(made)
        job = open_readonly(path).get_job(queue="emails", custom_id="naïve")
    assert job is not None
    assert job.id == "b"


REFUSED_ALIKE: list[Callable[[Any], object]] = [
    lambda m: m.get_jobs("mail", "lost"),
    lambda m: m.get_jobs("mail", 5),
    lambda m: m.get_jobs("mail", ["waiting", None]),
    lambda m: m.get_jobs("mail", limit=-1),
    lambda m: m.get_jobs("mail", limit=1_000_001),
    lambda m: m.get_jobs("mail", offset=1.0),
    lambda m: m.get_jobs("mail", newest_first=1),
    lambda m: m.get_jobs("mail", with_data=None),
    lambda m: m.get_jobs("a queue"),
    lambda m: m.iter_jobs("mail", "lost"),
    lambda m: m.counts("a queue"),
    lambda m: m.counts(5),
    lambda m: m.get_job(),
    lambda m: m.get_job("a", queue="mail"),
    lambda m: m.get_job("a", custom_id="b"),
    lambda m: m.get_job(custom_id="b"),
    lambda m: m.get_job(5),
    lambda m: m.get_job(queue="mail", custom_id=""),
    lambda m: m.get_state(5),
    lambda m: m.get_result(5),
    lambda m: m.dlq_entries("mail", reason="no"),
    lambda m: m.dlq_entries("mail", limit=-1),
    lambda m: m.dlq_entries("mail", older_than=-1),
    lambda m: m.dlq_entries("mail", retriable=1),
    lambda m: m.dlq_stats("a queue"),
    lambda m: m.counts_per_priority("a queue"),
    lambda m: m.is_paused("a queue"),
    lambda m: m.known_queue("a queue"),
    lambda m: m.minute_counts("a queue", "failed"),
    lambda m: m.minute_counts("mail", "done"),
    lambda m: m.job_logs(5),
    lambda m: m.job_logs("a", offset=-1),
    lambda m: m.job_logs("a", limit=-1),
]


def test_what_the_manager_refuses_the_view_refuses_with_the_same_words(
    manager: QueueManager, view: ReadonlyManager
) -> None:
    for call in REFUSED_ALIKE:
        with pytest.raises(ValidationError) as by_manager:
            call(manager)
        with pytest.raises(ValidationError) as by_view:
            call(view)
        assert str(by_view.value) == str(by_manager.value)


# -- what was seen ---------------------------------------------------------------------------------


@pytest.fixture
def owner(path: Path, clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(path, clock=clock, background=False) as made:
        yield made


@pytest.fixture
def beside(owner: QueueManager, path: Path, clock: VirtualClock) -> Iterator[ReadonlyManager]:
    with open_readonly(path, clock=clock) as made:
        yield made


def test_the_view_tells_the_logs_and_counts_that_the_file_has(
    owner: QueueManager, beside: ReadonlyManager, clock: VirtualClock
) -> None:
    queue, seen = Queue("mail", owner), Queue("mail", beside)
    busy = queue.add("busy")
    for n in range(3):
        queue.add("x", n, attempts=1)
    held = owner.pull("mail")
    assert held is not None
    for n in range(130):
        held.log(f"line {n}", "warning")
    owner.ack(held)
    for _ in range(2):
        job = owner.pull("mail")
        assert job is not None
        owner.fail(job, "no") if job.data else owner.ack(job)
        clock.advance(minutes=61)
    owner.run_pending()
    owner.flush()
    for page in ({}, {"offset": 98, "limit": 5}, {"limit": 0}):
        assert seen.logs(busy.id, **page) == queue.logs(busy.id, **page)
    assert seen.logs(busy.id).total == 130
    assert seen.logs("nobody").total == 0
    for kind in ("completed", "failed"):
        assert seen.metrics(kind) == queue.metrics(kind)  # type: ignore[arg-type]
    assert sum(point.count for point in seen.metrics("completed")) == 2


def test_damaged_rows_of_logs_and_counts_are_left_out_of_the_view(
    owner: QueueManager, beside: ReadonlyManager, path: Path
) -> None:
    job = owner.push("mail")
    owner.flush()
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind, key, body in (
            ("log", f"{job.id}\0" + "0", '[0, "info"]'),
            ("log", f"{job.id}\0" + "1", '[1, "info", 5, "kept"]'),
            ("minutes", "mail\0" + "1", "[]"),
            ("minutes", "mail\0" + "2", '"damaged"'),
            ("minutes", "mail\0" + "x", '""'),
        ):
            connection.execute("INSERT INTO rest VALUES (?, ?, ?)", (kind, key, body))
    assert [line.text for line in beside.job_logs(job).entries] == ["kept"]
    assert beside.minute_counts("mail", "completed") == []


# -- for looking only ------------------------------------------------------------------------------

READS = frozenset(
    """
    close counts counts_per_priority cron dlq_entries dlq_len dlq_stats get_job get_jobs get_result
    get_state is_paused iter_jobs job_logs known_queue minute_counts now queues scheduler_get
    scheduler_list scheduler_preview schedulers
    """.split()
)


def public(kind: type) -> set[str]:
    # what makes one is no call of one
    return {
        name
        for name in dir(kind)
        if not name.startswith("_")
        and inspect.getattr_static(kind, name).__class__ is not classmethod
    }


def test_every_call_of_a_manager_is_answered_or_refused_by_its_name(
    view: ReadonlyManager, path: Path
) -> None:
    assert public(QueueManager) - public(ReadonlyManager) == set(), "calls that the view lacks"
    for name in public(ReadonlyManager) - READS:
        with pytest.raises(StorageError, match="is not possible here: this is a read-only") as told:
            getattr(view, name)("mail", name="x")
        if name != "backend":
            assert str(told.value).startswith(f"{name} "), name
        assert str(path) in str(told.value)
        assert not told.value.accepted


def test_the_view_answers_as_the_manager_does_wherever_it_answers() -> None:
    for name in READS - {"cron", "now", "schedulers"}:
        of_manager = inspect.signature(getattr(QueueManager, name))
        assert inspect.signature(getattr(ReadonlyManager, name)) == of_manager, name


JOB_VERBS: list[Callable[[Job], object]] = [
    lambda job: job.remove(),
    lambda job: job.retry(),
    lambda job: job.promote(),
    lambda job: job.discard(),
    lambda job: job.update_data(1),
    lambda job: job.change_priority(1),
    lambda job: job.change_delay(1),
    lambda job: job.update_progress(1),
    lambda job: job.extend_lock(1),
    lambda job: job.result(timeout=0),
    lambda job: asyncio.run(_awaited(job)),
]


async def _awaited(job: Job) -> object:
    return await job


def test_the_verbs_of_its_jobs_raise(view: ReadonlyManager) -> None:
    before = shown(view.get_jobs("mail"))
    for job, verb in product(view.get_jobs("mail"), JOB_VERBS):
        with pytest.raises(StorageError, match="read-only view"):
            verb(job)
    assert shown(view.get_jobs("mail")) == before


def test_its_jobs_read_on(path: Path) -> None:
    with driven(path) as drive:
        made = record("a", data=BIG)
        drive.add(made)
        view = open_readonly(path)
        (job,) = view.get_jobs("emails", with_data=False)
        assert job._encoded is None
        assert job.data == BIG[1:-1].decode()
        assert job.now <= view.now
        made.priority = 5
        drive.mark(made)
        assert job.priority == 0
        assert job.refresh().priority == 5
        drive.remove(made)
        with pytest.raises(LookupError):
            job.refresh()


def test_a_queue_may_be_made_with_it(view: ReadonlyManager, manager: QueueManager) -> None:
    queue, expected = Queue("mail", view), Queue("mail", manager)
    assert len(queue) == len(expected)
    assert queue.counts() == expected.counts()
    assert queue.get_jobs() == expected.get_jobs()
    assert queue.get_job(custom_id="nightly") == expected.get_job(custom_id="nightly")
    assert sorted(j.id for j in queue.iter_jobs()) == sorted(j.id for j in expected.iter_jobs())
    assert len(queue.dlq) == 2
    assert queue.dlq.entries() == expected.dlq.entries()
    assert not queue.is_paused
    with pytest.raises(StorageError, match="push is not possible here"):
        queue.add("welcome")
    with pytest.raises(StorageError, match="read-only view"):
        Worker(queue, print)


def test_after_its_close_every_call_says_so(view: ReadonlyManager) -> None:
    jobs = view.iter_jobs("mail")
    job = next(jobs)
    assert view.close()
    assert view.close(timeout=0)
    assert "closed" in repr(view)
    calls: list[Callable[[], object]] = [
        lambda: view.counts(),
        lambda: view.queues(),
        lambda: view.get_job(job.id),
        lambda: view.get_job("\ud800"),
        lambda: view.get_jobs("mail"),
        lambda: view.iter_jobs("mail"),
        lambda: view.dlq_entries("mail"),
        lambda: view.known_queue("mail"),
        lambda: view.push("mail"),
        lambda: view.backend,
        lambda: job.refresh(),
    ]
    for call in calls:
        with pytest.raises(ManagerClosedError, match="view is closed"):
            call()


def test_it_says_what_it_is(view: ReadonlyManager, path: Path) -> None:
    assert repr(view) == f"<ReadonlyManager of {str(path)!r}, open>"


# -- whatever the owner does -----------------------------------------------------------------------


def test_it_sees_what_was_committed_and_nothing_else(path: Path) -> None:
    with driven(path) as drive:
        view = open_readonly(path)
        assert view.counts() == JobCounts()
        assert view.queues() == []
        drive.add("a")
        drive.add("b", admit=False)
        assert [job.id for job in view.get_jobs("emails")] == ["a"]
        drive.storage.step()
        drive.keep("queue", "silent", {"paused": True})
        assert view.counts().waiting == 2
        assert view.queues() == ["emails", "silent"]


def test_it_holds_nothing_that_the_owner_would_have_to_wait_for(path: Path) -> None:
    with driven(path) as drive:
        for i in range(5):
            drive.add(f"job-{i}", admit=False)
        drive.storage.step()
        view = open_readonly(path)
        view.counts()
        jobs = view.iter_jobs("emails")
        next(jobs)
        drive.add("more")
        assert drive.storage._session is not None
        assert checkpoint(drive.storage._session._committer.connection, patience_ms=1)
    assert names(path.parent) == ["jobs.db"]
    assert len(list(jobs)) == 4


def test_it_goes_on_when_the_owner_is_gone_and_makes_nothing_beside_the_file(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        view = open_readonly(path)
        assert view.counts().waiting == 1
    before = folder(path.parent)
    assert view.counts().waiting == 1
    assert open_readonly(str(path)).get_job("a") is not None
    assert folder(path.parent) == before
    with driven(path) as drive:
        drive.add("b")
        assert view.counts().waiting == 2


def test_it_shows_what_a_crash_left_in_the_log(path: Path, tmp_path: Path) -> None:
    with driven(path) as drive:
        drive.add("a", BIG, data=BIG)
        cut = crash_copy(path, tmp_path / "cut.db")
    assert os.path.getsize(f"{cut}-wal") > 0
    view = open_readonly(cut)
    job = view.get_job("a")
    assert job is not None
    assert job.return_value == BIG[1:-1].decode()
    # and leaves it to the next owner
    with driven(cut) as drive:
        assert not drive.clean
        assert drive.ids == ["a"]


@posix
def test_it_works_in_a_forked_child(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
    view = open_readonly(path)

    def look() -> None:
        assert view.counts().waiting == 1

    with neighbour(look):
        pass


OWNER = """
import sys
from bunqueue_py import SqliteStorage
from tests.unit.sqlite_marks import Driven
drive = Driven(SqliteStorage(sys.argv[1]), threaded=True)
for line in sys.stdin:
    drive.add(line.strip())
    drive.storage.flush()
    print("written", flush=True)
"""


@pytest.mark.slow
def test_it_sees_the_file_of_an_owner_in_another_process_and_of_one_that_was_killed(
    path: Path,
) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=environment,
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None

        def tell(job_id: str) -> None:
            assert owner.stdin is not None
            assert owner.stdout is not None
            print(job_id, file=owner.stdin, flush=True)
            assert owner.stdout.readline() == "written\n"

        tell("a")
        view = open_readonly(path)
        assert [job.id for job in view.get_jobs("emails")] == ["a"]
        tell("b")
        assert view.counts().waiting == 2
        with pytest.raises(StorageError, match=f"process {owner.pid}"):
            Driven(SqliteStorage(path))
        owner.kill()
        owner.wait()
        assert view.counts().waiting == 2
        assert [job.id for job in open_readonly(path).iter_jobs("emails")] == ["a", "b"]
    with driven(path) as drive:
        assert not drive.clean
        assert drive.ids == ["a", "b"]
    assert view.counts().waiting == 2


# -- which files -----------------------------------------------------------------------------------


def test_what_is_no_database_of_ours_is_refused_and_left_alone(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        open_readonly(path)
    with pytest.raises(StorageError, match="is no file"):
        open_readonly(tmp_path)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StorageError, match="another application"):
        open_readonly(foreign)
    make_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaVersionError, match="99"):
        open_readonly(path)
    assert names(path.parent) == ["jobs.db"]


@pytest.mark.parametrize("odd", ["", ":memory:", 5, None, "jobs/", "file:jobs.db"])
def test_an_odd_path_is_refused(odd: Any) -> None:
    with pytest.raises(ValidationError, match="path"):
        open_readonly(odd)


def test_a_relative_path_is_that_of_the_folder_of_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(path)
    monkeypatch.chdir(path.parent)
    view = open_readonly(b"jobs.db")
    monkeypatch.chdir("/")
    assert view.counts() == JobCounts()


# -- the serializer --------------------------------------------------------------------------------


def test_another_serializer_is_refused_if_one_is_named(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
    with pytest.raises(StorageError, match=r"serializer 'json', and 'pickle' cannot read"):
        open_readonly(path, PickleSerializer(allow_unsafe=True))
    assert open_readonly(path, JsonSerializer()).counts().waiting == 1
    with pytest.raises(ValidationError, match="serializer"):
        open_readonly(path, 5)  # type: ignore[arg-type]


def test_without_the_right_serializer_everything_is_shown_but_data_and_results(
    path: Path,
) -> None:
    pickled = PickleSerializer(allow_unsafe=True)
    with driven(path, serializer="pickle") as drive:
        drive.add("a", pickled.dumps({2j}), data=pickled.dumps({1j}))
    view = open_readonly(path)
    assert view.counts().completed == 1
    job = view.get_job("a")
    assert job is not None
    for look in (lambda: job.data, lambda: job.return_value):
        with pytest.raises(SerializationError, match=r"'pickle': give it to open_readonly"):
            look()
    job = open_readonly(path, pickled).get_job("a")
    assert job is not None
    assert (job.data, job.return_value) == ({1j}, {2j})


def test_data_and_results_that_cannot_be_decoded_say_whose_they_are(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a", b"{", data=b"[")
    for serializer in (None, _Brittle()):
        job = open_readonly(path, serializer).get_job("a")
        assert job is not None
        with pytest.raises(SerializationError):
            _ = job.data
        with pytest.raises(SerializationError):
            _ = job.return_value
    with pytest.raises(SerializationError, match="the result of job a cannot be decoded: KeyErr"):
        open_readonly(path, _Brittle()).get_result("a")


class _Brittle:
    name = "json"

    def dumps(self, value: object) -> bytes:
        return b""

    def loads(self, data: bytes) -> Any:
        raise KeyError(data)


# -- odd and damaged rows --------------------------------------------------------------------------

DAMAGE = [
    "UPDATE jobs SET meta = 'no JSON' WHERE id = 'b'",
    "UPDATE jobs SET meta = CAST(x'5bff5d' AS TEXT) WHERE id = 'b'",
    "UPDATE jobs SET meta = '[' || meta WHERE id = 'b'",
    "UPDATE jobs SET seq = 'x' WHERE id = 'b'",
]


def damaged(path: Path, damage: str, **settings: Any) -> ReadonlyManager:
    with driven(path) as drive:
        for job_id in ("a", "b", "c"):
            drive.add(job_id, **settings)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage)
        connection.commit()
    return open_readonly(path)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_left_out_and_told(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    view = damaged(path, damage)
    assert sorted(job.id for job in view.get_jobs("emails")) == ["a", "c"]
    assert sorted(job.id for job in view.iter_jobs("emails")) == ["a", "c"]
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 2
    assert all("job 'b' cannot be understood" in text and "left out" in text for text in told)
    with pytest.raises(StorageError, match="job 'b' cannot be understood"):
        view.get_job("b")
    assert view.get_job("a") is not None
    assert view.counts().waiting == 3
    assert view.get_job(queue="emails", custom_id="x") is None


def test_a_missing_payload_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    view = damaged(path, "DELETE FROM payloads WHERE id = 'b'", data=BIG)
    assert [job.id for job in view.get_jobs("emails")] == ["a", "c"]
    assert "the payload of job 'b' is missing" in caplog.text
    jobs = view.get_jobs("emails", with_data=False)
    assert [job.id for job in jobs] == ["a", "b", "c"]
    with pytest.raises(StorageError, match="payload of job 'b' is missing"):
        _ = jobs[1].data


def test_a_missing_result_has_made_room(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a", BIG)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM results")
        connection.commit()
    with pytest.raises(ResultExpiredError, match="job a"):
        open_readonly(path).get_result("a")


def test_a_damaged_id_does_not_end_a_walk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_py.readonly._PAGE", 2)
    view = damaged(path, "UPDATE jobs SET id = CAST(x'62ff' AS TEXT) WHERE id = 'b'")
    assert [job.id for job in view.iter_jobs("emails")] == ["a", "c"]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET id = CAST(id || x'ff' AS TEXT)")
        connection.commit()
    assert list(view.iter_jobs("emails")) == []


def test_dead_letters_come_in_the_order_in_which_they_failed(path: Path) -> None:
    with driven(path) as drive:
        for job_id, at in (("a", 3), ("b", 1), ("c", 2)):
            drive.add(record(job_id, state=FAILED, at=at))
    assert [entry.job.id for entry in open_readonly(path).dlq_entries("emails")] == ["b", "c", "a"]


def test_a_dead_letter_of_which_little_is_known_is_shown(path: Path) -> None:
    with driven(path) as drive:
        drive.add(record("a", state=FAILED))
    view = open_readonly(path)
    (entry,) = view.dlq_entries("emails")
    assert (entry.reason, entry.error, entry.attempts) == ("unknown", "", [])
    assert entry.entered_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert view.dlq_stats("emails").by_reason == {"unknown": 1}


def test_a_damaged_dead_letter_is_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with driven(path) as drive:
        for job_id in ("a", "b", "c"):
            drive.add(record(job_id, state=FAILED))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(DAMAGE[0])
        connection.commit()
    view = open_readonly(path)
    assert [entry.job.id for entry in view.dlq_entries("emails")] == ["a", "c"]
    assert [entry.job.id for entry in view.dlq_entries("emails", offset=1)] == ["c"]
    assert view.dlq_stats("emails").total == 2
    assert "left out" in caplog.text


def test_settings_that_cannot_be_understood_are_passed_over(path: Path) -> None:
    with driven(path) as drive:
        drive.add("a")
        for queue in ("broken", "list", "text", "paused"):
            drive.keep("queue", queue, {"paused": True})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE rest SET body = '[' WHERE key = 'broken'")
        connection.execute("UPDATE rest SET body = '[1]' WHERE key = 'list'")
        connection.execute("UPDATE rest SET body = CAST(x'22ff22' AS TEXT) WHERE key = 'text'")
        connection.commit()
    view = open_readonly(path)
    assert view.queues() == ["emails", "paused"]
    assert view.counts() == JobCounts(waiting=1)


def test_a_gated_job_waits_for_its_children(path: Path) -> None:
    with driven(path) as drive:
        drive.add(record("a", state=GATED))
        view = open_readonly(path)
        assert view.get_state("a") is JobState.WAITING_CHILDREN
        assert view.counts().waiting_children == 1


def test_a_timeline_is_shown_as_far_as_it_was_kept(path: Path) -> None:
    with driven(path) as drive:
        made = record("a")
        for i in range(30):
            made.options = Options(max_timeline=100)
            made.reschedule(i + 2000, i + 2000, f"step {i}")
        drive.add(made)
        job = open_readonly(path).get_job("a")
    assert job is not None
    assert [entry.state for entry in job.timeline][-30:] == [f"step {i}" for i in range(30)]


def test_delays_are_judged_by_the_time_of_now(path: Path, clock: VirtualClock) -> None:
    with driven(path) as drive:
        made = record("a")
        made.run_at_ms = clock.timeline_ms() + 1000
        drive.add(made)
        view = open_readonly(path, clock=clock)
        assert view.get_state("a") is JobState.DELAYED
        clock.advance(seconds=1)
        assert view.get_state("a") is JobState.WAITING
        assert view.now == clock.now
        real = open_readonly(path)
        assert abs(real.now - datetime(2030, 1, 1, tzinfo=timezone.utc)) > timedelta(days=1)
    assert found_in(path) == ["a"]
