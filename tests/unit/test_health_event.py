"""That the disk begins to fail, and that it is well again, is told to whoever listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue_py import JobEvent, QueueManager, StorageError
from bunqueue_py.testing import VirtualClock
from tests.faulty_disk import Disk


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(tmp_path: Path, disk: Disk, clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(tmp_path / "jobs.db", clock=clock, background=False) as manager:
        yield manager
        disk.mend()


@pytest.fixture
def heard(manager: QueueManager) -> list[JobEvent]:
    events: list[JobEvent] = []
    manager.events.subscribe(events.append, types="health")
    return events


def test_each_turn_for_the_worse_or_better_is_one_event(
    manager: QueueManager, disk: Disk, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    disk.fail()
    for _ in range(3):
        manager.push("q")
        manager.run_pending()
    (failing,) = heard
    assert (failing.reason, failing.sequence) == ("storage_failing", 1)
    assert (failing.queue, failing.job_id, failing.timestamp) == ("", None, clock.now)
    assert failing.error is not None
    assert "disk I/O error" in failing.error
    clock.advance(seconds=60)
    disk.mend()
    manager.run_pending()
    manager.push("q")
    manager.run_pending()
    (well,) = heard[1:]
    assert (well.reason, well.error, well.sequence) == ("storage_recovered", None, 2)
    assert well.timestamp == clock.now
    disk.fail()
    with pytest.raises(StorageError):
        manager.push("q", durable=True)
    manager.run_pending()
    assert [event.reason for event in heard[2:]] == ["storage_failing"]


def test_it_is_of_the_whole_manager_and_leaves_no_gap_in_a_queue(
    manager: QueueManager, disk: Disk
) -> None:
    of_queue: list[JobEvent] = []
    of_all: list[JobEvent] = []
    manager.events.subscribe(of_queue.append, queue="q")
    manager.events.subscribe(of_all.append)
    manager.push("q")
    disk.fail()
    manager.push("q")
    disk.mend()
    manager.push("q")
    manager.run_pending()
    assert [(e.type, e.sequence) for e in of_queue] == [
        ("queue_created", 1),
        *(("pushed", n) for n in (2, 3, 4)),
    ]
    assert [e.type for e in of_all].count("health") == 2
    assert [e for e in of_all if e.type != "health"] == of_queue


def test_a_listener_hears_it_while_the_disk_still_fails_and_may_ask_the_manager(
    tmp_path: Path, disk: Disk
) -> None:
    told = threading.Event()
    seen: list[tuple[str | None, int]] = []
    with QueueManager(tmp_path / "jobs.db") as manager:

        def listen(event: JobEvent) -> None:
            manager.push("alarms", {"why": event.error})
            seen.append((event.reason, manager.counts("alarms").waiting))
            told.set()

        manager.events.subscribe(listen, types="health")
        disk.fail()
        manager.push("q")
        assert told.wait(10)
        assert seen == [("storage_failing", 1)]
        told.clear()
        disk.mend()
        manager.flush()
        assert told.wait(10)
        assert seen[1:] == [("storage_recovered", 2)]
