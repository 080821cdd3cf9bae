"""Callbacks by event name: what `Worker` and `QueueEvents` have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from operator import is_
from types import BuiltinMethodType, MethodType
from typing import Any

from ..clock import Clock
from ..durations import shown
from ..errors import ValidationError
from ..model.checks import checked_listener
from ..model.mailbox import EventBox, Mailbox
from ..model.throttle import LogThrottle
from ..sync import AnyLock
from .protocol import Backend

ALL = "*"
Entry = tuple[Callable[..., Any], bool]
"""A listener, and whether it is one for the next event only."""


class Listeners:
    """Registers callbacks and calls them, in order, on one thread of its own.

    `events` are the names there are; `heard` is told, under the lock, whenever others of them
    have listeners. The thread starts with the first callback, but not before `start`. With `loads`
    the mailbox is one of raw events, and each is a call for the listeners of its type.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        lock: AnyLock,
        events: Collection[str],
        log: str,
        heard: Callable[[frozenset[str]], None],
        loads: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._lock = lock
        self._events = events
        self._heard = heard
        self._loads = loads
        self._throttle = LogThrottle(log, clock.timeline_ms)
        self.by_event: dict[str, tuple[Entry, ...]] = {}
        self.mailbox: Mailbox | None = None
        self._started = self._ended = False

    def start(self, *, threaded: bool) -> None:
        """Calls are made from now on: by a thread, or else by whoever drains the mailbox."""
        self._started = threaded
        if self.mailbox is not None and threaded:
            self.mailbox.start()

    def add(self, event: str, fn: Callable[..., Any], *, once: bool) -> None:
        """Has it called at that event. Raises `ValidationError`."""
        self._check(event)
        checked_listener(fn, "a listener")
        with self._lock:
            if self.mailbox is None and not self._ended:
                mailbox = self._mailbox()
                if self._started:
                    mailbox.start()
                self.mailbox = mailbox
            entries = (*self.by_event.get(event, ()), (fn, once))
            self.by_event = {**self.by_event, event: entries}
            self._heard(frozenset(self.by_event))

    def _mailbox(self) -> Mailbox:
        name, moment = f"{self._name}-events", self._clock.timeline_ms
        if self._loads is None:
            return Mailbox(name, self._deliver, moment)
        return EventBox(name, lambda event: self._call(event.type, (event,)), moment, self._loads)

    def remove(self, event: str, fn: Callable[..., Any]) -> bool:
        """Ends what `add` began; says whether there was such a listener. Raises
        `ValidationError`."""
        self._check(event)
        return self._drop(event, lambda entry: _same(entry[0], fn))

    def _check(self, event: str) -> None:
        if not isinstance(event, str) or event not in self._events:
            names = ", ".join(self._events)
            raise ValidationError(f"event must be among {names}, not {shown(event)}")

    def _drop(self, event: str, is_gone: Callable[[Entry], bool]) -> bool:
        with self._lock:
            kept = self.by_event.get(event, ())
            left = tuple(entry for entry in kept if not is_gone(entry))
            others = {name: kept for name, kept in self.by_event.items() if name != event}
            self.by_event = {**others, event: left} if left else others
            self._heard(frozenset(self.by_event))
            return len(left) < len(kept)

    def tell(self, event: str, values: Callable[[], tuple[Any, ...]] | tuple[Any, ...]) -> bool:
        """Has the listeners called with those values, or with what the function makes of them on
        their thread; never blocks. Says whether an older call was lost for it."""
        mailbox = self.mailbox
        if mailbox is not None and (event in self.by_event or ALL in self.by_event):
            return mailbox.offer((event, values))
        return False

    def close(self, timeout: float | None) -> bool:
        """Makes the calls that are due and ends the thread; says whether it ended in time."""
        with self._lock:
            self._ended = True
        return self.mailbox is None or self.mailbox.close(timeout)

    def _deliver(self, item: tuple[str, Any]) -> None:
        event, values = item
        if callable(values):
            values = values()
        self._call(event, values)

    def _call(self, event: str, values: tuple[Any, ...]) -> None:
        for key in (event, ALL):
            for entry in self.by_event.get(key, ()):
                fn, once = entry
                # that one alone: the same function may be here for good as well
                if once and not self._drop(key, partial(is_, entry)):
                    continue
                try:
                    fn(*values)
                except BaseException as error:  # a listener may raise anything, SystemExit too
                    self._throttle.error(f"a listener of {event!r} of {self._name}", error)


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    # each look at a method makes a new object of it; what else may be equal is foreign code
    methods = (MethodType, BuiltinMethodType)
    return one is other or (isinstance(one, methods) and type(other) is type(one) and one == other)


def check_process(backend: Backend) -> None:
    """Raises `ForkedManagerError` in a forked child, before anything takes a lock that it has
    inherited, perhaps from a thread that is not there."""
    if backend.is_forked:
        backend.check_open()


class Emitter:
    """`on`, `once` and `off`, for a class with `_backend` and `_listeners`."""

    _backend: Backend
    _listeners: Listeners

    def on(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """Has `fn` called at every such event; as a decorator without `fn`. The calls come in
        order on one thread of this object's own; what they raise is logged and has no effect."""
        if fn is None:
            return lambda fn: self.on(event, fn)
        check_process(self._backend)
        self._listeners.add(event, fn, once=False)
        return fn

    def once(self, event: str, fn: Callable[..., Any] | None = None) -> Any:
        """`on`, for the next such event only."""
        if fn is None:
            return lambda fn: self.once(event, fn)
        check_process(self._backend)
        self._listeners.add(event, fn, once=True)
        return fn

    def off(self, event: str, fn: Callable[..., Any]) -> bool:
        """Ends what `on` or `once` began; says whether there was such a listener. Raises
        `ValidationError` for an event that does not exist."""
        check_process(self._backend)
        return self._listeners.remove(event, fn)
