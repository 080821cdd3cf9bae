"""What every kind of crew has: whom it tells, and who tells it."""

from __future__ import annotations

from collections.abc import Callable

from ..model.cancel import CANCELLED, STALLED, Holder
from .card import Card
from .job import Job
from .protocol import Backend
from .verdicts import Verdicts

_TOLD = {STALLED: "stalled", CANCELLED: "cancelled"}
"""The worker's events for what others may do to its runs."""


class CrewBase:
    """The part that does not know how handlers run.

    `tell`, `report` and `ended` are the worker's: an event, an error of its own, and that nothing
    will happen any more.
    """

    def __init__(
        self,
        backend: Backend,
        queue: str,
        name: str,
        *,
        tell: Callable[..., None],
        report: Callable[[BaseException], None],
        ended: Callable[[], None],
        verdicts: Verdicts,
    ) -> None:
        self._backend = backend
        self._queue = queue
        self._name = name
        #: what owns the deliveries; who ends one of them in another way tells it so
        self._holder = Holder(name)
        self._holder.told = self._told
        self._holder.progressed = None
        self._tell = tell
        self._report = report
        self._ended = ended
        self._verdicts = verdicts
        #: what is told of the worker while it runs; each kind of crew sets its own
        self.card: Card
        verdicts.failed = lambda: self.card.count(0, 1)
        #: the events that somebody listens to
        self.heard: frozenset[str] = frozenset()
        self.stopping = False

    def hear(self, events: frozenset[str]) -> None:
        """The events that somebody listens to are now these."""
        self.heard = events
        self._holder.progressed = self._progressed if "progress" in events else None

    def _told(self, job_id: str, token: str, reason: str) -> Callable[[], None] | None:
        """A delivery of ours was ended by another; called under the shard's lock. What it returns
        is called after the release."""
        event = _TOLD.get(reason)
        if event in self.heard:
            job = self._job_of(token)
            if job is not None:
                self._tell(event, job)
        return None

    def _progressed(self, job_id: str, token: str) -> None:
        job = self._job_of(token)
        if job is not None:
            self._tell("progress", job)

    def _job_of(self, token: str) -> Job | None:
        """The job that runs under that token; called under the shard's lock."""
        raise NotImplementedError
