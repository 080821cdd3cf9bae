"""What listeners ask for is what is made: the types that somebody hears, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_py import (
    JobEvent,
    ManagerClosedError,
    ManagerConfig,
    Queue,
    QueueEvents,
    QueueManager,
    ValidationError,
    Worker,
)
from bunqueue_py.model.events import EVENT_TYPES
from bunqueue_py.stores.alarm import NEVER
from bunqueue_py.testing.clock import VirtualClock


def heard(manager: QueueManager) -> set[str]:
    return set(manager._state.events.heard)


def ends_badly(manager: QueueManager) -> None:
    manager.push("q")
    job = manager.pull("q")
    assert job is not None
    manager.fail(job, "no", unrecoverable=True)


def test_callbacks_ask_for_the_types_that_have_one_whoever_comes_and_goes() -> None:
    got: list[str] = []

    def note(event: JobEvent) -> None:
        got.append(event.type)

    with QueueManager(background=False) as manager:
        events = QueueEvents("q", manager)
        assert heard(manager) == set()
        events.on("failed", note)
        assert heard(manager) == {"failed"}
        ends_badly(manager)
        manager.run_pending()
        assert got == ["failed"]
        assert manager._state.queues["q"].event_seq == 1, "what nobody hears is not counted"
        events.on("completed")(note)
        assert heard(manager) == {"failed", "completed"}
        assert events.off("failed", note)
        assert heard(manager) == {"completed"}
        events.once("pushed", note)
        assert heard(manager) == {"completed", "pushed"}
        manager.push("q")
        manager.push("q")
        manager.run_pending()
        assert got == ["failed", "pushed"]
        assert heard(manager) == {"completed"}, "once it is over nobody hears it"
        events.on("*", note)
        assert heard(manager) == EVENT_TYPES
        assert events.off("*", note)
        assert events.off("completed", note)
        assert heard(manager) == set()
        assert not manager._state.events.any
        events.on("removed", note)
        manager.push("q").remove()
        manager.run_pending()
        assert got == ["failed", "pushed", "removed"]
        reader = iter(events)
        assert heard(manager) == EVENT_TYPES, "an iterator reads all types"
        events.close()
        assert heard(manager) == set()
        assert list(reader) == []


def test_a_listener_that_comes_in_a_call_hears_the_next_event_and_others_miss_none() -> None:
    got: list[tuple[str, int]] = []
    with QueueManager(background=False) as manager:
        events = QueueEvents("q", manager)

        def second(event: JobEvent) -> None:
            got.append(("second", event.sequence))
            if event.sequence == 3:
                events.on("active", lambda e: got.append(("active", e.sequence)))

        events.on("pushed", second)
        for n in range(5):
            manager.push("q", n)
        manager.run_pending()
        manager.pull("q")
        manager.push("q")
        manager.run_pending()
        assert got == [*(("second", n) for n in (1, 2, 3, 4, 5)), ("active", 6), ("second", 7)]


def test_once_ends_itself_and_no_other_registration_of_the_same_function() -> None:
    got: list[JobEvent] = []
    with QueueManager(background=False) as manager:
        events = QueueEvents("q", manager)
        events.on("pushed", got.append)
        events.once("pushed", got.append)
        events.once("pushed", got.append)
        for n in (3, 4, 5):
            manager.push("q")
            manager.run_pending()
            assert len(got) == n
        assert events.off("pushed", got.append)
        assert not events.off("pushed", got.append)


def test_two_objects_each_hear_what_they_asked_for() -> None:
    one: list[str] = []
    other: list[str] = []
    with QueueManager(background=False) as manager:
        QueueEvents("q", manager).on("pushed", lambda e: one.append(e.queue))
        QueueEvents(None, manager).on("pushed", lambda e: other.append(e.queue))
        manager.push("q")
        manager.push("r")
        manager.run_pending()
    assert (one, other) == (["q"], ["q", "r"])


Begin = Callable[[QueueManager, "list[JobEvent]"], Callable[[], Any]]


def by_callback(manager: QueueManager, got: list[JobEvent]) -> Callable[[], Any]:
    events = QueueEvents(None, manager)
    events.on("health", got.append)

    def end() -> None:
        assert events.off("health", got.append), "a method is the same at each look"
        assert not events.off("health", [].append)

    return end


def by_all(manager: QueueManager, got: list[JobEvent]) -> Callable[[], Any]:
    events = QueueEvents(None, manager)

    def note(event: JobEvent) -> None:
        if event.type == "health":
            got.append(event)

    events.on("*", note)
    return events.close


def by_iterator(manager: QueueManager, got: list[JobEvent]) -> Callable[[], Any]:
    events = QueueEvents(None, manager)
    reader = iter(events)

    def end() -> None:
        events.close()
        got.extend(event for event in reader if event.type == "health")

    return end


@pytest.mark.parametrize("begin", [by_callback, by_all, by_iterator])
def test_queue_events_of_all_queues_hear_what_the_checks_find(begin: Begin) -> None:
    """As `manager.events.subscribe` does: the checks look wherever somebody hears of health."""
    clock, got = VirtualClock(), []  # type: ignore[var-annotated]
    config = ManagerConfig(queue_size_alarm=3)
    with QueueManager(clock=clock, background=False, config=config) as manager:
        end = begin(manager, got)
        for n in range(9):
            manager.push("q", n)
        clock.advance(minutes=1)
        manager.run_pending()
        assert any("9 pending" in text for text in manager.health().problems)
        end()
        assert [(event.reason, event.subject) for event in got] == [("queue_large", "q")]
        assert not manager._state.events.watched
        assert not any("pending" in text for text in manager.health().problems)
        # whoever comes later is told anew
        again: list[JobEvent] = []
        manager.events.subscribe(again.append, types="health")
        clock.advance(minutes=1)
        manager.run_pending()
        assert [event.reason for event in again] == ["queue_large"]


def test_queue_events_of_one_queue_have_nobody_look_for_them() -> None:
    clock = VirtualClock()
    with QueueManager(clock=clock, background=False) as manager:
        QueueEvents("q", manager).on("*", lambda event: None)
        assert not manager._state.events.watched
        manager.push("q")
        manager.run_pending()
        assert manager._checks.duty.due_ms == NEVER


def test_closing_makes_the_calls_that_are_due_without_threads_too() -> None:
    got: list[str] = []
    with QueueManager(background=False) as manager:
        events = QueueEvents("q", manager)
        events.on("pushed", lambda event: got.append(event.type))
        manager.push("q")
        events.close()
        assert got == ["pushed"]
        manager.push("q")
        manager.run_pending()
        assert got == ["pushed"]


def test_ctrl_c_in_a_listener_gets_out_of_run_pending_and_closing_goes_on() -> None:
    calls: list[str] = []

    def interrupted(event: JobEvent) -> None:
        calls.append(event.type)
        raise KeyboardInterrupt

    manager = QueueManager(background=False)
    manager.events.subscribe(interrupted, types="pushed")
    manager.push("q")
    manager.push("q")
    with pytest.raises(KeyboardInterrupt):
        manager.run_pending()
    assert manager.close()
    assert calls == ["pushed", "pushed"]


class Asynchronous:
    async def __call__(self, event: JobEvent) -> None:
        """Nobody awaits it."""


async def coroutine(event: JobEvent) -> None:
    """Nobody awaits it."""


@pytest.mark.parametrize("fn", [coroutine, Asynchronous()])
def test_a_coroutine_function_is_refused_as_a_listener(fn: Any) -> None:
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: None)
        for register in (
            QueueEvents(queue).on,
            QueueEvents(queue).once,
            worker.on,
            lambda event, fn: manager.events.subscribe(fn, types=event),
        ):
            with pytest.raises(ValidationError, match="coroutine function"):
                register("completed", fn)
        assert heard(manager) == set()


def test_a_listener_of_a_closed_manager_is_refused_and_leaves_no_thread() -> None:
    manager = QueueManager()
    events = QueueEvents("q", manager)
    manager.close()
    with pytest.raises(ManagerClosedError):
        events.on("pushed", print)
    assert events._listeners.mailbox is None
