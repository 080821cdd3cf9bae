"""One group of a queue. Guarded."""

from __future__ import annotations

from .limiter import Limits
from .ready_queue import Arrivals, ReadyQueue


class Group:
    """One group: its ready jobs, what runs of it, its settings. `pending` counts its waiting
    jobs, the delayed ones too, by priority; `number` is higher than those of all groups before."""

    __slots__ = (
        "active",
        "arrivals",
        "limits",
        "name",
        "number",
        "paused",
        "pending",
        "pending_total",
        "ready",
        "stored",
        "timer_ms",
    )

    def __init__(self, name: str, number: int, arrivals: Arrivals) -> None:
        self.name = name
        self.number = number
        self.arrivals = arrivals
        self.paused = False
        self.limits = Limits()
        #: whether its settings have a row in the storage
        self.stored = False
        self.clear()

    def clear(self) -> None:
        """Empties what can be made anew from the records."""
        self.ready = ReadyQueue(self.arrivals)
        self.active = 0
        self.pending: dict[int, int] = {}
        self.pending_total = 0
        self.timer_ms: int | None = None

    @property
    def has_jobs(self) -> bool:
        """Whether any of its jobs waits or runs."""
        return bool(self.pending_total or self.active)

    def is_bare(self, now: int) -> bool:
        """Whether it has neither jobs nor settings."""
        return not self.has_jobs and not self.paused and self.limits.is_idle(now)
