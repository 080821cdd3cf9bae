"""The checks: each tells once that something is wrong, and once that it no longer is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bunqueue_py import JobEvent, ManagerConfig, Queue, QueueManager
from bunqueue_py.ops import staff
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.testing import Harness, VirtualClock
from tests.unit.test_workers_registry import Card, join

CONFIG = ManagerConfig(
    queue_size_alarm=10, listener_backlog_alarm=20, worker_saturated_after=60, shards=1
)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def manager(clock: VirtualClock) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, background=False, config=CONFIG) as manager:
        yield manager


@pytest.fixture
def heard(manager: QueueManager) -> list[JobEvent]:
    events: list[JobEvent] = []
    manager.events.subscribe(events.append, types="health")
    return events


def pass_time(manager: QueueManager, clock: VirtualClock, seconds: float) -> int:
    """Stops wherever the scheduler's thread would wake; returns how often."""
    end, stops = clock.timeline_ms() + round(seconds * 1000), 0
    while (due := manager._state.alarm.due_ms) <= end:
        clock.advance(milliseconds=max(0, due - clock.timeline_ms()))
        manager.run_pending()
        stops += 1
    clock.advance(milliseconds=end - clock.timeline_ms())
    return stops


def told(heard: list[JobEvent]) -> list[tuple[str | None, str | None]]:
    return [(event.reason, event.subject) for event in heard]


def test_jobs_that_nobody_starts_for_five_minutes_are_told_of_once(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    queue = Queue("q", manager)
    queue.add("n")
    pass_time(manager, clock, 290)
    assert heard == []
    pass_time(manager, clock, 30)
    assert told(heard) == [("queue_idle", "q")]
    assert heard[0].count == 1
    assert heard[0].message is not None
    assert "none has started" in heard[0].message
    assert manager.health().problems == (heard[0].message,)
    pass_time(manager, clock, 86_400)
    assert len(heard) == 1
    manager.pull(queue, lock_duration=1000)
    pass_time(manager, clock, 20)
    assert told(heard)[1:] == [("queue_active", "q")]
    assert manager.health().ok


@pytest.mark.parametrize("why", ["delayed", "paused", "limited", "running", "empty"])
def test_a_queue_that_has_a_reason_is_not_idle(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent], why: str
) -> None:
    queue = Queue("q", manager)
    if why == "paused":
        queue.pause()
    if why == "limited":
        queue.limits.cool_down(86_400)
    job = queue.add("n", delay=4000 if why == "delayed" else 0)
    if why == "running":
        queue.add("n")
        manager.pull(queue, lock_duration=86_400)
    if why == "empty":
        job.remove()
    pass_time(manager, clock, 3900)
    assert heard == []


def test_a_delayed_job_that_has_come_due_counts_from_then_on(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    Queue("q", manager).add("n", delay=86_400)
    assert pass_time(manager, clock, 86_400 + 290) < 10
    assert heard == []
    pass_time(manager, clock, 30)
    assert told(heard) == [("queue_idle", "q")]


def test_a_queue_above_its_size_is_told_of_and_when_it_is_well_below(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    queue = Queue("q", manager)
    jobs = [queue.add("n", delay=90_000) for _ in range(11)]
    pass_time(manager, clock, 20)
    assert told(heard) == [("queue_large", "q")]
    assert heard[0].count == 11
    for n in (9, 10, 11, 9):  # it flickers round the bound
        while queue.counts().total < n:
            jobs.append(queue.add("n", delay=90_000))
        while queue.counts().total > n:
            jobs.pop().remove()
        pass_time(manager, clock, 20)
    assert len(heard) == 1
    jobs.pop().remove()
    pass_time(manager, clock, 20)
    assert told(heard)[1:] == [("queue_normal", "q")]


def test_a_worker_with_all_hands_full_for_a_minute_is_saturated(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    card = Card()
    card.busy = 2
    join(manager, card, "w1")
    queue = Queue("q", manager)
    queue.add("n")
    queue.add("n")
    manager.pull(queue, lock_duration=86_400)
    pass_time(manager, clock, 60)
    assert heard == []
    pass_time(manager, clock, 30)
    assert told(heard) == [("worker_saturated", "w1")]
    pass_time(manager, clock, 600)
    assert len(heard) == 1
    card.busy = 1
    pass_time(manager, clock, 20)
    assert told(heard)[1:] == [("worker_relieved", "w1")]


def test_what_is_being_told_when_a_round_begins_is_seen_by_it(
    manager: QueueManager, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.events.subscribe(lambda event: None)
    manager.push("q")
    queue, events, checks = manager._state.queues["q"], manager._state.events, manager._checks
    tell, hush = events.pushed, events.hush
    assert tell is not None
    held, hushed = threading.Event(), threading.Event()

    def verb() -> None:
        with queue.lock:
            held.set()
            hushed.wait(10)
            tell(queue, "id", clock.timeline_ms(), None)

    def hush_and_go_on() -> None:
        hush()
        hushed.set()

    monkeypatch.setattr(events, "hush", hush_and_go_on)
    thread = threading.Thread(target=verb)
    thread.start()
    assert held.wait(10)
    checks.tick()
    thread.join(10)
    assert checks._seen["q"] == queue.event_seq


def test_a_worker_that_leaves_before_it_was_told_of_is_forgotten(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    card = Card()
    card.busy = 2
    entry = join(manager, card, "w1")
    queue = Queue("q", manager)
    queue.add("n")
    queue.add("n")
    manager.pull(queue, lock_duration=86_400)
    pass_time(manager, clock, 30)
    assert ("worker_saturated", "w1") in manager._checks._since
    staff.leave(manager._state, entry, "closed")
    pass_time(manager, clock, 30)
    assert ("worker_saturated", "w1") not in manager._checks._since


def test_a_listener_that_falls_behind_is_told_of(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    other: list[JobEvent] = []
    manager.events.subscribe(other.append, types="pushed")
    queue = Queue("q", manager)
    for _ in range(30):
        queue.add("n").remove()
    clock.advance(seconds=10)
    manager._loop.run_pass()  # the listeners have no turn meanwhile
    assert any("30 events behind" in problem for problem in manager.health().problems)
    pass_time(manager, clock, 30)
    assert [reason for reason, _ in told(heard)] == ["listener_behind", "listener_caught_up"]
    assert heard[0].count == 30
    assert len(other) == 30


def test_a_handler_that_runs_on_after_its_timeout_is_overdue_until_it_returns() -> None:
    """B022, and what `health()` says of it."""
    with Harness() as h:
        heard: list[JobEvent] = []
        h.manager.events.subscribe(heard.append, types="health")
        queue = h.queue("q")
        worker = h.worker(queue, lambda job: h.hang(), name="ada")
        job = queue.add("n", timeout=30, attempts=1)
        h.run_until_idle()
        h.advance(seconds=29)
        assert h.manager.health().overdue == ()
        h.advance(seconds=1)
        (late,) = h.manager.health().overdue
        assert (late.job_id, late.queue, late.worker, late.timeout) == (job.id, "q", "ada", 30.0)
        assert late.started_at is not None
        h.advance(seconds=60)
        assert told(heard) == [("handler_overdue", job.id)]
        assert len(h.manager.health().problems) == 1, "said once, whoever found it"
        h.lose_worker(worker)
        h.advance(seconds=300)
        assert ("handler_returned", job.id) in told(heard)


def test_a_late_scheduler_is_told_of_by_its_next_passes(clock: VirtualClock) -> None:
    with QueueManager(clock=clock, background=False) as manager:
        heard: list[JobEvent] = []
        manager.events.subscribe(heard.append, types="health")
        Queue("q", manager).add("n", ttl=100)
        clock.advance(seconds=200)
        manager._loop.turn()
        manager.events.drain()
        assert [e.reason for e in heard] == ["scheduler_late"]
        assert heard[0].message == "the background thread was 190 s late"
        for _ in range(3):
            clock.advance(milliseconds=max(0, manager._state.alarm.due_ms - clock.timeline_ms()))
            manager._loop.turn()
        manager.events.drain()
        assert [e.reason for e in heard] == ["scheduler_late", "scheduler_on_time"]


def test_nobody_checks_where_nobody_listens(manager: QueueManager, clock: VirtualClock) -> None:
    queue = Queue("q", manager)
    others: list[Any] = []
    manager.events.subscribe(others.append, types="pushed")
    manager.events.subscribe(others.append, queue="q")
    for _ in range(20):
        queue.add("n")
    assert pass_time(manager, clock, 86_400) == 0
    assert manager._state.alarm.due_ms == NEVER


def test_checks_end_with_the_last_listener_and_begin_anew_with_the_next(
    manager: QueueManager, clock: VirtualClock
) -> None:
    queue = Queue("q", manager)
    for _ in range(20):
        queue.add("n")
    first: list[JobEvent] = []
    second: list[JobEvent] = []
    ends = [manager.events.subscribe(events.append) for events in (first, second)]
    pass_time(manager, clock, 20)
    assert told(first) == told(second) == [("queue_large", "q")]
    for end in ends:
        end()
        end()
    assert not manager._state.events.any
    pass_time(manager, clock, 86_400)
    assert manager._state.alarm.due_ms == NEVER
    third: list[JobEvent] = []
    manager.events.subscribe(third.append, types=["health"])
    pass_time(manager, clock, 20)
    assert told(third) == [("queue_large", "q")]


def test_a_check_costs_nothing_while_nothing_happens(
    manager: QueueManager, clock: VirtualClock, heard: list[JobEvent]
) -> None:
    queue = Queue("q", manager)
    queue.add("n", delay=30 * 86_400)
    manager.pull(queue)
    assert pass_time(manager, clock, 29 * 86_400) < 5
