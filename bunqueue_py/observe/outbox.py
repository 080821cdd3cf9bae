"""Deliveries of webhooks on their way: a bounded queue, and the few threads that empty it."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from ..clock import Clock
from ..model.throttle import LogThrottle
from ..sync import LEAF, make_lock, spawn

MAX_DELIVERIES = 1_000
SENDERS = 4
SHARE = 3
"""How many of them one webhook may keep busy: one that hangs must not keep all from the others."""
TRIES = 3
FIRST_RETRY_MS = 1_000
CLOSE_MS = 5_000
"""How long `close` goes on sending unless told otherwise."""


class Delivery(NamedTuple):
    """One event for one webhook. `id` is the same in every try."""

    id: str
    hook_id: str
    event: str
    body: bytes


Item = tuple[int, int, int, Delivery]
"""When it is due, its number, which try it is, and what."""


class Outbox:
    """At most 1,000 deliveries; what comes beyond is dropped, counted and logged.

    `wanted(hook id)` says before each try whether the webhook still wants to hear: what waits for
    one that was disabled or removed is let go, or it would keep the senders from the others.
    `send(delivery)` returns what went wrong, or `None`; `ended(delivery, error)` hears of the last
    try of each. They run on a sender's thread, or in `step` where there are no threads. Leaf: its
    lock is never held during them.
    """

    def __init__(
        self,
        clock: Clock,
        wanted: Callable[[str], bool],
        send: Callable[[Delivery], str | None],
        ended: Callable[[Delivery, str | None], None],
        *,
        threaded: bool,
    ) -> None:
        self._clock = clock
        self._wanted = wanted
        self._send = send
        self._ended = ended
        self._threaded = threaded
        self._lock = make_lock("webhook outbox", LEAF)
        self._due: list[Item] = []
        #: tries under way of each webhook, and what waits until it has one less
        self._busy: Counter[str] = Counter()
        self._aside: dict[str, deque[Item]] = {}
        self._numbers = count(1)
        self._idle: list[threading.Lock] = []
        self._threads: list[threading.Thread] = []
        self._started = 0
        self._closing = False
        self._throttle = LogThrottle("bunqueue_py.webhooks", clock.timeline_ms)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._due) + sum(map(len, self._aside.values()))

    def put(self, delivery: Delivery) -> None:
        """Queues the first try."""
        with self._lock:
            full = len(self) >= MAX_DELIVERIES
            if full or self._closing:
                self.dropped += 1
        if full:
            self._throttle.warning(
                f"the queue of webhook deliveries is full: {self.dropped:,} were dropped"
            )
        elif not self._closing:
            self._schedule(self._clock.timeline_ms(), 1, delivery)

    def _schedule(self, due_ms: int, attempt: int, delivery: Delivery) -> None:
        starts = False
        with self._lock:
            heappush(self._due, (due_ms, next(self._numbers), attempt, delivery))
            if self._idle:
                self._idle.pop().release()
            elif self._threaded and self._started < SENDERS and not self._closing:
                self._started += 1
                starts = True
        if starts:
            self._start()

    def _start(self) -> None:
        try:
            thread = spawn("webhooks", self._run)
        except BaseException:  # no more threads to be had now: the next delivery tries again
            with self._lock:
                self._started -= 1
            raise
        with self._lock:
            self._threads.append(thread)

    def step(self) -> int:
        """Makes the tries that are due, on the calling thread; returns how many."""
        made = 0
        while (item := self._next()) is not None:
            try:
                self._try(*item)
            finally:
                self._done(item[1].hook_id)
            made += 1
        return made

    def _next(self) -> tuple[int, Delivery] | None:
        with self._lock:
            return self._take()

    def _take(self) -> tuple[int, Delivery] | None:
        """Called under the lock."""
        while self._due and self._due[0][0] <= self._clock.timeline_ms():
            item = heappop(self._due)
            _, _, attempt, delivery = item
            if self._busy[delivery.hook_id] < SHARE:
                self._busy[delivery.hook_id] += 1
                return attempt, delivery
            self._aside.setdefault(delivery.hook_id, deque()).append(item)
        return None

    def _done(self, hook_id: str) -> None:
        """A try of it is over: one that waited for that is due again, and this thread looks."""
        with self._lock:
            self._busy[hook_id] -= 1
            if not self._busy[hook_id]:
                del self._busy[hook_id]
            waiting = self._aside.get(hook_id)
            if waiting:
                heappush(self._due, waiting.popleft())
                if not waiting:
                    del self._aside[hook_id]

    def _try(self, attempt: int, delivery: Delivery) -> None:
        if not self._wanted(delivery.hook_id):
            return
        try:
            error = self._send(delivery)
        except Exception as problem:  # the extra is gone, say: no sender may end for it
            self._throttle.error("a delivery of a webhook", problem)
            error = type(problem).__name__
        if error is not None and attempt < TRIES and not self._closing:
            wait_ms = FIRST_RETRY_MS << (attempt - 1)
            self._schedule(self._clock.timeline_ms() + wait_ms, attempt + 1, delivery)
        else:
            self._ended(delivery, error)

    def _run(self) -> None:
        while True:
            self.step()
            bell = threading.Lock()
            bell.acquire()
            with self._lock:
                if self._closing:
                    return
                now = self._clock.timeline_ms()
                wait_ms = max(0, self._due[0][0] - now) if self._due else None
                if wait_ms != 0:
                    self._idle.append(bell)
            if wait_ms == 0:
                continue
            self._clock.wait(bell, wait_ms)
            with self._lock:
                if bell in self._idle:
                    self._idle.remove(bell)

    def close(self, timeout: float | None = None) -> bool:
        """Takes no more; first tries that wait are still made, for 5 s at most, retries are not.
        Says whether the threads have ended in time."""
        with self._lock:
            first = not self._closing
            # a retry is later than now, a first try is not
            now = self._clock.timeline_ms()
            given_up = [item[3] for item in self._due if item[0] > now]
            self._due = sorted(item for item in self._due if item[0] <= now)
            self._closing = True
            for bell in self._idle:
                bell.release()
            self._idle.clear()
            threads = list(self._threads)
        if not self._threaded and first:
            self.step()
        limit_ms = CLOSE_MS if timeout is None else min(CLOSE_MS, round(timeout * 1000))
        until = self._clock.timeline_ms() + limit_ms
        ended = True
        for thread in threads:
            if thread is threading.current_thread():
                continue
            thread.join(max(0, until - self._clock.timeline_ms()) / 1000)
            ended = ended and not thread.is_alive()
        with self._lock:
            given_up += [item[3] for item in self._due]
            given_up += [item[3] for waiting in self._aside.values() for item in waiting]
            self._due.clear()
            self._aside.clear()
        if given_up:
            self._throttle.warning(
                f"at close {len(given_up):,} webhook deliveries were given up: the manager closes"
            )
        return ended
