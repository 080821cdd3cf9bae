"""Schedulers over restarts and crashes: what was planned, counted and staged is there again."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import (
    Backoff,
    Deduplication,
    JobSpec,
    KeepJobs,
    ManagerConfig,
    Queue,
    QueueManager,
    Repeat,
    SqliteStorage,
)
from bunqueue_py.ops import fire
from bunqueue_py.ops.query import check
from bunqueue_py.storage.sqlite.commits import Committer
from bunqueue_py.testing import Harness, SeededIds, VirtualClock
from tests.storage_check import check_storage

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def at(**parts: float) -> datetime:
    return START + timedelta(**parts)


class House:
    """A manager on a file and a virtual clock, which can be closed, killed and opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.ids = SeededIds()
        self.open()

    def open(self) -> None:
        self.storage = SqliteStorage(self.path)
        self.manager = QueueManager(
            self.storage,
            clock=self.clock,
            background=False,
            config=ManagerConfig(shards=2),
            _ids=self.ids,
        )
        self.queue = Queue("q", self.manager)
        self.events: list[Any] = []
        self.manager.events.subscribe(self.events.append)

    def close(self) -> None:
        check(self.manager._state)
        check_storage(self.manager, str(self.path))
        self.manager.close()

    def kill(self) -> None:
        """What was not committed is gone."""
        for shard in self.manager._state.shards.shards:
            shard.gate = 2
        self.storage._abandon()
        self.manager.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def away(self, **parts: float) -> None:
        """Closed for so long."""
        self.close()
        self.clock.advance(**parts)
        self.open()
        self.manager.run_pending()

    def wait(self, **parts: float) -> None:
        self.clock.advance(**parts)
        self.manager.run_pending()

    def finish(self) -> int:
        jobs = self.manager.pull_batch("q", 1000)
        for job in jobs:
            self.manager.ack(job)
        return len(jobs)

    def told(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]


@pytest.fixture
def house(tmp_path: Path) -> Any:
    house = House(tmp_path / "jobs.db")
    yield house
    house.close()


FULL: Any = {
    "priority": -5,
    "delay": 2.5,
    "attempts": 7,
    "backoff": Backoff.fixed(3, jitter=0),
    "timeout": 90.25,
    "ttl": 120,
    "deduplication": Deduplication("k", 60, "extend"),
    "group": "g",
    "group_limit": 4,
    "remove_on_complete": KeepJobs(3, 60.5),
    "remove_on_fail": True,
    "tags": ("a", "b"),
    "stack_trace_limit": 3,
    "stall_timeout": 12,
}


def test_a_restart_changes_nothing_of_a_scheduler(house: House) -> None:
    house.queue.schedulers.upsert(
        "s",
        cron="*/5 * * * *",
        tz="Europe/Rome",
        limit=9,
        catch_up=True,
        skip_if_no_worker=False,
        prevent_overlap=False,
        job=JobSpec("x", {"d": (1, 2)}, **FULL),
    )
    house.queue.schedulers.upsert("e", every=7)
    house.wait(minutes=5)
    before = [repr(s) for s in house.queue.schedulers.list()]
    house.restart()
    assert [repr(s) for s in house.queue.schedulers.list()] == before
    assert house.finish() == 1  # the other is delayed
    house.queue.schedulers.upsert("e", every=7)
    house.queue.schedulers.upsert(
        "s",
        cron="*/5 * * * *",
        tz="Europe/Rome",
        limit=9,
        catch_up=True,
        prevent_overlap=False,
        job=JobSpec("x", {"d": (1, 2)}, **FULL),
    )
    assert [repr(s) for s in house.queue.schedulers.list()] == before


@pytest.mark.slow
def test_a_period_longer_than_any_life_of_the_process_is_kept(house: House) -> None:
    """B046: every 7 days, the process up for a minute a day, for 60 days."""
    done = 0
    for _ in range(60):
        house.queue.schedulers.upsert("s", every=7 * 86_400, catch_up=True)
        house.wait(minutes=1)
        done += house.finish()
        house.away(hours=23, minutes=59)
        done += house.finish()
    assert done == 8
    found = house.queue.schedulers.get("s")
    assert found is not None
    assert (found.runs, found.next_run_at) == (8, at(days=63))


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *"}])
def test_runs_that_were_missed_while_down_are_none_or_one(
    house: House, when: Any, catch_up: bool
) -> None:
    house.queue.schedulers.upsert("s", catch_up=catch_up, **when)
    house.close()
    house.clock.advance(minutes=10, seconds=30)
    house.open()
    house.manager.run_pending()
    assert house.finish() == int(catch_up)
    (missed,) = house.told("cron_missed")
    assert (missed.count, missed.scheduler, missed.planned_at) == (10, "s", at(minutes=1))
    house.wait(seconds=30)
    assert house.finish() == 1


def test_three_years_down_costs_one_run_at_most(house: House) -> None:
    """B044: a store that was touched last three years ago."""
    house.queue.schedulers.upsert("s", every=1, catch_up=True)
    house.queue.schedulers.upsert("c", cron="* * * * * *", catch_up=True)
    house.away(days=3 * 365, milliseconds=500)
    assert house.finish() == 2
    assert sorted(event.count for event in house.told("cron_missed")) == [100, 3 * 365 * 86_400]
    house.wait(milliseconds=500)
    assert house.finish() == 2


def test_a_clock_that_was_set_back_while_down_does_not_silence_a_period(house: House) -> None:
    house.queue.schedulers.upsert("s", every=3600)
    house.queue.schedulers.upsert("c", cron="0 * * * *")
    house.wait(hours=100)
    house.finish()
    house.close()
    house.clock = VirtualClock(at(hours=1, minutes=10))
    house.open()
    found = {s.id: s.next_run_at for s in house.queue.schedulers.list()}
    assert found["s"] == at(hours=2, minutes=10)
    assert found["c"] == at(hours=2)  # by more than two days: the clock had been wrong


def test_an_immediate_run_is_not_lost_by_a_stop_before_it(house: House) -> None:
    house.queue.schedulers.upsert("s", every=3600, immediately=True)
    house.away(minutes=5)
    assert house.finish() == 1
    house.queue.schedulers.upsert("s", every=3600, immediately=True)
    house.manager.run_pending()
    assert house.finish() == 0


@pytest.mark.slow
def test_an_upsert_at_every_start_neither_resets_nor_doubles(house: House) -> None:
    """B052: restarts all the time, an upsert at each."""
    done = 0
    for _ in range(60):
        for _ in range(3):
            house.queue.schedulers.upsert("s", every=1, immediately=True)
        house.wait(seconds=1)
        assert len(house.queue) <= 1
        done += house.finish()
        house.restart()
    assert done in (60, 61)


def test_the_job_of_a_run_comes_back_as_any_other_and_is_in_the_way(house: House) -> None:
    house.queue.schedulers.upsert("s", every=10)
    house.wait(seconds=10)
    house.restart()
    house.wait(seconds=10)
    found = house.queue.schedulers.get("s")
    assert found is not None
    assert (len(house.queue), found.runs, found.skipped) == (1, 1, 1)


def test_a_removed_one_stays_away(house: House) -> None:
    house.queue.schedulers.upsert("s", every=10)
    house.restart()
    house.queue.schedulers.remove("s")
    house.restart()
    assert house.queue.schedulers.list() == []


# -- kills -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


POINTS: dict[str, tuple[Any, str, bool]] = {
    "before the firing": (fire, "_fire", True),
    "before the job is staged": (fire, "_stage", True),
    "after the job is staged": (fire, "_stage", False),
    "after the firing": (fire, "_fire", False),
    "before the commit": (Committer, "commit", True),
    "after the commit": (Committer, "commit", False),
    "before the job comes in": (fire, "_publish", True),
    "after the job has come in": (fire, "_publish", False),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *", "tz": "Europe/Rome"}])
def test_a_kill_at_any_point_of_a_firing_leaves_one_job_for_the_slot(
    house: House, monkeypatch: pytest.MonkeyPatch, point: str, when: Any
) -> None:
    """B047: the job and the advance are one unit."""
    where, name, before = POINTS[point]
    whole = getattr(where, name)
    house.queue.schedulers.upsert("s", prevent_overlap=False, **when)
    house.manager.flush()
    jobs: set[str] = set()
    for slot in range(1, 6):

        def dies(*arguments: Any) -> Any:
            if not before:
                whole(*arguments)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(where, name, dies)
            house.clock.advance(seconds=60)
            with pytest.raises(Killed):
                house.manager.run_pending()
            house.kill()
        house.open()
        house.manager.run_pending()
        check(house.manager._state)
        jobs |= {job.id for job in house.queue.get_jobs()}
        found = house.queue.schedulers.get("s")
        assert found is not None
        assert (len(jobs), len(house.queue), found.runs) == (slot, slot, slot)
        assert found.next_run_at == at(minutes=slot + 1)


@pytest.mark.slow
def test_a_slot_is_unique_with_its_scheduler_and_not_with_its_job(tmp_path: Path) -> None:
    """B049: the job is done and gone before anybody looks again; restarts between."""
    done = []
    with Harness(tmp_path / "jobs.db") as h:
        queue = h.queue("q")
        h.worker(queue, lambda job: done.append(h.now))
        spec = JobSpec("x", remove_on_complete=True)
        for round in range(200):
            queue.schedulers.upsert("s", every=1, job=spec)
            h.advance(seconds=1)
            if round % 20 == 0:
                h.crash_and_restart()
                queue.schedulers.upsert("s", every=1, job=spec)
    assert done == [at(seconds=n) for n in range(1, 201)]


def test_a_job_that_leaves_at_once_leaves_the_file_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer knows of its staged row, so its end must be told."""
    whole: Callable[[Any], int] = fire.publish
    removed: list[bool] = []

    def and_away(state: Any) -> int:
        done = whole(state)
        removed.extend(job.remove() for job in house.queue.get_jobs())
        return done

    house.queue.schedulers.upsert("s", every=10, job=JobSpec("x"))
    monkeypatch.setattr("bunqueue_py.tasks.schedules.publish", and_away)
    house.wait(seconds=10)
    assert len(removed) == 1
    house.manager.flush()
    house.restart()
    assert house.queue.counts().total == 0


def test_a_name_that_is_taken_between_the_two_halves_of_a_firing_leaves_one_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Callable[[Any], int] = fire.publish

    def late(state: Any) -> int:
        if not house.queue.get_jobs():
            house.queue.add("first", custom_id="c")
        return whole(state)

    house.queue.schedulers.upsert("s", every=10, job=JobSpec("x", custom_id="c"))
    monkeypatch.setattr("bunqueue_py.tasks.schedules.publish", late)
    house.wait(seconds=10)
    assert [job.name for job in house.queue.get_jobs()] == ["first"]
    house.restart()
    assert [job.name for job in house.queue.get_jobs()] == ["first"]


def test_while_the_disk_fails_nothing_comes_in_and_then_all_does(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Committer.commit

    def fails(self: Any, marks: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    house.queue.schedulers.upsert("s", every=10)
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", fails)
        house.wait(seconds=10)
        assert len(house.queue) == 0
        house.wait(seconds=10)
        found = house.queue.schedulers.get("s")
        assert found is not None
        assert (found.runs, found.skipped) == (1, 1)
    assert Committer.commit is whole
    house.wait(seconds=40)
    assert len(house.queue) == 1


# -- what the file holds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["5", "[]", "{}", '{"timing": [0]}', '{"timing": ["* * * * *", "UTC"], "limit": -1}']
)
def test_a_scheduler_that_cannot_be_understood_is_passed_over(
    house: House, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    house.queue.schedulers.upsert("bad", every=10)
    house.queue.schedulers.upsert("good", every=10)
    house.close()
    with closing(sqlite3.connect(house.path)) as connection:
        connection.execute(
            "UPDATE rest SET body = ? WHERE kind = 'schedule' AND key = ?", (body, "q\0bad")
        )
        connection.commit()
    house.open()
    assert [s.id for s in house.queue.schedulers.list()] == ["good"]
    assert "cannot be understood" in caplog.text
    with QueueManager.open_readonly(house.path, clock=house.clock) as view:
        assert [s.id for s in view.schedulers.list()] == ["good"]
    house.queue.schedulers.upsert("bad", every=10)


def test_without_the_extra_an_expression_on_disk_is_kept_and_idle(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.queue.schedulers.upsert("c", cron="* * * * *")
    house.queue.schedulers.upsert("e", every=10)
    house.close()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cronsim", None)
        house.open()
        assert [s.id for s in house.queue.schedulers.list()] == ["e"]
        assert "pip install bunqueue-py[cron]" in caplog.text
        house.manager.close()
    house.open()
    assert [s.id for s in house.queue.schedulers.list()] == ["c", "e"]


def test_a_view_shows_what_its_manager_has_written(house: House) -> None:
    house.queue.schedulers.upsert("c", cron="0 9 * * *", tz="Europe/Rome", job=JobSpec("x", [1]))
    house.queue.schedulers.upsert("e", every=10, limit=3)
    house.wait(seconds=10)
    house.manager.flush()
    with QueueManager.open_readonly(house.path, clock=house.clock) as view:
        queue = Queue("q", view)
        assert [repr(s) for s in queue.schedulers.list()] == [
            repr(s) for s in house.queue.schedulers.list()
        ]
        assert queue.schedulers.preview("e", 9) == [at(seconds=20), at(seconds=30)]
        assert repr(queue.schedulers.get("c")) == repr(house.queue.schedulers.get("c"))
        assert queue.schedulers.get("none") is None
        assert view.cron.list("other") == []


def test_a_repeating_job_goes_on_after_a_restart_and_a_kill(house: House) -> None:
    house.queue.add("x", [1], repeat=Repeat(every=60, limit=4), custom_id="c")
    for n in range(1, 5):
        house.restart()
        assert house.finish() == 1
        if n == 2:
            house.manager.flush()
            house.kill()
            house.open()
        house.wait(seconds=60)
    assert len(house.queue) == 0
    assert house.queue.counts().completed == 1  # one holds the custom id


def test_the_end_of_a_run_and_the_next_one_are_one_unit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.queue.add("x", repeat=Repeat(every=60), remove_on_complete=True)
    house.manager.flush()

    def dies(*arguments: Any) -> Any:
        raise Killed

    job = house.manager.pull("q")
    house.manager.flush()
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit", dies)
        with pytest.raises(Killed):
            house.manager.ack(job)
        house.kill()
    house.open()
    house.wait(seconds=3600)
    assert house.finish() == 1
    assert [job.run_at for job in house.queue.get_jobs("delayed")] == [at(seconds=3660)]


def test_a_repeating_job_whose_expression_cannot_be_read_any_more_says_so_and_ends(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.queue.add("x", repeat=Repeat(cron="@daily"))
    house.close()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    house.open()
    assert house.finish() == 1
    assert "repeats no more" in caplog.text
    assert "pip install bunqueue-py[cron]" in caplog.text
    assert len(house.queue) == 0
