"""Events as listeners see them, and the buffers that carry them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from ..durations import ms_to_moment, optional_moment
from ..sync import LEAF, make_lock, spawn
from .throttle import LogThrottle

BUFFER_SIZE = 100_000
GATHER = 0.001
"""Seconds for which a busy listener's thread lets events gather."""
PATIENCE = 10.0
"""Seconds that a close without a timeout gives one call of a listener."""
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
        "unblocked",
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
        "cron_fired",
        "cron_skipped",
        "cron_missed",
        "queue_created",
        "worker_joined",
        "worker_left",
        "health",
    )
)

STORAGE_FAILING = "storage_failing"
STORAGE_RECOVERED = "storage_recovered"
WEBHOOK_DISABLED = "webhook_disabled"
"""The reasons of `health` events that storage and webhooks give; the others are in
`observe.checks`."""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened in a queue.

    `sequence` counts the events of one queue without gaps, so a listener of all types can see
    that it lost some; it begins at 1 with each `queue_created`. The rest is `None` but for what the
    type carries: `state` (pushed, unblocked), `result` (completed), `error`, `attempt`, `terminal`
    and `reason` or `retry_at` (failed),
    `error` (stalled, cancelled), `reason` (dlq_added, dlq_skipped), `percent`, `message`
    (progress), `count` (drained, cleaned, obliterated), `subject`, the worker's id, and `reason`
    (worker_joined, worker_left). `cron_fired`, `cron_skipped` (`reason`: overlap, no_worker,
    duplicate, group_full, storage) and `cron_missed` (`count`) carry the id of the `scheduler` and
    `planned_at`, the planned time, the first of those that were missed.

    `health` is of the whole manager: its `queue` is empty, and its `sequence` counts these events
    alone. `reason` says what has changed, such as `storage_failing` (with the `error`),
    `storage_recovered`, or `webhook_disabled` (the `error` says which and why); `subject` whom or
    what it is about; docs/reliability.md lists them.
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
    subject: str | None = None
    scheduler: str | None = None
    planned_at: datetime | None = None


_new = object.__new__
# a busy millisecond has many events, and making its moment is half of what making one costs
_moment = lru_cache(maxsize=16)(ms_to_moment)
_NOTHING_CARRIED: dict[str, Any] = {
    name: field.default
    for name, field in JobEvent.__dataclass_fields__.items()
    if field.default is None
}

RawEvent = tuple[str, str, "str | None", int, int, "dict[str, Any] | None"]
"""type, queue, job id, timeline ms, sequence, and what the type carries (result encoded)."""


def event_of(raw: RawEvent, loads: Callable[[bytes], Any]) -> JobEvent:
    """The event as listeners see it; each listener gets its own decoded result."""
    kind, queue, job_id, at_ms, sequence, carried = raw
    event = _new(JobEvent)
    # the constructor of a frozen dataclass stores one field after the other, at several times this
    fields = event.__dict__
    fields["type"], fields["queue"], fields["job_id"] = kind, queue, job_id
    fields["timestamp"], fields["sequence"] = _moment(at_ms), sequence
    fields.update(_NOTHING_CARRIED)
    if carried:
        fields.update(carried)
        if fields["result"] is not None:
            fields["result"] = loads(fields["result"])
        fields["retry_at"] = optional_moment(fields.pop("retry_at_ms", None))
        fields["planned_at"] = optional_moment(fields.pop("planned_at_ms", None))
    return event


class Inbox(Protocol):
    """Where events are put, under a shard's lock; `Mailbox` is one. `backlog`: how many it has that
    its reader has not had; `lost`: how many it had no room for."""

    @property
    def name(self) -> str: ...
    @property
    def backlog(self) -> int: ...
    @property
    def lost(self) -> int: ...

    def offer(self, item: Any) -> bool:
        """Takes an event, and says whether an older one was lost for it; never blocks."""

    def report(self) -> None:
        """Logs what has been lost since the last time."""

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
        #: never released: to wait for it is to let time pass
        self._pause = threading.Lock()
        self._pause.acquire()
        self._items: deque[Any] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.lost: int = 0
        self._told = 0
        self._delivered = 0

    @property
    def name(self) -> str:
        """The name of its thread, but for the prefix."""
        return self._name

    def offer(self, item: Any) -> bool:
        """Buffers the item and wakes the reader; says whether an older one was lost for it."""
        lost = False
        with self._lock:
            if len(self._items) >= BUFFER_SIZE:
                with suppress(IndexError):  # the reader has just taken all of them
                    self._items.popleft()
                    self.lost += 1
                    lost = True
            self._items.append(item)
            if not self._rung:
                self._ring()
        return lost

    def _ring(self) -> None:
        if not self._rung:
            # in this order: an exception between must not leave it marked and the reader asleep;
            # it may leave the bell free and unmarked, and then there is nothing to release
            if self._bell.locked():
                self._bell.release()
            self._rung = True

    @property
    def backlog(self) -> int:
        """How many items are buffered."""
        return len(self._items)

    def start(self) -> None:
        """Starts the thread that delivers."""
        self._thread = spawn(self._name, self._run)

    def drain(self) -> int:
        """Delivers what is buffered, on the calling thread; returns how many items."""
        items, deliver, delivered = self._items, self._deliver, 0
        while True:
            try:
                # without the lock: taking one out is atomic, and nobody else does but `offer`,
                # from a buffer that is full
                item = items.popleft()
            except IndexError:
                return delivered
            if self.lost > self._told:
                lost = self.lost
                self.report()
                self._told = lost
            try:
                deliver(item)
            except BaseException as error:  # a listener may raise anything, SystemExit included
                self._throttle.error(f"a listener of {self._name}", error)
            delivered += 1
            self._delivered += 1

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what is buffered, then ends the thread; says whether it ended in time. From
        within the thread itself it only asks for the end. Without a `timeout` it waits for as long
        as one call after the other returns, and leaves one that takes longer than 10 s behind."""
        with self._lock:
            self._closed = True
            self._ring()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        while True:
            before = self._delivered
            thread.join(PATIENCE if timeout is None else timeout)
            if not thread.is_alive():
                return True
            if timeout is not None or self._delivered == before:
                self._throttle.warning(
                    f"{self._name} is left in a call that has not returned: "
                    f"{len(self._items):,} events were not delivered"
                )
                return False

    def report(self) -> None:
        """Logs, once a minute, how many items were lost."""
        if self.lost:
            self._throttle.warning(
                f"{self._name} is too slow: {self.lost:,} events were lost, the oldest first"
            )

    def _run(self) -> None:
        burst = False
        while True:
            self._bell.acquire()
            if burst and not self._closed:
                # Between two jobs of a busy program a second thread costs more in taking turns
                # than in what it does: while events come one upon the other, let some gather.
                self._pause.acquire(True, GATHER)
            with self._lock:
                self._rung = False
            burst = self.drain() > 1 or bool(self._items)
            with self._lock:
                if self._closed and not self._items:
                    return


class Tap(Mailbox):
    """Hands every item over at once, under whatever lock its giver holds: `take` may touch memory
    only. It has no buffer and no thread."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        super().__init__("tap", take, lambda: 0)
        self._take = take

    def offer(self, item: Any) -> bool:
        """Hands it over; nothing is lost."""
        self._take(item)
        return False
