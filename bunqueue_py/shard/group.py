"""One group of a queue. Guarded."""

from __future__ import annotations

from ..model.side import SideView
from .limiter import Limits
from .ready_queue import Arrivals, ReadyQueue


class Group:
    """One group: its ready jobs, what runs of it, its settings. `delayed` counts by priority those
    of its waiting jobs that are not in `ready`; `limits` are made when the first is set; `number`
    is higher than those of all groups before; `view` is that of the `Side` of a job which has
    nothing else of its own."""

    __slots__ = (
        "active",
        "arrivals",
        "delayed",
        "limits",
        "name",
        "number",
        "paused",
        "ready",
        "stored",
        "timer_ms",
        "view",
    )

    def __init__(self, name: str, number: int, arrivals: Arrivals) -> None:
        self.name = name
        self.number = number
        self.arrivals = arrivals
        self.paused = False
        self.limits: Limits | None = None
        #: whether its settings have a row in the storage
        self.stored = False
        self.view: SideView | None = None
        self.clear()

    def clear(self) -> None:
        """Empties what can be made anew from the records."""
        self.ready = ReadyQueue(self.arrivals)
        self.active = 0
        self.delayed: dict[int, int] | None = None
        self.timer_ms: int | None = None

    @property
    def pending_total(self) -> int:
        """How many of its jobs wait, ready or delayed."""
        return len(self.ready) + (sum(self.delayed.values()) if self.delayed else 0)

    def pending(self) -> dict[int, int]:
        """How many of its jobs wait, ready or delayed, by priority. O(distinct priorities)."""
        counts = self.ready.tally()
        if self.delayed:
            counts.update(self.delayed)
        return dict(counts)

    def is_limited(self, now: int) -> bool:
        """Whether it has a limit of its own that matters now."""
        return self.limits is not None and not self.limits.is_idle(now)

    def is_bare(self, now: int) -> bool:
        """Whether it has neither jobs nor settings."""
        return not (
            self.active or len(self.ready) or self.delayed or self.paused or self.is_limited(now)
        )

    def need_limits(self) -> Limits:
        """Its limits, made on first need."""
        if self.limits is None:
            self.limits = Limits()
        return self.limits
