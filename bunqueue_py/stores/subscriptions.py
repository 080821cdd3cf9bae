"""Who listens to the events of which queues. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from ..model.events import EVENT_TYPES, Inbox, Mailbox, RawEvent
from ..sync import LEAF, make_lock

Entry = tuple["str | None", "frozenset[str] | None", Inbox]
Ear = tuple["str | None", "Mailbox | None", Callable[[RawEvent], bool]]
"""The queue whose events it hears (`None`: all), and what takes them: where it is an ordinary
mailbox, that too, so that one whose reader is awake can be added to without a call."""


class Watch(Protocol):
    """Who wants to know in which queues something happens: `touch` is told of the first thing in
    a queue that is not among `touched`; `started` has when a job of a queue has started last."""

    touched: dict[str, None]
    started: dict[str, int]

    def touch(self, queue: str, at_ms: int) -> None: ...


class Subscriptions:
    """The mailboxes of all listeners. `any` says whether there is one: with no listener an event
    costs that one look. `heard` has, for each type that somebody hears, the ears that do."""

    def __init__(self) -> None:
        self._lock = make_lock("subscriptions", LEAF)
        self._entries: tuple[Entry, ...] = ()
        self.any = False
        self.heard: dict[str, tuple[Ear, ...]] = {}
        #: what is to be told of every event, while somebody listens
        self.watch: Watch | None = None
        #: the types that somebody is to be told of: an event of any other is but a number
        self.told: frozenset[str] = frozenset()
        #: whether a listener has lost something since somebody looked
        self.losing = False
        self._closed = False
        self._health = count(1)
        self._lost_before = 0

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
                left = tuple(e for e in self._entries if e is not entry)
                if len(left) == len(self._entries):
                    return
                buffer = mailbox.buffer
                if buffer is not None and all(e[2].buffer is not buffer for e in left):
                    # what is counted never becomes less
                    self._lost_before += buffer.lost
                self._set(left)

        return remove

    def _set(self, entries: tuple[Entry, ...]) -> None:
        heard: dict[str, tuple[Ear, ...]] = {}
        for queue, types, mailbox in entries:
            ear = queue, mailbox if mailbox.__class__ is Mailbox else None, mailbox.offer
            for kind in EVENT_TYPES if types is None else types:
                heard[kind] = (*heard.get(kind, ()), ear)
        self._entries = entries
        # each in one go: whoever publishes has looked at the one or the other
        self.heard = heard
        self.told = frozenset(heard) if self.watch is None else EVENT_TYPES
        self.any = bool(entries)

    def set_watch(self, watch: Watch | None) -> None:
        """Has it told of every event; `None`: nobody any more."""
        with self._lock:
            self.watch = watch
            self._set(self._entries)

    def publish(self, event: RawEvent) -> None:
        """Appends the event to every mailbox that wants it; called under the shard's lock,
        or with nothing held."""
        for queue, _, offer in self.heard.get(event[0], ()):
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

    def buffers(self) -> list[Inbox]:
        """What keeps events for listeners, each once."""
        found = [mailbox.buffer for mailbox in self.mailboxes()]
        return list({id(buffer): buffer for buffer in found if buffer is not None}.values())

    @property
    def lost(self) -> int:
        """How many events listeners have lost, those that are gone too."""
        with self._lock:
            return self._lost_before + sum(buffer.lost for buffer in self.buffers())

    def mailboxes(self) -> list[Inbox]:
        """All of them, in the order of subscription."""
        return [mailbox for _, _, mailbox in self._entries]
