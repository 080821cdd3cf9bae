"""Who listens to the events of which queues. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from ..model.events import EVENT_TYPES, Inbox, Mailbox, RawEvent
from ..sync import LEAF, make_lock

Entry = tuple["str | None", "frozenset[str] | None", Inbox]
Ear = tuple["str | None", Callable[[RawEvent], bool]]
"""The queue whose events it hears (`None`: all), and what takes them."""


class Route:
    """Where the events of one type go: to `ears`. `box` is the mailbox where there is but one ear,
    that of an ordinary mailbox for all queues: while its reader is awake, whoever has an event adds
    it there without a call. `keep` takes them all where the mailbox of that one ear has one."""

    __slots__ = ("box", "ears", "keep")

    def __init__(
        self,
        box: Mailbox | None,
        ears: tuple[Ear, ...],
        keep: Callable[[RawEvent], object] | None,
    ) -> None:
        self.box = box
        self.ears = ears
        self.keep = keep


class Subscriptions:
    """The mailboxes of all listeners. `any` says whether there is one: with no listener an event
    costs that one look. `heard` has the route of each type that somebody hears; an event of any
    other is none. The types of every job's life have their routes as attributes besides."""

    def __init__(self) -> None:
        self._lock = make_lock("subscriptions", LEAF)
        self.entries: tuple[Entry, ...] = ()
        #: what is told of an event; only of the first since `quiet` was set
        self._watch: Callable[[int], None] | None = None
        self.quiet = False
        #: whether a listener has lost something since somebody looked
        self.losing = False
        self._closed = False
        self._health = count(1)
        self._lost_before = 0
        self._set(())

    def add(
        self, mailbox: Inbox, queue: str | None, types: frozenset[str] | None
    ) -> Callable[[], None] | None:
        """Has the mailbox hear those events (`None`: all); returns what ends it, or `None` if
        the manager is closed."""
        entry = (queue, types, mailbox)
        with self._lock:
            if self._closed:
                return None
            self._set((*self.entries, entry))

        def remove() -> None:
            with self._lock:
                left = tuple(e for e in self.entries if e is not entry)
                if len(left) == len(self.entries):
                    return
                buffer = mailbox.buffer
                if buffer is not None and all(e[2].buffer is not buffer for e in left):
                    # what is counted never becomes less
                    self._lost_before += buffer.lost
                self._set(left)

        return remove

    def _set(self, entries: tuple[Entry, ...]) -> None:
        by_kind: dict[str, list[Entry]] = {}
        if self._watch is not None:
            by_kind.update({kind: [] for kind in EVENT_TYPES})
        for entry in entries:
            for kind in EVENT_TYPES if entry[1] is None else entry[1]:
                by_kind.setdefault(kind, []).append(entry)
        heard = {kind: self._route(found) for kind, found in by_kind.items()}
        self.entries = entries
        # each in one go: whoever publishes has looked at the one or the other
        self.heard: dict[str, Route] = heard
        self.pushed, self.active = heard.get("pushed"), heard.get("active")
        self.completed, self.empty = heard.get("completed"), heard.get("empty")
        self.any = bool(heard)

    def _route(self, entries: list[Entry]) -> Route:
        box = keep = None
        if len(entries) == 1 and not self.quiet:
            queue, _, mailbox = entries[0]
            if queue is None and isinstance(mailbox, Mailbox):
                keep = mailbox.keep
                if mailbox.__class__ is Mailbox:
                    box = mailbox
        return Route(box, tuple((queue, mailbox.offer) for queue, _, mailbox in entries), keep)

    def watch(self, told: Callable[[int], None] | None) -> None:
        """Has `told(moment)` called at the next event, whatever it is; `None`: no more."""
        with self._lock:
            self._watch, self.quiet = told, told is not None
            self._set(self.entries)

    def hush(self) -> None:
        """The next event is one for the watch again, if there is one."""
        with self._lock:
            self.quiet = self._watch is not None
            self._set(self.entries)

    def stir(self, at_ms: int) -> None:
        """Something happens, and it was quiet. Called under the shard's lock."""
        with self._lock:
            told, self.quiet = self._watch if self.quiet else None, False
            self._set(self.entries)
        if told is not None:
            told(at_ms)

    def publish(self, event: RawEvent) -> None:
        """Appends the event to every mailbox that wants it; called under the shard's lock,
        or with nothing held."""
        route = self.heard.get(event[0])
        for queue, offer in () if route is None else route.ears:
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
        return [mailbox for _, _, mailbox in self.entries]
