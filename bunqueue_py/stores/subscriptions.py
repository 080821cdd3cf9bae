"""Who listens to the events of which queues. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ..model.events import Inbox, RawEvent
from ..sync import LEAF, make_lock


class Subscriptions:
    """The inboxes of all listeners. `any` is what the hot path tests: with no listener an
    event costs that one look."""

    def __init__(self) -> None:
        self._lock = make_lock("subscriptions", LEAF)
        self._entries: tuple[tuple[str | None, frozenset[str] | None, Inbox], ...] = ()
        self.any = False
        self._closed = False
        self._health = count(1)

    def add(
        self, mailbox: Inbox, queue: str | None, types: frozenset[str] | None
    ) -> Callable[[], None] | None:
        """Has the mailbox hear those events (`None`: all); returns what ends it, or `None` if
        the manager is closed."""
        entry = (queue, types, mailbox)
        with self._lock:
            if self._closed:
                return None
            self._entries = (*self._entries, entry)
            self.any = True

        def remove() -> None:
            with self._lock:
                self._entries = tuple(e for e in self._entries if e is not entry)
                self.any = bool(self._entries)

        return remove

    def publish(self, event: RawEvent) -> None:
        """Appends the event to every mailbox that wants it; called under the shard's lock."""
        for queue, types, mailbox in self._entries:
            if (queue is None or queue == event[1]) and (types is None or event[0] in types):
                mailbox.offer(event)

    def tell_health(self, at_ms: int, carried: dict[str, Any]) -> None:
        """Publishes an event of the whole manager, with the next number of those."""
        self.publish(("health", "", None, at_ms, next(self._health), carried))

    def close(self) -> None:
        """Takes no more mailboxes."""
        with self._lock:
            self._closed = True

    def mailboxes(self) -> list[Inbox]:
        """All of them, in the order of subscription."""
        return [mailbox for _, _, mailbox in self._entries]
