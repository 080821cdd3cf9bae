"""The logs of jobs: levels, bounds, paging, tokens; and that they go where their jobs go."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue_py import (
    Job,
    JobNotFoundError,
    LockError,
    ManagerConfig,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops.query import check
from bunqueue_py.stores.logs import LogStore
from bunqueue_py.testing import SeededIds, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, _ids=SeededIds()) as manager:
        yield manager
        check(manager._state)
        manager._state.logs.check()


def held(manager: QueueManager, **options: object) -> Job:
    manager.push("q", **options)  # type: ignore[arg-type]
    job = manager.pull("q")
    assert job is not None
    return job


def texts(job: Job, offset: int = 0, limit: int = 100) -> list[str]:
    return [entry.text for entry in job.logs(offset, limit).entries]


def test_a_handlers_lines_are_read_in_order_with_level_and_time(
    manager: QueueManager, clock: VirtualClock
) -> None:
    job = held(manager)
    job.log("begun")
    clock.advance(seconds=2)
    job.log("odd", level="warning")
    page = Queue("q", manager).logs(job.id)
    assert page.total == 2
    assert [(e.level, e.text) for e in page.entries] == [("info", "begun"), ("warning", "odd")]
    assert (page.entries[1].at - page.entries[0].at).total_seconds() == 2
    assert job.logs() == page


def test_only_the_newest_hundred_lines_are_kept_and_all_are_counted(manager: QueueManager) -> None:
    """B128, in small."""
    job = held(manager)
    for n in range(250):
        job.log(f"line {n}")
    page = job.logs(limit=1000)
    assert page.total == 250
    assert [e.text for e in page.entries] == [f"line {n}" for n in range(150, 250)]
    assert texts(job, 98, 5) == ["line 248", "line 249"]
    assert texts(job, 100) == []


def test_the_log_goes_on_over_retries(manager: QueueManager, clock: VirtualClock) -> None:
    job = held(manager, attempts=100, backoff=1)
    for n in range(50):
        job.log(f"run {n}")
        manager.fail(job, "no")
        clock.advance(hours=2)
        again = manager.pull("q")
        assert again is not None
        job = again
    assert (job.logs().total, texts(job)[-1]) == (50, "run 49")


@pytest.mark.parametrize("level", ["", "fatal", None, 3, "INFO"])
def test_an_unknown_level_is_refused(manager: QueueManager, level: object) -> None:
    job = held(manager)
    with pytest.raises(ValidationError, match="level must be among debug, info"):
        job.log("x", level=level)  # type: ignore[arg-type]
    assert job.logs().total == 0


def test_a_line_is_bounded_and_what_is_no_text_is_escaped_or_refused(
    manager: QueueManager,
) -> None:
    """B071: a lone surrogate in a log line."""
    job = held(manager)
    job.log("x" * 50_000)
    job.log("\ud83d\0\n")
    long, odd = job.logs().entries
    assert len(long.text) <= 10_000
    assert odd.text == "\\ud83d\0\n"
    with pytest.raises(ValidationError, match="text must be text"):
        job.log(b"bytes")  # type: ignore[arg-type]


def test_only_the_run_under_way_may_write(manager: QueueManager, clock: VirtualClock) -> None:
    late = held(manager, backoff=1)
    clock.advance(seconds=31)
    manager.run_pending()
    with pytest.raises(LockError, match="lost its lock"):
        late.log("too late")
    clock.advance(seconds=60)
    job = manager.pull("q")
    assert job is not None
    with pytest.raises(LockError, match="lost its lock"):
        late.log("too late")
    job.log("in time")
    looked_up = manager.get_job(job.id)
    assert looked_up is not None
    with pytest.raises(LockError, match="missing or was never issued"):
        looked_up.log("from outside")
    manager.add_log(job.id, "by its token", token=job.token)
    manager.ack(job)
    with pytest.raises(LockError):
        job.log("after the end")
    assert texts(job) == ["in time", "by its token"]
    with pytest.raises(JobNotFoundError):
        manager.add_log("no such job", "x", token="t")


def test_a_log_stays_with_a_finished_job_and_leaves_with_it(manager: QueueManager) -> None:
    kept, gone = held(manager), held(manager, remove_on_complete=True)
    for job in (kept, gone):
        job.log("x")
        manager.ack(job)
    assert texts(kept) == ["x"]
    assert texts(gone) == []
    manager.clean("q", 0, state="completed")
    assert texts(kept) == []
    assert len(manager._state.logs) == manager._state.logs.size == 0


def test_what_makes_room_for_others_takes_its_log_along(clock: VirtualClock) -> None:
    config = ManagerConfig(keep_completed=2)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        jobs = []
        for n in range(6):
            jobs.append(held(manager))
            jobs[-1].log(str(n))
            manager.ack(jobs[-1])
        assert len(manager._state.logs) == len(manager._state.index)
        assert texts(jobs[-1]) == ["5"]


def test_the_jobs_that_wrote_last_keep_their_logs(clock: VirtualClock) -> None:
    config = ManagerConfig(keep_logs_jobs=2)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        a, b, c = held(manager), held(manager), held(manager)
        a.log("a")
        b.log("b")
        a.log("a again")
        c.log("c")
        assert [texts(job) for job in (a, b, c)] == [["a", "a again"], [], ["c"]]
        b.log("b anew")
        assert [texts(job) for job in (a, b, c)] == [[], ["b anew"], ["c"]]


def test_a_log_may_be_kept_of_no_job(clock: VirtualClock) -> None:
    config = ManagerConfig(keep_logs_jobs=0)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        job = held(manager)
        job.log("x")
        assert job.logs() == ([], 0)


def test_bytes_of_logs_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_py.stores.logs.MAX_BYTES", 10_000)
    store = LogStore(100)
    for n in range(50):
        store.add(f"job {n}", "info", n, "x" * 1000)
        store.check()
        assert store.size <= 11_000
    assert len(store) == 9


def test_logs_survive_a_restart_and_go_on(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False) as manager:
        job, other = held(manager, attempts=5), held(manager)
        for n in range(130):
            job.log(f"line {n}")
        other.log("short", level="error")
        manager.fail(other, "no", unrecoverable=True)
    for _ in range(2):
        with QueueManager(path, clock=clock, background=False) as manager:
            page = manager.job_logs(job)
            assert page.total == 130
            assert [e.text for e in page.entries] == [f"line {n}" for n in range(30, 130)]
            assert manager.job_logs(other).entries[0].level == "error"
            manager._state.logs.check()
    with QueueManager(path, clock=clock, background=False) as manager:
        again = manager.pull("q")
        assert again is not None
        again.log("more")
        assert manager.job_logs(job).total == 131
        manager.ack(again)
        manager.obliterate("q")
    with QueueManager(path, clock=clock, background=False) as manager:
        assert len(manager._state.logs) == 0


def test_a_smaller_bound_takes_logs_out_of_the_file_too(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False) as manager:
        jobs = [held(manager) for _ in range(3)]
        for job in jobs:
            job.log("x")
            job.log("y")
            clock.advance(seconds=1)
    for bound in (1, 10):
        config = ManagerConfig(keep_logs_jobs=bound)
        with QueueManager(path, clock=clock, background=False, config=config) as manager:
            assert [manager.job_logs(job).total for job in jobs] == [0, 0, 2]


def test_what_made_room_in_memory_leaves_the_file(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "jobs.db"
    config = ManagerConfig(keep_logs_jobs=1)
    with QueueManager(path, clock=clock, background=False, config=config) as manager:
        a, b = held(manager), held(manager)
        for _ in range(3):
            a.log("a")
        manager.flush()
        b.log("b")
        a.log("a anew")
    with QueueManager(path, clock=clock, background=False) as manager:
        assert manager.job_logs(a).total == 1
        assert manager.job_logs(b).total == 0


def test_damaged_lines_in_a_file_are_passed_over(tmp_path: Path, clock: VirtualClock) -> None:
    import sqlite3

    path = tmp_path / "jobs.db"
    with QueueManager(path, clock=clock, background=False) as manager:
        job = held(manager)
        job.log("kept")
    with sqlite3.connect(path) as connection:
        for i, body in enumerate(("[]", "{}", '[-1,"info",0,""]', '[5,"loud",0,""]', "[5,1,2,3]")):
            row = (f"{job.id}\0{i + 50}", body)
            connection.execute("INSERT INTO rest VALUES ('log', ?, ?)", row)
    connection.close()
    with QueueManager(path, clock=clock, background=False) as manager:
        assert [e.text for e in manager.job_logs(job).entries] == ["kept"]


def test_offset_and_limit_are_checked(manager: QueueManager) -> None:
    job = held(manager)
    with pytest.raises(ValidationError, match="offset"):
        job.logs(-1)
    with pytest.raises(ValidationError, match="limit"):
        Queue("q", manager).logs(job, 0, -1)


@pytest.mark.slow
def test_a_million_long_lines_of_one_job_take_no_more_room_than_a_hundred(
    manager: QueueManager,
) -> None:
    """B128."""
    import os

    job = held(manager)
    lines = 100_000 if os.environ.get("BUNQUEUE_SLOW") == "short" else 1_000_000
    line = "x" * 1024
    for _ in range(lines):
        job.log(line)
    assert (len(job.logs(limit=1000).entries), job.logs().total) == (100, lines)
    assert manager._state.logs.size < 120_000
