"""The workers of a manager: who they are, what they have done, when they were last seen. Leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..sync import LEAF, make_lock


class Run(Protocol):
    """A handler under way: of which delivery, since when, and how long it may, in ms."""

    @property
    def job_id(self) -> str: ...
    @property
    def token(self) -> str | None: ...
    @property
    def started_ms(self) -> int | None: ...
    @property
    def timeout_ms(self) -> int | None: ...
    @property
    def lease_ms(self) -> int: ...


class Card(Protocol):
    """What a worker tells of itself. All of it may be read from any thread, without a lock."""

    @property
    def name(self) -> str:
        """The owner of what it holds."""
        ...

    @property
    def concurrency(self) -> int:
        """How many jobs it may run at once."""
        ...

    @property
    def active(self) -> int:
        """How many jobs it holds, started or not."""
        ...

    @property
    def busy(self) -> int:
        """How many handlers are under way in it."""
        ...

    @property
    def processed(self) -> int:
        """How many jobs it has completed."""
        ...

    @property
    def failed(self) -> int:
        """How many runs have failed in it."""
        ...

    @property
    def alive(self) -> bool:
        """Whether anything that runs its jobs is alive still."""
        ...

    @property
    def heard_ms(self) -> int:
        """When it last gave a sign of life, while it holds jobs."""
        ...

    def running(self) -> Sequence[Run]:
        """Each handler that has not returned."""
        ...


class WorkerEntry:
    """One worker. `lost_ms`: when it was found dead; `suspected_ms`: when it was first found
    silent; `stale_ms`: since when it counts as stale."""

    __slots__ = (
        "card",
        "host",
        "id",
        "lost_ms",
        "pid",
        "queue",
        "stale_ms",
        "started_ms",
        "suspected_ms",
    )

    def __init__(
        self, worker_id: str, queue: str, card: Card, host: str, pid: int, now: int
    ) -> None:
        self.id = worker_id
        self.queue = queue
        self.card = card
        self.host = host
        self.pid = pid
        self.started_ms = now
        self.lost_ms: int | None = None
        self.suspected_ms: int | None = None
        self.stale_ms: int | None = None

    def seen_ms(self, now: int) -> int:
        """When it was last seen. An idle one is seen whenever somebody looks; one that holds jobs
        speaks by its heartbeats."""
        if self.lost_ms is not None:
            return self.lost_ms
        return min(now, self.card.heard_ms) if self.card.active else now


class WorkerRegistry:
    """The workers that have started and not left, in that order, by id."""

    __slots__ = ("_entries", "_lock")

    def __init__(self) -> None:
        self._lock = make_lock("workers", LEAF)
        self._entries: dict[str, WorkerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, entry: WorkerEntry) -> None:
        """The worker has started."""
        with self._lock:
            self._entries[entry.id] = entry

    def leave(self, worker_id: str) -> WorkerEntry | None:
        """The worker is no longer here; `None` if it had left before."""
        with self._lock:
            return self._entries.pop(worker_id, None)

    def get(self, worker_id: str) -> WorkerEntry | None:
        """The worker of that id; `None` if there is none."""
        return self._entries.get(worker_id)

    def entries(self) -> list[WorkerEntry]:
        """All of them."""
        with self._lock:
            return list(self._entries.values())

    def of_queue(self, queue: str) -> list[WorkerEntry]:
        """Those of that queue."""
        return [entry for entry in self.entries() if entry.queue == queue]

    def has_owner(self, name: str, *, besides: WorkerEntry) -> bool:
        """Whether another worker is here and alive that holds jobs under that name."""
        others = (entry for entry in self.entries() if entry is not besides)
        return any(entry.card.name == name and entry.lost_ms is None for entry in others)
