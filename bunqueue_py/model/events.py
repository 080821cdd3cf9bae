"""Events as listeners see them, and the buffers that carry them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..durations import ms_to_moment, optional_moment
from ..sync import LEAF, make_lock, spawn
from .throttle import LogThrottle

BUFFER_SIZE = 100_000
EVENT_TYPES = frozenset(
    (
        "pushed",
        "active",
        "progress",
        "completed",
        "failed",
        "retried",
        "stalled",
        "released",
        "removed",
        "duplicated",
        "promoted",
        "cancelled",
        "paused",
        "resumed",
        "drained",
        "cleaned",
        "obliterated",
        "empty",
        "dlq_added",
        "dlq_retried",
        "dlq_skipped",
        "queue_created",
        "health",
    )
)

STORAGE_FAILING = "storage_failing"
STORAGE_RECOVERED = "storage_recovered"
"""The reasons of `health` events."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened in a queue.

    `sequence` counts the events of one queue without gaps, so a listener of all types can see
    that it lost some. The rest is `None` but for what the type carries: `state` (pushed),
    `result` (completed), `error`, `attempt`, `terminal` and `reason` or `retry_at` (failed),
    `error` (stalled, cancelled), `reason` (dlq_added, dlq_skipped), `percent`, `message`
    (progress), `count` (drained, cleaned, obliterated).

    `health` is of the whole manager: its `queue` is empty, and its `sequence` counts these events
    alone. `reason` is `storage_failing`, with the `error`, or `storage_recovered`.
    """

    type: str
    queue: str
    job_id: str | None
    timestamp: datetime
    sequence: int
    state: str | None = None
    result: Any = None
    error: str | None = None
    reason: str | None = None
    attempt: int | None = None
    terminal: bool | None = None
    retry_at: datetime | None = None
    percent: float | None = None
    message: str | None = None
    count: int | None = None


RawEvent = tuple[str, str, "str | None", int, int, "dict[str, Any] | None"]
"""type, queue, job id, timeline ms, sequence, and what the type carries (result encoded)."""


def event_of(raw: RawEvent, loads: Callable[[bytes], Any]) -> JobEvent:
    """The event as listeners see it; each listener gets its own decoded result."""
    kind, queue, job_id, at_ms, sequence, carried = raw
    carried = dict(carried) if carried else {}
    if carried.get("result") is not None:
        carried["result"] = loads(carried["result"])
    carried["retry_at"] = optional_moment(carried.pop("retry_at_ms", None))
    return JobEvent(kind, queue, job_id, ms_to_moment(at_ms), sequence, **carried)


class Inbox(Protocol):
    """Where events are put, under a shard's lock; `Mailbox` is one."""

    def offer(self, item: Any) -> None:
        """Takes an event; never blocks."""

    def drain(self) -> int:
        """Delivers what is due on the calling thread, where that is needed; says how much."""

    def close(self, timeout: float | None = None) -> bool:
        """Ends it once what is buffered is delivered; says whether that was in time."""


class Mailbox:
    """A bounded buffer with one reader. Leaf noun.

    `offer` never blocks and may be called under a shard's lock; beyond the bound the oldest item
    is lost and counted. With `start`, a thread of its own hands every item to `deliver`;
    otherwise the owner calls `drain`. What `deliver` raises is logged and costs nobody else
    anything.
    """

    def __init__(
        self, name: str, deliver: Callable[[Any], None], timeline_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._throttle = LogThrottle("bunqueue_py.events", timeline_ms)
        self._deliver = deliver
        self._lock = make_lock(f"mailbox {name}", LEAF)
        self._bell = threading.Lock()
        self._bell.acquire()
        self._rung = False
        self._items: deque[Any] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.lost = 0
        self._told = 0

    def offer(self, item: Any) -> None:
        """Buffers the item and wakes the reader."""
        with self._lock:
            if len(self._items) >= BUFFER_SIZE:
                self._items.popleft()
                self.lost += 1
            self._items.append(item)
            if not self._rung:
                self._rung = True
                self._bell.release()

    def start(self) -> None:
        """Starts the thread that delivers."""
        self._thread = spawn(self._name, self._run)

    def drain(self) -> int:
        """Delivers what is buffered, on the calling thread; returns how many items."""
        delivered, told = 0, self._told
        while True:
            self._told = told
            with self._lock:
                if not self._items:
                    return delivered
                item = self._items.popleft()
            if self.lost > told:
                told = self.lost
                self._throttle.warning(
                    f"{self._name} is too slow: {told:,} events were lost, the oldest first"
                )
            try:
                self._deliver(item)
            except BaseException as error:  # a listener may raise anything, SystemExit included
                self._throttle.error(f"a listener of {self._name}", error)
            delivered += 1

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what is buffered, then ends the thread; says whether it ended in time. From
        within the thread itself it only asks for the end."""
        with self._lock:
            self._closed = True
            if not self._rung:
                self._rung = True
                self._bell.release()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            with self._lock:
                self._rung = False
            self.drain()
            with self._lock:
                if self._closed and not self._items:
                    return


class Tap(Mailbox):
    """Hands every item over at once, under whatever lock its giver holds: `take` may touch memory
    only. It has no buffer and no thread."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        super().__init__("tap", take, lambda: 0)
        self._take = take

    def offer(self, item: Any) -> None:
        """Hands it over."""
        self._take(item)
