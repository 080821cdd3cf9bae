"""Who waits for whom, and what has ended that somebody waits for. Leaf noun."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..sync import LEAF, make_lock

LIVE = -1
"""How a job stands that is pending, gated or active."""
DONE, DEAD, GONE, FREED, KEPT, RETRIED, AGAIN = range(7)
"""A job completed; failed for good; is gone without having completed; is waited for by nobody any
more, and left a proof; left a proof that somebody has come to need; had ended and runs again; and:
everything is to be looked at again."""


class Effect(NamedTuple):
    """What is to be told to those who wait for `job_id`, and in which queue that is or was."""

    kind: int
    job_id: str
    queue: str


def _nothing() -> None:
    """The drain of a state that no manager has."""


class Dependencies:
    """The reverse index, from a job to the jobs that live and wait for it, or have waited: to the
    one, as nearly always, or to several.

    `dependents` may be read without the lock: to skip all of this where nobody waits for anything.
    `pending` are effects to be applied, oldest first, by one drainer at a time. An effect stays in
    there until it is applied, so that an exception loses none; to apply it twice does no harm.
    `drain` is what applies them; the manager sets it.
    """

    __slots__ = ("_head", "_lock", "_since_ms", "_turn", "dependents", "drain", "pending")

    def __init__(self) -> None:
        self._lock = make_lock("dependencies", LEAF)
        #: no guard: whose turn it is to drain
        self._turn = threading.Lock()
        self._head: Effect | None = None
        self._since_ms = 0
        self.dependents: dict[str, str | dict[str, None]] = {}
        self.pending: deque[Effect] = deque()
        self.drain: Callable[[], object] = _nothing

    def register(self, job_id: str, waits_for: Iterable[str]) -> None:
        """From now on that job is told of the end of those."""
        with self._lock:
            dependents = self.dependents
            for other in waits_for:
                known = dependents.setdefault(other, job_id)
                if not isinstance(known, str):
                    known[job_id] = None
                elif known != job_id:
                    # not in place: others read it without the lock
                    dependents[other] = {known: None, job_id: None}

    def unregister(self, job_id: str, waited_for: Iterable[str]) -> list[str]:
        """That job needs to know nothing of those any more; returns those of which now nobody
        needs to."""
        freed: list[str] = []
        with self._lock:
            dependents = self.dependents
            for other in waited_for:
                known = dependents.get(other)
                if known is job_id or known == job_id:
                    del dependents[other]
                    freed.append(other)
                elif isinstance(known, dict) and job_id in known:
                    del known[job_id]
                    if not known:
                        del dependents[other]
                        freed.append(other)
        return freed

    def waiting_for(self, job_id: str) -> tuple[str, ...]:
        """The ids of the jobs that are to be told of the end of that one."""
        known = self.dependents.get(job_id, ())
        # one step of the interpreter, which needs no lock
        return (known,) if isinstance(known, str) else tuple(known)

    def everything(self) -> dict[str, tuple[str, ...]]:
        """All of the reverse index."""
        with self._lock:
            return {
                job_id: (known,) if isinstance(known, str) else tuple(known)
                for job_id, known in self.dependents.items()
            }

    # -- effects -----------------------------------------------------------------------------

    def begin(self, *, force: bool = False) -> bool:
        """Whether the caller is to drain, and then to `end` it: nobody else is at it. `force`:
        whoever was at it may have been broken off."""
        return self._turn.acquire(False) or force

    def end(self) -> None:
        """The caller drains no longer. Whatever was noted meanwhile is for who noted it, or for the
        caller to begin again with."""
        try:
            self._turn.release()
        except RuntimeError:  # a drain was forced, and the other one ended first
            return

    def stuck_for(self, now: int) -> int:
        """For how long somebody has been at the same effect, as far as those who ask this have
        seen; 0 if nobody is at any."""
        head = self.pending[0] if self.pending and self._turn.locked() else None
        if head is None or head is not self._head:
            self._head, self._since_ms = head, now
        return now - self._since_ms

    def check(self) -> None:
        """Asserts its invariants."""
        assert all(self.dependents.values()), "a job that nobody waits for"
