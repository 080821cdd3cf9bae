"""`QueueEvents`: callbacks and iteration, in order, each on its own."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bunqueue_py import (
    BunqueueError,
    JobEvent,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueEvents,
    QueueManager,
    ValidationError,
    Worker,
)
from bunqueue_py.client import queue_events
from bunqueue_py.testing import VirtualClock
from tests.threads.patience import TIMEOUT, until


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueueManager]:
    storage = None if request.param == "memory" else tmp_path / "jobs.db"
    with QueueManager(storage, config=ManagerConfig(shards=1)) as manager:
        yield manager


@pytest.fixture
def queue(manager: QueueManager) -> Queue:
    return Queue("q", manager)


def test_an_iterator_reads_the_events_of_its_queue_in_order(
    manager: QueueManager, queue: Queue
) -> None:
    with QueueEvents(queue) as events:
        reader = iter(events)
        manager.push("other")
        job = queue.add("n", 5)
        manager.ack(manager.pull("q"), "done")  # type: ignore[arg-type]
        seen = [next(reader) for _ in range(4)]
    assert [e.type for e in seen] == ["pushed", "active", "completed", "empty"]
    assert {e.job_id for e in seen[:3]} == {job.id}
    assert seen[2].result == "done"
    numbers = [e.sequence for e in seen]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_iteration_blocks_for_the_next_and_ends_with_close(queue: Queue) -> None:
    events, seen = QueueEvents(queue), []
    reader = iter(events)

    def read() -> None:
        seen.extend(e.type for e in reader)

    thread = threading.Thread(target=read)
    thread.start()
    queue.add("n")
    until(lambda: seen == ["pushed"], "it was read")
    assert thread.is_alive()
    events.close()
    thread.join(TIMEOUT)
    assert seen == ["pushed"]
    with pytest.raises(StopIteration):
        next(reader)


def test_closing_the_manager_ends_iteration_after_what_is_buffered() -> None:
    manager = QueueManager()
    reader = iter(QueueEvents("q", manager))
    manager.push("q")
    manager.close()
    assert [e.type for e in reader] == ["queue_created", "pushed"]
    with pytest.raises(ManagerClosedError):
        QueueEvents("q", manager)


def test_two_iterators_see_everything_each(queue: Queue) -> None:
    with QueueEvents(queue) as events:
        first, second = iter(events), iter(events)
        queue.add("n")
        assert next(first) == next(second)


def test_callbacks_hear_their_type_and_a_star_hears_all(queue: Queue) -> None:
    heard: list[str] = []
    with QueueEvents(queue) as events:
        events.on("completed", lambda e: heard.append("one"))
        events.once("*", lambda e: heard.append(f"first {e.type}"))

        @events.on("*")
        def every(event: JobEvent) -> None:
            heard.append(event.type)

        with Worker(queue, lambda job: None):
            queue.add("n").result(timeout=TIMEOUT)
            until(lambda: "empty" in heard, "all was heard")
        assert events.off("*", every)
        assert not events.off("*", every)
    joined = ["first worker_joined", "worker_joined"]
    assert heard[:7] == [*joined, "pushed", "active", "one", "completed", "empty"]


def test_a_listener_that_raises_or_blocks_costs_nobody_else_anything(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """B125."""
    gate, heard = threading.Event(), []

    def block(event: JobEvent) -> None:
        assert gate.wait(TIMEOUT)

    def bad(event: JobEvent) -> None:
        raise SystemExit(3)

    slow, other = QueueEvents(queue), QueueEvents(queue)
    slow.on("*", block)
    other.on("*", bad)
    other.on("*", lambda e: heard.append(e.type))
    with Worker(queue, lambda job: job.data):
        assert queue.add("n", 1).result(timeout=TIMEOUT) == 1
        until(lambda: heard[-1:] == ["empty"], "the other hears everything")
    gate.set()
    slow.close()
    other.close()
    assert "SystemExit" in caplog.text


def test_a_listener_may_close_its_own_events_the_worker_and_the_manager() -> None:
    """B125."""
    manager = QueueManager()
    queue, over = Queue("q", manager), threading.Event()
    events = QueueEvents(queue)
    worker = Worker(queue, lambda job: None).start()

    def close(event: JobEvent) -> None:
        events.close()
        worker.close()
        manager.close()
        over.set()

    events.on("completed", close)
    queue.add("n")
    assert over.wait(TIMEOUT)
    manager.close()


def test_a_reader_that_is_too_slow_loses_the_oldest_and_the_gap_shows(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_events, "BUFFER_SIZE", 10)
    with QueueEvents(queue) as events:
        reader = iter(events)
        queue.add("n")
        first = next(reader)
        queue.add_bulk([("n", n) for n in range(25)])
        assert events.lost == 15
        second = next(reader)
    assert second.sequence - first.sequence == 16
    assert events.lost == 15


def test_a_reader_that_nobody_holds_any_more_is_forgotten(queue: Queue) -> None:
    with QueueEvents(queue) as events:
        reader = iter(events)
        queue.add("n")
        del reader
        gc.collect()
        queue.add("n")
        (inbox,) = events._inboxes
        assert not inbox._items
        iter(events)
        assert inbox not in events._inboxes


def test_abandoned_iterators_leave_nothing_behind_and_what_they_lost_stays_counted(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_events, "BUFFER_SIZE", 3)
    subscriptions = queue.manager._state.events  # type: ignore[attr-defined]

    def half_read() -> None:
        reader = iter(QueueEvents(queue))
        queue.add_bulk([("n", n) for n in range(8)])
        next(reader)

    async def half_read_by_a_coroutine() -> None:
        reader = QueueEvents(queue).__aiter__()
        queue.add("n")
        await reader.__anext__()

    for _ in range(4):
        iter(QueueEvents(queue))
        assert len(subscriptions.entries) <= 1, "where nothing happens too"
    for _ in range(4):
        half_read()
        assert len(subscriptions.entries) <= 1, "the next one finds it gone"
    asyncio.run(half_read_by_a_coroutine())
    gc.collect()
    queue.add("n")
    assert not subscriptions.entries, "so does the next event"
    assert not subscriptions.any
    assert queue.manager.stats().listeners.lost >= 4 * 5  # type: ignore[attr-defined]


def test_without_threads_callbacks_are_made_by_run_pending() -> None:
    heard: list[str] = []
    with QueueManager(clock=VirtualClock(), background=False) as manager:
        events = QueueEvents("q", manager)
        events.on("pushed", lambda e: heard.append(e.type))
        manager.push("q")
        assert heard == []
        manager.run_pending()
        assert heard == ["pushed"]
        reader = iter(events)
        with pytest.raises(BunqueueError, match="never end"):
            next(reader)


def test_what_is_wrong_is_said_at_once(queue: Queue) -> None:
    events = QueueEvents(queue)
    with pytest.raises(ValidationError, match="event must be among"):
        events.on("nonsense", print)
    with pytest.raises(ValidationError, match="callable"):
        events.on("pushed", 5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        QueueEvents("no spaces", queue.manager)
    events.close()
    events.close()
    for use in (lambda: events.on("pushed", print), lambda: iter(events)):
        with pytest.raises(BunqueueError, match="closed"):
            use()


def test_no_event_costs_anything_while_nobody_listens(manager: QueueManager, queue: Queue) -> None:
    events = QueueEvents(queue)
    assert not manager._state.events.any
    events.on("pushed", print)
    assert manager._state.events.any
    events.close()
    assert not manager._state.events.any
