"""Whose turn it is to take jobs, and how many: what the threads of one worker share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from ..sync import LEAF, make_lock
from .job import Job
from .protocol import Backend

AUTO_PREFETCH = 256
"""The most jobs that `prefetch="auto"` hands to one thread at once."""
KEEP_TURN_AT = 16
"""From this appetite on jobs are so short that a second thread would only fight for the GIL."""
PROBE_EVERY = 64
"""Where short handlers wait (for I/O), how often one batch is run alone to look again."""
BATCH_MS = 5
"""How long an outcome may be held back, and what a batch of prefetched jobs should take."""


class Slot:
    """One thread of a worker: what it runs, what it has prefetched, what it has yet to ack.

    `queued` and `held` are deques that the beat thread also takes from; each single pop is
    atomic, so every job and every outcome has exactly one taker.
    """

    __slots__ = (
        "began_ms",
        "begun",
        "context",
        "current",
        "handle",
        "has_turn",
        "held",
        "marked",
        "queued",
        "thread",
    )

    def __init__(self, backend: Backend) -> None:
        self.handle = backend.wait_handle()
        self.queued: deque[Job] = deque()
        self.held: deque[tuple[Job, bytes | None]] = deque()
        self.current: Job | None = None
        #: the last job that it began out of a batch, and the last of which the beat thread has
        #: seen to it that the storage knows; each written by its thread alone
        self.begun: Job | None = None
        self.marked: Job | None = None
        #: when it took the batch that it works on
        self.began_ms = 0
        self.has_turn = False
        self.thread: threading.Thread | None = None
        #: what its handlers run in; another once one of them has left something in it
        self.context = Context()

    def call(self, handler: Callable[[Any], Any], argument: Any) -> Any:
        """Calls the handler in a context without any variable of the adder's or another job's."""
        context = self.context
        try:
            return context.run(handler, argument)
        finally:
            if context:
                self.context = Context()


class Turn:
    """Which slot may claim jobs; the others wait in line without using the CPU.

    A slot passes the turn on before it runs what it took. While jobs are very short it keeps the
    turn instead, because a second thread would only contend for the interpreter lock; should a
    handler then block after all, the beat thread wrests the turn from it.
    """

    __slots__ = ("_guard", "_keeper", "line")

    def __init__(self) -> None:
        #: whoever has it has the turn
        self.line = threading.Lock()
        self._guard = make_lock("turn", LEAF)
        self._keeper: Slot | None = None

    def take(self) -> None:
        """Waits for the turn."""
        self.line.acquire()

    def give(self) -> None:
        """Passes the turn on."""
        self.line.release()

    def keep(self, slot: Slot) -> None:
        """The slot has the turn and runs jobs meanwhile."""
        with self._guard:
            self._keeper = slot

    def resume(self, slot: Slot) -> bool:
        """Ends `keep`; says whether the slot still has the turn."""
        with self._guard:
            kept = self._keeper is slot
            if kept:
                self._keeper = None
            return kept

    @property
    def is_kept(self) -> bool:
        """Whether some slot keeps it."""
        return self._keeper is not None

    def wrest(self, slot: Slot) -> None:
        """Passes on the turn that the slot keeps, if it does."""
        if self._keeper is slot and self.resume(slot):
            self.line.release()


class Pace:
    """How many jobs to take at once, learned from how long they take. Shared by all slots; a lost
    race between two of them costs a guess."""

    __slots__ = ("_rounds", "_waits", "appetite", "learns")

    def __init__(self, fixed: int | None) -> None:
        #: whether the number is not fixed
        self.learns = fixed is None
        self.appetite = 1 if fixed is None else fixed
        self._waits = False
        self._rounds = 0

    def keeps_turn(self, took: int) -> bool:
        """Whether a batch of that size is to be run with the turn kept."""
        if not self.learns or took < self.appetite or took < KEEP_TURN_AT:
            return False
        self._rounds += 1
        return not self._waits or not self._rounds % PROBE_EVERY

    def learn(self, ran: int, took_ms: float, cpu_ms: float, *, alone: bool) -> None:
        """Takes note of a batch; `alone` says that the turn was kept meanwhile."""
        if not self.learns:
            return
        if took_ms > BATCH_MS:
            self.appetite = max(1, min(self.appetite, int(ran * BATCH_MS / took_ms)))
        elif ran >= self.appetite and took_ms * 2 <= BATCH_MS:
            self.appetite = min(AUTO_PREFETCH, self.appetite * 2)
        if alone:
            # a third: beside one busy thread a handler that never waits still has half the CPU
            self._waits = cpu_ms * 3 < took_ms
