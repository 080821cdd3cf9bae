"""How a queue finds runs that were lost."""

from __future__ import annotations

from ..types import Duration, StallConfig
from .protocol import Manager


class StallCheck:
    """The stall check of one queue; `queue.stalls`."""

    def __init__(self, manager: Manager, queue: str) -> None:
        self._manager = manager
        self._queue = queue

    def configure(
        self,
        enabled: bool = True,
        interval: Duration = 30,
        max_stalls: int = 3,
        grace: Duration = 5,
    ) -> None:
        """Sets all of it, for the jobs that run already too; what is not given has its default
        again.

        A job that was pulled without a lock is suspected when its last heartbeat is `interval`
        ago (its own `stall_timeout`, if it has one) and its start `grace`, and lost if it is
        still silent 5 s later; not if `enabled` is False. A job that is lost for the
        `max_stalls`-th time, by this check or by an expired lock, fails for good, reason
        `stalled`; 0 means no bound.
        """
        self._manager.stalls_configure(self._queue, enabled, interval, max_stalls, grace)

    @property
    def config(self) -> StallConfig:
        """What `configure` has set."""
        return self._manager.stalls_config(self._queue)
