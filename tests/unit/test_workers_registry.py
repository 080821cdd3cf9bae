"""Who works here: joins, is seen, falls silent, leaves; and gives back what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue_py import (
    JobEvent,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueManager,
    ValidationError,
)
from bunqueue_py.ops import staff
from bunqueue_py.registry.workers import WorkerEntry
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.testing import Harness, VirtualClock


class Card:
    """A worker that tells what the test says."""

    name = "w"
    concurrency = 2
    busy = 0
    processed = 0
    failed = 0

    def __init__(self) -> None:
        self.active = 0
        self.alive = True
        self.heard_ms = 0

    def running(self) -> list[Any]:
        return []


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False) as manager:
        yield manager


@pytest.fixture
def heard(manager: QueueManager) -> list[JobEvent]:
    events: list[JobEvent] = []
    types = ("health", "worker_joined", "worker_left", "released")
    manager.events.subscribe(events.append, types=types)
    return events


def join(manager: QueueManager, card: Card, worker_id: str = "id-1") -> WorkerEntry:
    entry = WorkerEntry(worker_id, "q", card, "host", 7, manager._state.now())
    staff.join(manager._state, entry)
    return entry


def watch(manager: QueueManager, clock: VirtualClock, seconds: int) -> None:
    """As if deadlines came due all the time."""
    for _ in range(seconds):
        clock.advance(seconds=1)
        if manager._state.staff.due_ms == NEVER:
            manager._state.staff.arm(clock.timeline_ms())
        manager.run_pending()


def told(heard: list[JobEvent]) -> list[tuple[str, str | None]]:
    return [(event.type, event.reason) for event in heard]


def test_a_worker_is_listed_from_its_start_to_its_close() -> None:
    with Harness() as h:
        queue = h.queue("q")
        worker = h.worker(queue, lambda job: 1 / job.data, name="ada", concurrency=3)
        (info,) = h.manager.workers.list()
        assert (info.name, info.queues, info.concurrency) == ("ada", ("q",), 3)
        assert info.pid == os.getpid()
        assert info.host
        assert (info.active, info.processed, info.failed, info.stale) == (0, 0, 0, False)
        assert h.manager.workers.get(info.id) == info
        assert h.manager.workers.get("nobody") is None
        with pytest.raises(ValidationError, match="worker_id must be text"):
            h.manager.workers.get([])  # type: ignore[arg-type]
        queue.add_bulk([("n", n) for n in (1, 2, 4)])
        queue.add("n", 0, attempts=1)
        h.run_until_idle()
        h.advance(days=1)
        now = h.manager.workers.list()[0]
        assert (now.processed, now.failed, now.active) == (3, 1, 0)
        assert now.last_seen == h.now
        assert (info.started_at, now.started_at) == (info.last_seen, info.last_seen)
        worker.close()
        assert h.manager.workers.list() == []
        assert h.manager.workers.get(info.id) is None
    types = [(e.type, e.subject, e.reason) for e in h.events if e.type.startswith("worker")]
    assert types == [("worker_joined", info.id, None), ("worker_left", info.id, "closed")]


def test_joining_and_leaving_are_events_of_the_queue_without_a_gap() -> None:
    with Harness() as h:
        queue = h.queue("q")
        queue.add("n")
        h.worker(queue, lambda job: 1).close()
        queue.add("n")
        of_queue = [e for e in h.events if e.queue == "q"]
        assert [e.sequence for e in of_queue] == list(range(1, len(of_queue) + 1))


def test_an_idle_worker_is_never_stale(manager: QueueManager, clock: VirtualClock) -> None:
    join(manager, Card())
    clock.advance(days=365)
    manager.run_pending()
    (info,) = manager.workers.list()
    assert not info.stale
    assert info.last_seen == clock.now
    assert manager._state.alarm.due_ms == NEVER, "nobody looks at it in the meantime"


def test_a_busy_worker_that_is_silent_is_stale_at_30_s_and_gone_at_90(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    """B008: what it holds is given back then, whatever the lease."""
    card = Card()
    entry = join(manager, card)
    Queue("q", manager).add("n")
    held = manager.pull("q", lock_duration=86_400, owner="w")
    assert held is not None
    card.active, card.heard_ms = 1, clock.timeline_ms()
    watch(manager, clock, 29)
    assert not manager.workers.list()[0].stale
    watch(manager, clock, 2)
    assert manager.workers.list()[0].stale
    assert told(heard) == [("worker_joined", None), ("health", "worker_stale")]
    assert heard[-1].subject == entry.id
    assert any("silent" in problem for problem in manager.health().problems)
    watch(manager, clock, 57)
    assert held.refresh().state == "active"
    watch(manager, clock, 3)
    assert manager.workers.list() == []
    assert told(heard)[2:] == [("worker_left", "silent"), ("released", None)]
    assert held.refresh().state == "waiting"
    assert (held.attempts_made, held.stall_count) == (0, 0)
    assert not manager.ack(held).applied


def test_one_that_speaks_again_is_back(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    card = Card()
    join(manager, card)
    card.active, card.heard_ms = 1, clock.timeline_ms()
    watch(manager, clock, 40)
    card.heard_ms = clock.timeline_ms()
    watch(manager, clock, 10)
    assert told(heard)[1:] == [("health", "worker_stale"), ("health", "worker_back")]
    card.active = 0
    watch(manager, clock, 1000)
    assert len(heard) == 3


def test_a_process_that_was_frozen_loses_no_worker(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    """All were silent with it: each may speak before it is judged."""
    card = Card()
    join(manager, card)
    card.active, card.heard_ms = 1, clock.timeline_ms()
    watch(manager, clock, 5)
    clock.advance(hours=8)
    manager._state.staff.arm(clock.timeline_ms())
    manager.run_pending()
    card.heard_ms = clock.timeline_ms()
    watch(manager, clock, 5)
    assert [info.stale for info in manager.workers.list()] == [False]
    assert told(heard) == [("worker_joined", None)]


def test_a_lost_worker_of_the_harness_is_silent_and_its_locks_run_out() -> None:
    with Harness() as h:
        queue = h.queue("q")
        worker = h.worker(queue, lambda job: h.hang(), name="ada")
        job = queue.add("n", backoff=5)
        h.run_until_idle()
        h.lose_worker(worker)
        h.advance(seconds=29)
        assert job.refresh().state == "active"
        h.advance(seconds=3)
        assert job.refresh().stall_count == 1
        assert h.manager.workers.list()[0].stale
        h.advance(seconds=70)
        assert h.manager.workers.list() == []
    left = [
        (e.reason, (e.timestamp - h.now).total_seconds())
        for e in h.events
        if e.type == "worker_left"
    ]
    assert left == [("silent", -12.0)]


def test_a_closed_manager_refuses_to_list_its_workers(clock: VirtualClock) -> None:
    manager = QueueManager(clock=clock, background=False)
    manager.close()
    for call in (manager.workers.list, manager.health, lambda: manager.workers.get("x")):
        with pytest.raises(ManagerClosedError):
            call()


def test_periods_of_silence_are_settings(clock: VirtualClock) -> None:
    config = ManagerConfig(worker_stale_after=5, worker_removed_after=8)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        card = Card()
        join(manager, card)
        card.active, card.heard_ms = 1, clock.timeline_ms()
        watch(manager, clock, 6)
        assert manager.workers.list()[0].stale
        watch(manager, clock, 4)
        assert manager.workers.list() == []


def test_two_workers_of_one_name_do_not_take_each_others_jobs(
    manager: QueueManager, clock: VirtualClock
) -> None:
    """Both hold their jobs under that name, and one of them goes."""
    gone, stays = Card(), Card()
    entry = join(manager, gone, "a")
    join(manager, stays, "b")
    Queue("q", manager).add("n")
    held = manager.pull("q", owner="w")
    assert held is not None
    assert entry.id == "a"
    gone.alive = False
    watch(manager, clock, 28)
    assert manager.heartbeat(held)
    watch(manager, clock, 25)
    assert manager.heartbeat(held)
    watch(manager, clock, 25)
    assert manager.heartbeat(held)
    watch(manager, clock, 25)
    assert [info.id for info in manager.workers.list()] == ["b"]
    assert manager.ack(held).applied
