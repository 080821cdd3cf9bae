"""Events as listeners see them, and the buffers that carry them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

from ..durations import ms_to_moment, optional_moment
from ..sync import LEAF, make_lock, nothing_held, spawn
from .throttle import LogThrottle

BUFFER_SIZE = 100_000
AT_ONCE = 1_000
"""More than may add to one buffer at the same moment: one a shard, and a few of our own."""
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


RawEvent = tuple[str, str, "str | None", int, int, "dict[str, Any] | None"]
"""type, queue, job id, timeline ms, sequence, and what the type carries (result encoded)."""


def _carried(name: str) -> Any:
    def read(self: JobEvent) -> Any:
        carried = self._raw[5]
        return None if carried is None else carried.get(name)

    return property(read)


class JobEvent:
    """Something that happened in a queue. Made by the library, and read-only.

    `type`; `queue`; `job_id`; `timestamp`; `sequence`, which counts the events of one queue without
    gaps, so a listener of all types can see that it lost some (what nobody listens to is not
    counted); it begins at 1 with each `queue_created`. The rest is `None` but for what the
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

    # A busy program makes thousands a second, of which a listener reads a part or two: one keeps
    # what happened as the engine noted it, and says what it means when asked.
    __slots__ = ("_loads", "_raw", "_result")

    def __init__(self, raw: RawEvent, loads: Callable[[bytes], Any]) -> None:
        self._raw = raw
        self._loads = loads

    @property
    def type(self) -> str:
        """What happened: one of SPEC's types, such as `completed`."""
        return self._raw[0]

    @property
    def queue(self) -> str:
        """The name of the queue; empty for `health`."""
        return self._raw[1]

    @property
    def job_id(self) -> str | None:
        """The id of the job, where it is about one."""
        return self._raw[2]

    @property
    def timestamp(self) -> datetime:
        """When it happened."""
        return ms_to_moment(self._raw[3])

    @property
    def sequence(self) -> int:
        """The number among the events of its queue."""
        return self._raw[4]

    @property
    def result(self) -> Any:
        """What a completed job returned; each listener has its own."""
        carried = self._raw[5]
        data = None if carried is None else carried.get("result")
        if data is None:
            return None
        try:
            return self._result
        except AttributeError:
            self._result: Any = self._loads(data)
            return self._result

    state: str | None = _carried("state")
    error: str | None = _carried("error")
    reason: str | None = _carried("reason")
    attempt: int | None = _carried("attempt")
    terminal: bool | None = _carried("terminal")
    percent: float | None = _carried("percent")
    message: str | None = _carried("message")
    count: int | None = _carried("count")
    subject: str | None = _carried("subject")
    scheduler: str | None = _carried("scheduler")

    @property
    def retry_at(self) -> datetime | None:
        """When a failed job runs again."""
        carried = self._raw[5]
        return None if carried is None else optional_moment(carried.get("retry_at_ms"))

    @property
    def planned_at(self) -> datetime | None:
        """The planned time of a scheduler's run."""
        carried = self._raw[5]
        return None if carried is None else optional_moment(carried.get("planned_at_ms"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobEvent) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw[:5])

    def __repr__(self) -> str:
        told = ((name, getattr(self, name)) for name in FIELDS)
        return f"JobEvent({', '.join(f'{k}={v!r}' for k, v in told if v is not None)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # the serializer stays here
        return _copied, (self._raw, self.result)


FIELDS = tuple(name for name, part in vars(JobEvent).items() if isinstance(part, property))
"""The names of what an event may say."""


def _copied(raw: RawEvent, result: Any) -> JobEvent:
    event = JobEvent(raw, _gone)
    event._result = result
    return event


def _gone(data: bytes) -> Any:
    raise AssertionError("a copied event has its result")


class Inbox(Protocol):
    """Where events are put, under a shard's lock; `Mailbox` is one. `backlog`: how many it has that
    its reader has not had; `lost`: how many it had no room for."""

    @property
    def name(self) -> str: ...
    @property
    def buffer(self) -> Inbox | None:
        """What keeps events until their reader comes, perhaps one for several; `None` where
        nothing is kept."""

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

    #: of one without bounds: all that `offer` does; whoever has an event may call it instead
    keep: Callable[[Any], object] | None = None

    def __init__(
        self, name: str, deliver: Callable[[Any], None], timeline_ms: Callable[[], int]
    ) -> None:
        self._name = name
        self._throttle = LogThrottle("bunqueue_py.events", timeline_ms)
        self._deliver = deliver
        self._lock = make_lock(f"mailbox {name}", LEAF)
        #: free while the reader has something to look at
        self._bell = threading.Lock()
        self._bell.acquire()
        #: whether the reader needs no bell: while it is awake, an item costs its place alone
        self.awake = False
        #: never released: to wait for it is to let time pass
        self._pause = threading.Lock()
        self._pause.acquire()
        #: to be added to by anybody, without the lock, while shorter than `easy`
        self.items: deque[Any] = deque()
        self._most = BUFFER_SIZE
        #: so many, and there is still room for each of those who may add one at once
        self.easy = max(0, BUFFER_SIZE - AT_ONCE)
        self._closed = False
        self._thread: threading.Thread | None = None
        self.lost: int = 0
        self._told = 0
        self._delivered = 0

    @property
    def name(self) -> str:
        """The name of its thread, but for the prefix."""
        return self._name

    @property
    def buffer(self) -> Inbox | None:
        """Itself."""
        return self

    def offer(self, item: Any) -> bool:
        """Buffers the item and wakes the reader; says whether an older one was lost for it."""
        lost = False
        if len(self.items) < self.easy:
            self.items.append(item)
        else:
            with self._lock:
                if len(self.items) >= self._most:
                    with suppress(IndexError):  # the reader has just taken all of them
                        self.items.popleft()
                        self.lost += 1
                        lost = True
                self.items.append(item)
        if not self.awake:
            self.ring()
        return lost

    def ring(self) -> None:
        """Has the reader look. Whoever adds an item looks at `awake` only then: a reader that goes
        to sleep looks at the items only then."""
        with self._lock:
            # in this order: an exception between leaves a reader that is rung for once more
            if self._bell.locked():
                self._bell.release()
            self.awake = True

    @property
    def backlog(self) -> int:
        """How many items are buffered."""
        return len(self.items)

    def start(self) -> None:
        """Starts the thread that delivers."""
        self._thread = spawn(self._name, self._run)

    def drain(self) -> int:
        """Delivers what is buffered, on the calling thread; returns how many items."""
        nothing_held()  # what it calls is foreign code
        items, take, deliver, delivered = self.items, self.items.popleft, self._deliver, 0
        while items:
            if self.lost > self._told:
                lost = self.lost
                self.report()
                self._told = lost
            for _ in range(len(items)):
                try:
                    # without the lock: taking one out is atomic, and nobody else does but
                    # `offer`, from a buffer that is full
                    item = take()
                except IndexError:
                    break
                try:
                    deliver(item)
                except BaseException as error:  # a listener may raise anything, SystemExit included
                    self._throttle.error(f"a listener of {self._name}", error)
                delivered += 1
                self._delivered += 1
        return delivered

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what is buffered, then ends the thread; says whether it ended in time. From
        within the thread itself it only asks for the end. Without a `timeout` it waits for as long
        as one call after the other returns, and leaves one that takes longer than 10 s behind."""
        self._closed = True
        self.ring()
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
                    f"{len(self.items):,} events were not delivered"
                )
                return False

    def report(self) -> None:
        """Logs, once a minute, how many items were lost."""
        if self.lost:
            self._throttle.warning(
                f"{self._name} is too slow: {self.lost:,} events were lost, the oldest first"
            )

    def _run(self) -> None:
        while not self._closed or self.items:
            self._bell.acquire()
            self.awake = True
            while self.drain() > 1 and not self._closed:
                # Between two jobs of a busy program a second thread costs more in taking turns
                # than in what it does: while events come one upon the other, let some gather.
                self._pause.acquire(True, GATHER)
            with self._lock:
                # not while somebody rings: seen awake from then on, it would sleep for good
                self.awake = False
            if self.items or self._closed:
                # it came when the last one was taken and we were still seen awake
                self.ring()


class Tap(Mailbox):
    """Hands every item over at once, under whatever lock its giver holds: `take` may touch memory
    only. It has no buffer and no thread."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        super().__init__("tap", take, lambda: 0)
        self._take = take

    @property
    def buffer(self) -> Inbox | None:
        """None."""
        return None

    def offer(self, item: Any) -> bool:
        """Hands it over; nothing is lost."""
        self._take(item)
        return False
