"""The buffers that carry events to listeners."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ..sync import LEAF, make_lock, nothing_held, spawn
from .events import JobEvent
from .throttle import LogThrottle

BUFFER_SIZE = 100_000
AT_ONCE = 1_000
"""More than may add to one buffer at the same moment: one a shard, and a few of our own."""
GATHER = 0.001
"""Seconds for which a busy listener's thread lets events gather."""
PATIENCE = 10.0
"""Seconds that a close without a timeout gives one call of a listener."""


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

    @property
    def is_abandoned(self) -> bool:
        """Whether its reader is gone without a word."""

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
        self, name: str, deliver: Callable[[Any], object], timeline_ms: Callable[[], int]
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
        #: how often `drain` has looked, so that it is seen to get on
        self._rounds = 0

    @property
    def name(self) -> str:
        """The name of its thread, but for the prefix."""
        return self._name

    @property
    def buffer(self) -> Inbox | None:
        """Itself."""
        return self

    @property
    def is_abandoned(self) -> bool:
        """False: there is its thread, or its owner."""
        return False

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
        items, delivered = self.items, 0
        while items:
            if self.lost > self._told:
                lost = self.lost
                self.report()
                self._told = lost
            delivered += self._hand_over(len(items))
            self._rounds += 1
        return delivered

    def _hand_over(self, most: int) -> int:
        """Delivers so many items, or as many as there are; says how many."""
        take, deliver = self.items.popleft, self._deliver
        for made in range(most):
            try:
                # without the lock: taking one out is atomic, and nobody else does but
                # `offer`, from a buffer that is full
                item = take()
            except IndexError:
                return made
            try:
                deliver(item)
            except BaseException as error:  # a listener may raise anything, SystemExit included
                self._raised(error)
        return most

    def _raised(self, error: BaseException) -> None:
        if self._thread is None and not self._closed and isinstance(error, KeyboardInterrupt):
            raise error  # it is meant for whoever called `drain`; a close must get to its end
        self._throttle.error(f"a listener of {self._name}", error)

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
            before = self._rounds, len(self.items)
            thread.join(PATIENCE if timeout is None else timeout)
            if not thread.is_alive():
                return True
            if timeout is not None or (self._rounds, len(self.items)) == before:
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


class EventBox(Mailbox):
    """A mailbox of raw events, of which `deliver` gets `JobEvent`s that decode with `loads`."""

    def __init__(
        self,
        name: str,
        deliver: Callable[[JobEvent], object],
        timeline_ms: Callable[[], int],
        loads: Callable[[bytes], Any],
    ) -> None:
        super().__init__(name, deliver, timeline_ms)
        self._loads = loads

    def _hand_over(self, most: int) -> int:
        # `Mailbox._hand_over`, `event_of` in line: several times for each job of a busy program,
        # in whose way it is for as long as it takes
        take, deliver, loads = self.items.popleft, self._deliver, self._loads
        for made in range(most):
            try:
                raw = take()
            except IndexError:
                return made
            event = JobEvent()
            event._raw = raw
            event._loads = loads
            try:
                deliver(event)
            except BaseException as error:
                self._raised(error)
        return most


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
