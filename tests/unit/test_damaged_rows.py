"""Rows that can be read and say what no manager ever wrote: each costs itself and nothing else."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bunqueue_py import JobSpec, Queue, QueueManager, SerializationError
from bunqueue_py.ops.query import check
from bunqueue_py.testing import VirtualClock

LONG = 1 << 70
LIMITS = {"concurrency": 2, "max": 3, "per": 5000, "ends": None}

# what stands in the place of a queue's settings
SETTINGS: list[Any] = [
    7,
    {"paused": "yes"},
    {"limits": 7},
    {"limits": {"concurrency": "2"}},
    {"limits": {"concurrency": 0}},
    {"limits": {"concurrency": True}},
    {"limits": {"cool_until": None}},
    {"limits": {"cool_until": LONG}},
    *({"limits": {**LIMITS, "max": bad}} for bad in (None, "3", -3, 0, LONG, 1.5)),
    *({"limits": {**LIMITS, "per": bad}} for bad in (None, "3", -3, 0, LONG, 1.5)),
    *({"limits": {**LIMITS, "ends": bad}} for bad in ("3", -3, LONG, 1.5, [])),
    {"stalls": None},
    {"stalls": [True, 1000, 3]},
    {"stalls": [1, 1000, 3, 0]},
    {"stalls": [True, None, 3, 0]},
    {"stalls": [True, 1000, -1, 0]},
    {"stalls": [True, 1000, 3, "0"]},
    {"dlq": "c1"},
    {"dlq": [None, 1000, 3, None, 5]},
    {"dlq": [True, 0, 3, None, 5]},
    {"dlq": [True, 1000, "3", None, 5]},
    {"dlq": [True, 1000, 3, "7", 5]},
    {"dlq": [True, 1000, 3, None, None]},
    {"dlq": [True, 1000, 3, None, -1]},
]
GROUPS: list[tuple[str, Any]] = [
    ("g", {"paused": "", "limits": {}}),
    ("g", {"paused": False}),
    ("g", {"paused": False, "limits": {**LIMITS, "max": -997}}),
    ("", {"paused": True, "limits": {}}),
    ("x" * 300, {"paused": True, "limits": {}}),
]
HELD: list[Any] = [
    [1, 2],
    [None, 5, 0, 1 << 43],
    ["job", "5", 0, 1 << 43],
    ["job", 5, 9, 1 << 43],
    ["job", 5, 0, LONG],
]
MINUTES = ["x", "-5", str(LONG)]
LINES: list[Any] = [[1, "info", LONG, "text"], [1, "info", -1, "text"], [1, [], 0, "text"]]


def manager_of(path: Path, clock: VirtualClock | None = None) -> QueueManager:
    return QueueManager(path, clock=clock or VirtualClock(), background=False)


def damage(path: Path, *changes: tuple[str, tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement, values in changes:
            connection.execute(statement, values)


def test_settings_out_of_their_bounds_keep_nobody_from_opening_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    rows: list[tuple[str, str, Any]] = []
    for n, body in enumerate(SETTINGS):
        rows.append(("queue", f"s{n}", body))
    for n, (group, body) in enumerate(GROUPS):
        rows.append(("group", f"g{n}\0{group}", body))
    for n, body in enumerate(HELD):
        rows.append(("held_key", f"h{n}\0key", body))
    hour = "eJxjYBgFo2AUjIJRMAoAAQAAAQ=="
    rows += [("minutes", f"m{n}\0{text}", hour) for n, text in enumerate(MINUTES)]
    rows += [("log", f"job\0{n}", body) for n, body in enumerate(LINES)]
    rows += [("queue", name, {"paused": True}) for name in ("", "no name", "\0")]
    bad = [(kind, key, json.dumps(body)) for kind, key, body in rows]
    names = [f"s{n}" for n in range(len(SETTINGS))] + [f"g{n}" for n in range(len(GROUPS))]
    with manager_of(path) as manager:
        jobs = [manager.push(name, group="g" if name[0] == "g" else None) for name in names]
    damage(path, *(("INSERT OR REPLACE INTO rest VALUES (?, ?, ?)", row) for row in bad))
    with caplog.at_level(logging.ERROR), manager_of(path) as manager:
        assert caplog.text.count("passed over") == len(bad)
        check(manager._state)
        for name, job in zip(names, jobs, strict=True):
            assert not manager.is_paused(name)
            found = manager.pull(name)
            assert found is not None
            assert found.id == job.id
            manager.fail(found, "no", unrecoverable=True)
        check(manager._state)
        with QueueManager.open_readonly(path) as view:
            assert set(names) <= set(view.queues()) <= set(manager.queues())


def test_a_schedule_whose_data_cannot_be_decoded_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    with manager_of(path) as manager:
        for name in ("good", "other"):
            Queue("q", manager).schedulers.upsert(name, every=60, job=JobSpec("n", {"n": 1}))
    damaged = "UPDATE rest SET body = replace(body, 'eyJu', 'AAAA') WHERE key = ?"
    damage(path, (damaged, ("q\0other",)))
    with manager_of(path) as manager:
        schedulers = Queue("q", manager).schedulers
        assert [scheduler.id for scheduler in schedulers.list()] == ["good"]
        assert "q/other is left out" in caplog.text
        with pytest.raises(SerializationError):
            schedulers.get("other")
        assert schedulers.remove("other")


def failed_job(manager: QueueManager) -> str:
    job = manager.push("q", {"n": 1})
    run = manager.pull("q")
    assert run is not None
    manager.fail(run, "no", unrecoverable=True)
    return job.id


def test_a_dead_letter_without_a_reason_has_the_reason_unknown(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with manager_of(path) as manager:
        good = manager.push("q", {"n": 1})
        Queue("q", manager).dlq.configure(auto_retry=True)
    damage(path, ("UPDATE jobs SET state = 4 WHERE id = ?", (good.id,)))
    with manager_of(path) as manager:
        check(manager._state)
        (entry,) = Queue("q", manager).dlq.entries()
        assert (entry.reason, entry.job.data) == ("unknown", {"n": 1})
        assert manager.retry(good)


def test_a_dead_letter_that_is_said_to_have_come_back_before_it_came_is_as_old_as_its_failure(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    clock = VirtualClock()
    with manager_of(path, clock) as manager:
        failed = failed_job(manager)
    damage(path, ("UPDATE jobs SET entered = entered - 1000 WHERE id = ?", (failed,)))
    with manager_of(path, clock) as manager:
        check(manager._state)
        (entry,) = Queue("q", manager).dlq.entries()
        assert entry.entered_at == entry.job.finished_at


def test_a_start_that_lies_ahead_holds_up_no_rate_limit(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    clock = VirtualClock()
    with manager_of(path, clock) as manager:
        Queue("q", manager).limits.set_rate_limit(2, per=10)
        failed = failed_job(manager)
        done = manager.push("q", 2)
        run = manager.pull("q")
        assert run is not None
        manager.ack(run)
        for _ in range(3):
            manager.push("q", 3)
        ahead = clock.timeline_ms() + 1_000_000
    with closing(sqlite3.connect(path)) as connection, connection:
        (meta,) = connection.execute("SELECT meta FROM jobs WHERE id = ?", (done.id,)).fetchone()
        head, options, created, _, *rest = json.loads(meta)
        meta = json.dumps([head, options, created, ahead, *rest])
        connection.execute("UPDATE jobs SET meta = ? WHERE id = ?", (meta, done.id))
    with manager_of(path, clock) as manager:
        check(manager._state)
        assert manager.get_state(failed) == "failed"
        assert len(manager.pull_batch("q", 5)) == 1
        check(manager._state)


@pytest.mark.parametrize("name", ["", "no name", "a\0b", b"q", b"\xff", "x" * 300])
@pytest.mark.parametrize("whole", [True, False])
def test_a_row_of_a_queue_that_cannot_be_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: Any, whole: bool
) -> None:
    path = tmp_path / "jobs.db"
    with manager_of(path) as manager:
        jobs = [manager.push("q", n).id for n in range(3)]
    damage(path, ("UPDATE jobs SET queue = ? WHERE id = ?", (name, jobs[1])))
    if not whole:
        damage(path, ("UPDATE jobs SET meta = 'x' WHERE id = ?", (jobs[1],)))
    with caplog.at_level(logging.ERROR), manager_of(path) as manager:
        assert "passed over" in caplog.text
        check(manager._state)
        assert manager.queues() == ["q"]
        with QueueManager.open_readonly(path) as view:
            assert view.queues() == ["q"]
            assert view.counts("q").total == 2
        assert [job.id for job in manager.pull_batch("q", 5)] == [jobs[0], jobs[2]]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM jobs").fetchone() == (3,)
