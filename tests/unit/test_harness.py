"""The harness: the engine on a clock that a test owns, one thing after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BunqueueError,
    Deduplication,
    JobFailedError,
    JobSpec,
    KeepJobs,
    ManagerClosedError,
    Queue,
    QueueManager,
    RateLimit,
    SerializationError,
    UnrecoverableError,
    Worker,
)
from bunqueue_py.testing import Harness, RunReport, hang
from bunqueue_py.testing.stage import Stage

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
Make = Callable[..., Harness]
ONCE = Backoff.fixed(10, jitter=0)


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a harness on memory, or on a file of its own."""
    made = iter(range(100))

    def on(**options: Any) -> Harness:
        storage = None if request.param == "memory" else tmp_path / f"jobs-{next(made)}.db"
        return Harness(storage, **options)

    return on


def seconds(h: Harness, moment: datetime | None = None) -> float:
    """How long after the start the harness, or the moment, is."""
    return ((moment or h.now) - START).total_seconds()


# -- time ------------------------------------------------------------------------------------------


def test_a_reminder_comes_after_three_days_and_not_before(make: Make) -> None:
    with make() as h:
        reminders = h.queue("reminders")
        sent: list[Any] = []
        h.worker(reminders, lambda job: sent.append(job.data))
        reminders.add("nudge", {"id": 1}, delay=timedelta(days=3))
        h.advance(days=2, hours=23)
        assert sent == []
        h.advance(hours=2)
        assert sent == [{"id": 1}]


def test_everything_on_the_way_fires_at_its_own_moment_and_in_order(make: Make) -> None:
    """Timers of different kinds, and those that earlier firings set."""
    with make() as h:
        mail, calls = h.queue("mail"), h.queue("calls")
        seen: list[tuple[float, Any]] = []

        def send(job: Any) -> None:
            seen.append((seconds(h, job.now), job.name))
            if job.name == "first":
                mail.add("second", delay=5)
                calls.add("ring", attempts=2, backoff=Backoff.fixed(3, jitter=0))

        def ring(job: Any) -> None:
            seen.append((seconds(h, job.now), f"ring {job.attempt}"))
            if job.attempt == 1:
                raise ConnectionError("busy")

        h.worker(mail, send)
        h.worker(calls, ring)
        offer = h.queue("offers").add("offer", ttl=12)
        mail.add("last", delay=20)
        mail.add("first", delay=10)
        h.advance(seconds=60)
        assert seen == [
            (10, "first"),
            (10, "ring 1"),
            (13, "ring 2"),
            (15, "second"),
            (20, "last"),
        ]
        h.assert_failed(offer, "ttl_expired")
        assert seconds(h, offer.refresh().finished_at) == 12
        assert h.now == START + timedelta(seconds=60)


def test_advance_takes_a_moment_too(make: Make) -> None:
    with make() as h:
        job = h.queue("mail").add("a", delay=timedelta(days=400))
        h.worker("mail", lambda job: job.now)
        h.advance(to=START + timedelta(days=400) - timedelta(milliseconds=1))
        assert job.refresh().state == "delayed"
        h.advance(to=START + timedelta(days=400))
        assert job.result(timeout=0) == START + timedelta(days=400)


def test_a_clock_starts_where_it_is_told() -> None:
    start = datetime(1999, 12, 31, 23, tzinfo=timezone(timedelta(hours=2)))
    with Harness(start=start) as h:
        assert h.now == start
        job = h.queue("q").add("a")
        assert job.created_at == start


def test_a_timeout_takes_the_job_from_a_handler_that_never_ends(make: Make) -> None:
    with make() as h:
        q = h.queue("reports")
        h.worker(q, lambda job: hang() if job.attempt == 1 else "done", concurrency=2)
        job = q.add("a", timeout=30, attempts=2, backoff=ONCE)
        h.advance(seconds=29)
        assert job.refresh().state == "active"
        h.advance(seconds=1)
        assert job.refresh().state == "delayed"
        assert "timeout" in (job.error or "")
        h.advance(seconds=10)
        h.assert_completed(job)


def test_a_handler_that_never_ends_keeps_its_slot_for_ever(make: Make) -> None:
    """As a thread would stay in it, and the beat renew its lock."""
    with make() as h:
        q = h.queue("reports")
        h.worker(q, lambda job: hang() if job.name == "a" else "done")
        stuck, next_one = q.add("a"), q.add("b")
        h.advance(hours=2)
        assert stuck.refresh().state == "active"
        assert stuck.stall_count == 0
        assert next_one.refresh().state == "waiting"
        with pytest.raises(AssertionError, match=r"Every slot .* taken, by the handlers of 'a'"):
            h.assert_completed(next_one)


def test_advance_within_a_handler_is_how_long_it_takes(make: Make) -> None:
    """Heartbeats, timeouts and other workers go on meanwhile."""
    with make() as h:
        slow, fast = h.queue("slow"), h.queue("fast")
        seen: list[Any] = []

        def work(job: Any) -> str:
            fast.add("b", delay=40)
            h.advance(seconds=100)
            job.update_progress(50)
            return "worked"

        h.worker(slow, work, lock_duration=30)
        h.worker(fast, lambda job: seen.append(seconds(h, job.now)))
        job = slow.add("a")
        h.run_until_idle()
        assert seen == [40]
        assert job.result(timeout=0) == "worked"
        assert job.refresh().stall_count == 0
        assert seconds(h, job.finished_at) == 100
        late = slow.add("a", timeout=60, attempts=1)
        h.run_until_idle()
        h.assert_failed(late, "timeout")


def test_a_rate_limit_lets_jobs_start_at_exact_moments(make: Make) -> None:
    with make() as h:
        q = h.queue("import")
        q.limits.set_rate_limit(2, per=60)
        starts: list[float] = []
        h.worker(q, lambda job: starts.append(seconds(h, job.now)))
        q.add_bulk([("row", i) for i in range(5)])
        h.drain()
        assert starts == [0, 0, 60, 60, 120]


@pytest.mark.parametrize("delay", [0, 5])
def test_a_workers_own_rate_limit_is_kept_too(delay: float) -> None:
    with Harness() as h:
        q = h.queue("import")
        starts: list[float] = []
        h.worker(q, lambda job: starts.append(seconds(h, job.now)), rate_limit=RateLimit(1, 60))
        for i in range(3):
            q.add("row", i, delay=delay)
        h.advance(seconds=300)
        assert starts == [delay, 60 + delay, 120 + delay]


def test_a_job_that_comes_due_while_its_workers_rate_is_used_up_starts_when_there_is_room() -> None:
    with Harness() as h:
        q = h.queue("import")
        starts: list[float] = []
        h.worker(q, lambda job: starts.append(seconds(h, job.now)), rate_limit=RateLimit(1, 60))
        q.add("row")
        q.add("row", delay=30)
        h.drain()
        assert starts == [0, 60]


def test_more_deadlines_than_one_pass_takes_are_all_judged_at_their_moment() -> None:
    with Harness() as h:
        jobs = h.queue("offers").add_bulk([JobSpec("offer", ttl=60) for _ in range(1100)])
        told: list[Any] = []
        h.manager.events.subscribe(told.append, types="failed")
        h.advance(seconds=60)
        assert {seconds(h, job.refresh().finished_at) for job in jobs} == {60}
        assert len(told) == 1100


def test_what_a_sweep_has_done_is_on_disk(tmp_path: Path) -> None:
    with Harness(tmp_path / "jobs.db") as h:
        h.queue("offers").add("offer", ttl=60)
        h.advance(seconds=60)
        with QueueManager.open_readonly(tmp_path / "jobs.db") as view:
            assert view.counts("offers").failed == 1


def test_more_jobs_than_one_bite_that_come_due_at_once_wait_for_their_limit() -> None:
    with Harness() as h:
        q = h.queue("import")
        q.limits.set_rate_limit(300, per=60)
        starts: list[float] = []
        h.worker(q, lambda job: starts.append(seconds(h, job.now)))
        for i in range(600):
            q.add("row", i, delay=5)
        h.advance(seconds=300)
        assert starts == [5.0] * 300 + [65.0] * 300


def test_concurrency_and_groups_hold_with_handlers_that_never_end() -> None:
    with Harness() as h:
        q = h.queue("q")
        q.limits.set_concurrency(2)
        h.worker(q, lambda job: hang(), concurrency=5)
        for i in range(4):
            q.add("a", i, timeout=60, attempts=1)
        h.run_until_idle()
        assert q.counts().active == 2
        h.advance(seconds=60)
        assert (q.counts().active, q.counts().failed) == (2, 2)


def test_deduplication_and_its_time_work_as_ever() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        key = Deduplication("k", ttl=60, hold="ttl")
        assert not q.add("a", deduplication=key).duplicate
        h.advance(seconds=59)
        assert q.add("a", deduplication=key).duplicate
        h.advance(seconds=1)
        assert not q.add("a", deduplication=key).duplicate
        assert len(h.added(q)) == 2


def test_the_wall_clock_jumps_alone(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        h.worker(q, lambda job: job.now)
        anchored = q.add("a", run_at=START + timedelta(hours=5))
        delayed = q.add("b", delay=3600)
        h.set_wall_clock(START + timedelta(hours=6))
        assert h.now == START
        h.run_until_idle()
        assert anchored.result(timeout=0) == START
        assert delayed.refresh().state == "delayed"
        h.set_wall_clock(START - timedelta(days=1))
        back = q.add("c", run_at=START)
        h.advance(hours=23)
        assert delayed.refresh().state == "completed"
        assert back.refresh().state == "delayed"
        h.advance(hours=1)
        assert back.refresh().state == "completed"


def test_a_stop_costs_the_same_however_far_away_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(delay: float) -> int:
        seen = 0
        settle = Stage.settle

        def counted(*args: Any, **options: Any) -> int:
            nonlocal seen
            seen += 1
            return settle(*args, **options)

        monkeypatch.setattr(Stage, "settle", counted)
        with Harness() as h:
            h.worker("q", lambda job: None)
            h.queue("q").add("a", delay=delay)
            h.advance(seconds=delay)
        monkeypatch.setattr(Stage, "settle", settle)
        return seen

    assert stops(1) == stops(365 * 86_400) == 2


def test_jobs_over_a_day_cost_a_stop_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second stop for a lock that ended, or a beat that has nothing to do."""
    stops = 0
    settle = Stage.settle

    def counted(*args: Any, **options: Any) -> int:
        nonlocal stops
        stops += 1
        return settle(*args, **options)

    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        for i in range(200):
            q.add("a", i, delay=i * 400)
        monkeypatch.setattr(Stage, "settle", counted)
        h.advance(days=1)
        assert q.counts().completed == 200
        assert stops == 200


@pytest.mark.slow
def test_ten_thousand_jobs_spread_over_a_day_run_in_order() -> None:
    with Harness() as h:
        q = h.queue("q")
        ran: list[int] = []
        h.worker(q, lambda job: ran.append(job.data))
        for i in range(10_000):
            q.add("a", i, delay=(i * 7919 % 10_000) * 8.64)
        h.advance(days=1)
        assert sorted(ran, key=lambda i: i * 7919 % 10_000) == ran
        assert len(ran) == 10_000


# -- the same run every time -----------------------------------------------------------------------


def story(h: Harness) -> list[Any]:
    """A run with jitter, retries, timeouts, a lost worker and two queues; everything seen of it."""
    with h:
        mail, calls = h.queue("mail"), h.queue("calls")
        seen: list[Any] = []

        def send(job: Any) -> Any:
            seen.append((job.id, job.token, job.attempt, job.now))
            if job.attempt < 3:
                raise ConnectionError(f"busy {job.data}")
            calls.add("ring", job.data, delay=1.5)
            return {"sent": job.data}

        h.worker(mail, send, concurrency=2)
        lost = h.worker(calls, lambda job: hang() if job.attempt == 1 else "rung")
        mail.add_bulk([("welcome", i) for i in range(4)])
        h.advance(seconds=20)
        h.lose_worker(lost)
        h.worker(calls, lambda job: "rung")
        h.advance(minutes=5)
        h.drain()
        return [*seen, *h.events]


def test_the_same_seed_gives_the_same_run_to_the_event_and_the_id(make: Make) -> None:
    first, second = story(make(seed=3)), story(make(seed=3))
    assert len(first) > 50
    assert first == second


def test_another_seed_gives_other_ids_and_other_jitter() -> None:
    assert story(Harness(seed=3)) != story(Harness(seed=4))


def test_memory_and_file_give_the_same_run(tmp_path: Path) -> None:
    assert story(Harness(seed=5)) == story(Harness(tmp_path / "jobs.db", seed=5))


def test_no_thread_is_started(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with make() as h:
        q = h.queue("q")
        told: list[Any] = []
        h.manager.events.subscribe(lambda event: told.append(event.type))
        worker = h.worker(q, lambda job: hang() if job.name == "stuck" else job.data, concurrency=3)
        worker.on("completed", lambda job, result: told.append(result))
        job = q.add("a", [1], delay=3600, durable=True)
        q.add("stuck", timeout=60, attempts=1)
        h.drain(raise_errors=False)
        assert job.result(timeout=0) == [1]
        assert [1] in told
        assert "completed" in told
        h.manager.flush()
        h.crash_and_restart()
        h.drain(raise_errors=False)


# -- running what is ready -------------------------------------------------------------------------


def test_a_report_says_what_completed_failed_and_waits(make: Make) -> None:
    with make() as h:
        q = h.queue("q")

        def work(job: Any) -> None:
            if job.name == "bad":
                raise UnrecoverableError("never")
            if job.name == "flaky" and job.attempt == 1:
                raise OSError("busy")

        h.worker(q, work)
        good = q.add("good", remove_on_complete=True)
        bad, flaky, later = q.add("bad"), q.add("flaky"), q.add("later", delay=9)
        report = h.run_until_idle()
        assert isinstance(report, RunReport)
        assert report.completed == [good]
        assert report.failed == [bad]
        assert report.waits == [flaky, later] or report.waits == [later, flaky]
        assert (report.runs, report.waiting) == (3, 2)
        assert "advance(seconds=9) runs it" in str(report)
        assert "OSError: busy" in str(report)
        again = h.drain()
        assert set(again.completed) == {flaky, later}
        assert again.waits == [] == again.failed


def test_jobs_that_jobs_add_run_too_and_time_stands_still() -> None:
    with Harness() as h:
        q = h.queue("q")
        ran: list[int] = []

        def work(job: Any) -> None:
            ran.append(job.data)
            if job.data < 5:
                q.add("a", job.data + 1)

        h.worker(q, work)
        q.add("a", 0)
        h.run_until_idle()
        assert ran == [0, 1, 2, 3, 4, 5]
        assert h.now == START


def test_priorities_count_at_every_start() -> None:
    """No job is taken before its turn, as a worker on threads would prefetch short ones."""
    with Harness() as h:
        q = h.queue("q")
        ran: list[str] = []

        def work(job: Any) -> None:
            ran.append(job.name)
            if job.name == "1":
                q.add("urgent", priority=9)

        h.worker(q, work)
        q.add_bulk([(str(i), None) for i in range(4)])
        h.run_until_idle()
        assert ran == ["0", "1", "urgent", "2", "3"]


def test_prefetch_is_honoured_where_it_is_given() -> None:
    with Harness() as h:
        q = h.queue("q")
        active: list[int] = []
        h.worker(q, lambda job: active.append(q.counts().active), prefetch=4)
        q.add_bulk([(str(i), None) for i in range(4)])
        h.run_until_idle()
        assert active == [4, 4, 4, 4]
        assert q.counts().completed == 4


def test_workers_take_turns() -> None:
    with Harness() as h:
        q = h.queue("q")
        ran: list[str] = []
        for name in ("a", "b"):
            h.worker(q, lambda job, name=name: ran.append(name))
        q.add_bulk([("x", i) for i in range(4)])
        h.run_until_idle()
        assert ran == ["a", "b", "a", "b"]


def test_a_loop_without_end_is_told_from_work() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: q.add("again") and None)
        q.add("again")
        with pytest.raises(BunqueueError, match=r"50 jobs ran and more are ready in 'q'.*max_jobs"):
            h.run_until_idle(max_jobs=50)
        assert q.counts().completed == 50


def test_max_jobs_that_suffice_are_no_loop() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        q.add_bulk([("x", i) for i in range(50)])
        assert h.run_until_idle(max_jobs=50).runs == 50


@pytest.mark.parametrize("call", ["run_until_idle", "drain"])
def test_a_job_that_failed_for_good_raises_its_handlers_own_exception(call: str) -> None:
    error = LookupError("no such user")

    def work(job: Any) -> None:
        raise error

    with Harness() as h:
        q = h.queue("q")
        h.worker(q, work)
        job = q.add("a", attempts=1)
        with pytest.raises(LookupError) as caught:
            getattr(h, call)(raise_errors=True)
        assert caught.value is error
        h.assert_failed(job, "max_attempts_exceeded")


def test_drain_raises_by_default_after_the_last_attempt_alone() -> None:
    with Harness() as h:
        q = h.queue("q")
        attempts: list[int] = []

        def work(job: Any) -> None:
            attempts.append(job.attempt)
            raise OSError("down")

        h.worker(q, work)
        q.add("a", attempts=3)
        assert h.run_until_idle().failed == []
        with pytest.raises(OSError, match="down"):
            h.drain()
        assert attempts == [1, 2, 3]


def test_drain_raises_job_failed_error_where_no_handler_did() -> None:
    with Harness() as h:
        h.queue("offers").add("a", ttl=60)
        with pytest.raises(JobFailedError, match="ttl_expired"):
            h.drain()
        h.worker("q", lambda job: hang() if job.attempt == 2 else 1 / 0, concurrency=2)
        h.queue("q").add("a", attempts=2, timeout=5)
        with pytest.raises(JobFailedError, match="timeout"):
            h.drain()


def test_a_result_that_cannot_be_kept_is_an_error_like_any_other() -> None:
    with Harness() as h:
        h.worker("q", lambda job: object())
        h.queue("q").add("a")
        with pytest.raises(SerializationError):
            h.drain()


def test_drain_goes_from_due_moment_to_due_moment(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        ran: list[float] = []

        def work(job: Any) -> None:
            ran.append(seconds(h, job.now))
            if len(ran) < 4:
                q.add("next", delay=timedelta(days=30))

        h.worker(q, work)
        q.add("first", delay=1)
        report = h.drain()
        assert ran == [1 + i * 30 * 86_400 for i in range(4)]
        assert len(report.completed) == 4
        assert h.now == START + timedelta(days=90, seconds=1)


@pytest.mark.parametrize("why", ["no worker", "paused", "hung", "limited"])
def test_drain_ends_where_time_makes_no_difference(why: str) -> None:
    with Harness() as h:
        q = h.queue("q")
        job = q.add("a")
        if why != "no worker":
            h.worker(q, lambda job: hang())
        if why == "paused":
            q.pause()
        if why == "limited":
            q.limits.set_concurrency(1)
            q.add("b")
            h.run_until_idle()
        report = h.drain()
        assert job in report.waits
        assert report.completed == []
        assert h.now == START


def test_drain_of_jobs_that_come_for_ever_is_told_from_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bunqueue_py.testing.stage.RUNAWAY", 40)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: q.add("tomorrow", delay=86_400) and None)
        q.add("today")
        with pytest.raises(BunqueueError, match="another job"):
            h.drain()


def test_a_job_pulled_by_hand_comes_back_when_its_lock_runs_out(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        job = q.add("a", backoff=ONCE)
        held = h.manager.pull(q, lock_duration=30)
        h.worker(q, lambda job: "done")
        h.drain()
        assert held == job
        assert job.refresh().stall_count == 1
        assert seconds(h, job.finished_at) == 40


# -- what a handler may do -------------------------------------------------------------------------


def test_a_handler_may_wait_for_a_job_that_another_slot_runs(make: Make) -> None:
    with make() as h:
        q = h.queue("q")

        def work(job: Any) -> Any:
            if job.name == "child":
                return job.data * 2
            return q.add("child", job.data).result(timeout=5) + 1

        h.worker(q, work, concurrency=2)
        job = q.add("parent", 20)
        h.run_until_idle()
        assert job.result(timeout=0) == 41


def test_a_handler_may_wait_for_a_queue_to_be_empty_and_for_a_job() -> None:
    with Harness() as h:
        rows, q, hand = h.queue("rows"), h.queue("q"), h.queue("hand")

        def work(job: Any) -> Any:
            rows.add_bulk([("row", i) for i in range(3)])
            rows.wait_until_empty(timeout=5)
            pulled = h.manager.pull(hand, timeout=5)
            assert pulled is not None
            h.manager.ack(pulled, "by hand")
            return rows.counts().completed

        h.worker(rows, lambda job: hand.add("x") and None)
        h.worker(q, work)
        job = q.add("a")
        h.run_until_idle()
        assert job.result(timeout=0) == 3


def test_a_handler_that_waits_for_its_own_slot_is_told_so() -> None:
    """In production it would wait for ever."""
    with Harness() as h:
        q = h.queue("q")

        def work(job: Any) -> Any:
            return q.add("child").result(timeout=5) if job.name == "parent" else None

        h.worker(q, work)
        job = q.add("parent", attempts=1)
        with pytest.raises(BunqueueError, match=r"Every slot of its workers is taken.*a handler"):
            h.drain()
        h.assert_failed(job)


def test_a_handler_that_waits_for_a_later_job_is_told_that_time_stands_still() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: q.add("child", delay=60).result(), concurrency=2)
        q.add("parent", attempts=1)
        with pytest.raises(BunqueueError, match=r"advance\(minutes=1\).*time stands still"):
            h.drain()


def test_outcomes_that_are_held_back_are_let_go_when_somebody_waits_for_them() -> None:
    with Harness() as h:
        q = h.queue("q")

        def work(job: Any) -> Any:
            return first.result(timeout=5) if job.data == 2 else job.data

        h.worker(q, work, prefetch=3)
        first, _, third = q.add_bulk([("a", 0), ("a", 1), ("a", 2)])
        h.run_until_idle()
        assert third.result(timeout=0) == 0


def test_a_handler_may_close_its_own_worker_and_manager(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        worker = h.worker(q, lambda job: worker.close())
        job, other = q.add("a"), q.add("b")
        h.run_until_idle()
        h.assert_completed(job)
        assert worker.is_closed
        assert other.refresh().state == "waiting"
        with pytest.raises(BunqueueError, match="closed"):
            worker.start()


def test_a_manager_that_closes_while_a_handler_waits_is_closed_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[Any] = []
    with make() as h:
        q = h.queue("q")

        def work(job: Any) -> None:
            if job.name == "child":
                seen.append(h.manager.close())
                return
            try:
                q.add("child").result(timeout=5)
            except ManagerClosedError as error:
                seen.append(type(error))

        h.worker(q, work, concurrency=2)
        q.add("parent")
        with pytest.raises(ManagerClosedError):
            h.run_until_idle()
        assert seen == [True, ManagerClosedError]


def test_a_real_interrupt_ends_the_test_and_not_the_job_alone() -> None:
    def work(job: Any) -> None:
        raise KeyboardInterrupt

    with Harness() as h:
        h.worker("q", work)
        job = h.queue("q").add("a", attempts=1)
        with pytest.raises(KeyboardInterrupt):
            h.run_until_idle()
        h.assert_failed(job)


def test_what_pytest_raises_in_a_handler_ends_the_test() -> None:
    with Harness() as h:
        h.worker("q", lambda job: pytest.fail("as it should"))
        h.queue("q").add("a")
        with pytest.raises(pytest.fail.Exception, match="as it should"):
            h.run_until_idle()


def test_system_exit_fails_the_job_as_on_a_thread() -> None:
    def work(job: Any) -> None:
        raise SystemExit(3)

    with Harness() as h:
        h.worker("q", work)
        job = h.queue("q").add("a", attempts=1)
        h.run_until_idle()
        h.assert_failed(job)


# -- the application's own parts -------------------------------------------------------------------


def test_a_worker_that_the_application_makes_is_stepped_too(make: Make) -> None:
    with make() as h:
        q = Queue("q", h.manager, defaults={"attempts": 5})
        with Worker(q, {"a": lambda job: "a", "*": lambda job: "rest"}, concurrency=2) as worker:
            assert worker.is_running
            first, second = q.add("a"), q.add("b")
            h.run_until_idle()
            assert (first.result(timeout=0), second.result(timeout=0)) == ("a", "rest")
        third = q.add("a")
        h.run_until_idle()
        assert third.refresh().state == "waiting"


def test_listeners_hear_in_order_and_may_add_jobs() -> None:
    with Harness() as h:
        q = h.queue("q")
        told: list[Any] = []
        worker = h.worker(q, lambda job: 1 / job.data)
        worker.on("active", lambda job: told.append(("active", job.data)))
        worker.on("completed", lambda job, result: told.append(("completed", result)))
        worker.on("failed", lambda job, error, retry: told.append((type(error), retry)))
        h.manager.events.subscribe(
            lambda event: q.add("more", 1) if event.terminal else None, types="failed"
        )
        q.add("a", 0, attempts=1)
        q.add("b", 2)
        h.run_until_idle()
        assert told == [
            ("active", 0),
            (ZeroDivisionError, False),
            ("active", 2),
            ("completed", 0.5),
            ("active", 1),
            ("completed", 1.0),
        ]


def test_a_closed_worker_gives_back_what_never_ends(make: Make) -> None:
    with make() as h:
        q = h.queue("q")
        worker = h.worker(q, lambda job: hang())
        job = q.add("a")
        h.run_until_idle()
        assert worker.close() is False
        assert worker.unfinished == [job.id]
        assert job.refresh().state == "waiting"
        assert job.attempts_made == 0
        h.worker(q, lambda job: "done")
        h.advance(minutes=10)
        h.assert_completed(job)


def test_events_are_all_there_over_the_whole_run() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: "r")
        job = q.add("a", delay=5)
        assert [event.type for event in h.events] == [
            "queue_created",
            "worker_joined",
            "pushed",
        ]
        h.drain()
        told = [(event.type, seconds(h, event.timestamp)) for event in h.timeline(job)]
        assert told == [("pushed", 0), ("active", 5), ("completed", 5)]
        assert h.timeline(job)[-1].result == "r"
        assert "completed: 'r'" in str(h.timeline(job.id))
    assert len(h.events) >= 4  # after the end too


# -- immediate -------------------------------------------------------------------------------------


def test_immediate_runs_each_job_as_it_is_added(make: Make) -> None:
    with make(immediate=True) as h:
        q = h.queue("q")
        ran: list[Any] = []
        h.worker(q, lambda job: ran.append(job.data))
        q.add("a", 1)
        assert ran == [1]
        q.add_bulk([("a", 2), ("a", 3)])
        assert ran == [1, 2, 3]
        job = q.add("a", 4, delay=10)
        assert ran == [1, 2, 3]
        assert job.refresh().state == "delayed"
        h.advance(seconds=10)
        assert ran == [1, 2, 3, 4]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_immediate_runs_what_a_handler_adds_after_that_handler(concurrency: int) -> None:
    with Harness(immediate=True) as h:
        q = h.queue("q")
        ran: list[str] = []

        def work(job: Any) -> None:
            ran.append(f"begin {job.name}")
            if job.name == "a":
                q.add("b")
            ran.append(f"end {job.name}")

        h.worker(q, work, concurrency=concurrency)
        q.add("a")
        assert ran == ["begin a", "end a", "begin b", "end b"]


def test_immediate_goes_through_encode_store_decode(make: Make) -> None:
    """B073 (mozilla/ichnaea#131): nothing is handed over as a live object, and what cannot be
    kept is refused at the door, in immediate mode as in any other."""
    with make(immediate=True) as h:
        q = h.queue("q")
        data = {"items": [1, 2], "at": START, "pair": (1, 2)}
        seen: list[Any] = []

        def work(job: Any) -> Any:
            seen.append(job.data)
            job.data["items"].append(99)
            if job.attempt == 1:
                raise OSError("again")
            return job.data

        h.worker(q, work)
        job = q.add("a", data)
        data["items"].append(3)
        h.drain()
        assert [shown["items"] for shown in seen] == [[1, 2, 99], [1, 2, 99]]
        assert job.result(timeout=0)["pair"] == (1, 2)
        assert job.refresh().data["items"] == [1, 2]
        with pytest.raises(SerializationError):
            q.add("b", {"x": object()})


def test_immediate_keeps_retries_limits_and_dead_letters() -> None:
    with Harness(immediate=True) as h:
        q = h.queue("q")
        q.limits.set_rate_limit(1, per=60)

        def work(job: Any) -> None:
            raise OSError("down")

        h.worker(q, work)
        first, second = q.add("a", attempts=2, backoff=ONCE), q.add("b", attempts=1)
        assert first.refresh().attempts_made == 1
        assert second.refresh().attempts_made == 0
        h.advance(minutes=10)
        h.assert_failed(first, "max_attempts_exceeded")
        assert len(q.dlq) == 2


def test_immediate_is_a_property_of_one_harness_and_of_nothing_else() -> None:
    with Harness(immediate=True) as now, Harness() as later:
        ran: list[str] = []
        now.worker("q", lambda job: ran.append("now"))
        later.worker("q", lambda job: ran.append("later"))
        later.queue("q").add("a")
        now.queue("q").add("a")
        assert ran == ["now"]
        later.run_until_idle()
        assert ran == ["now", "later"]


# -- coroutines ------------------------------------------------------------------------------------


def test_awaiting_a_job_that_nobody_can_run_raises_at_once() -> None:
    async def lonely(h: Harness) -> None:
        with pytest.raises(BunqueueError, match=r"run_until_idle\(\) runs it"):
            await h.queue("q").add("a")

    with Harness() as h:
        h.worker("q", lambda job: 1)
        asyncio.run(lonely(h))


def test_awaiting_a_job_that_another_task_runs_gives_its_result() -> None:
    async def both(h: Harness) -> Any:
        job = h.queue("q").add("a")

        async def wait() -> Any:
            return await job

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        h.run_until_idle()
        return await waiting

    with Harness() as h:
        h.worker("q", lambda job: 7)
        assert asyncio.run(both(h)) == 7


def test_a_closed_harness_says_so() -> None:
    with Harness() as h:
        pass
    h.close()
    for call in (h.run_until_idle, h.drain, lambda: h.advance(days=1), h.crash_and_restart):
        with pytest.raises(ManagerClosedError):
            call()


def test_a_drain_past_many_deadlines_that_matter_to_nobody_looks_at_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kept jobs with an age, and jobs with a ttl: neither is looked through at every stop."""
    from bunqueue_py.testing import stage

    looked = 0
    matters = stage._matters

    def counted(*args: Any) -> bool:
        nonlocal looked
        looked += 1
        return matters(*args)

    monkeypatch.setattr(stage, "_matters", counted)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: None)
        for i in range(200):
            q.add("a", delay=i, ttl=1000, remove_on_complete=KeepJobs(age=10_000))
        assert len(h.drain().completed) == 200
    assert looked < 1000


def test_a_drain_in_which_nothing_ever_gets_on_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_py.testing.stage.RUNAWAY", 30)

    def broken(*args: Any) -> int:
        raise OSError("a duty that always fails")

    with Harness() as h:
        h.queue("q").add("a", ttl=5)
        monkeypatch.setattr("bunqueue_py.tasks.deadlines.judge_due", broken)
        with pytest.raises(BunqueueError, match="'q'"):
            h.drain()


def test_a_year_of_jobs_in_one_advance_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_py.testing.stage.RUNAWAY", 20)
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: q.add("next", delay=86_400) and None)
        q.add("first")
        h.advance(days=99)
        assert q.counts().completed == 100


def test_a_test_that_fails_leaves_its_file_closed_and_free(tmp_path: Path) -> None:
    """One failing test cannot poison the next."""
    with pytest.raises(KeyError, match="the test's own"), Harness(tmp_path / "jobs.db") as h:
        h.worker("q", lambda job: hang())
        job = h.queue("q").add("a")
        h.run_until_idle()
        raise KeyError("the test's own")
    with Harness(tmp_path / "jobs.db") as h:
        # it was closed in good order: the run that never ended is not charged
        assert h.manager.get_job(job.id).attempts_made == 0
