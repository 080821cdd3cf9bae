"""When one background task is due. Leaf noun."""

from __future__ import annotations

from ..sync import LEAF, make_lock
from .alarm import NEVER, Alarm


class Duty:
    """The due moment of one task, and the alarm of the loop that runs it.

    `arm` may be called under a shard's lock. While nobody has armed it the task costs nothing.
    Like the alarm's own, the thread of the loop is started by whoever finds it not running, after
    releasing every lock: `Alarm.start`.
    """

    __slots__ = ("_alarm", "_lock", "due_ms")

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm
        self._lock = make_lock("duty", LEAF)
        self.due_ms = NEVER

    def arm(self, due_ms: int) -> None:
        """Has the task run at that moment at the latest."""
        if due_ms >= self.due_ms:
            return
        with self._lock:
            if due_ms < self.due_ms:
                self.due_ms = due_ms
        self._alarm.set(due_ms)

    def take(self, now: int) -> int | None:
        """How long the task has been due, which it then is no longer; `None` if it is not."""
        with self._lock:
            late = now - self.due_ms
            if late < 0:
                return None
            self.due_ms = NEVER
            return late
