"""What a worker tells of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..model.snapshot import OPTIONS
from ..sync import LEAF, make_lock
from .job import Job
from .turn import Slot

USUAL_BEAT_MS = 10_000


class Run(NamedTuple):
    """A handler under way: of which delivery, since when, and how long it may, in ms."""

    job_id: str
    token: str | None
    started_ms: int | None
    timeout_ms: int | None
    lease_ms: int


class Card:
    """The figures of one worker: what its slots hold, what it has done, when it was last heard.

    Read from other threads, so each figure is as it was at some moment just now.
    """

    def __init__(self, name: str, slots: Sequence[Slot], lease_ms: int, beat_ms: int) -> None:
        self.name = name
        self._lease_ms = lease_ms
        self._slots = slots
        self._usual_ms = min(beat_ms, USUAL_BEAT_MS)
        self._lock = make_lock(f"card {name}", LEAF)
        #: when its next heartbeats are due, timeline ms; the crew keeps it up to date
        self.next_beat_ms = 0
        self.processed = 0
        self.failed = 0
        #: how many jobs it holds, where its slots do not tell
        self.held: Callable[[], int] | None = None
        #: it is played dead
        self.lost = False

    @property
    def concurrency(self) -> int:
        """How many jobs it may run at once."""
        return len(self._slots)

    @property
    def active(self) -> int:
        """How many jobs it holds, started or prefetched."""
        if self.held is not None:
            return self.held()
        held = 0
        for slot in self._slots:
            held += len(slot.queued)
            if slot.current is not None:
                held += 1
        return held

    @property
    def busy(self) -> int:
        """How many of its slots have a handler under way."""
        return sum(slot.current is not None for slot in self._slots)

    @property
    def alive(self) -> bool:
        """Whether any of its threads is alive, or it has none because somebody steps it."""
        if self.lost:
            return False
        return any(slot.thread is None or slot.thread.is_alive() for slot in self._slots)

    @property
    def heard_ms(self) -> int:
        """When it was last heard, while it holds jobs: at a heartbeat, or when it took the first.
        Where heartbeats are rarer than every 10 s, silence begins 10 s before the next is due."""
        return self.next_beat_ms - self._usual_ms

    def running(self) -> list[Run]:
        """Each handler that has not returned."""
        found = []
        for slot in self._slots:
            job = slot.current
            if job is not None:
                # one that was claimed with others does not know when it has begun
                found.append(self._run_of(job, job._started_ms or slot.began_ms))
        return found

    def _run_of(self, job: Job, started_ms: int | None) -> Run:
        timeout_ms = job._fields[OPTIONS].timeout_ms
        return Run(job.id, job.token, started_ms, timeout_ms, self._lease_ms)

    def count(self, processed: int, failed: int = 0) -> None:
        """So many jobs more have been completed, and runs have failed."""
        with self._lock:
            self.processed += processed
            self.failed += failed


class RunsCard(Card):
    """The same of a worker without slots: `held` tells the jobs whose fate is open, `runs` those of
    each call of the handler that has not returned, `lives` whether anything of it runs."""

    def __init__(
        self,
        name: str,
        concurrency: int,
        lease_ms: int,
        beat_ms: int,
        held: Callable[[], int],
        runs: Callable[[], Sequence[Sequence[Job]]],
        lives: Callable[[], bool],
    ) -> None:
        super().__init__(name, (), lease_ms, beat_ms)
        self._concurrency = concurrency
        self.held = held
        self._runs = runs
        self._lives = lives

    @property
    def concurrency(self) -> int:
        """How many calls of the handler may be under way at once."""
        return self._concurrency

    @property
    def busy(self) -> int:
        """How many calls of its handler are under way."""
        return len(self._runs())

    @property
    def alive(self) -> bool:
        """Whether its event loop runs, as far as it knows."""
        return not self.lost and self._lives()

    def running(self) -> list[Run]:
        """Each job whose handler has not returned."""
        return [self._run_of(job, job._started_ms) for jobs in self._runs() for job in jobs]
