"""Failure on demand: errors, lost locks, lost workers, crashes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BunqueueError,
    JobNotFoundError,
    JobStateError,
    LockError,
    QueueManager,
    SqliteStorage,
    StorageLockedError,
    UnrecoverableError,
    ValidationError,
)
from bunqueue_py.testing import CrashReport, Harness, hang
from tests.storage_check import check_storage

Make = Callable[..., Harness]
ONCE = Backoff.fixed(10, jitter=0)


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a harness on memory, or on a file."""
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    return lambda **options: Harness(storage, **options)


# -- errors ----------------------------------------------------------------------------------------


def test_the_next_runs_of_a_queue_fail_and_the_handler_is_not_called(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        ran: list[int] = []
        h.worker(q, lambda job: ran.append(job.attempt))
        h.worker("other", lambda job: ran.append(100))
        h.fail_next(q, ConnectionError("down"), times=2)
        job = q.add("a", backoff=ONCE)
        h.queue("other").add("b")
        h.drain()
        assert ran == [100, 3]
        assert job.refresh().attempts_made == 2
        assert [event.error for event in h.timeline(job) if event.type == "failed"] == [
            "ConnectionError: down",
            "ConnectionError: down",
        ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("the disk is full", "RuntimeError: the disk is full"),
        (KeyError, "KeyError"),
        (ValueError("no"), "ValueError: no"),
    ],
)
def test_errors_may_be_text_classes_or_instances(error: Any, text: str) -> None:
    with Harness() as h:
        h.worker("q", lambda job: None)
        h.fail_next("q", error)
        job = h.queue("q").add("a", attempts=1)
        h.run_until_idle()
        assert job.refresh().error == text


def test_an_unrecoverable_error_ends_the_job_at_once() -> None:
    with Harness() as h:
        h.worker("q", lambda job: None)
        h.fail_next("q", UnrecoverableError("gone"))
        job = h.queue("q").add("a")
        h.run_until_idle()
        h.assert_failed(job, "unrecoverable")


@pytest.mark.parametrize("error", [3, None, int, object()])
def test_what_is_no_error_is_refused(error: Any) -> None:
    with Harness() as h, pytest.raises(ValidationError, match="exception or text"):
        h.fail_next("q", error)


@pytest.mark.parametrize("times", [0, -1, 1.5, True])
def test_a_wrong_number_of_times_is_refused(times: Any) -> None:
    with Harness() as h, pytest.raises(ValidationError, match="times"):
        h.fail_next("q", "no", times=times)


# -- locks -----------------------------------------------------------------------------------------


def test_an_expired_lock_charges_an_attempt_and_the_job_runs_again(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        h.worker(q, lambda job: hang() if job.attempt == 1 else "done", concurrency=2)
        job = q.add("a", backoff=ONCE)
        h.run_until_idle()
        h.expire_lock(job)
        assert job.refresh().state == "delayed"
        assert (job.attempts_made, job.stall_count) == (1, 1)
        assert "no heartbeat for 30 s" in (job.error or "")
        h.advance(seconds=10)
        assert job.result(timeout=0) == "done"


def test_a_handler_that_has_lost_its_lock_finds_out(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        seen: list[Any] = []

        def work(job: Any) -> str:
            if job.attempt == 1:
                h.expire_lock(job)
                with pytest.raises(LockError):
                    job.update_progress(50)
                seen.append(job.extend_lock(30))
            return f"run {job.attempt}"

        h.worker(q, work)
        job = q.add("a")
        h.run_until_idle()
        assert seen == [False]
        # the work was done: a late ack completes it, and it does not run twice
        assert job.result(timeout=0) == "run 1"
        assert h.drain().runs == 0


def test_the_lock_of_a_job_pulled_by_hand_expires_too() -> None:
    with Harness() as h:
        q = h.queue("q")
        q.add("a", backoff=ONCE)
        held = h.manager.pull(q, lock_duration=3600)
        assert held is not None
        h.expire_lock(held.id)
        assert held.refresh().state == "delayed"


def test_a_lock_that_is_not_there_cannot_expire() -> None:
    with Harness() as h:
        q = h.queue("q")
        job = q.add("a", delay=5)
        with pytest.raises(JobStateError, match=r"is delayed, due in 0:00:05: only an active job"):
            h.expire_lock(job)
        q.promote(job)
        assert h.manager.pull(q, lock_duration=None) is not None
        with pytest.raises(JobStateError, match="without a lock"):
            h.expire_lock(job)
        with pytest.raises(JobNotFoundError):
            h.expire_lock("no such id")
        with pytest.raises(ValidationError):
            h.expire_lock(7)  # type: ignore[arg-type]
        h.manager._state.shards.shards[0].deadlines.check()


# -- lost workers ----------------------------------------------------------------------------------


def test_the_jobs_of_a_lost_worker_run_elsewhere_when_their_locks_run_out(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        lost = h.worker(q, lambda job: h.hang(), concurrency=2)
        jobs = q.add_bulk([("a", 1), ("a", 2), ("a", 3)])
        h.run_until_idle()
        h.lose_worker(lost)
        h.worker(q, lambda job: job.data)
        h.advance(seconds=29)
        assert [job.refresh().state for job in jobs] == ["active", "active", "completed"]
        h.advance(seconds=1)
        assert jobs[0].refresh().stall_count == 1
        h.drain()
        assert [job.result(timeout=0) for job in jobs] == [1, 2, 3]
        assert lost.is_closed
        assert lost.close() is True


def test_what_a_lost_workers_handler_still_does_never_arrives(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        done: list[int] = []

        def work(job: Any) -> Any:
            done.append(job.attempt)
            if job.attempt == 1:
                h.lose_worker(first)
                if job.name == "raises":
                    raise OSError("nobody hears of it")
            return "result"

        for name in ("returns", "raises"):
            first = h.worker(q, work)
            job = q.add(name)
            h.run_until_idle()
            assert job.refresh().state == "active"
            assert job.error is None
            h.worker(q, work)
            h.drain()
            assert job.refresh().attempts_made == 1
            assert job.return_value == "result"
            first = h.manager.backend.attached()[0]  # type: ignore[attr-defined]
            first.close()
        assert done == [1, 2, 1, 2]


def test_a_lost_worker_no_longer_bounds_its_groups() -> None:
    with Harness() as h:
        q = h.queue("q")
        lost = h.worker(q, lambda job: hang(), group_concurrency=1, concurrency=3)
        q.add("a", 1, group="g")
        q.add("a", 2, group="g")
        h.run_until_idle()
        assert q.counts().active == 1
        h.lose_worker(lost)
        h.worker(q, lambda job: None)
        h.run_until_idle()
        assert q.counts().completed == 1


def test_only_a_worker_that_runs_here_can_be_lost() -> None:
    with Harness() as h, Harness() as other:
        worker = h.worker("q", lambda job: None)
        with pytest.raises(ValidationError, match="runs in this harness"):
            other.lose_worker(worker)
        worker.close()
        with pytest.raises(ValidationError, match="runs in this harness"):
            h.lose_worker(worker)


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_in_the_middle_of_a_run_charges_it_and_the_job_runs_again(tmp_path: Path) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        orders = h.queue("orders")
        done: list[str] = []

        def pay(job: Any) -> Any:
            done.append(f"{job.name} {job.attempt}")
            if job.name == "pay" and job.attempt == 1:
                return hang()  # the process will die here
            return "done"

        h.worker(orders, pay)
        job, later = orders.add("pay", {"order": 7}), orders.add("late", delay=3600)
        finished = orders.add("soon", priority=9)
        orders.add("gone", priority=9, remove_on_complete=True)
        h.run_until_idle()
        report = h.crash_and_restart()
        assert set(report.kept) == {job.id, later.id, finished.id}
        assert report.lost == []
        assert "jobs that are back: 3" in str(report)
        assert job.refresh().attempts_made == job.stall_count == 1
        assert job.data == {"order": 7}
        h.drain()
        assert done == ["soon 1", "gone 1", "pay 1", "pay 2", "late 1"]
        assert job.result(timeout=0) == "done"
        check_storage(h.manager, str(tmp_path / "jobs.db"))


def test_a_crash_leaves_the_file_as_of_the_last_commit(tmp_path: Path) -> None:
    """What is in memory alone at the crash is not written by it."""
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        q = h.queue("q")
        kept = q.add("kept", durable=True)
        record = h.manager._state.index[kept.id]
        record.attempts_made = 2  # memory that was never marked
        closed: list[str] = []
        worker = h.worker(q, lambda job: None)
        worker.on("error", lambda error: closed.append("closed"))
        assert h.crash_and_restart().kept == [kept.id]
        assert kept.refresh().attempts_made == 0
        assert closed == []
        # not a close in good order: the file was checked, and a run is charged when it was lost
        assert h.manager._state.shards.shards[0].careful_ms > 0


def test_a_crash_frees_the_file_for_good(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Harness(SqliteStorage(path)) as h:
        job = h.queue("q").add("a", [1])
        h.crash_and_restart()
        h.crash_and_restart()
        with pytest.raises(StorageLockedError):
            QueueManager(path)
    with QueueManager(path, background=False) as manager:
        assert manager.get_job(job.id).data == [1]
        assert manager.verify().ok


def test_finished_jobs_results_and_limits_survive_a_crash(tmp_path: Path) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        q = h.queue("q")

        def work(job: Any) -> Any:
            if job.name == "bad":
                raise UnrecoverableError("no")
            return {"n": job.data}

        h.worker(q, work)
        good, bad = q.add("good", 3), q.add("bad")
        h.run_until_idle()
        q.pause()
        h.crash_and_restart()
        assert good.result(timeout=0) == {"n": 3}
        h.assert_completed(good)
        h.assert_failed(bad, "unrecoverable")
        assert q.is_paused
        assert len(q.dlq) == 1
        waiting = q.add("good", 4)
        assert h.drain().waits == [waiting]
        q.resume()
        h.drain()
        assert waiting.result(timeout=0) == {"n": 4}


def test_ids_go_on_after_a_crash(make: Make) -> None:
    with make() as h:
        before = h.queue("q").add("a")
        h.crash_and_restart()
        assert h.queue("q").add("a").id > before.id


def test_workers_come_back_with_their_handlers_and_listeners(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        told: list[Any] = []
        worker = h.worker(q, lambda job: job.data, name="w", concurrency=2)
        worker.on("completed", lambda job, result: told.append(result))
        lost = h.worker(q, lambda job: hang())
        closed = h.worker(q, lambda job: told.append("closed"))
        closed.close()
        h.lose_worker(lost)
        h.crash_and_restart()
        assert worker.is_running
        assert lost.is_running
        assert not closed.is_running
        lost.close()
        q.add("a", 5)
        h.run_until_idle()
        assert told == [5]


def test_a_crash_in_memory_loses_all_and_says_so() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        done = q.add("a")
        h.run_until_idle()
        job = q.add("b", delay=5)
        h.advance(seconds=1)
        report = h.crash_and_restart()
        assert report == CrashReport([], [job.id], True)
        assert "keeps everything in memory" in str(report)
        assert q.counts().total == 0
        with pytest.raises(AssertionError, match=r"is gone(.|\n)*dropped(.|\n)*Harness\(path"):
            h.assert_completed(job)
        h.assert_completed(done)  # it had, before
        h.advance(hours=1)
        assert h.now.hour == 1
        assert h.added(q) == [done, job]


def test_events_go_on_over_a_crash(tmp_path: Path) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        q = h.queue("q")
        job = q.add("a", delay=60)
        h.crash_and_restart()
        h.worker(q, lambda job: None)
        h.drain()
        assert [e.type for e in h.timeline(job)] == ["pushed", "active", "completed"]


def test_a_handler_cannot_crash_its_own_process_and_go_on() -> None:
    with Harness() as h:
        h.worker("q", lambda job: h.crash_and_restart())
        h.queue("q").add("a", attempts=1)
        with pytest.raises(BunqueueError, match=r"return hang\(\)"):
            h.drain()
        h.manager.events.subscribe(lambda event: h.crash_and_restart())
        h.queue("q").pause()
        h.run_until_idle()  # a listener's error is logged, and nothing has crashed
        assert h.queue("q").is_paused


def test_a_job_that_kills_its_process_every_time_ends_among_the_dead_letters(
    tmp_path: Path,
) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        q = h.queue("q")
        h.worker(q, lambda job: hang())
        job = q.add("bomb", attempts=3, backoff=ONCE)
        for _ in range(3):
            h.advance(seconds=10)
            h.crash_and_restart()
        h.assert_failed(job, "worker_lost")


def test_a_waiting_time_is_counted_over_a_crash(tmp_path: Path) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        q = h.queue("q")
        h.worker(q, lambda job: job.now)
        job = q.add("a", delay=timedelta(days=2))
        h.advance(days=1)
        h.crash_and_restart()
        h.advance(hours=23)
        assert job.refresh().state == "delayed"
        h.advance(hours=1)
        assert job.result(timeout=0) == h.now
