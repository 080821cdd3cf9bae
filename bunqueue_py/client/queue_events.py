"""`QueueEvents`: what happens in a queue, by callbacks or by iteration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ..durations import shown
from ..errors import BunqueueError, ValidationError
from ..model.events import EVENT_TYPES, JobEvent, RawEvent, event_of
from ..model.mailbox import BUFFER_SIZE, Inbox
from ..model.options import checked_queue_name
from ..sync import LEAF, WORKER, make_lock
from .listeners import ALL, Emitter, Listeners, check_process
from .protocol import Backend, Hearing, Manager
from .queue import Queue

_log = logging.getLogger("bunqueue_py.events")


class QueueEvents(Emitter):
    """The events of a queue, or of all queues (`None`, then also those of the manager itself).

    Callbacks: `on(type, fn)`, `once`, `off`, with `"*"` for every type; `fn` takes a `JobEvent`.
    Iteration: `for event in events` blocks for the next one and ends when this object or the
    manager is closed; `async for` does the same for an event loop. An iterator sees what happens
    from the call of `iter()` on. Each has a buffer of 100,000 events of its own, so a slow reader
    costs nobody else anything: beyond that it loses the oldest, `lost` counts them, and the
    `sequence` of what it gets has a gap.

    `manager`: as for `Queue`. Raises `ManagerClosedError` if that is closed, `ValidationError` if
    it is not the queue's own.

    >>> from bunqueue_py import Queue, QueueManager
    >>> with QueueManager() as manager:
    ...     mail = Queue("mail", manager)
    ...     with QueueEvents(mail) as events:
    ...         reader = iter(events)
    ...         job = mail.add("welcome")
    ...         next(reader).type
    'pushed'
    """

    def __init__(self, queue: Queue | str | None = None, manager: Manager | None = None) -> None:
        if isinstance(queue, Queue):
            if manager is not None and queue.manager is not manager:
                raise ValidationError("manager is not the one that the queue belongs to")
            manager = queue.manager
        name = None if queue is None else checked_queue_name(getattr(queue, "name", queue))
        if manager is None:
            from ..default_manager import get_default_manager

            manager = get_default_manager()
        if not hasattr(manager, "backend"):
            raise ValidationError(f"manager must be a QueueManager, not {shown(manager)}")
        self._backend: Backend = manager.backend
        self._queue = name
        self._backend.check_open()
        self._lock = make_lock("queue events", WORKER)
        self._closed = False
        self._inboxes: list[_Inbox] = []
        self._lost_before = 0
        self._hearing: Hearing | None = None
        self._listeners = Listeners(
            f"events of {name or 'all queues'}",
            self._backend.clock,
            self._lock,
            [ALL, *sorted(EVENT_TYPES)],
            "bunqueue_py.events",
            self._hear,
            self._backend.decode,
        )
        self._listeners.start(threaded=self._backend.runs_threads)

    def __repr__(self) -> str:
        return f"<QueueEvents of {self._queue or 'all queues'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def lost(self) -> int:
        """How many events its iterators have lost so far, all together, because they were slow."""
        check_process(self._backend)
        with self._lock:
            return self._lost_before + sum(inbox.lost for inbox in self._inboxes)

    def on(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """Has `fn(event)` called at every event of that type (`"*"`: of any); as a decorator
        without `fn`. The calls come in order on one thread of this object's own (with
        `background=False`, in `run_pending()`); what they raise is logged and has no effect.
        Raises `ValidationError`, `ManagerClosedError`."""
        if fn is not None:
            self._check()
            self._backend.check_open()
        return super().on(event, fn)

    def once(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """`on`, for the next such event only."""
        if fn is not None:
            self._check()
            self._backend.check_open()
        return super().once(event, fn)

    def close(self) -> None:
        """Ends every iteration, once it has read what is buffered, and the callbacks, once those
        that are due were made (from within one of them: after it). Idempotent."""
        if self._backend.is_forked:
            # none of its threads exists here, and a lock may be held for ever
            self._closed = True
            return
        with self._lock:
            self._closed = True
            inboxes, self._inboxes = self._inboxes, []
            self._lost_before += sum(inbox.lost for inbox in inboxes)
            hearing, self._hearing = self._hearing, None
        for inbox in inboxes:
            inbox.leave()
        if hearing is not None:
            hearing()
        self._listeners.close(None)
        mailbox = self._listeners.mailbox
        if mailbox is not None and not self._backend.runs_threads:
            mailbox.drain()

    def __iter__(self) -> Iterator[JobEvent]:
        return _Reader(self._open())

    def __aiter__(self) -> AsyncIterator[JobEvent]:
        self._backend.need_courier()
        return _AsyncReader(self._open())

    def _hear(self, names: frozenset[str]) -> None:
        """Has the callbacks hear what they are there for, and no more. Called under the lock."""
        mailbox = self._listeners.mailbox
        if self._closed or mailbox is None:
            return
        types = None if ALL in names else names
        if self._hearing is not None:
            self._hearing.hear(types)
            return
        try:
            self._hearing = self._backend.listen(mailbox, self._queue, types)
        except BaseException:
            mailbox.close(0)
            raise

    def _open(self) -> _Inbox:
        self._check()
        inbox = _Inbox(self._backend)
        inbox.remove = self._backend.listen(inbox, self._queue, None)
        with self._lock:
            gone = [old for old in self._inboxes if old.is_abandoned]
            self._lost_before += sum(old.lost for old in gone)
            self._inboxes = [old for old in self._inboxes if not old.is_abandoned]
            self._inboxes.append(inbox)
            closed = self._closed
        for old in gone:
            old.leave()
        if closed:
            inbox.leave()
        return inbox

    def _check(self) -> None:
        if self._closed:
            raise BunqueueError("this QueueEvents is closed; make a new one")


class _Inbox:
    """The buffer of one iterator. Leaf noun; `offer` is called under a shard's lock."""

    remove: Callable[[], None]

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._lock = make_lock("event inbox", LEAF)
        self._items: deque[RawEvent] = deque()
        self._closed = False
        #: its reader is gone, with nobody to read what would come; set by a finaliser
        self.is_abandoned = False
        self.lost = 0
        #: has the reader look again; there while it sleeps
        self._wake: Callable[[], None] | None = None
        self._told = 0

    @property
    def name(self) -> str:
        return f"iterator {id(self):x}"

    @property
    def buffer(self) -> Inbox | None:
        return None if self.is_abandoned else self

    @property
    def backlog(self) -> int:
        return len(self._items)

    def offer(self, item: RawEvent) -> bool:
        if self.is_abandoned:
            self.remove()
            return False
        lost = False
        with self._lock:
            if len(self._items) >= BUFFER_SIZE:
                self._items.popleft()
                self.lost += 1
                lost = True
            self._items.append(item)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()
        return lost

    def report(self) -> None:
        with self._lock:
            lost, self._told = self.lost - self._told, self.lost
        if lost:
            _log.warning("an iterator over events has lost %d of them: it is read too slowly", lost)

    def drain(self) -> int:
        return 0

    def close(self, timeout: float | None = None) -> bool:
        with self._lock:
            self._closed = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()
        return True

    def leave(self) -> None:
        """Hears nothing more."""
        self.remove()
        self.close()

    def drop(self) -> None:
        """Called by a finaliser, which may take no lock."""
        self.is_abandoned = True
        self._items.clear()

    def take(self, wake: Callable[[], None]) -> JobEvent | None:
        """The next event; `None` where there is none yet: then `wake` is called when there is.
        Raises `StopIteration` at the end."""
        with self._lock:
            if self._items:
                item = self._items.popleft()
            elif self._closed:
                raise StopIteration
            else:
                self._wake = wake
                return None
        return event_of(item, self.backend.decode)


class _Reader(Iterator[JobEvent]):
    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        self._bell = threading.Lock()
        weakref.finalize(self, inbox.drop).atexit = False

    def __next__(self) -> JobEvent:
        check_process(self._inbox.backend)
        while True:
            self._bell.acquire(False)
            event = self._inbox.take(self._bell.release)
            if event is not None:
                return event
            while not self._inbox.backend.clock.wait(self._bell, None):
                pass


class _AsyncReader(AsyncIterator[JobEvent]):
    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        weakref.finalize(self, inbox.drop).atexit = False

    async def __anext__(self) -> JobEvent:
        check_process(self._inbox.backend)
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            # a loop that was closed meanwhile has nobody left to wake
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(bell.set)

        while True:
            bell.clear()
            try:
                # to wake a loop is foreign code, and this one is called under a lock
                event = self._inbox.take(lambda: self._inbox.backend.post(ring))
            except StopIteration:
                raise StopAsyncIteration from None
            if event is not None:
                return event
            await bell.wait()
