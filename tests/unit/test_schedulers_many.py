"""Ten thousand schedulers: all due at once, and one more put among them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest

from bunqueue_py import JobSpec, Queue, QueueManager
from bunqueue_py.ops.query import check
from bunqueue_py.tasks import schedules
from bunqueue_py.testing import SeededIds, VirtualClock

QUEUES = 10


def fill(manager: QueueManager, n: int, **when: Any) -> None:
    for i in range(n):
        manager.schedulers.upsert(f"q{i % QUEUES}", f"s{i}", job=JobSpec("x", i), **when)


def fires_each_once(
    n: int, path: Path | None, when: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bites: list[int] = []
    fire_due = schedules.fire_due

    def counted(*args: Any) -> int:
        bites.append(fire_due(*args))
        return bites[-1]

    monkeypatch.setattr(schedules, "fire_due", counted)
    clock = VirtualClock()
    with QueueManager(path, clock=clock, background=False, _ids=SeededIds()) as manager:
        storage: Any = manager._state.storage
        if storage is not None:
            storage._trust_the_system()
        fill(manager, n, **when)
        manager.run_pending()
        manager.flush()
        assert manager.counts().total == sum(bites) == 0
        clock.advance(minutes=1)
        for _ in range(n // schedules.BITE + 2):
            manager.run_pending()
        assert max(bites) <= schedules.BITE, "a pass goes on for longer than a bite"
        assert sum(bites) == n, "one was looked at twice, or not at all"
        data = []
        for name in range(QUEUES):
            while jobs := manager.pull_batch(f"q{name}", 1000):
                data += [job.data for job in jobs]
                assert all(manager.ack(job).applied for job in jobs)
        assert sorted(data) == list(range(n))
        assert {found.runs for found in manager.schedulers.list()} == {1}
        check(manager._state)


CRON = {"cron": "* * * * *", "tz": "Europe/Rome"}


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "file"])
def test_schedulers_of_more_than_a_bite_fire_once_each(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "BITE", 16)
    fires_each_once(80, tmp_path / "jobs.db" if kept else None, {"every": 60}, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("when", [{"every": 60}, CRON], ids=["every", "cron"])
def test_ten_thousand_due_in_one_minute_fire_once_each_a_bite_at_a_time(
    kept: bool,
    when: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow_rounds: Callable[[int, int], int],
) -> None:
    path = tmp_path / "jobs.db" if kept else None
    fires_each_once(slow_rounds(1_000, 10_000), path, when, monkeypatch)


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of Python the call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def costs(n: int, when: dict[str, Any]) -> tuple[float, float, float]:
    """Lines of an upsert that is new, the same again, and another one, beside `n` others."""
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        fill(manager, n, **when)
        upsert = Queue("q0", manager).schedulers.upsert
        changed = {"every": 61} if "every" in when else {"cron": "*/2 * * * *"}
        new, same, other = [], [], []
        for i in range(9):
            new.append(lines_of(lambda i=i: upsert(f"n{i}", **when)))  # type: ignore[misc]
            same.append(lines_of(lambda i=i: upsert(f"n{i}", **when)))  # type: ignore[misc]
            other.append(lines_of(lambda i=i: upsert(f"n{i}", **changed)))  # type: ignore[misc]
        return median(new), median(same), median(other)


@pytest.mark.parametrize("when", [{"every": 60}, CRON], ids=["every", "cron"])
def test_an_upsert_costs_no_more_beside_many(when: dict[str, Any]) -> None:
    few, many = costs(10, when), costs(300, when)
    assert all(b <= a + 5 for a, b in zip(few, many, strict=True)), (few, many)


@pytest.mark.slow
def test_an_upsert_beside_ten_thousand_costs_what_it_does_beside_a_hundred() -> None:
    few, many = costs(100, {"every": 60}), costs(10_000, {"every": 60})
    assert all(b <= a + 10 for a, b in zip(few, many, strict=True)), (few, many)
