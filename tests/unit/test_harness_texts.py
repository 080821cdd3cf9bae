"""What the harness says: waits that nothing can end, failed assertions, bad input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    BunqueueError,
    JobNotFoundError,
    QueueManager,
    RateLimit,
    SqliteStorage,
    StorageError,
    StorageLockedError,
    ValidationError,
    WaitTimeoutError,
    Worker,
)
from bunqueue_py.testing import Harness, VirtualClock, hang

START = datetime(2030, 1, 1, tzinfo=timezone.utc)

# -- waits that nothing can end --------------------------------------------------------------------


def ready(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: None)
    return q.add("a")


def delayed(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: None)
    return q.add("a", delay=timedelta(days=3, hours=2, milliseconds=1500))


def nobody(h: Harness, q: Any) -> Any:
    return q.add("a")


def nobody_later(h: Harness, q: Any) -> Any:
    return q.add("a", delay=90)


def paused(h: Harness, q: Any) -> Any:
    job = ready(h, q)
    q.pause()
    return job


def by_hand(h: Harness, q: Any) -> Any:
    q.add("a")
    return h.manager.pull(q)


def hung(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: hang())
    job = q.add("a")
    h.run_until_idle()
    return job


def hung_with_timeout(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: hang())
    job = q.add("a", timeout=20)
    h.run_until_idle()
    return job


def behind_a_hung_one(h: Harness, q: Any) -> Any:
    hung(h, q)
    return q.add("b")


def limited(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: None)
    q.limits.set_rate_limit(1, per=60)
    q.add("a")
    job = q.add("b")
    h.run_until_idle()
    h.advance(seconds=15)
    return job


def retried(h: Harness, q: Any) -> Any:
    h.worker(q, lambda job: 1 / 0)
    job = q.add("a", backoff=Backoff.fixed(30, jitter=0))
    h.run_until_idle()
    return job


WAYS_OUT = [
    (ready, r"is waiting\. run_until_idle\(\) runs it"),
    (delayed, r"delayed, due in 3 days, 2:00:01\.5.*advance\(days=3, hours=2, seconds=1\.5\)"),
    (nobody, r"Nobody works on 'mail'.*worker\('mail', handler\), and then run_until_idle\(\)"),
    (nobody_later, r"Nobody works on 'mail'.*and then advance\(minutes=1, seconds=30\)"),
    (paused, r"'mail' is paused: resume\(\)"),
    (by_hand, r"is active\. It was pulled by hand: ack\(\) or fail\(\)"),
    (hung, r"is active\. Its handler has not ended.*expire_lock\(job\), lose_worker"),
    (hung_with_timeout, r"Its handler has not ended: advance\(seconds=20\) reaches its timeout"),
    (behind_a_hung_one, r"Every slot of its workers is taken, by the handlers of 'a'"),
    (limited, r"is waiting\. advance\(seconds=45\) reaches the next moment"),
    (retried, r"last error: ZeroDivisionError: division by zero\)\. advance\(seconds=30\) runs it"),
]


@pytest.mark.parametrize(("scene", "text"), WAYS_OUT, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("timeout", [None, 5])
def test_a_wait_for_a_result_that_nothing_can_end_says_what_is_missing(
    scene: Callable[..., Any], text: str, timeout: float | None
) -> None:
    """A failing job, or a test that forgot a step, cannot look like a hang."""
    with Harness() as h:
        job = scene(h, h.queue("mail"))
        with pytest.raises(BunqueueError, match=text) as caught:
            job.result(timeout=timeout)
        assert "What is in the queues at 2030" in str(caught.value)
        assert not h.manager._state.shards.shards[0].watched
        with pytest.raises(WaitTimeoutError):
            job.result(timeout=0)


@pytest.mark.parametrize(("scene", "text"), WAYS_OUT, ids=lambda x: getattr(x, "__name__", ""))
def test_a_failed_assertion_says_the_same(scene: Callable[..., Any], text: str) -> None:
    with Harness() as h:
        job = scene(h, h.queue("mail"))
        with pytest.raises(AssertionError) as caught:
            h.assert_completed(job)
        said = str(caught.value).replace("\n", ". ", 1)
        assert re.search(text, said), said


@pytest.mark.parametrize("scene", [scene for scene, _ in WAYS_OUT], ids=lambda s: s.__name__)
def test_a_queue_that_nothing_can_empty_says_what_is_missing(scene: Callable[..., Any]) -> None:
    with Harness() as h:
        q = h.queue("mail")
        scene(h, q)
        with pytest.raises(BunqueueError, match=r"'mail' to be empty can never end"):
            q.wait_until_empty()
        with pytest.raises(BunqueueError, match=r"'mail' to be empty can never end"):
            q.wait_until_empty(timeout=60)


@pytest.mark.parametrize("timeout", [5, None])
@pytest.mark.parametrize("batch", [False, True])
def test_a_pull_with_nothing_due_says_what_is_missing(timeout: Any, batch: bool) -> None:
    with Harness() as h:
        q = h.queue("mail")

        def pull() -> Any:
            return h.manager.pull_batch(q, 3, timeout) if batch else h.manager.pull(q, timeout)

        with pytest.raises(BunqueueError, match=r"job of 'mail'.*Add a job before pulling"):
            pull()
        q.add("a", delay=4)
        with pytest.raises(BunqueueError, match=r"advance\(seconds=4\) reaches the next moment"):
            pull()
        h.advance(seconds=4)
        q.pause()
        with pytest.raises(BunqueueError, match=r"It is paused: resume\(\)"):
            pull()
        q.resume()
        assert pull()
        assert not h.manager._state.queues["mail"].waiters.line


def test_waits_that_are_over_already_return_at_once() -> None:
    with Harness() as h:
        q = h.queue("q")
        h.worker(q, lambda job: "r")
        q.wait_until_empty()
        job = q.add("a")
        h.run_until_idle()
        assert job.result() == job.result(timeout=5) == "r"
        q.wait_until_empty(timeout=5)
        assert h.manager.pull(q) is None
        with pytest.raises(JobNotFoundError):
            h.manager.wait_for("nobody", timeout=5)


# -- assertions ------------------------------------------------------------------------------------


def test_a_failed_assertion_shows_what_is_in_the_queues() -> None:
    with Harness() as h:
        mail, calls = h.queue("mail"), h.queue("calls")

        def send(job: Any) -> None:
            if job.data["to"] == "bob":
                raise OSError("mailbox full")

        h.worker(mail, send)
        mail.add("welcome", {"to": "ada"})
        mail.add("welcome", {"to": "bob"}, attempts=1)
        job = mail.add("reminder", {"to": "eve", "text": "x" * 500}, delay=timedelta(days=1))
        calls.add("ring", [1])
        h.run_until_idle()
        with pytest.raises(AssertionError) as caught:
            h.assert_completed(job)
        assert str(caught.value).splitlines() == [
            f"job 'reminder' of 'mail' ({job.id}) should have completed, but it is delayed, due in "
            "1 day, 0:00:00",
            "advance(days=1) runs it",
            "Its timeline:",
            "  2030-01-01T00:00:00+00:00 pushed as delayed",
            "What is in the queues at 2030-01-01T00:00:00+00:00:",
            "  calls: 1 waiting; no worker",
            "    'ring' is waiting, 0 of 3 attempts failed, data [1], id " + ids(h, "calls")[0],
            "  mail: 1 delayed, 1 completed, 1 failed; 1 worker",
            "    'welcome' has failed (max_attempts_exceeded): OSError: mailbox full, 1 of 1 "
            "attempts failed, data {'to': 'bob'}, id " + ids(h, "mail")[1],
            "    'reminder' is delayed, due in 1 day, 0:00:00, 0 of 3 attempts failed, data "
            "{'to': 'eve', 'text': '" + "x" * 34 + "..., id " + job.id,
            "    'welcome' has completed, 0 of 3 attempts failed, data {'to': 'ada'}, id "
            + ids(h, "mail")[0],
        ]


def ids(h: Harness, queue: str) -> list[str]:
    return [job.id for job in h.added(queue)]


def test_a_picture_of_a_great_queue_is_bounded() -> None:
    with Harness() as h:
        h.queue("q").add_bulk([("a", i) for i in range(500)])
        h.queue("unused")
        lines = str(h).splitlines()
        assert "    ... and 488 more" in lines
        assert len(lines) < 20
    with Harness() as h:
        assert "no queue has been used" in str(h)


def test_a_job_that_left_its_queue_has_completed_all_the_same() -> None:
    with Harness() as h:
        h.worker("q", lambda job: 1 / job.data)
        good = h.queue("q").add("a", 1, remove_on_complete=True)
        bad = h.queue("q").add("b", 0, remove_on_fail=True, attempts=1)
        h.drain(raise_errors=False)
        h.assert_completed(good)
        h.assert_failed(bad, "max_attempts_exceeded")
        with pytest.raises(AssertionError, match="is gone"):
            h.assert_completed(bad)
        with pytest.raises(AssertionError, match="is gone"):
            h.assert_failed(good)


def test_assert_failed_looks_at_the_reason_if_one_is_given() -> None:
    with Harness() as h:
        h.worker("q", lambda job: 1 / 0)
        job = h.queue("q").add("a", attempts=1)
        with pytest.raises(AssertionError, match=r"should have failed, but it is waiting"):
            h.assert_failed(job)
        h.run_until_idle()
        h.assert_failed(job)
        h.assert_failed(job.id, "max_attempts_exceeded")
        with pytest.raises(AssertionError, match=r"\(timeout\), but it has failed \(max_attempts"):
            h.assert_failed(job, "timeout")
        with pytest.raises(ValidationError, match="reason must be among"):
            h.assert_failed(job, "tired")
        with pytest.raises(AssertionError, match="never added here"):
            h.assert_completed("no such id")
        with pytest.raises(ValidationError, match="job must be"):
            h.assert_completed(None)  # type: ignore[arg-type]


def test_added_finds_jobs_by_name_and_by_a_part_of_their_payload() -> None:
    with Harness() as h:
        q = h.queue("mail")
        h.worker(q, lambda job: None)
        ada = q.add("welcome", {"to": {"name": "ada", "id": 1}, "cc": ["x"]})
        bob = q.add("welcome", {"to": {"name": "bob", "id": 2}}, remove_on_complete=True)
        row = q.add("row", [{"n": 1, "m": 2}, 3])
        h.queue("other").add("welcome")
        assert q.add("welcome", custom_id="c")
        assert q.add("welcome", custom_id="c").duplicate
        h.run_until_idle()
        assert h.added(q, "welcome")[:2] == [ada, bob]
        assert len(h.added(q)) == 4
        assert h.added("mail", data={"to": {"id": 2}}) == [bob]
        assert h.added(q, "welcome", {"cc": ["x"]}) == [ada]
        assert h.added(q, "row", [{"n": 1}, 3]) == [row]
        for data in ({"to": {"id": 3}}, {"bcc": 1}, {"cc": ["x", "y"]}, [{"n": 1}], {"cc": ("x",)}):
            assert not h.added(q, data=data)
        assert h.added(q, "row") == [row]
        assert h.added(q, "row")[0].state == "completed"
        assert h.added("never") == []


def test_added_without_a_find_says_what_was_added() -> None:
    with Harness() as h:
        h.queue("mail").add("welcome", {"to": "ada"})
        with pytest.raises(AssertionError, match=r"no job 'bye' with \{'to': 'ada'\} was added to"):
            assert h.added("mail", "bye", {"to": "ada"}), repr(
                h.added("mail", "bye", {"to": "ada"})
            )
        assert "but 'welcome' {'to': 'ada'}" in repr(h.added("mail", "bye"))
        assert repr(h.added("mail")).startswith("[<Job")
        assert "none at all" in repr(h.added("calls"))
        with pytest.raises(ValidationError, match="queue"):
            h.added("no good name")


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to": datetime(2031, 1, 1)}, "must carry a time zone"),
        ({"to": START - timedelta(seconds=1)}, r"never goes back: it is 2030-01-01T00:00:00"),
        ({"to": "tomorrow"}, "aware datetime"),
        ({"seconds": -1}, r"never goes back.*set_wall_clock"),
        ({"days": 1, "hours": -25}, "never goes back"),
        ({"day": 1}, r"advance\(\) takes weeks, days.*does not know 'day'"),
        ({"months": 1}, "does not know 'months'"),
        ({"days": "3"}, "numbers that make a timedelta"),
        ({"days": math.nan}, "numbers that make a timedelta"),
        ({"days": math.inf}, "numbers that make a timedelta"),
        ({"days": 10**12}, "numbers that make a timedelta"),
        ({"days": 3_000_000}, "year 9000"),
        ({"to": START, "days": 1}, "not both"),
    ],
)
def test_a_wrong_advance_is_refused_and_nothing_has_moved(
    arguments: dict[str, Any], text: str
) -> None:
    with Harness() as h:
        h.worker("q", lambda job: None)
        job = h.queue("q").add("a")
        with pytest.raises(ValidationError, match=text):
            h.advance(**arguments)
        assert h.now == START
        assert job.refresh().state == "waiting"


def test_parts_are_rounded_up_to_a_millisecond() -> None:
    with Harness() as h:
        h.advance(microseconds=1)
        assert h.now == START + timedelta(milliseconds=1)
        h.advance()
        assert h.now == START + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"start": datetime(2030, 1, 1)}, "start must carry a time zone"),
        ({"start": 5}, "start must be"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"immediate": 1}, "immediate"),
        ({"storage": 7}, "storage must be"),
        ({"storage": ":memory:"}, "memory"),
    ],
)
def test_a_wrong_harness_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Harness(**arguments)


def test_a_wrong_start_is_refused_before_the_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        Harness(tmp_path / "jobs.db", start=datetime(2030, 1, 1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wait", [0, 5])
def test_two_harnesses_on_one_file_are_told_of_each_other(tmp_path: Path, wait: float) -> None:
    path = tmp_path / "jobs.db"
    with Harness(path) as h:
        job = h.queue("q").add("a")
        with pytest.raises(StorageLockedError, match=r"owned by another manager.*Harness"):
            Harness(SqliteStorage(path, lock_timeout=wait))
        h.worker("q", lambda job: None)
        h.run_until_idle()
        h.assert_completed(job)
    with Harness(path) as h:
        assert h.queue("q").counts().completed == 1


def test_a_folder_that_is_not_there_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Harness(tmp_path / "none" / "jobs.db")


def test_naive_wall_clocks_and_foreign_parts_are_refused() -> None:
    with Harness() as h, Harness() as other:
        with pytest.raises(ValidationError, match="time zone"):
            h.set_wall_clock(datetime(2030, 1, 1))
        with pytest.raises(ValidationError, match="manager"):
            h.worker(other.queue("q"), lambda job: None)
        with pytest.raises(TypeError):
            h.worker("q", lambda job: None, threads=4)
        with pytest.raises(ValidationError, match="rate_limit"):
            h.worker("q", lambda job: None, rate_limit=3)
        assert h.worker("q", lambda job: None, rate_limit=RateLimit(1)).is_running
        with pytest.raises(ValidationError, match="raise_errors"):
            h.run_until_idle(raise_errors=1)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="raise_errors"):
            h.drain(raise_errors=None)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="max_jobs"):
            h.run_until_idle(max_jobs=0)
        with pytest.raises(ValidationError, match="job must be"):
            h.timeline(3)  # type: ignore[arg-type]


def test_a_worker_without_threads_is_pointed_to_the_harness() -> None:
    with (
        QueueManager(clock=VirtualClock(), background=False) as manager,
        pytest.raises(ValidationError, match="Harness"),
    ):
        Worker("q", lambda job: None, manager=manager)
