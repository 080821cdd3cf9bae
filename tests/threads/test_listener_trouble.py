"""Listeners that raise, block, come back into the manager, or are too slow. B125, B127, B130."""

import logging
import threading
from collections import deque
from typing import Any

import pytest

from bunqueue_py import (
    JobEvent,
    ManagerConfig,
    Queue,
    QueueEvents,
    QueueManager,
    UnrecoverableError,
    Worker,
)
from bunqueue_py.client import queue_events as queue_events_module
from bunqueue_py.model import mailbox as mailbox_module
from bunqueue_py.model.events import EVENT_TYPES
from tests.threads.patience import TIMEOUT, until


def live(manager: QueueManager, queue: Queue) -> None:
    """Makes nearly every type of event happen, and waits for the ends of the jobs."""

    def handler(job: Any) -> int:
        job.update_progress(10)
        if job.name == "bad":
            raise UnrecoverableError("no")
        return 1

    good, bad = queue.add("good", custom_id="g"), queue.add("bad")
    queue.add("good", custom_id="g")
    queue.pause()
    queue.resume()
    with Worker(queue, handler):
        assert good.result(10) == 1
        with pytest.raises(Exception, match="no"):
            bad.result(10)
    queue.retry(bad)
    queue.drain()
    queue.clean(0, state="completed")
    queue.obliterate()


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_a_listener_that_raises_costs_nobody_anything(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """B125: on every event type; the error surfaces once for each kind."""
    heard: list[JobEvent] = []

    def broken(event: JobEvent) -> None:
        raise error

    with caplog.at_level(logging.ERROR, "bunqueue_py"), QueueManager() as manager:
        manager.events.subscribe(broken)
        manager.events.subscribe(heard.append)
        live(manager, Queue("q", manager))
    assert {event.type for event in heard} >= {"pushed", "completed", "failed", "obliterated"}
    numbers = [event.sequence for event in heard]
    assert numbers == list(range(1, len(numbers) + 1)), "the other listener has lost nothing"
    assert len([r for r in caplog.records if "a listener of" in r.getMessage()]) == 1


def test_a_listener_that_blocks_holds_up_neither_jobs_nor_other_listeners() -> None:
    """B125."""
    release, heard = threading.Event(), list[str]()
    with QueueManager() as manager:
        manager.events.subscribe(lambda event: release.wait())
        manager.events.subscribe(lambda event: heard.append(event.type))
        live(manager, Queue("q", manager))
        until(lambda: "obliterated" in heard, "the other listener hears the end")
        release.set()


def test_a_listener_may_end_itself_push_and_close_a_worker() -> None:
    """B125."""
    done: list[str] = []
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: None).start()
        stop: list[Any] = []

        def listener(event: JobEvent) -> None:
            done.append(event.type)
            stop[0]()
            queue.add("from the listener")
            worker.close()

        stop.append(manager.events.subscribe(listener, types="completed"))
        queue.add("first")
        until(lambda: worker.is_closed, "the listener closed it")
    assert done == ["completed"]


def test_what_a_listener_that_never_returns_loses_is_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener cannot say so itself: whoever publishes does."""
    monkeypatch.setattr(mailbox_module, "BUFFER_SIZE", 10)
    release, began = threading.Event(), threading.Event()

    def stuck(event: JobEvent) -> None:
        began.set()
        release.wait()

    with QueueManager() as manager:
        manager.events.subscribe(stuck)
        manager.push("q")
        assert began.wait(10)
        for _ in range(50):
            manager.push("q")
        stats = manager.stats().listeners
        assert stats.backlog == 10
        assert stats.lost >= 40
        assert "is too slow" in caplog.text
        release.set()


def test_a_close_leaves_a_call_that_never_returns_behind_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mailbox_module, "PATIENCE", 0.05)
    release, began = threading.Event(), threading.Event()

    def stuck(event: JobEvent) -> None:
        began.set()
        release.wait()

    manager = QueueManager()
    manager.events.subscribe(stuck)
    manager.push("q")
    assert began.wait(10)
    assert manager.close() is False
    assert "is left in a call that has not returned" in caplog.text
    release.set()
    until(lambda: not any("events-1" in t.name for t in threading.enumerate()), "its end")


@pytest.mark.slow
def test_progress_as_fast_as_it_goes_makes_few_events_and_keeps_the_last_value() -> None:
    """B127: with no listener and with one that is slow."""
    heard: list[JobEvent] = []
    release = threading.Event()
    for listener in (None, heard):
        with QueueManager() as manager:
            if listener is not None:
                manager.events.subscribe(lambda e: (heard.append(e), release.wait(10)))
            queue = Queue("q", manager)

            def handler(job: Any) -> None:
                for n in range(20_000):
                    job.update_progress(n % 2 * 50)
                job.update_progress(0)

            with Worker(queue, handler):
                job = queue.add("x")
                job.result(30)
            assert job.refresh().progress == 0
            until(lambda: manager.stats().listeners.backlog < 5_000, "few events")
            release.set()
    assert len([e for e in heard if e.type == "progress"]) < 2_000


def test_a_worker_whose_pulls_fail_waits_longer_each_time_and_logs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B130."""
    from bunqueue_py.client.crew import Crew

    waits: list[int] = []
    monkeypatch.setattr(Crew, "_rest", lambda self, pause_ms: waits.append(pause_ms))
    with QueueManager() as manager:
        queue = Queue("q", manager)
        worker = Worker(queue, lambda job: "done")
        claim = manager.backend.claim

        def broken(*arguments: Any) -> Any:
            if len(waits) < 12:
                raise OSError("the store is away")
            return claim(*arguments)

        monkeypatch.setattr(manager.backend, "claim", broken)
        with worker:
            assert queue.add("x").result(10) == "done", "it recovers by itself"
    assert waits == [*(100 << n for n in range(9)), 30_000, 30_000, 30_000]
    assert len([r for r in caplog.records if "the store is away" in str(r.exc_info)]) == 1


def test_no_listener_to_a_type_no_event_of_it() -> None:
    """What nobody hears is no event."""
    with QueueManager(background=False) as manager:
        heard: list[JobEvent] = []
        stop = manager.events.subscribe(heard.append, types="failed")
        events = manager._state.events
        assert set(events.heard) == {"failed"}
        manager.push("q")
        job = manager.pull("q")
        assert job is not None
        manager.fail(job, "no", unrecoverable=True)
        manager.run_pending()
        assert [(e.type, e.sequence) for e in heard] == [("failed", 1)]
        manager.events.subscribe(heard.append)
        assert set(events.heard) == EVENT_TYPES
        stop()
        assert events.any


def test_many_who_add_at_once_lose_nothing_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adders take no lock while there is room, and the reader is rung for only where it sleeps."""
    monkeypatch.setattr(mailbox_module, "BUFFER_SIZE", 400)
    monkeypatch.setattr(mailbox_module, "AT_ONCE", 100)
    got: list[int] = []
    box = mailbox_module.Mailbox("test", got.append, lambda: 0)
    box.start()
    adders, each = 8, 2_000
    start = threading.Barrier(adders)

    def add(number: int) -> None:
        start.wait(TIMEOUT)
        for n in range(each):
            box.offer(number * each + n)
            assert box.backlog <= 400

    threads = [threading.Thread(target=add, args=(n,)) for n in range(adders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert box.close(TIMEOUT)
    assert len(got) == len(set(got))
    assert len(got) + box.lost == adders * each
    for number in range(adders):
        mine = [n for n in got if n // each == number]
        assert mine == sorted(mine)


def test_a_reader_that_is_about_to_sleep_misses_nothing() -> None:
    got: list[str] = []

    class Late(mailbox_module.Mailbox):
        def drain(self) -> int:
            delivered = super().drain()
            if "late" not in got:
                self.offer("late")  # it is awake still, so nobody rings for this one
            return delivered

    box = Late("test", got.append, lambda: 0)
    box.start()
    box.offer("first")
    until(lambda: got == ["first", "late"], "both")
    assert box.close(TIMEOUT)


def test_a_ring_that_was_broken_off_is_made_good_by_the_next() -> None:
    got: list[int] = []
    box = mailbox_module.Mailbox("test", got.append, lambda: 0)
    box._bell.release()  # as an exception leaves it that lands between bell and flag
    box.offer(1)
    assert box.awake
    box.start()
    until(lambda: got == [1], "it is delivered")
    assert box.close(TIMEOUT)


def test_stats_name_each_listener_with_its_backlog_and_what_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox_module, "BUFFER_SIZE", 5)
    monkeypatch.setattr(queue_events_module, "BUFFER_SIZE", 5)
    config = ManagerConfig(allow_private_webhooks=True, listener_backlog_alarm=4)
    with QueueManager(background=False, config=config) as manager:
        queue = Queue("q", manager)
        stop = manager.events.subscribe(lambda event: None)
        with QueueEvents(queue) as events:
            events.on("pushed", lambda event: None)
            reader = iter(events)
            for path in ("/a", "/b"):
                manager.webhooks.add(f"http://127.0.0.1:9{path}", "job.pushed")
            for n in range(7):
                queue.add("x", n)
            found = manager.stats().listeners
            names = [one.name.partition(" ")[0] for one in found.each]
            assert names == ["events-1", "events", "iterator", "webhook-events"]
            assert [(one.backlog, one.lost) for one in found.each] == [(5, 2)] * 3 + [(5, 9)]
            assert (found.count, found.backlog, found.lost) == (4, 20, 15)
            problems = manager.health().problems
            assert len(problems) == 4, problems
            assert next(reader).type == "pushed"
        stop()
        gone = manager.stats().listeners
        assert gone.count == 1
        assert gone.lost == 15, "what is counted never becomes less"
        for hook in manager.webhooks.list():
            manager.webhooks.disable(hook)


def test_a_reader_that_falls_asleep_while_a_verb_adds_an_event_is_rung_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Verbs add to a listener's buffer in line: each looks at its reader after that."""

    class Sleepy(deque[Any]):
        def append(self, item: Any) -> None:
            box.awake = False  # it saw nothing, and sleeps
            box._bell.acquire(False)
            super().append(item)

    monkeypatch.setattr(mailbox_module, "deque", Sleepy)
    with QueueManager(background=False) as manager:
        manager.events.subscribe(
            lambda event: None, types=("pushed", "active", "completed", "empty")
        )
        (box,) = manager._state.events.mailboxes()
        assert isinstance(box, mailbox_module.Mailbox)

        def rung(verb: Any) -> Any:
            before = len(box.items)
            found = verb()
            assert len(box.items) > before
            assert box.awake
            assert not box._bell.locked()
            return found

        rung(lambda: manager.push("q"))
        job = rung(lambda: manager.pull("q"))
        rung(lambda: manager.ack(job))
        rung(lambda: manager.push("q", custom_id="c"))
        rung(lambda: manager.push_batch("q", [("a", 1), ("b", 2)]))
        assert [raw[0] for raw in box.items].count("empty") == 1
        box.items.clear()
