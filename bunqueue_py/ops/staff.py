"""Workers join, fall silent, are heard again and leave; each is an event, once."""

from __future__ import annotations

from ..errors import ManagerClosedError
from ..registry.workers import WorkerEntry
from ..shard.queue_state import QueueState
from ..shard.shard import BROKEN, OPEN
from ..state import State
from .finish import emit
from .push import find_queue
from .recover import enter

WORKER_STALE, WORKER_BACK = "worker_stale", "worker_back"
"""The reasons of `health` events about workers."""


def join(state: State, entry: WorkerEntry) -> None:
    """The worker has started."""
    state.workers.join(entry)
    _tell(state, entry, "worker_joined", None)


def leave(state: State, entry: WorkerEntry, reason: str) -> None:
    """The worker is no longer here: `closed`, `died` or `silent`. Does nothing the second time."""
    if state.workers.leave(entry.id) is not None:
        _tell(state, entry, "worker_left", reason)


def stale(state: State, entry: WorkerEntry, now: int) -> None:
    """The worker has been silent for too long."""
    entry.stale_ms = now
    if state.events.any:
        carried = {"reason": WORKER_STALE, "subject": entry.id}
        state.events.tell_health(now, carried)


def heard(state: State, entry: WorkerEntry, now: int) -> int:
    """The worker is not silent; says whether that is news."""
    entry.suspected_ms = None
    if entry.stale_ms is None:
        return 0
    entry.stale_ms = None
    if state.events.any:
        state.events.tell_health(now, {"reason": WORKER_BACK, "subject": entry.id})
    return 1


def _tell(state: State, entry: WorkerEntry, kind: str, reason: str | None) -> None:
    if not state.events.any:
        return
    try:
        queue: QueueState = find_queue(state, entry.queue)
        shard = queue.shard
        with queue.lock:
            if shard.gate:
                enter(state, shard)
            shard.gate = BROKEN
            emit(state, queue, kind, None, state.now(), {"subject": entry.id, "reason": reason})
            shard.gate = OPEN
    except ManagerClosedError:
        # nobody hears what happens in a closed queue
        return
