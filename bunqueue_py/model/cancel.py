"""How a handler learns that its run is to end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..clock import Clock
from ..durations import timeout_to_ms
from ..errors import JobInterrupted
from ..sync import LEAF, make_lock
from ..types import Duration

CANCELLED, TIMEOUT, LOCK_LOST, CLOSING = "cancelled", "timeout", "lock_lost", "closing"
"""The reasons. `CLOSING` alone leaves the run its lock: the worker waits for it to return."""

STALLED = "stalled"
"""What a worker is told of a lock that ran out; its handler hears `LOCK_LOST`."""


class Cancellation:
    """What `job.cancelled` is: like a `threading.Event` that is set once the run is to end.

    `reason` is `None` until then; afterwards `cancelled` (`worker.cancel`), `timeout`, `lock_lost`
    (somebody else may run the job), or `closing` (the worker closes: return soon, or raise).

    >>> from bunqueue_py.testing import handler_context
    >>> job = handler_context({"id": 1})
    >>> job.cancelled.is_set(), job.cancelled.reason
    (False, None)
    """

    # Leaf noun: `set` is called under the shard's lock.
    __slots__ = ("_bells", "_clock", "_lock", "_reason")

    def __init__(self, clock: Clock, reason: str | None = None) -> None:
        self._clock = clock
        self._lock = make_lock("cancellation", LEAF)
        self._bells: list[threading.Lock] = []
        self._reason = reason

    def __repr__(self) -> str:
        return f"<Cancellation: {self._reason or 'not set'}>"

    def __bool__(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why; `None` while the run may go on."""
        return self._reason

    def is_set(self) -> bool:
        """Whether the run is to end."""
        return self._reason is not None

    def wait(self, timeout: Duration | None = None) -> bool:
        """Blocks until it is set or the time has passed; says whether it is set."""
        timeout_ms = timeout_to_ms(timeout)
        now = self._clock.timeline_ms
        deadline = None if timeout_ms is None else now() + timeout_ms
        bell = threading.Lock()
        bell.acquire()
        with self._lock:
            self._bells.append(bell)
        try:
            while self._reason is None:
                left = None if deadline is None else deadline - now()
                if left is not None and left <= 0:
                    break
                self._clock.wait(bell, left)
        finally:
            with self._lock:
                self._bells.remove(bell)
        return self._reason is not None

    def raise_if_set(self) -> None:
        """Raises `JobInterrupted` if the run is to end."""
        if self._reason is not None:
            raise JobInterrupted(self._reason)

    def set(self, reason: str) -> None:
        """Sets it, for the first reason; only `closing` gives way to another."""
        with self._lock:
            if self._reason is None or self._reason == CLOSING:
                self._reason = reason
            for bell in self._bells:
                if bell.locked():
                    bell.release()


class Holder(str):
    """The owner of a delivery, as text, whose worker is told what becomes of it.

    Both are called under the shard's lock and may touch memory only; what they return is called
    after its release. `told(job_id, token, reason)`: the delivery ended, and not by its holder.
    `progressed(job_id, token)`: it reported progress, at most ten times a second.
    """

    __slots__ = ("progressed", "told")

    told: Callable[[str, str, str], Callable[[], None] | None]
    progressed: Callable[[str, str], None] | None
