"""The loop that background duties share: it alone sleeps, wakes, counts errors and stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from ..clock import Clock
from ..errors import ManagerClosedError
from ..stores.alarm import Alarm
from ..sync import LEAF, make_lock, spawn

_log = logging.getLogger("bunqueue_py.tasks")

FIRST_RETRY_MS = 1_000
LAST_RETRY_MS = 60_000


class Report(NamedTuple):
    """What a pass did, and when the next is due (timeline ms; `None`: not until it is armed)."""

    done: int
    next_due: int | None


class Task:
    """A tick and what became of it. After a failure it is retried with a growing delay."""

    def __init__(
        self,
        name: str,
        tick: Callable[[], Report],
        peek: Callable[[], int | None] | None = None,
    ) -> None:
        self.name = name
        self.tick = tick
        #: when it would next be due, where that can be told without a pass
        self.peek = peek
        self.failures = 0

    def run(self, now: int) -> Report:
        """One pass; what it raises is logged, and costs the other tasks nothing."""
        try:
            report = self.tick()
        except ManagerClosedError:
            return Report(0, None)
        except Exception:  # a duty that breaks must not end the loop that carries the others
            self.failures += 1
            delay = min(FIRST_RETRY_MS << min(self.failures - 1, 10), LAST_RETRY_MS)
            _log.exception("background task %r failed; it is tried again", self.name)
            return Report(0, now + delay)
        self.failures = 0
        return report


def _nothing() -> bool:
    return False


class TaskLoop:
    """Runs its tasks when its alarm says so, on one thread named `bunqueue-<name>` that starts
    with the first need; or, without a thread, whenever `run_pass` is called."""

    def __init__(self, name: str, clock: Clock, alarm: Alarm, *, threaded: bool) -> None:
        self._name = name
        self._clock = clock
        self._alarm = alarm
        self._lock = make_lock(f"loop {name}", LEAF)
        self._tasks: tuple[Task, ...] = ()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._owed_ms: int | None = None
        #: How long after its moment the pass under way began; 0 where the caller steps.
        self.late_ms = 0
        #: asked whenever the thread wakes with nothing due: whether there is something after all
        self.look: Callable[[], bool] = _nothing
        alarm.served = not threaded
        alarm.start = self.start

    def add(self, task: Task) -> None:
        """Adds a task; it runs from the next pass on."""
        with self._lock:
            self._tasks = (*self._tasks, task)

    def remove(self, task: Task) -> None:
        """Takes a task out; a pass that is under way may still run it once."""
        with self._lock:
            self._tasks = tuple(t for t in self._tasks if t is not task)

    def start(self) -> None:
        """Starts the thread if it is wanted and does not run yet."""
        with self._lock:
            if self._alarm.served or self._stopping:
                return
            self._alarm.served = True
        try:
            self._thread = spawn(self._name, self._run)
        except BaseException:  # no more threads to be had now: the next need tries again
            self._alarm.served = False
            raise

    def run_pass(self) -> int:
        """One pass over all tasks; sets the alarm to the earliest next due moment."""
        self._alarm.clear()
        now = self._clock.timeline_ms()
        done = 0
        for task in self._tasks:
            report = task.run(now)
            done += report.done
            if report.next_due is not None:
                self._alarm.set(report.next_due)
        return done

    def look_ahead(self) -> None:
        """Sets the alarm to the earliest moment at which there is something to do: where it was
        set for what has ended since, that is later than it said. Nothing is due now."""
        self._alarm.clear()
        now = self._clock.timeline_ms()
        for task in self._tasks:
            due = task.run(now).next_due if task.peek is None else task.peek()
            if due is not None:
                self._alarm.set(due)

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread; says whether it ended in time. Safe before start and twice, and from
        within the thread itself, which then ends after its pass."""
        with self._lock:
            self._stopping = True
        self._alarm.ring()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def turn(self) -> None:
        """One turn of the thread: a pass if it is due, which then knows how late it comes."""
        due, now = self._alarm.due_ms, self._clock.timeline_ms()
        if due > now and self.look():
            due = now
        if due <= now:
            self._owed_ms = due
            self.late_ms = now - due
            self.run_pass()
            self.late_ms = 0
            self._owed_ms = None

    def behind_ms(self, now: int) -> int:
        """For how long a pass is owed that is not done yet, as another thread sees it; 0 if none
        is."""
        owed = self._owed_ms
        return max(0, now - (self._alarm.due_ms if owed is None else owed))

    def _run(self) -> None:
        while not self._stopping:
            self.turn()
            if not self._stopping:
                self._alarm.sleep(self._clock)
