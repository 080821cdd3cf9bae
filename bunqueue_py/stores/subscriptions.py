"""Who listens to the events of which queues. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ..model.events import EVENT_TYPES, Inbox, RawEvent
from ..sync import LEAF, make_lock

Entry = tuple["str | None", "frozenset[str] | None", Inbox]
Ear = tuple["str | None", Callable[[RawEvent], bool]]
"""The queue whose events it hears (`None`: all), and what takes them."""


class Subscriptions:
    """The mailboxes of all listeners. `any` says whether there is one: with no listener an event
    costs that one look. `heard` has, for each type that somebody hears, the ears that do."""

    def __init__(self) -> None:
        self._lock = make_lock("subscriptions", LEAF)
        self._entries: tuple[Entry, ...] = ()
        self.any = False
        self.heard: dict[str, tuple[Ear, ...]] = {}
        #: whether a listener has lost something since somebody looked
        self.losing = False
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
            self._set((*self._entries, entry))

        def remove() -> None:
            with self._lock:
                self._set(tuple(e for e in self._entries if e is not entry))

        return remove

    def _set(self, entries: tuple[Entry, ...]) -> None:
        heard: dict[str, tuple[Ear, ...]] = {}
        for queue, types, mailbox in entries:
            for kind in EVENT_TYPES if types is None else types:
                heard[kind] = (*heard.get(kind, ()), (queue, mailbox.offer))
        self._entries = entries
        # each in one go: whoever publishes has looked at the one or the other
        self.heard = heard
        self.any = bool(entries)

    def publish(self, event: RawEvent) -> None:
        """Appends the event to every mailbox that wants it; called under the shard's lock,
        or with nothing held."""
        for queue, offer in self.heard.get(event[0], ()):
            if (queue is None or queue == event[1]) and offer(event):
                self.losing = True

    def report(self) -> None:
        """Logs which listeners lose events. Called with nothing held."""
        for mailbox in self.mailboxes():
            mailbox.report()

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
