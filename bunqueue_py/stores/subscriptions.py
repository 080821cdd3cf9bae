"""Who listens to the events of which queues. Leaf noun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol

from ..model.events import EVENT_TYPES, RawEvent
from ..model.mailbox import EventBox, Inbox, Mailbox
from ..sync import LEAF, make_lock

Entry = tuple["str | None", "frozenset[str] | None", Inbox]
Ear = tuple["str | None", Callable[[RawEvent], bool]]
"""The queue whose events it hears (`None`: all), and what takes them."""


Ears = tuple[Ear, ...]


class Source(Protocol):
    """A queue, as far as its events go."""

    name: str
    event_seq: int
    shard: Any


Tell = Callable[["Source", "str | None", int, "dict[str, Any] | None"], None]
"""Has everybody who hears one type of event hear of one: of which queue, job and moment, and what
it carries."""


class Watcher(Protocol):
    """Who looks after things while somebody hears `health` events."""

    def begin(self) -> None:
        """Somebody does from now on."""

    def touch(self, at_ms: int) -> None:
        """Something happens, the first thing since `hush`. Called under a shard's lock."""


class Subscriptions:
    """The mailboxes of all listeners. `any` says whether there is one: with no listener an event
    costs that one look. `heard` has what tells of each type that somebody hears; an event of any
    other is none. The types of every job's life have theirs as attributes besides."""

    def __init__(self) -> None:
        self._lock = make_lock("subscriptions", LEAF)
        self.entries: tuple[Entry, ...] = ()
        self.watcher: Watcher | None = None
        #: whether somebody hears `health` events, and how often that has changed
        self.watched, self.turns = False, 0
        #: the watcher is told of the next event
        self.quiet = False
        #: whether a listener has lost something since somebody looked
        self.losing = False
        self._closed = False
        self._health = count(1)
        self._lost_before = 0
        self._set(())

    def add(
        self, mailbox: Inbox, queue: str | None, types: frozenset[str] | None
    ) -> Subscription | None:
        """Has the mailbox hear those events (`None`: all); returns what changes or ends that, or
        `None` if the manager is closed."""
        entry = (queue, types, mailbox)
        return Subscription(self, entry) if self.exchange(None, entry) else None

    def exchange(self, old: Entry | None, new: Entry | None) -> bool:
        """Puts one into the other's place; says whether that was there, or the door open. Those
        whose reader is gone go too."""
        with self._lock:
            if self._closed if old is None else all(entry is not old for entry in self.entries):
                return False
            was_watched, before = self.watched, self.entries
            entries = [new if entry is old else entry for entry in before]
            if old is None:
                entries.append(new)
            left = tuple(e for e in entries if e is not None and not e[2].is_abandoned)
            # what is counted never becomes less
            gone, kept = _boxes(before), _boxes(left)
            self._lost_before += sum(box.lost for key, box in gone.items() if key not in kept)
            self._set(left)
        if self.watched and not was_watched and self.watcher is not None:
            self.watcher.begin()
        return True

    def _set(self, entries: tuple[Entry, ...]) -> None:
        watched = self.watcher is not None and any(map(_hears_health, entries))
        if watched is not self.watched:
            self.watched, self.turns, self.quiet = watched, self.turns + 1, watched
        by_kind: dict[str, list[Entry]] = {kind: [] for kind in EVENT_TYPES if watched}
        for entry in entries:
            for kind in EVENT_TYPES if entry[1] is None else entry[1]:
                by_kind.setdefault(kind, []).append(entry)
        ears = {k: tuple((of, box.offer) for of, _, box in found) for k, found in by_kind.items()}
        heard = {kind: self._to_all(kind, found) for kind, found in ears.items()}
        for kind, found in by_kind.items():
            if len(found) != 1 or self.quiet:
                continue
            of, _, box = found[0]
            if isinstance(box, EventBox):
                heard[kind] = _to_one(kind, of, box, heard[kind])
            elif isinstance(box, Mailbox) and box.keep is not None and of is None:
                heard[kind] = _to_keeper(kind, box.keep)
        self.entries = entries
        # each in one go: whoever publishes has looked at the one or the other
        self._ears: Mapping[str, Ears] = ears
        self.heard: dict[str, Tell] = heard
        self.pushed, self.active = heard.get("pushed"), heard.get("active")
        self.completed, self.empty = heard.get("completed"), heard.get("empty")
        self.any = bool(heard)

    def _to_all(self, kind: str, ears: Ears) -> Tell:
        def tell(
            source: Source, job_id: str | None, now: int, carried: dict[str, Any] | None
        ) -> None:
            source.event_seq = number = source.event_seq + 1
            event: RawEvent = (kind, source.name, job_id, now, number, carried)
            if self.quiet:
                self.stir(now)
            for of, offer in ears:
                if (of is None or of == source.name) and offer(event):
                    self.losing = True
            if self.losing:
                # a listener that never returns cannot say it itself; logging is foreign code
                self.losing = False
                source.shard.after.append(self.report)

        return tell

    def hush(self) -> None:
        """The next event is one for the watcher again, if it watches."""
        with self._lock:
            self.quiet = self.watched
            self._set(self.entries)

    def stir(self, at_ms: int) -> None:
        """Something happens, and it was quiet. Called under the shard's lock."""
        with self._lock:
            told, self.quiet = self.quiet, False
            self._set(self.entries)
        if told and self.watcher is not None:
            self.watcher.touch(at_ms)

    def publish(self, event: RawEvent) -> None:
        """Appends an event of no queue to every mailbox that wants it."""
        for queue, offer in self._ears.get(event[0], ()):
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
            return self._lost_before + sum(b.lost for b in _boxes(self.entries).values())

    def mailboxes(self) -> list[Inbox]:
        """All of them, in the order of subscription."""
        return [mailbox for _, _, mailbox in self.entries]


class Subscription:
    """One mailbox's: called, it ends."""

    def __init__(self, among: Subscriptions, entry: Entry) -> None:
        self._among = among
        self._entry: Entry | None = entry

    def hear(self, types: frozenset[str] | None) -> None:
        """Has it hear those types from now on. One thread at a time."""
        if self._entry is not None:
            queue, _, mailbox = self._entry
            entry = (queue, types, mailbox)
            if self._among.exchange(self._entry, entry):
                self._entry = entry

    def __call__(self) -> None:
        if self._entry is not None:
            self._among.exchange(self._entry, None)
            self._entry = None


def _boxes(entries: tuple[Entry, ...]) -> dict[int, Inbox]:
    """What keeps their events, each once; a reader that is gone keeps what it has lost."""
    boxes = [box.buffer or box for _, _, box in entries]
    return {id(box): box for box in boxes}


def _hears_health(entry: Entry) -> bool:
    queue, types, inbox = entry
    return queue is None and (types is None or "health" in types) and inbox.buffer is not None


def _to_keeper(kind: str, keep: Callable[[RawEvent], object]) -> Tell:
    def tell(source: Source, job_id: str | None, now: int, carried: dict[str, Any] | None) -> None:
        source.event_seq = number = source.event_seq + 1
        keep((kind, source.name, job_id, now, number, carried))

    return tell


def _to_one(kind: str, of: str | None, box: EventBox, to_all: Tell) -> Tell:
    """What tells of events that only that mailbox hears, of one queue or all: `Mailbox.offer` with
    what it needs at hand, for it is what a listener costs each job."""
    items, easy, append = box.items, box.easy, box.items.append

    def tell(source: Source, job_id: str | None, now: int, carried: dict[str, Any] | None) -> None:
        if len(items) < easy:
            name = source.name
            source.event_seq = number = source.event_seq + 1
            if of is None or of == name:
                append((kind, name, job_id, now, number, carried))
                # only now: a reader that goes to sleep looks at the items after saying so
                if not box.awake:
                    box.ring()
        else:
            to_all(source, job_id, now, carried)

    return tell
