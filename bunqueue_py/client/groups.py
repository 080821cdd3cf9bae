"""`queue.groups` and `queue.limits`: who may start how much, and when."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.options import checked_name
from ..types import Duration, LimitStatus
from .protocol import Manager


class QueueLimits:
    """The limits of one queue; `queue.limits`. They hold for all workers and pulls together.

    >>> from bunqueue_py import Queue, QueueManager
    >>> with QueueManager() as manager:
    ...     mails = Queue("mails", manager)
    ...     mails.limits.set_rate_limit(100, per=60)
    ...     mails.limits.status().rate_limit.max
    100
    """

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def set_concurrency(self, bound: int | None) -> None:
        """At most `bound` (1 to 100,000) jobs of the queue are active at once, those that run
        already included; `None` ends the limit."""
        self._manager.set_concurrency(self._queue, bound)

    def set_rate_limit(self, max: int, per: Duration = 1, ttl: Duration | None = None) -> None:
        """At most `max` (1 to 100,000) jobs start in any window of `per`; for `ttl` from now, if
        given."""
        self._manager.set_rate_limit(self._queue, max, per, ttl)

    def clear_rate_limit(self) -> None:
        """Ends the rate limit."""
        self._manager.clear_rate_limit(self._queue)

    def cool_down(self, duration: Duration) -> None:
        """Nothing starts for that long from now; 0 ends it."""
        self._manager.cool_down(self._queue, duration)

    def status(self) -> LimitStatus:
        """What limits the queue now."""
        return self._manager.limit_status(self._queue)


class QueueGroup:
    """One group of a queue; `queue.groups[name]`. Settings hold for jobs to come, too."""

    def __init__(self, manager: Manager, queue: str, name: str) -> None:
        self._manager = manager
        self._queue = queue
        self._name = name

    def __repr__(self) -> str:
        return f"<QueueGroup {self._name!r} of {self._queue!r}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def pause(self) -> None:
        """None of its jobs is pulled from now on."""
        self._manager.pause_group(self._queue, self._name, True)

    def resume(self) -> None:
        """Ends a pause."""
        self._manager.pause_group(self._queue, self._name, False)

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._manager.group_view(self._queue, self._name)[2]

    def set_concurrency(self, bound: int | None) -> None:
        """At most `bound` (1 to 100,000) of its jobs are active at once; `None` ends the limit."""
        self._manager.set_concurrency(self._queue, bound, self._name)

    def set_rate_limit(self, max: int, per: Duration) -> None:
        """At most `max` (1 to 100,000) of its jobs start in any window of `per`."""
        self._manager.set_rate_limit(self._queue, max, per, group=self._name)

    def clear_rate_limit(self) -> None:
        """Ends the rate limit."""
        self._manager.clear_rate_limit(self._queue, self._name)

    def cool_down(self, duration: Duration) -> None:
        """None of its jobs starts for that long from now; 0 ends it."""
        self._manager.cool_down(self._queue, duration, self._name)

    def pending(self) -> int:
        """How many of its jobs wait, ready or delayed."""
        return sum(self._manager.group_view(self._queue, self._name)[0].values())

    def active(self) -> int:
        """How many of its jobs run."""
        return self._manager.group_view(self._queue, self._name)[1]

    def counts_per_priority(self) -> dict[int, int]:
        """How many of its jobs wait, by priority, the highest first."""
        pending = self._manager.group_view(self._queue, self._name)[0]
        return dict(sorted(pending.items(), reverse=True))


class QueueGroups:
    """The groups of one queue; `queue.groups`. Iterates over the names of those that have jobs or
    settings, sorted; any other name is an empty group."""

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def __getitem__(self, name: str) -> QueueGroup:
        return QueueGroup(self._manager, self._queue, checked_name(name, "group"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._manager.group_names(self._queue))

    def __len__(self) -> int:
        return len(self._manager.group_names(self._queue))

    def __contains__(self, name: object) -> bool:
        return name in self._manager.group_names(self._queue)
