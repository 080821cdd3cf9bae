"""The loop that background duties share: it alone sleeps, wakes, counts errors and stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from ..clock import Clock
from ..errors import ManagerClosedError
from ..model.failure import bounded
from ..registry.task_errors import TaskErrors
from ..stores.alarm import NEVER, Alarm
from ..stores.duty import Duty
from ..sync import LEAF, make_lock, spawn
from .give_way import GiveWay, press_on

_log = logging.getLogger("bunqueue_py.tasks")


class Report(NamedTuple):
    """What a pass did, and when the next is due (timeline ms; `None`: not until it is armed).
    `late_ms` is by how much its work came after its moment, where that is another thing than how
    late the pass came."""

    done: int
    next_due: int | None
    late_ms: int | None = None


class Pace(NamedTuple):
    """How a task that fails is tried again, in ms: after `first`, doubling up to `slow`, and every
    `slow` once its circuit is open. `told` hears of each circuit that opens (with what the task
    raised last) or closes; it is called with no lock held."""

    first: int = 1_000
    slow: int = 60_000
    told: Callable[[str, str | None], None] = lambda name, error: None


class Task:
    """A tick and what becomes of it.

    With a `duty` it runs when that is due; without one, in every pass of its loop. One that has
    failed is not run before its next try is due, whatever else wakes the loop. `ahead_ms` is when
    it is due, as the last look ahead found it, if it has no duty: `peek` tells that without a pass.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], Report],
        duty: Duty | None = None,
        *,
        errors: TaskErrors | None = None,
        pace: Pace | None = None,
        peek: Callable[[], int | None] | None = None,
    ) -> None:
        self.name = name
        self.tick = tick
        self.duty = duty
        self.peek = peek
        self._errors = TaskErrors(5) if errors is None else errors
        self._pace = Pace() if pace is None else pace
        #: of one that has failed, when its next try is due
        self.not_before = 0
        self.ahead_ms = NEVER
        #: what it has come to, which whoever runs it writes
        self.line = self._errors.add(name)

    def run(self, clock: Clock, late_ms: int = 0, *, sturdy: bool = True) -> Report:
        """One pass, if it is due; what it raises is logged, and costs the other tasks nothing.
        Unless `sturdy` that holds for errors only, not for Ctrl-C and its like."""
        now = clock.timeline_ms()
        if now < self.not_before:
            return Report(0, self.not_before)
        if self.duty is not None:
            late = self.duty.take(now)
            if late is None:
                return Report(0, self.duty.due_ms if self.duty.due_ms < NEVER else None)
            late_ms = late
        began, _ = clock.effort()
        try:
            report = self.tick()
        except ManagerClosedError:
            return Report(0, None)
        except BaseException as error:  # one that breaks must not end the loop of the others
            if not sturdy and not isinstance(error, Exception):
                if self.duty is not None:
                    self.duty.arm(now)
                raise
            return self._failed(error, now, clock.effort()[0] - began, late_ms)
        self.not_before = 0
        if report.late_ms is not None:
            late_ms = report.late_ms
        took_ms, line = clock.effort()[0] - began, self.line
        if not line.in_a_row:
            line.ran(now, took_ms, late_ms)
        elif self._errors.succeeded(self.name, now, took_ms, late_ms):
            self._pace.told(self.name, None)
        if self.duty is not None and report.next_due is not None:
            self.duty.arm(report.next_due)
        return report

    def end(self) -> None:
        """The task will not run any more."""
        self._errors.drop(self.name)

    def _failed(self, error: BaseException, now: int, took_ms: float, late_ms: int) -> Report:
        text = bounded(f"{type(error).__name__}: {_said(error)}", 500)
        line, opens = self._errors.failed(self.name, now, took_ms, late_ms, text)
        delay = min(self._pace.first << min(line.in_a_row - 1, 10), self._pace.slow)
        if line.open_since_ms is not None:
            delay = self._pace.slow
        self.not_before = now + delay
        if self.duty is not None:
            self.duty.arm(self.not_before)
        _log.error(
            "background task %r failed, %d times in a row; it is tried again in %g s",
            self.name,
            line.in_a_row,
            delay / 1000,
            exc_info=error,
        )
        if opens:
            self._pace.told(self.name, text)
        return Report(0, self.not_before)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a foreign __str__ may raise, and this error is being reported
        return "(its text raised)"


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
        #: those without a duty, which come first, and the duties of the others
        self._plain: tuple[Task, ...] = ()
        self._duties: tuple[Duty, ...] = ()
        #: when the first of these is due, as the last look ahead found it
        self._first_duty_ms = NEVER
        self._thread: threading.Thread | None = None
        #: the thread that serves it, as that says itself: there is no second one, whatever lands
        #: between its start and the note of it
        self._runner: threading.Thread | None = None
        self._stopping = False
        self._owed_ms: int | None = None
        self._threaded = threaded
        self._resting = GiveWay(clock, lambda: self._stopping) if threaded else None
        #: called by tasks between two bites, with no lock held
        self.give_way: Callable[[], None] = self._resting or press_on
        #: hears how late each pass begins, on the loop's own thread, with no lock held
        self.on_pass: Callable[[int], None] | None = None
        #: How long after its moment the pass under way began; 0 where the caller steps.
        self.late_ms = 0
        #: called at the end of `run_ahead`, for what a whole pass also looks at
        self.ran_ahead: Callable[[], object] = _nothing
        #: asked whenever the thread wakes with nothing due: whether there is something after all
        self.look: Callable[[], bool] = _nothing
        alarm.served = not threaded
        alarm.start = self.start

    def add(self, task: Task) -> None:
        """Adds a task; it runs from the next pass on."""
        with self._lock:
            self._set((*self._tasks, task))

    def remove(self, task: Task) -> None:
        """Takes a task out; a pass that is under way may still run it once."""
        with self._lock:
            self._set(tuple(t for t in self._tasks if t is not task))
        task.end()

    def _set(self, tasks: tuple[Task, ...]) -> None:
        self._tasks = tasks
        self._plain = tuple(task for task in tasks if task.duty is None)
        self._duties = tuple(task.duty for task in tasks if task.duty is not None)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it runs."""
        return self._tasks

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
        clock, late_ms = self._clock, self.late_ms
        self._alarm.clear()
        if self._resting is not None:
            self._resting.begin()
        done, earliest, now = 0, NEVER, clock.timeline_ms()
        try:
            for task in self._tasks:
                duty = task.duty
                if duty is not None and duty.due_ms > now:
                    if duty.due_ms < earliest:
                        earliest = duty.due_ms
                    continue
                report = task.run(clock, late_ms, sturdy=self._threaded)
                done += report.done
                due = report.next_due
                if due is not None and due < earliest:
                    earliest = due
        except BaseException:
            # Ctrl-C, where the caller steps: what has not had its turn is due at the next step
            self._alarm.set(clock.timeline_ms())
            raise
        if earliest < NEVER:
            self._alarm.set(earliest)
        return done

    def look_ahead(self) -> int:
        """Moves the alarm to the earliest moment at which there is something to do, and returns it:
        where it was set for what has ended since, that is later than it said. Nothing is due now,
        and nobody else acts meanwhile."""
        earliest = NEVER
        for task in self._plain:
            peek = task.peek
            if peek is None or task.not_before:
                due = task.run(self._clock).next_due
            else:
                due = peek()
            if due is None:
                due = NEVER
            elif due < earliest:
                earliest = due
            task.ahead_ms = due
        first = NEVER
        for duty in self._duties:
            if duty.due_ms < first:
                first = duty.due_ms
        self._first_duty_ms = first
        if first < earliest:
            earliest = first
        self._alarm.move(earliest)
        return earliest

    def run_ahead(self) -> None:
        """A pass over the tasks that the last look ahead found to be due now, for which nothing has
        happened since but time. For others, there is nothing to do."""
        clock, alarm, first = self._clock, self._alarm, self._first_duty_ms
        now = clock.timeline_ms()
        earliest = first if first > now else NEVER
        # whoever arms a duty from here on moves it, too
        alarm.move(NEVER)
        try:
            for task in self._plain:
                ahead = task.ahead_ms
                if ahead <= now:
                    due = task.run(clock, sturdy=False).next_due
                    ahead = NEVER if due is None else due
                elif not task.not_before:
                    # it would have found nothing, as it does in most passes
                    task.line.ran(now, 0.0, 0)
                if ahead < earliest:
                    earliest = ahead
            if first <= now:
                for task in self._tasks:
                    if task.duty is not None:
                        due = task.run(clock, sturdy=False).next_due
                        if due is not None:
                            alarm.set(due)
            self.ran_ahead()
        except BaseException:
            alarm.set(clock.timeline_ms())
            raise
        if earliest < alarm.due_ms:
            alarm.move(earliest)

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread; says whether it ended in time. Safe before start and twice, and from
        within the thread itself, which then ends after its pass."""
        with self._lock:
            self._stopping = True
        self._alarm.ring()
        thread = self._runner or self._thread
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
            if self.on_pass is not None:
                self.on_pass(self.late_ms)
            self.run_pass()
            self.late_ms = 0
            self._owed_ms = None

    def behind_ms(self, now: int) -> int:
        """For how long a pass is owed that is not done yet, as another thread sees it; 0 if none
        is."""
        owed = self._owed_ms
        return max(0, now - (self._alarm.due_ms if owed is None else owed))

    def _run(self) -> None:
        with self._lock:
            if self._runner is not None:
                return
            self._runner = threading.current_thread()
        while not self._stopping:
            self.turn()
            if not self._stopping:
                self._alarm.sleep(self._clock)
