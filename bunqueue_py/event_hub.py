"""`manager.events`: who wants to hear what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from .clock import Clock
from .errors import ManagerClosedError
from .model.checks import checked_choices, checked_listener
from .model.events import EVENT_TYPES, JobEvent
from .model.mailbox import EventBox
from .model.options import checked_queue_name
from .state import State


class EventHub:
    """Subscriptions to the events of a manager's queues."""

    def __init__(self, state: State, *, threaded: bool) -> None:
        self._state = state
        self._threaded = threaded
        self._numbers = count(1)
        self._clock: Clock = state.clock

    def subscribe(
        self,
        fn: Callable[[JobEvent], Any],
        queue: Any = None,
        types: str | Iterable[str] | None = None,
    ) -> Callable[[], None]:
        """Has `fn(event)` called for every event of that queue (`None`: all, and those of the
        manager itself) and of those types (`None`: all), in order; returns a function that ends it.

        Every subscription has a thread and a buffer of 100,000 events of its own, so a slow or
        raising `fn` costs nobody else anything; what it raises is logged. With
        `background=False`, `run_pending()` makes the calls.
        """
        checked_listener(fn, "fn")
        name = None if queue is None else checked_queue_name(getattr(queue, "name", queue))
        wanted = _types(types)
        for shard in self._state.shards.shards[:1]:
            shard.refuse()
        mailbox = EventBox(
            f"events-{next(self._numbers)}", fn, self._clock.timeline_ms, self._state.loads
        )
        remove = self._state.events.add(mailbox, name, wanted)
        if remove is None:
            raise ManagerClosedError("this manager is closed; open a new QueueManager")
        if self._threaded:
            try:
                mailbox.start()
            except BaseException:  # no thread to be had: it would only fill
                remove()
                raise

        def unsubscribe() -> None:
            remove()
            # ends the thread after what is buffered; never waits, a listener may call it
            mailbox.close(0)

        return unsubscribe

    def drain(self) -> int:
        """Makes the calls that are due, on this thread; for `background=False`."""
        if self._threaded:
            return 0
        return sum(mailbox.drain() for mailbox in self._state.events.mailboxes())

    def close(self, timeout: float | None = None) -> bool:
        """Delivers what is buffered, then ends the threads; says whether they ended in time."""
        self._state.events.close()
        mailboxes = self._state.events.mailboxes()
        if not self._threaded:
            for mailbox in mailboxes:
                mailbox.close(0)
            self.drain()
            return True
        deadline = None if timeout is None else self._clock.timeline_ms() + round(timeout * 1000)
        ended = True
        for mailbox in mailboxes:
            left = None
            if deadline is not None:
                left = max(0, deadline - self._clock.timeline_ms()) / 1000
            ended = mailbox.close(left) and ended
        return ended


def _types(types: str | Iterable[str] | None) -> frozenset[str] | None:
    if types is None:
        return None
    among = ", ".join(sorted(EVENT_TYPES))
    return frozenset(checked_choices(types, "types", EVENT_TYPES, among=among))
