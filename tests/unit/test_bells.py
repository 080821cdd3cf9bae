"""An exception at any line of a call that wakes a thread leaves nobody asleep for good: Ctrl-C may
land anywhere. And a thread that it kept from being owned does nothing."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_py.clock import SystemClock
from bunqueue_py.model.mailbox import Mailbox
from bunqueue_py.storage.sqlite.desk import Desk
from bunqueue_py.stores.alarm import Alarm
from bunqueue_py.sync import spawn
from bunqueue_py.tasks.scheduler import Report, Task, TaskLoop

HERE = ("stores/alarm.py", "model/mailbox.py", "sqlite/desk.py")


def broken_off_at(n: int, call: Callable[[], object]) -> bool:
    """Raises at the n-th step of ours within the call; says whether it got that far."""
    left = n

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(HERE):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "with self._lock" not in line:
            # between taking a lock and what it guards no exception of a signal can land
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def steps_of(make: Callable[[], tuple[Any, Callable[[], object]]]) -> list[Any]:
    """What becomes of it at each step at which it breaks off."""
    found = []
    for n in range(1, 50):
        thing, call = make()
        if not broken_off_at(n, call):
            break
        found.append(thing)
    assert len(found) > 3
    return found


def rings(bell: threading.Lock) -> bool:
    """Whether whoever waits for it is woken."""
    return not bell.locked()


def test_an_alarm_that_was_moved_has_woken_its_sleeper() -> None:
    def make() -> tuple[Alarm, Callable[[], object]]:
        alarm = Alarm()
        return alarm, lambda: alarm.set(500)

    for alarm in steps_of(make):
        assert rings(alarm._bell) or alarm.due_ms > 500
        assert not alarm._lock.locked()
        alarm.set(400)
        assert rings(alarm._bell)
        alarm.sleep(SystemClock())
        alarm.set(300)
        assert rings(alarm._bell), "and at the next moment too"


def test_a_listener_hears_of_what_came_after_an_event_that_broke_off() -> None:
    def make() -> tuple[Mailbox, Callable[[], object]]:
        mailbox = Mailbox("m", lambda item: None, lambda: 0)
        return mailbox, lambda: mailbox.offer(1)

    for mailbox in steps_of(make):
        assert rings(mailbox._bell) or not mailbox.awake
        mailbox.offer(2)
        assert rings(mailbox._bell)


def test_a_writer_knows_of_what_was_marked() -> None:
    def make() -> tuple[Desk, Callable[[], object]]:
        desk = Desk(0.01, 0.1)
        desk.due(0.0)
        assert desk._asleep
        return desk, lambda: desk.marked(1.0)

    for desk in steps_of(make):
        assert rings(desk._bell) or desk.first_at is None
        desk.marked(2.0)
        assert rings(desk._bell)


class Interrupted(threading.Thread):
    """Its start is interrupted once it runs, so many times."""

    left = 1

    def start(self) -> None:
        super().start()
        if Interrupted.left > 0:
            Interrupted.left -= 1
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", Interrupted)
    monkeypatch.setattr(Interrupted, "left", 1)


def test_a_thread_whose_start_was_interrupted_does_nothing(interrupted: None) -> None:
    before = set(threading.enumerate())
    ran = []
    with pytest.raises(KeyboardInterrupt):
        spawn("one", lambda: ran.append("one"))
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    spawn("two", lambda: ran.append("two")).join(10)
    assert ran == ["two"]


def test_a_loop_whose_start_was_interrupted_has_one_thread_in_the_end(interrupted: None) -> None:
    clock, alarm = SystemClock(), Alarm()
    loop = TaskLoop("loop", clock, alarm, threaded=True)
    ran = threading.Event()
    loop.add(Task("t", lambda: (ran.set(), Report(0, None))[1]))
    alarm.set(clock.timeline_ms())
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    loop.start()
    assert ran.wait(10)
    assert len(set(threading.enumerate()) - before) == 1
    # one that nobody noted, as if it had been interrupted a moment later
    again = threading.Thread(target=loop._run, daemon=True)
    again.start()
    again.join(10)
    assert not again.is_alive()
    assert loop.stop(10)
    assert set(threading.enumerate()) == before


class Bell:
    """The bell of a mailbox whose ringer is held up, once, until its reader has been through."""

    def __init__(self, real: threading.Lock, been_through: Callable[[], bool]) -> None:
        self.acquire, self.locked = real.acquire, real.locked
        self._real, self._been_through, self._looks = real, been_through, 300

    def release(self) -> None:
        self._real.release()
        while self._looks and not self._been_through():
            self._looks -= 1
            threading.Event().wait(0.0002)
        self._looks = 0


def test_a_ringer_that_is_held_up_leaves_no_reader_asleep_who_is_taken_for_awake() -> None:
    heard: list[int] = []
    second = threading.Event()

    def deliver(item: int) -> None:
        heard.append(item)
        if item == 2:
            second.set()

    box = Mailbox("held-up", deliver, SystemClock().timeline_ms)
    bell: Any = Bell(box._bell, lambda: heard == [1] and not box.awake)
    box._bell = bell
    box.start()
    box.offer(1)
    box.offer(2)
    try:
        assert second.wait(5), "it sleeps, and nobody rings for it"
    finally:
        box.ring()
        assert box.close(5)
